"""The start of a prompt in its slot: how much of what the slot holds is usable.

Upstream: the block `if (slot.state == SLOT_STATE_STARTED)` of `update_slots`, in its order and with
its names. Text only: a position is an index, so `pos_next` is a number of tokens too.

    slot tokens   [ equal to the prompt ............ | other ................... )
                  0                               n_past      slot.prompt.n_tokens
    memory                 [ pos_min .............................. pos_max ]
    needed        [        pos_min_thold             )   as it is where pos_min < pos_min_thold
    checkpoint       [ pos_min ... pos_max ]             else the newest that passes is restored
"""

from collections.abc import Sequence
from typing import Any

from cachesim.engines.causes import Cause
from cachesim.engines.llamacpp import causes
from cachesim.engines.llamacpp.checkpoint_events import CheckpointChecked, CheckpointRestored
from cachesim.engines.llamacpp.checkpoints import (
    Prefix,
    accept_tests,
    erase_checkpoints,
    numbers_of,
)
from cachesim.engines.llamacpp.events import (
    ChunkReused,
    DepthTested,
    FullReprocessing,
    MemoryCut,
    OneTokenNeeded,
    PromptStarted,
)
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Checkpoint, Slot, SlotState
from cachesim.engines.llamacpp.task import Task
from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import UpstreamAbort
from cachesim.units import NO_POS, Count, Token


def start_prompt(server: ServerContext, slot: Slot) -> bool:
    """Settle what is reused; False where the request ends here (upstream: `SLOT_STATE_STARTED`)."""
    task = slot.running
    slot.move(SlotState.PROCESSING_PROMPT)
    server.emit(
        PromptStarted(
            slot=slot.id,
            task=task.id,
            n_ctx_slot=slot.n_ctx,
            n_keep=task.params.n_keep,
            n_tokens=task.n_tokens,
        )
    )
    if not task.tokens:  # an empty prompt: release the slot and send an empty response
        slot.n_prompt_tokens_cache = Count(0)
        server.finish(slot, "empty")
        return False
    if not can_split(server, task):
        return _start_whole(server, slot, task)
    if task.n_tokens >= slot.n_ctx:
        message = (
            f"request ({task.n_tokens} tokens) exceeds the available context size "
            f"({slot.n_ctx} tokens), try increasing it"
        )
        server.finish(slot, "error", "exceed_context_size_error", message)
        return False
    n_past = _common_prefix(server, slot, task)
    n_past = _usable_prefix(server, slot, task, n_past)
    if n_past == task.n_tokens:  # [TAG_PROMPT_LOGITS]
        server.emit(
            OneTokenNeeded(slot=slot.id, task=task.id, n_past=n_past, n_tokens=task.n_tokens)
        )
        n_past, slot.keeps_last_cell = n_past - 1, server.rules.reuse.last_token_after_cut
        task.ledger.apply(causes.LAST_TOKEN, n_past, n_tokens=task.n_tokens)
    _commit(slot, n_past)
    return True


def can_split(server: ServerContext, task: Task) -> bool:
    """Whether a prompt may be read in pieces, and after what is there (upstream's name)."""
    if not task.is_embedded:
        return True
    pooling = server.options.pooling
    return pooling == "last" or (pooling == "rank" and server.rules.requests.rank_is_last)


def _start_whole(server: ServerContext, slot: Slot, task: Task) -> bool:
    """A prompt whose embeddings must come from one ubatch (upstream: `if (!slot.can_split())`).

    Trap: nothing erases the checkpoints of what the slot held; later prompts may find them.
    """
    n_ubatch = server.n_ubatch
    if task.n_tokens > n_ubatch:
        message = (
            f"input ({task.n_tokens} tokens) is too large to process. increase the physical batch "
            f"size (current batch size: {n_ubatch})"
        )
        server.finish(slot, "error", "server_error", message)
        return False
    if task.n_tokens > slot.n_ctx:
        message = (
            f"input ({task.n_tokens} tokens) is larger than the max context size "
            f"({slot.n_ctx} tokens). skipping"
        )
        server.finish(slot, "error", "exceed_context_size_error", message)
        return False
    task.ledger.apply(causes.READ_WHOLE, 0, pooling=server.options.pooling)
    _commit(slot, 0)
    return True


