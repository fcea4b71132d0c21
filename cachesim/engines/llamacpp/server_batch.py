"""The batch that a pass fills and decodes (upstream: `server_batch`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cachesim.engines.llamacpp.forced import Advance
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.slot import Slot
from cachesim.engines.llamacpp.task import EMBEDDED, TaskKind
from cachesim.engines.rope import LONGEST, as_rope
from cachesim.model.adapters import Strengths
from cachesim.units import Token


@dataclass(slots=True)
class Run:
    """Tokens of one slot, in a batch."""

    seq: int
    start: int  # the position of the first
    tokens: Sequence[Token]
    output: bool  # the logits of all of them are wanted
    last: bool = False  # those of the last one are

    def batch(self, low: int, high: int) -> Batch:
        """Some of its tokens, as decode takes them."""
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
        """True if the tokens are places in texts, which no network looks up."""
        return self.tokens[0] >= LONGEST or as_rope(self.tokens) is not None


@dataclass(slots=True)
class ServerBatch:
    """The tokens that this pass will decode, in order: runs, one after the other.

    Upstream: `server_batch`.
    """

    runs: list[Run] = field(default_factory=list)
    length: int = 0
    lora: Strengths | None = None  # of the first slot in it: others join with the same
    kind: TaskKind = "completion"  # likewise

    def admits(self, slot: Slot) -> bool:
        """True if a slot may join those in it (upstream: `can_batch_with`)."""
        kind = slot.running.kind
        if self.lora is None:
            self.lora, self.kind = slot.lora, kind
            return True
        return self.lora == slot.lora and self.kind == kind

    @property
    def embeds(self) -> bool:
        """True if the output of every token is wanted (upstream: `llama_set_embeddings`)."""
        return self.kind in EMBEDDED

    def __len__(self) -> int:
        return self.length

    def add(self, slot: Slot, tokens: Sequence[Token], *, output: bool) -> int:
        """Append tokens after the slot's own, which they join; the index of the first."""
        first, held = self.length, slot.prompt.tokens
        self.runs.append(Run(slot.id, len(held), tokens, output))
        self.length += len(tokens)
        held += tokens
        return first

    def want_last(self) -> None:
        """The logits of the last token are wanted."""
        self.runs[-1].last = True

    def piece(self, begin: int, end: int) -> "Piece":
        """Some of it: the runs there, each with the part of it that is inside."""
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
    """A part of a batch that is decoded at once: `[low, high)` of each run in it."""

    parts: list[tuple[Run, int, int]]

    def slots(self) -> tuple[int, ...]:
        """The slots in it, in order of their ids."""
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
        """The piece as runs, where all tokens are only names."""
        if any(not run.is_named for run, _, _ in self.parts):
            return None
        return [Advance(run.seq, run.start + low, high - low) for run, low, high in self.parts]
