"""The start of a prompt: how much of what the slot holds is usable.

slot tokens   [ equal with the prompt ......... | other .................. )
              0                              n_past                   n_tokens
kept          [ as far as memory and checkpoints reach )
              0                                     n_past after the depth test
"""

from dataclasses import dataclass

from cachesim.engines.llamacpp.checkpoint import Checkpoint
from cachesim.engines.llamacpp.events import (
    CheckpointChecked,
    CheckpointErased,
    CheckpointKept,
    CheckpointRestored,
    ChunkReused,
    DepthTested,
    FullReprocessing,
    MemoryCut,
    OneTokenNeeded,
    PromptStarted,
)
from cachesim.engines.llamacpp.rules import ReuseRules
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot, SlotState
from cachesim.engines.llamacpp.task import Task
from cachesim.engines.llamacpp.tokens import get_common_prefix
from cachesim.errors import UpstreamAbort
from cachesim.units import NO_POS, Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What the depth test is about: a common prefix, and how far down memory must reach."""

    n_past: int
    pos_next: int  # the position to go on at; a restored checkpoint lowers it
    prefix_end: int  # the same before any checkpoint
    thold: int


def start_prompt(server: ServerContext, slot: Slot) -> bool:
    """Settle what is reused; False if the request ended here.

    Upstream: the STARTED part of `update_slots`.
    """
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
    if not task.tokens:
        slot.n_prompt_tokens_cache = Count(0)
        server.finish(slot, "empty")
        return False
    if task.n_tokens >= slot.n_ctx:
        message = (
            f"request ({task.n_tokens} tokens) exceeds the available context size "
            f"({slot.n_ctx} tokens), try increasing it"
        )
        server.finish(slot, "error", "exceed_context_size_error", message)
        return False
    n_past = common_prefix(server, slot, task)
    n_past = usable_prefix(server, slot, task, n_past)
    if n_past == task.n_tokens:
        server.emit(
            OneTokenNeeded(slot=slot.id, task=task.id, n_past=n_past, n_tokens=task.n_tokens)
        )
        n_past -= 1
        task.ledger.apply("last-token", n_past, n_tokens=task.n_tokens)
    commit(server, slot, task, n_past)
    return True


def common_prefix(server: ServerContext, slot: Slot, task: Task) -> int:
    """The tokens that slot and prompt share, chunks that only moved included."""
    if not task.params.cache_prompt:
        task.ledger.apply("cache-prompt-off", 0)
        return 0
    n_past = int(get_common_prefix(slot.prompt.tokens, task.tokens))
    task.ledger.apply("slot-tokens", n_past, slot=slot.id)
    if task.params.n_cache_reuse > 0 and server.can_shift:
        chunked = reuse_chunks(server, slot, task, n_past)
        task.ledger.apply("chunk-reuse", chunked, n_cache_reuse=task.params.n_cache_reuse)
        n_past = chunked
    return n_past


def reuse_chunks(server: ServerContext, slot: Slot, task: Task, n_past: int) -> int:
    """Keep parts of the old prompt that moved towards its start.

        slot     [ equal | deleted | chunk ........ | ... )
                         head_p    head_c           head_c + m
        becomes  [ equal | chunk ........ )
                         head_p           head_p + m

    The head of the new prompt moves only with a match: deletions are recognised, one inserted or
    changed token ends the reuse. A recurrent state moves its position and keeps the deleted
    tokens.
    """
    tokens, prompt = slot.prompt.tokens, task.tokens
    head_c = head_p = n_past
    while head_c < len(tokens) and head_p < len(prompt):
        match = _matching(tokens, head_c, prompt, head_p)
        if match < task.params.n_cache_reuse:
            head_c += 1
            continue
        server.emit(
            ChunkReused(slot=slot.id, task=task.id, size=match, source=head_c, target=head_p)
        )
        server.contexts.seq_rm(slot.id, head_p, head_c)
        server.contexts.seq_add(slot.id, head_c, head_c + match, head_p - head_c)
        if head_c != head_p:
            slot.prompt.approximate_from(head_p, "chunk-reuse")
        tokens[head_p : head_p + match] = tokens[head_c : head_c + match]
        n_past += match
        head_c += match
        head_p += match
    return n_past


def _matching(tokens: list[int], head_c: int, prompt: tuple[int, ...], head_p: int) -> int:
    most = min(len(tokens) - head_c, len(prompt) - head_p)
    match = 0
    while match < most and tokens[head_c + match] == prompt[head_p + match]:
        match += 1
    return match


def usable_prefix(server: ServerContext, slot: Slot, task: Task, n_past: int) -> int:
    """Does memory reach back far enough to go on at `n_past`? If not, which checkpoint does?

    Traps: for a window the test holds whenever the prefix is no longer than the window, although
    every cell is there; for a recurrent state it holds unless the prompt only adds tokens.
    """
    rules = server.rules.reuse
    spared = 1 if rules.thold_spares_one_token and n_past >= task.n_tokens else 0
    prefix = Prefix(
        n_past=n_past,
        pos_next=n_past,
        prefix_end=n_past,
        thold=max(0, n_past - server.n_swa - spared),
    )
    most = slot.prompt.n_tokens - (1 if rules.depth_test_skips_extensions else 0)
    if 0 < n_past <= most:
        prefix = _test_depth(server, slot, task, prefix)
    _erase_checkpoints(server, slot, task, prefix)
    return prefix.n_past


def _test_depth(server: ServerContext, slot: Slot, task: Task, prefix: Prefix) -> Prefix:
    pos_min = server.contexts.target.seq_pos_min(slot.id)
    if pos_min == NO_POS:
        raise UpstreamAbort("update_slots", "pos_min == -1, but n_past > 0 (#13833)")
    server.emit(
        DepthTested(
            slot=slot.id,
            task=task.id,
            n_past=prefix.n_past,
            slot_tokens=slot.prompt.n_tokens,
            pos_min=pos_min,
            threshold=prefix.thold,
            n_swa=server.n_swa,
        )
    )
    if pos_min < prefix.thold:
        return prefix
    refused: list[dict[str, object]] = []
    checkpoint = _find_checkpoint(server, slot, task, prefix, refused)
    detail = {"pos_min": pos_min, "threshold": prefix.thold, "n_swa": server.n_swa}
    if checkpoint is None or not _restore(server, slot, checkpoint):
        server.emit(FullReprocessing(slot=slot.id, task=task.id))
        task.ledger.apply("full-reprocessing", 0, **detail, checkpoints=refused)
        return Prefix(n_past=0, pos_next=0, prefix_end=prefix.prefix_end, thold=prefix.thold)
    task.ledger.apply("memory-depth", 0, **detail, checkpoints=refused)
    return _continue_from(server, slot, task, checkpoint, prefix)


def _find_checkpoint(
    server: ServerContext,
    slot: Slot,
    task: Task,
    prefix: Prefix,
    refused: list[dict[str, object]],
) -> Checkpoint | None:
    """The newest checkpoint that passes; the list is in order of creation, not of length."""
    rules, exact = server.rules.reuse, server.is_exact
    candidates = slot.prompt.checkpoints[::-1]
    if exact and rules.exact_search == "longest":
        candidates.sort(key=lambda each: -each.n_tokens)
    for checkpoint in candidates:
        reason = refusal(rules, checkpoint, prefix, n_prompt=task.n_tokens, exact=exact)
        server.emit(
            CheckpointChecked(
                slot=slot.id,
                task=task.id,
                **checkpoint.as_dict(),
                threshold=prefix.thold,
                pos_next=prefix.pos_next,
                refused=reason,
            )
        )
        if not reason:
            return checkpoint
        refused.append({**checkpoint.as_dict(), "refused": reason})
    return None


def refusal(
    rules: ReuseRules, checkpoint: Checkpoint, prefix: Prefix, *, n_prompt: int, exact: bool
) -> str:
    """The test that a checkpoint fails, in words; empty if it passes."""
    how = rules.exact_search if exact else "threshold"
    if how == "pos_max":
        return "" if checkpoint.pos_max <= prefix.pos_next else "pos_max > pos_next"
    if how == "inside":
        return "" if checkpoint.pos_max < prefix.thold else "pos_max >= pos_min_thold"
    if how in {"pos_end", "longest"}:
        if checkpoint.n_tokens > n_prompt - 1:
            return "n_tokens > prompt - 1"
        return "" if checkpoint.pos_end <= prefix.prefix_end else "pos_end > prefix_end"
    if not (checkpoint.pos_min < prefix.thold or checkpoint.pos_min == 0):
        return "pos_min >= pos_min_thold"
    if rules.search_refuses_beyond and checkpoint.pos_max > prefix.pos_next:
        return "pos_max > pos_next"
    if rules.exact_search == "pos_end" and checkpoint.pos_end > prefix.prefix_end:
        return "pos_end > prefix_end"
    return ""


def _restore(server: ServerContext, slot: Slot, checkpoint: Checkpoint) -> bool:
    """Put the saved states back; False where the release falls back to reading everything."""
    contexts, state = server.contexts, checkpoint.state
    loaded = contexts.load_target(state.target, slot.id, partial=True) and contexts.load_companion(
        state.companion, slot.id, partial=True
    )
    if not loaded and not server.rules.reuse.failed_restore_resets:
        raise UpstreamAbort("common_prompt_checkpoint::load_tgt", "the state does not fit")
    return loaded


def _continue_from(
    server: ServerContext, slot: Slot, task: Task, checkpoint: Checkpoint, prefix: Prefix
) -> Prefix:
    """A checkpoint of an exact state gives its tokens; one of a window gives one token less."""
    pos_next = min(prefix.pos_next, max(checkpoint.pos_min + 1, checkpoint.pos_max))
    n_past = min(min(pos_next, slot.prompt.n_tokens), checkpoint.n_tokens)
    server.emit(
        CheckpointRestored(
            slot=slot.id,
            task=task.id,
            **checkpoint.as_dict(),
            n_past=n_past,
            size=checkpoint.size,
        )
    )
    task.ledger.apply("checkpoint-restored", n_past, **checkpoint.as_dict())
    if server.rules.checkpoints.split_at_prefix and n_past < prefix.prefix_end:
        slot.split_at = prefix.prefix_end
    return Prefix(
        n_past=n_past, pos_next=pos_next, prefix_end=prefix.prefix_end, thold=prefix.thold
    )


def _erase_checkpoints(server: ServerContext, slot: Slot, task: Task, prefix: Prefix) -> None:
    """Drop the checkpoints that do not fit the new prompt (#20671).

    Trap: the released rule keeps one whose last token lies exactly at `pos_next`, and every one
    at position 0, although that token may differ from the new prompt's.
    """
    kept = []
    for checkpoint in slot.prompt.checkpoints:
        if not is_erased(
            server.rules.reuse, checkpoint, prefix, n_prompt=task.n_tokens, exact=server.is_exact
        ):
            kept.append(checkpoint)
            _report_overlong(server, slot, checkpoint, prefix)
            continue
        server.emit(
            CheckpointErased(
                slot=slot.id,
                task=task.id,
                **checkpoint.as_dict(),
                n_swa=server.n_swa,
                pos_next=prefix.pos_next,
                size=checkpoint.size,
            )
        )
    slot.prompt.checkpoints = kept


def _report_overlong(
    server: ServerContext, slot: Slot, checkpoint: Checkpoint, prefix: Prefix
) -> None:
    """Tell of a checkpoint that stays though the prompt does not begin with all its tokens.

    Upstream prints nothing here: that is how the wrong states of the trap above go unnoticed.
    """
    if checkpoint.n_tokens > prefix.prefix_end:
        server.emit(
            CheckpointKept(
                slot=slot.id,
                task=slot.running.id,
                **checkpoint.as_dict(),
                pos_next=prefix.pos_next,
                shared=prefix.prefix_end,
            )
        )


def is_erased(
    rules: ReuseRules, checkpoint: Checkpoint, prefix: Prefix, *, n_prompt: int, exact: bool
) -> bool:
    """Whether a prompt with this common prefix erases a checkpoint."""
    beyond = checkpoint.pos_max > prefix.pos_next
    match rules.erasure:
        case "equal":
            return checkpoint.pos_max >= prefix.pos_next
        case "pos_end":
            return checkpoint.pos_end > prefix.prefix_end or beyond
        case "prefix":
            return checkpoint.n_tokens > prefix.prefix_end
        case "diverged":
            return checkpoint.n_tokens > prefix.prefix_end if exact else beyond
        case "prompt":
            return checkpoint.pos_max > n_prompt
        case "beyond":
            return beyond


def commit(server: ServerContext, slot: Slot, task: Task, n_past: int) -> None:
    """Fix the cached count and forget the slot's other tokens."""
    slot.n_prompt_tokens_cache = Count(n_past)
    slot.n_prompt_tokens_processed = 0
    slot.prompt.keep_first(n_past)
    if slot.prompt.approximate is not None:
        slot.approximated = slot.prompt.approximate.why
    task.ledger.apply("commit", n_past)


def cut_memory(server: ServerContext, slot: Slot) -> None:
    """Remove what lies behind the slot's tokens; not every memory can (step 4.7 upstream)."""
    task, p0 = slot.running, slot.prompt.n_tokens
    removed = server.contexts.try_seq_rm(slot.id, p0)
    server.emit(MemoryCut(slot=slot.id, task=task.id, n_tokens=p0, p0=p0, removed=removed))
    if removed:
        return
    match server.rules.reuse.seq_rm_failure:
        case "abort":
            raise UpstreamAbort("common_memory::seq_rm", f"cannot cut the sequence at {p0}")
        case "warn":
            return
        case "checkpoint" if _fall_back(server, slot, task, p0):
            return
        case _:
            server.prompt_clear(slot)
            slot.n_prompt_tokens_cache = Count(0)
            task.ledger.apply("seq-rm-refused", 0, p0=p0)


def _fall_back(server: ServerContext, slot: Slot, task: Task, p0: int) -> bool:
    """#20428: instead of clearing everything, go back to the newest state before the cut."""
    for checkpoint in reversed(slot.prompt.checkpoints):
        if checkpoint.pos_max < p0 and _restore(server, slot, checkpoint):
            n_past = int(checkpoint.n_tokens)
            server.contexts.seq_rm(slot.id, n_past, -1)
            commit(server, slot, task, n_past)
            return True
    return False