def _why_no_reuse(server: ServerContext, task: Task) -> Cause:
    if task.is_embedded:
        return causes.EMBEDDING_REUSES_NOTHING
    if not server.options.cache_prompt:
        return causes.SERVER_REUSES_NOTHING
    return causes.CACHE_PROMPT_OFF


def _common_prefix(server: ServerContext, slot: Slot, task: Task) -> int:
    """The tokens that slot and prompt share, and chunks that only moved.

    Upstream: `if (slot.task->params.cache_prompt)` and its `else`.
    """
    if not task.params.cache_prompt:
        task.ledger.apply(_why_no_reuse(server, task), 0)
        return 0
    n_past = int(get_common_prefix(slot.prompt.tokens, task.tokens))
    task.ledger.apply(causes.SLOT_TOKENS, n_past, slot=int(slot.id))
    if task.params.n_cache_reuse > 0 and server.can_shift:
        n_past = reuse_chunks(server, slot, task, n_past)
        task.ledger.apply(causes.CHUNK_REUSE, n_past, n_cache_reuse=task.params.n_cache_reuse)
    return n_past


def reuse_chunks(server: ServerContext, slot: Slot, task: Task, n_past: int) -> int:
    """Keep parts of the old prompt that moved towards its start.

        slot     [ equal | deleted | chunk ........ | ... )
                         head_p    head_c           head_c + n_match
        becomes  [ equal | chunk ........ )
                         head_p           head_p + n_match

    Upstream: `while (head_c < slot.prompt.tokens.size() && head_p < input_tokens.size())`.

    Trap: the head of the new prompt moves only with a match, so deletions are recognised, and one
    token inserted or changed ends the reuse. A recurrent state keeps the deleted tokens.
    """
    tokens, prompt = slot.prompt.tokens, task.tokens
    lost = False  # #12160: a removal after the rest has moved takes cells that are to stay
    head_c = head_p = n_past
    while head_c < len(tokens) and head_p < len(prompt):
        n_match = _matching(tokens, head_c, prompt, head_p)
        if n_match < task.params.n_cache_reuse:
            head_c += 1
            continue
        server.emit(
            ChunkReused(slot=slot.id, task=task.id, size=n_match, source=head_c, target=head_p)
        )
        server.contexts.seq_rm(slot.id, head_p, head_c)
        end = head_c + n_match
        if server.rules.reuse.chunk_moves_the_rest:
            end, lost = -1, lost or slot.prompt.approximate is not None
        server.contexts.seq_add(slot.id, head_c, end, head_p - head_c)
        if head_c != head_p:
            slot.prompt.approximate_from(head_p, "chunk-reuse")
        tokens[head_p : head_p + n_match] = tokens[head_c : head_c + n_match]
        n_past += n_match
        head_c += n_match
        head_p += n_match
    if lost:
        slot.prompt.approximate = None  # nobody means that
    return n_past


def _matching(tokens: Sequence[Token], head_c: int, prompt: Sequence[Token], head_p: int) -> int:
    most = min(len(tokens) - head_c, len(prompt) - head_p)
    n_match = 0
    while n_match < most and tokens[head_c + n_match] == prompt[head_p + n_match]:
        n_match += 1
    return n_match


def _usable_prefix(server: ServerContext, slot: Slot, task: Task, n_past: int) -> int:
    """How much of a common prefix memory or a checkpoint can resume.

    Upstream: from `pos_next` to the erasure. Trap: for a window the depth test fails whenever the
    prefix is no longer than the window, although every cell is there. For a recurrent state it
    fails unless the prompt only adds tokens.
    """
    rules = server.rules.reuse
    has_new_tokens = n_past < task.n_tokens  # #24110
    spares = rules.thold_spares_one
    spared = 1 if spares == "always" or (spares != "never" and not has_new_tokens) else 0
    prefix = Prefix(
        n_past=n_past,
        pos_next=n_past,
        prefix_end=n_past,
        pos_min_thold=max(0, n_past - server.n_swa - spared),
        n_prompt=task.n_tokens,
    )
    most = slot.prompt.n_tokens - (1 if rules.depth_test_skips_extensions else 0)
    if 0 < n_past <= most:
        prefix = _deep_enough(server, slot, task, prefix)
    erase_checkpoints(server, slot, task, prefix)
    return prefix.n_past


