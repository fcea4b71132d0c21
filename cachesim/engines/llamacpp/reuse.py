"""The start of a prompt: how much of what the slot holds is usable.

slot tokens   [ equal with the prompt ......... | other .................. )
              0                              n_past                   n_tokens
kept          [ as far as memory and checkpoints reach )
              0                                     n_past after the depth test
"""

from collections.abc import Sequence

from cachesim.engines.llamacpp import causes
from cachesim.engines.llamacpp.depth import restore, usable_prefix
from cachesim.engines.llamacpp.events import ChunkReused, MemoryCut, OneTokenNeeded, PromptStarted
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot, SlotState
from cachesim.engines.llamacpp.task import Task
from cachesim.engines.llamacpp.tokens import get_common_prefix
from cachesim.errors import UpstreamAbort
from cachesim.units import Count, Token


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
        task.ledger.apply(causes.LAST_TOKEN, n_past, n_tokens=task.n_tokens)
    commit(slot, n_past)
    return True


def common_prefix(server: ServerContext, slot: Slot, task: Task) -> int:
    """The tokens that slot and prompt share, chunks that only moved included."""
    if not task.params.cache_prompt:
        task.ledger.apply(causes.CACHE_PROMPT_OFF, 0)
        return 0
    n_past = int(get_common_prefix(slot.prompt.tokens, task.tokens))
    task.ledger.apply(causes.SLOT_TOKENS, n_past, slot=int(slot.id))
    if task.params.n_cache_reuse > 0 and server.can_shift:
        chunked = reuse_chunks(server, slot, task, n_past)
        task.ledger.apply(causes.CHUNK_REUSE, chunked, n_cache_reuse=task.params.n_cache_reuse)
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


def _matching(tokens: Sequence[Token], head_c: int, prompt: Sequence[Token], head_p: int) -> int:
    most = min(len(tokens) - head_c, len(prompt) - head_p)
    match = 0
    while match < most and tokens[head_c + match] == prompt[head_p + match]:
        match += 1
    return match


def commit(slot: Slot, n_past: int) -> None:
    """Fix the cached count and forget the slot's other tokens."""
    slot.n_prompt_tokens_cache = Count(n_past)
    slot.n_prompt_tokens_processed = 0
    slot.prompt.keep_first(n_past)
    slot.prompt.take_shape_of(slot.running.tokens)
    if slot.prompt.approximate is not None:
        slot.approximated = slot.prompt.approximate.why


def cut_memory(server: ServerContext, slot: Slot) -> None:
    """Remove what lies behind the slot's tokens; not every memory can."""
    task, p0 = slot.running, slot.prompt.n_tokens
    removed = server.contexts.try_seq_rm(slot.id, p0)
    server.emit(MemoryCut(slot=slot.id, task=task.id, n_tokens=p0, p0=p0, removed=removed))
    if removed:
        return
    match server.rules.reuse.seq_rm_failure:
        case "abort":
            where = "common_memory::seq_rm"
            raise UpstreamAbort(where, f"sequence {slot.id} cannot be cut at position {p0}")
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
    for checkpoint in reversed(slot.prompt.checkpoints):
        if checkpoint.pos_max < p0 and restore(server, slot, checkpoint):
            n_past = int(checkpoint.n_tokens)
            server.contexts.seq_rm(slot.id, n_past, -1)
            commit(slot, n_past)
            task.ledger.apply(causes.CHECKPOINT_FALLBACK, n_past, p0=p0, **checkpoint.as_dict())
            return True
    return False
