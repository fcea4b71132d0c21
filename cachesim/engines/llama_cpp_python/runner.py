"""Rules of the caches in Ollama's own runner until 0.24; read in source, not run.

Hybrids have checkpoints since 0.17.1. From 0.30 on Ollama starts llama-server.

A request resumes where a sliding window, or a checkpoint of a hybrid, lets it:

    window       first kept .......... match - window .... match     may resume
    hybrid       16 .. checkpoint .... checkpoint .. match           resumes after the checkpoint

llama.cpp's memory holds keys and states here, with every key of a window layer, which is more than
Ollama keeps: only its rules decide what is reused.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from cachesim.engines.llama_cpp_python.rules import RunnerRules
from cachesim.engines.llamacpp.memory.blob import Blob, CellList
from cachesim.units import Token

CHECKPOINTS: Final = 24
"""Checkpoints of a slot: the ring's next entry is overwritten."""

FIRST: Final = 16
"""No checkpoint is taken of a position before it."""

INTERVAL: Final = 1664
"""Positions from a checkpoint to the next, at least: it is taken at the end of a batch."""

ABSENT: Final = -1


@dataclass(slots=True)
class Checkpoint:
    """An entry of the ring: the position of the last token, and the state after it."""

    pos: int = ABSENT
    state: Blob | None = None


class RunnerCache:
    """Positions that `Causal` keeps of a window, and the checkpoints that `Recurrent` does."""

    def __init__(
        self, rules: RunnerRules, n_ctx: int, window: int | None, *, hybrid: bool, slots: int = 1
    ) -> None:
        self.window = window or 0
        # One more for the last token of a reply, which no prompt continues.
        most = max(rules.memory, self.window + (slots > 1))
        self.memory = None if window is None or most >= n_ctx else most
        self.hybrid = hybrid
        self.clear()

    def clear(self) -> None:
        """Follows `Remove` from position 0 on."""
        self.first = self.end = 0
        self.entries = [Checkpoint() for _ in range(CHECKPOINTS if self.hybrid else 0)]
        self._next, self._last = 0, ABSENT

    def start_forward(self, start: int, count: int) -> Checkpoint | None:
        """Follows `StartForward` of a batch: `updateSlidingWindow`, and `planCheckpoints`.

        A batch without the slot has no tokens. A checkpoint's state is that after the batch.
        """
        if self.memory is not None:
            self.first = max(self.first, start - self.memory)
        self.end = start + count
        pos = self.end - 1
        due = self._last < 0 or pos - self._last >= INTERVAL
        if not (self.hybrid and pos >= FIRST and due):
            return None
        taken = self.entries[self._next] = Checkpoint(pos)
        self._next = (self._next + 1) % len(self.entries)
        self._last = pos
        return taken

    def can_resume(self, pos: int) -> bool:
        """Follows `CanResume` of a window."""
        if self.memory is None:
            return True
        return max(0, pos - self.window) >= self.first and pos <= self.end

    def best_index(self, pos: int) -> Checkpoint | None:
        """The last checkpoint before a position (`bestIndex`), or None.

        Trap: a prompt that continues all that is held is resumed from a checkpoint as well, never
        from the state of its last token; and a short prompt sent again has no checkpoint before its
        last token.
        """
        fit = (each for each in self.entries if ABSENT < each.pos < pos)
        return max(fit, key=lambda each: each.pos, default=None)

    def copy_prefix(self, other: "RunnerCache", count: int) -> None:
        """Follows `CopyPrefix` of a window, which copies no key: it shares the cells."""
        self.clear()
        self.first, self.end = other.first, min(other.end, count)

    def remove(self, end: int) -> None:
        """Follows `Remove` up to the end, and `pruneAfter`."""
        self.end = end
        for each in self.entries:
            if each.pos >= end:
                each.pos, each.state = ABSENT, None
        self._settle(end - 1)

    def shift(self, keep: int, discard: int) -> None:
        """Follows `Remove` of a part, and `shiftRange`.

            before   [ keep | discard | rest )        after   [ keep | rest )

        Traps: the state of a moved checkpoint, as the live one, has seen the discarded tokens; and
        a window spans keys of the first part that are gone (upstream's own TODO; here it has them).
        """
        self.end -= discard
        self.first = max(min(self.first, keep), self.first - discard)
        for each in self.entries:
            if each.pos >= keep + discard:
                each.pos -= discard
                each.state = each.state and _moved(each.state, discard)
            elif each.pos >= keep:
                each.pos, each.state = ABSENT, None
        self._settle(max((each.pos for each in self.entries), default=ABSENT))

    def _settle(self, last: int) -> None:
        """The entry to overwrite next: the first free one, else the oldest."""
        if self.entries:
            free = (i for i, each in enumerate(self.entries) if each.pos == ABSENT)
            oldest = min(range(len(self.entries)), key=lambda i: self.entries[i].pos)
            self._next, self._last = next(free, oldest), last


def _moved(state: Blob, count: int) -> Blob:
    fields = (
        part._replace(positions=part.positions - count) if isinstance(part, CellList) else part
        for part in state.fields
    )
    return replace(state, fields=tuple(fields))


@dataclass(slots=True)
class Slot:
    """`InputCacheSlot`: the inputs that a sequence of the memory holds."""

    id: int
    cache: RunnerCache
    inputs: list[Token] = field(default_factory=list)
    in_use: bool = False
    last_used: int = ABSENT
    moved_from: int | None = None  # position of the first key computed in another context