def _deep_enough(server: ServerContext, slot: Slot, task: Task, prefix: Prefix) -> Prefix:
    """The prefix as it is, from a checkpoint, or not at all (upstream: `do_reset`)."""
    pos_min = server.contexts.target.seq_pos_min(slot.id)
    if pos_min == NO_POS:
        where = "update_slots"
        raise UpstreamAbort(where, "pos_min == -1, but n_past > 0 (#13833)")
    server.emit(
        DepthTested(
            slot=slot.id,
            task=task.id,
            n_past=prefix.n_past,
            slot_tokens=slot.prompt.n_tokens,
            pos_min=pos_min,
            threshold=prefix.pos_min_thold,
            n_swa=server.n_swa,
            rule="pos_min >= pos_min_thold",
            numbers=f"{pos_min} >= {prefix.pos_min_thold}",
        )
    )
    if not pos_min >= prefix.pos_min_thold:
        return prefix
    refused: list[dict[str, Any]] = []
    it = _find_checkpoint(server, slot, task, prefix, refused)
    do_reset = it is None or not restore(server, slot, it)
    why = {"pos_min": pos_min, "threshold": prefix.pos_min_thold, "n_swa": server.n_swa}
    if it is None or do_reset:
        server.emit(FullReprocessing(slot=slot.id, task=task.id))
        task.ledger.apply(causes.FULL_REPROCESSING, 0, **why, checkpoints=refused)
        return prefix.resumed(0, 0)
    task.ledger.apply(causes.MEMORY_DEPTH, 0, **why, checkpoints=refused)
    return _resume_from(server, slot, task, it, prefix)


def _find_checkpoint(
    server: ServerContext,
    slot: Slot,
    task: Task,
    prefix: Prefix,
    refused: list[dict[str, Any]],
) -> Checkpoint | None:
    """The newest checkpoint that passes (upstream: `std::find_if` from `rbegin`).

    Trap: the list is in order of creation, which is not always that of length.
    """
    candidates = slot.prompt.checkpoints[::-1]
    if server.is_exact and server.rules.reuse.exact_search == "longest":
        candidates.sort(key=lambda each: -each.n_tokens)
    tests = accept_tests(server.rules.reuse, exact=server.is_exact)
    for cur in candidates:
        failed = next((test.refused_if for test in tests if not test.passes(cur, prefix)), "")
        numbers = numbers_of(failed, cur, prefix)
        server.emit(
            CheckpointChecked(
                slot=slot.id,
                task=task.id,
                **cur.as_dict(),
                threshold=prefix.pos_min_thold,
                pos_next=prefix.pos_next,
                refused=failed,
                numbers=numbers,
            )
        )
        if not failed:
            return cur
        refused.append({**cur.as_dict(), "refused": failed, "numbers": numbers})
    return None


def restore(server: ServerContext, slot: Slot, cur: Checkpoint) -> bool:
    """Put the saved states back (upstream: `load_tgt`, `load_dft`, `common_speculative_set_state`).

    False where the release falls back to a reset; later ones end the process.
    """
    contexts, state = server.contexts, cur.state
    loaded = contexts.load_target(state.target, slot.id, partial=True)
    loaded = loaded and contexts.load_companion(state.companion, slot.id, partial=True)
    if not loaded and not server.rules.reuse.failed_restore_resets:
        where = "common_prompt_checkpoint::load_tgt"
        raise UpstreamAbort(where, "the saved state does not fit")
    if server.drafter is not None and cur.drafter is not None:
        server.drafter.carry(slot.id, cur.drafter)
    return loaded


