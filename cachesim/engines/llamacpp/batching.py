"""Filling the batch of one turn, and decoding it piece by piece."""

from dataclasses import dataclass, field
from typing import Final

from cachesim.engines.llamacpp.checkpointing import (
    Filled,
    maybe_create_checkpoint,
    next_stop,
)
from cachesim.engines.llamacpp.events import (
    BatchDecoded,
    BatchRetried,
    CompanionFailed,
    ParentCopied,
)
from cachesim.engines.llamacpp.memory.batch import Batch, Ids
from cachesim.engines.llamacpp.reuse import cut_memory, start_prompt
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot, SlotState
from cachesim.engines.llamacpp.swap import try_clear_idle_slots
from cachesim.errors import UpstreamAbort
from cachesim.units import Token

SERVER_ERROR: Final = "server_error"


@dataclass(slots=True)
class PendingBatch:
    """What this turn will decode, in order."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    seqs: list[Ids] = field(default_factory=list)
    outputs: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, slot: Slot, tokens: list[Token], *, output: bool) -> int:
        """Append tokens behind the slot's own, which they join; the index of the first."""
        first, start = len(self.tokens), len(slot.prompt.tokens)
        self.tokens += tokens
        self.positions += range(start, start + len(tokens))
        self.seqs += [(int(slot.id),)] * len(tokens)
        self.outputs += [output] * len(tokens)
        slot.prompt.tokens += tokens
        return first

    def view(self, begin: int, end: int) -> Batch:
        """A piece of it, as decode takes it."""
        return Batch(
            tokens=tuple(self.tokens[begin:end]),
            positions=tuple(self.positions[begin:end]),
            seqs=tuple(self.seqs[begin:end]),
            outputs=tuple(self.outputs[begin:end]),
        )


def add_sampled_tokens(server: ServerContext, batch: PendingBatch) -> None:
    """Generating slots come first, in order of their ids, with their drafts behind them."""
    for slot in server.slots:
        if slot.state is SlotState.GENERATING:
            slot.i_batch = batch.add(slot, [slot.sampled, *slot.draft], output=True)


def add_prompts(server: ServerContext, batch: PendingBatch) -> None:
    """Prompts follow, in order of slot ids: a low id with a long prompt takes the whole batch."""
    if len(batch) > 0 and not server.options.cont_batching:
        return
    for slot in server.slots:
        if slot.state is SlotState.STARTED and not start_prompt(server, slot):
            continue
        if slot.state is SlotState.PROCESSING_PROMPT:
            _add_prompt(server, slot, batch)
        if slot.is_processing and len(batch) >= server.options.n_batch:
            break


def _add_prompt(server: ServerContext, slot: Slot, batch: PendingBatch) -> None:
    """Put in as much of one prompt as fits before the next stop.

    prompt   [ cached | ... | this batch ) next stop ... | end offsets )
                            start        end
    """
    task = slot.running
    cut_memory(server, slot)
    start = len(slot.prompt.tokens)
    room = max(0, server.options.n_batch - len(batch))
    end = min(next_stop(server, slot, task), start + room)
    batch.add(slot, list(task.tokens[start:end]), output=False)
    slot.n_prompt_tokens_processed += end - start
    if end == task.n_tokens:
        if not len(batch):  # what was swapped into a busy slot may hold the whole prompt (trap 1)
            where = "update_slots"
            raise UpstreamAbort(where, "batch.n_tokens > 0 when a prompt is done")
        slot.move(SlotState.DONE_PROMPT)
        slot.i_batch = len(batch) - 1
        batch.outputs[-1] = True
    filled = Filled(start=start, end=end, batch=len(batch))
    maybe_create_checkpoint(server, slot, task, filled)


class Failure(Exception):  # noqa: N818 - it ends the pass, it is not our error
    """A decode failed for good: all busy slots get this error."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def decode_piece(
    server: ServerContext, batch: PendingBatch, begin: int, n_batch: int
) -> tuple[int, int]:
    """Decode one piece; the end of what was decoded, and the size of the next piece.

    No room: an idle slot is purged, or the piece is halved, and the same tokens come again.
    """
    end = min(begin + n_batch, len(batch))
    view = batch.view(begin, end)
    ret = server.contexts.target.decode(view)
    if ret == 0:
        slots = tuple(sorted({ids[0] for ids in batch.seqs[begin:end]}))
        server.emit(BatchDecoded(n_tokens=end - begin, slots=slots))
        _feed_companion(server, view)
        return end, server.options.n_batch
    if n_batch == 1 and ret == 1:
        raise Failure(SERVER_ERROR, "Context size has been exceeded.")
    if ret == -1:
        raise Failure(SERVER_ERROR, "Invalid input batch.")
    if ret < -1:
        raise Failure(SERVER_ERROR, "Compute error.")
    if not try_clear_idle_slots(server):
        n_batch //= 2
    server.emit(BatchRetried(offset=begin, n_batch=n_batch, ret=ret))
    return begin, n_batch


def _feed_companion(server: ServerContext, view: Batch) -> None:
    """Run the companion over what the target just decoded, so that it stays in step."""
    if server.drafter is None:
        return
    ret = server.drafter.process(view, server.contexts.target)
    if ret != 0:
        server.emit(CompanionFailed(ret=ret))
        fatal = server.rules.slots.process_failure_is_fatal
        raise Failure(SERVER_ERROR if fatal else "", "failed to process speculative batch")


def fail_all(server: ServerContext, failure: Failure) -> None:
    """Every busy slot gets the error, is released and cleared; no error: the pass is over."""
    if not failure.error:
        return
    for slot in server.slots:
        if slot.is_processing:
            server.finish(slot, "error", failure.error, failure.message)
            server.prompt_clear(slot)


def copy_to_children(server: ServerContext) -> None:
    """Children of a prompt that is done take over its parent's state (`copy_state_to`)."""
    for slot in server.slots:
        if slot.state is not SlotState.DONE_PROMPT or not slot.running.is_parent:
            continue
        for child in server.slots:
            waits = child.state is SlotState.WAIT_OTHER
            if not waits or child.running.id_parent != slot.running.id:
                continue
            server.contexts.replace(slot.id, child.id)
            child.prompt = slot.prompt.clone()
            child.n_prompt_tokens_cache = slot.n_prompt_tokens_cache
            child.n_prompt_tokens_processed = slot.n_prompt_tokens_processed
            child.approximated = slot.approximated
            child.i_batch = slot.i_batch
            child.running.ledger = slot.running.ledger
            child.move(SlotState.DONE_PROMPT)
            server.emit(
                ParentCopied(
                    slot=child.id,
                    task=child.running.id,
                    parent=slot.id,
                    n_tokens=slot.prompt.n_tokens,
                )
            )
