"""The batch that a pass fills and decodes (upstream: `server_batch`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cachesim.engines.llamacpp.memory.attention import AttentionCache
from cachesim.engines.llamacpp.memory.batch import Batch, Ubatch
from cachesim.engines.llamacpp.memory.cells import (
    Streams,
    apply_ubatch,
    fill_straight,
    free_cells,
    prepare,
)
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.hybrid import WindowPair, parts_of
from cachesim.engines.llamacpp.memory.module import Memory
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.server_context import ServerContext, apply_lora, budget_left
from cachesim.engines.llamacpp.slot import EMBEDDED, Slot, SlotState, TaskKind
from cachesim.engines.llamacpp.vocabulary.events import BatchDecoded
from cachesim.engines.tokens import LONGEST, as_rope
from cachesim.model.adapters import Strengths
from cachesim.units import Token

# Tokens put into a memory without a network: whole runs, and many steps of known replies, at once.
# Known replies also go through a network at once where `limit_turns` allows it.
#
#     seq 0   [ held ........... )[ count new tokens )
#             0                  start
#
# A memory decides by the positions of a sequence and by the number of cells in use. Without a
# window neither depends on the cells of a ubatch, so a run may be placed at once. With a window old
# cells are replaced by new tokens, so the tokens are placed ubatch by ubatch.
#
#     slot 0   [ prompt )[ sampled, reply .............. | the last token: a step of its own )
#     slot 1   [ prompt )[ sampled, reply ...........                                  )
#                         the same number of steps for all
#
# While every busy slot only generates, and none of them ends, a step changes only the stored
# tokens. The step in which the first of them may end is run as usual.


@dataclass(frozen=True, slots=True)
class Advance:
    """Further tokens of a sequence, from a position on."""

    seq: int
    start: int
    count: int


def advance(context: Context, runs: list[Advance], piece: int = 0) -> bool:
    """Put runs into a context's memory, `piece` tokens at a time (0: a ubatch), without a network.

    False, without any change, if they have to be decoded like any others.
    """
    return context.pass_over(lambda memory: _advance(memory, runs, piece or context.n_ubatch))


def _advance(memory: Memory, runs: list[Advance], n_ubatch: int) -> bool:
    # A run that does not continue its sequence is left to decode, which refuses it.
    if any(memory.seq_pos_max(run.seq) + 1 != run.start for run in runs):
        return False
    # Two runs of one sequence would have to be placed one after the other.
    if len({run.seq for run in runs}) < len(runs):
        return False
    attention, recurrent = parts_of(memory)
    if recurrent is not None and not _is_plain(recurrent, runs):
        return False
    if attention is not None and not _put(attention, runs, n_ubatch):
        return False
    if recurrent is not None:
        # A state is one row: only the position of the last token matters.
        for run in runs:
            recurrent.cells.find_slot(_last_token(run))
    return True


def _is_plain(memory: RecurrentMemory, runs: list[Advance]) -> bool:
    cells = memory.cells
    return memory.n_rs_seq == 0 and all(
        0 <= run.seq < memory.size
        and (cells.tail[run.seq] < 0 or len(cells.seqs[cells.tail[run.seq]]) == 1)
        for run in runs
    )


def _last_token(run: Advance) -> Ubatch:
    """The run as its last token alone: a state only needs its position."""
    return Ubatch(
        rows=(0,),
        n_seqs=1,
        n_seq_tokens=1,
        positions=(run.start + run.count - 1,),
        seqs=((run.seq,),),
    )


def _put(memory: AttentionCache | WindowPair, runs: list[Advance], n_ubatch: int) -> bool:
    if isinstance(memory, AttentionCache):
        # A window replaces old cells by new tokens, so the order of ubatches matters there.
        if memory.mask.kind != "none" or not _has_room(memory.streams, runs):
            return False
        _fill(memory.streams, runs)
        return True
    if len(memory.swa.streams) > 1 or len(runs) > 1 or not _has_room(memory.streams, runs):
        return False
    pieces = _pieces(runs[0], n_ubatch)
    slots = prepare(memory.swa.streams, pieces)
    if slots is None:
        return False
    _fill(memory.streams, runs)
    for slot, piece in zip(slots, pieces, strict=True):
        apply_ubatch(memory.swa.streams, slot, piece)
    return True


def _has_room(streams: Streams, runs: list[Advance]) -> bool:
    if streams.unified:
        return sum(run.count for run in runs) <= free_cells(streams, 0)
    return all(run.count <= free_cells(streams, run.seq) for run in runs)


def _fill(streams: Streams, runs: list[Advance]) -> None:
    for run in runs:
        fill_straight(streams, 0 if streams.unified else run.seq, run.seq, run.start, run.count)


def _pieces(run: Advance, n_ubatch: int) -> list[Ubatch]:
    pieces = []
    for at in range(0, run.count, n_ubatch):
        count = min(n_ubatch, run.count - at)
        first = run.start + at
        pieces.append(
            Ubatch(
                rows=tuple(range(count)),
                n_seqs=1,
                n_seq_tokens=count,
                positions=tuple(range(first, first + count)),
                seqs=((run.seq,),) * count,
            )
        )
    return pieces


def pass_over_replies(server: ServerContext) -> None:
    """Steps that only append known tokens, run at once."""
    target = server.contexts.target
    # Drafts and new requests need decisions after every token.
    if server.most_turns < 2 or server.may_draft or server.queue:
        return
    busy = [slot for slot in server.slots if slot.is_processing]
    turns = min((_turns(server, slot) for slot in busy), default=0)
    turns = min(turns, server.most_turns)
    if target.computes:
        # They are decoded as one batch, which they have to fit.
        turns = min(turns, server.n_batch // max(len(busy), 1))
    if turns < 2:
        return
    runs = [Advance(int(slot.id), int(slot.prompt.n_tokens), turns) for slot in busy]
    if target.computes:
        if not _decode_replies(server, busy, runs):
            return
    elif not advance(target, runs, piece=1):
        return
    # What each of the skipped steps would have stored: the sampled token enters the slot with the
    # next step, so the last one stays outside.
    for at, slot in enumerate(busy):
        reply: Sequence[Token] = slot.running.params.reply or ()
        first = slot.n_decoded
        slot.prompt.tokens += [slot.sampled]
        slot.prompt.tokens += reply[first : first + turns - 1]
        slot.generated += reply[first : first + turns]
        slot.rows += [target.logits(at * turns + row) for row in range(turns)]
        slot.sampled = slot.generated[-1]
    slots = tuple(int(slot.id) for slot in busy)
    server.emit(BatchDecoded(n_tokens=turns * len(busy), slots=slots))


def _decode_replies(server: ServerContext, busy: list[Slot], runs: list[Advance]) -> bool:
    """Decode known tokens of all busy slots as one batch; False if they need a step each.

    A token's logits and states do not depend on the batch it is decoded in, in either arithmetic.
    """
    target = server.contexts.target
    attention, recurrent = parts_of(target.memory)
    # A window reclaims cells step by step, and a batch has one set of adapters.
    if isinstance(attention, WindowPair) or any(slot.lora != busy[0].lora for slot in busy):
        return False
    if attention is not None and (
        attention.mask.kind != "none" or not _has_room(attention.streams, runs)
    ):
        return False
    if recurrent is not None and not _is_plain(recurrent, runs):
        return False
    parts = []
    for run, slot in zip(runs, busy, strict=True):
        known = slot.running.params.reply or ()
        tokens = [slot.sampled, *known[slot.n_decoded : slot.n_decoded + run.count - 1]]
        parts.append(Run(run.seq, run.start, tokens, output=True).batch(0, run.count))
    apply_lora(server, busy[0].lora)
    target.all_outputs = False
    return target.decode(Batch.joined(parts)) == 0


def _turns(server: ServerContext, slot: Slot) -> int:
    # A prompt to process, or a draft to verify: its next step is a decision.
    if slot.state is not SlotState.GENERATING or slot.draft:
        return 0
    left, reply = budget_left(server, slot), slot.running.params.reply
    computes = server.contexts.target.computes
    if left is None or reply is None or (not computes and as_rope(reply) is None):
        return 0
    # The last token before a limit is left to a step of its own, which ends the request.
    return min(left, slot.n_ctx - 1 - slot.prompt.n_tokens) - 1


@dataclass(slots=True)
class Run:
    """Tokens of one slot, in a batch."""

    seq: int
    start: int  # the position of its first token
    tokens: Sequence[Token]
    output: bool  # logits of all tokens
    last: bool = False  # logits of the last token

    def batch(self, low: int, high: int) -> Batch:
        """A range of its tokens, as a batch for decode."""
        count = high - low
        ends = self.last and high == len(self.tokens)
        outputs = (self.output,) * (count - ends) + (True,) * ends
        return Batch(
            tokens=tuple(self.tokens[low:high]),
            positions=range(self.start + low, self.start + high),
            seqs=((self.seq,),) * count,
            outputs=outputs,
        )

    @property
    def is_named(self) -> bool:
        """True if the tokens are those of a rope, which no network can decode."""
        return self.tokens[0] >= LONGEST or as_rope(self.tokens) is not None


@dataclass(slots=True)
class ServerBatch:
    """The tokens that this pass will decode: runs in order.

    Upstream: `server_batch`.
    """

    runs: list[Run] = field(default_factory=list)
    length: int = 0
    lora: Strengths | None = None  # of its first slot; others join with the same
    kind: TaskKind = "completion"  # of its first slot; others join with the same

    def admits(self, slot: Slot) -> bool:
        """True if a slot may join the others (upstream: `can_batch_with`)."""
        kind = slot.running.kind
        # The first slot fixes adapters and kind of the batch; others wait for a later pass.
        if self.lora is None:
            self.lora, self.kind = slot.lora, kind
            return True
        return self.lora == slot.lora and self.kind == kind

    @property
    def embeds(self) -> bool:
        """True if every token has an output (upstream: `llama_set_embeddings`)."""
        return self.kind in EMBEDDED

    def __len__(self) -> int:
        return self.length

    def add(self, slot: Slot, tokens: Sequence[Token], *, output: bool) -> int:
        """Append tokens after the slot's own, and to them; return the index of the first."""
        first, held = self.length, slot.prompt.tokens
        self.runs.append(Run(slot.id, len(held), tokens, output))
        self.length += len(tokens)
        held += tokens
        return first

    def want_last(self) -> None:
        """Request the logits of the last token."""
        self.runs[-1].last = True

    def piece(self, begin: int, end: int) -> "Piece":
        """A range of the batch: its runs, each with the part inside."""
        if begin == 0 and end == self.length:
            return Piece([(run, 0, len(run.tokens)) for run in self.runs if run.tokens])
        inside, at = [], 0
        for run in self.runs:
            low, high = max(begin - at, 0), min(end - at, len(run.tokens))
            if low < high:
                inside.append((run, low, high))
            at += len(run.tokens)
        return Piece(inside)


@dataclass(slots=True)
class Piece:
    """A part of a batch that is decoded at once: `[low, high)` of each of its runs."""

    parts: list[tuple[Run, int, int]]

    def slots(self) -> tuple[int, ...]:
        """The slots of its runs, in order of their ids."""
        if len(self.parts) == 1:
            return (self.parts[0][0].seq,)
        return tuple(sorted({run.seq for run, _, _ in self.parts}))

    def batch(self) -> Batch:
        """The piece as a batch for decode."""
        if len(self.parts) == 1:
            run, low, high = self.parts[0]
            return run.batch(low, high)
        return Batch.joined(run.batch(low, high) for run, low, high in self.parts)

    def named(self) -> list[Advance] | None:
        """The piece as runs, or None if a token is not of a rope."""
        if any(not run.is_named for run, _, _ in self.parts):
            return None
        return [Advance(run.seq, run.start + low, high - low) for run, low, high in self.parts]
