"""Filling the batch of one turn, and decoding it piece by piece."""

from collections.abc import Sequence
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
from cachesim.engines.llamacpp.memory.advance import Advance
from cachesim.engines.llamacpp.memory.batch import Batch, Ids
from cachesim.engines.llamacpp.reuse import cut_memory, start_prompt
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot, SlotState
from cachesim.engines.llamacpp.swap import try_clear_idle_slots
from cachesim.engines.rope import LONGEST, as_rope
from cachesim.errors import UpstreamAbort
from cachesim.units import Token

SERVER_ERROR: Final = "server_error"


@dataclass(slots=True, kw_only=True)
class Run:
    """Tokens of one slot, in a batch."""

    seq: int
    start: int  # the position of the first
    tokens: Sequence[Token]
    output: bool  # the logits of all of them are wanted
    last: bool = False  # those of the last one are

    @property
    def is_named(self) -> bool:
        """Whether the tokens are places in texts, which no network looks up."""
        return self.tokens[0] >= LONGEST or as_rope(self.tokens) is not None


@dataclass(slots=True)
class PendingBatch:
    """What this turn will decode, in order: runs of tokens, one after the other."""

    runs: list[Run] = field(default_factory=list)
    length: int = 0

    def __len__(self) -> int:
        return self.length

    def add(self, slot: Slot, tokens: Sequence[Token], *, output: bool) -> int:
        """Append tokens behind the slot's own, which they join; the index of the first."""
        first = self.length
        start = len(slot.prompt.tokens)
        self.runs.append(Run(seq=int(slot.id), start=start, tokens=tokens, output=output))
        self.length += len(tokens)
        slot.prompt.tokens += tokens
        return first

    def want_last(self) -> None:
        """The logits of the last token are wanted."""
        self.runs[-1].last = True

    def between(self, begin: int, end: int) -> list[tuple[Run, int, int]]:
        """The runs in a piece of it, each with the part of it that is inside."""
        inside, at = [], 0
        for run in self.runs:
            low, high = max(begin - at, 0), min(end - at, len(run.tokens))
            if low < high:
                inside.append((run, low, high))
            at += len(run.tokens)
        return inside

    def slots(self, begin: int, end: int) -> tuple[int, ...]:
        """The slots in a piece of it."""
        return tuple(sorted({run.seq for run, _, _ in self.between(begin, end)}))

    def view(self, begin: int, end: int) -> Batch:
        """A piece of it, as decode takes it."""
        tokens: list[Token] = []
        positions: list[int] = []
        seqs: list[Ids] = []
        outputs: list[bool] = []
        for run, low, high in self.between(begin, end):
            tokens += run.tokens[low:high]
            positions += range(run.start + low, run.start + high)
            seqs += [(run.seq,)] * (high - low)
            outputs += [run.output] * (high - low)
            if run.last and high == len(run.tokens):
                outputs[-1] = True
        return Batch(
            tokens=tuple(tokens),
            positions=tuple(positions),
            seqs=tuple(seqs),
            outputs=tuple(outputs),
        )

    def named(self, begin: int, end: int) -> list[Advance] | None:
        """A piece of it as runs, where all its tokens are only names."""
        parts = self.between(begin, end)
        if any(not run.is_named for run, _, _ in parts):
            return None
        return [Advance(run.seq, run.start + low, high - low) for run, low, high in parts]


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
    batch.add(slot, task.tokens[start:end], output=False)
    slot.n_prompt_tokens_processed += end - start
    if end == task.n_tokens:
        if not len(batch):  # what was swapped into a busy slot may hold the whole prompt (trap 1)
            where = "update_slots"
            raise UpstreamAbort(where, "batch.n_tokens > 0 when a prompt is done")
        slot.move(SlotState.DONE_PROMPT)
        slot.i_batch = len(batch) - 1
        batch.want_last()
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
    ret = _decode(server, batch, begin, end)
    if ret == 0:
        server.emit(BatchDecoded(n_tokens=end - begin, slots=batch.slots(begin, end)))
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


def _decode(server: ServerContext, batch: PendingBatch, begin: int, end: int) -> int:
    """Put a piece into the target's memory, and then into its companion's."""
    target = server.contexts.target
    if not target.computes and server.drafter is None:
        named = batch.named(begin, end)
        if named is not None and target.advance(named):
            return 0
    view = batch.view(begin, end)
    ret = target.decode(view)
    if ret == 0:
        _feed_companion(server, view)
    return ret


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