def _resume_from(
    server: ServerContext, slot: Slot, task: Task, it: Checkpoint, prefix: Prefix
) -> Prefix:
    """A checkpoint of an exact state gives its tokens; one of a window gives one token less.

    Upstream: `pos_next` and `n_past` after "restore the context checkpoint".

        window of 4        keys of the checkpoint      the next token sees
        restored           [ 29 30 31 32 ]             29 30 31 and itself, 32
        saved at once         29 30 31                 28 29 30 where 31 is resumed

    Trap: the checkpoint that is saved right there holds one key less than the restored one, and
    the depth test asks about the prompt's own position, not about this one.

    Trap: one that was taken before a context shift stands for other tokens by now. What it brings
    back is no approximation that the server meant.
    """
    slot.prompt.approximate = it.approximate
    last = 1 if server.rules.reuse.resumes_behind else 0
    pos_next = min(prefix.pos_next, max(it.pos_min + 1, it.pos_max + last))
    n_past = min(pos_next, slot.prompt.n_tokens, it.n_tokens)
    server.emit(
        CheckpointRestored(
            slot=slot.id,
            task=task.id,
            **it.as_dict(),
            n_past=n_past,
            size=it.size,
            made_by=it.id_task,
        )
    )
    task.ledger.apply(causes.CHECKPOINT_RESTORED, n_past, **it.as_dict())
    if server.rules.checkpoints.split_at_prefix and n_past < prefix.prefix_end:
        slot.split_at = prefix.prefix_end
    return prefix.resumed(n_past, pos_next)


def _commit(slot: Slot, n_past: int) -> None:
    """Fix the cached count and forget the slot's other tokens (upstream: `keep_first(n_past)`)."""
    slot.n_prompt_tokens_cache = Count(n_past)
    slot.n_prompt_tokens_processed = 0
    slot.prompt.keep_first(n_past)
    slot.prompt.take_shape_of(slot.running.tokens)
    if slot.prompt.approximate is not None:
        slot.approximated = slot.prompt.approximate.why


def cut_memory(server: ServerContext, slot: Slot) -> None:
    """Truncate what lies beyond the slot's tokens; not every memory can.

    Upstream: `slot.mem.seq_rm(slot.id, p0, -1)`, at every pass of a prompt; only the first one can
    remove anything. Before #5420 a last token to be read again kept its cell, and got another one.
    """
    task, p0 = slot.running, slot.prompt.n_tokens + (1 if slot.keeps_last_cell else 0)
    slot.keeps_last_cell = False
    removed = server.contexts.try_seq_rm(slot.id, p0)
    server.emit(MemoryCut(slot=slot.id, task=task.id, n_tokens=p0, p0=p0, removed=removed))
    if removed:
        return
    match server.rules.reuse.seq_rm_failure:
        case "abort":
            where = "common_memory::seq_rm"
            raise UpstreamAbort(where, f"sequence {slot.id} cannot be cut at position {p0}")
        case "assert":
            where = "server_slot::prompt_clear"
            raise UpstreamAbort(where, "!is_processing()")
        case "warn":
            return
        case "checkpoint" if _fall_back(server, slot, task, p0):
            return
        case _:
            server.prompt_clear(slot)
            slot.n_prompt_tokens_cache = Count(0)
            task.ledger.apply(causes.SEQ_RM_REFUSED, 0, p0=p0)


def _fall_back(server: ServerContext, slot: Slot, task: Task, p0: int) -> bool:
    """#20428: instead of clearing everything, go back to the newest state before the cut."""
    for cur in reversed(slot.prompt.checkpoints):
        if cur.pos_max < p0 and restore(server, slot, cur):
            n_past = int(cur.n_tokens)
            server.contexts.seq_rm(slot.id, n_past, -1)
            _commit(slot, n_past)
            task.ledger.apply(causes.CHECKPOINT_FALLBACK, n_past, p0=p0, **cur.as_dict())
            return True
    return False
