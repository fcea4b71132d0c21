"""Rules of the caches in Ollama's own runner until 0.24, for one slot; read in source, not run.

Hybrids have checkpoints since 0.17.1. From 0.30 on Ollama starts llama-server.

A request resumes where a sliding window, or a checkpoint of a hybrid, lets it:

    window       first kept .......... match - window .... match     may resume
    hybrid       16 .. checkpoint .... checkpoint .. match           resumes after the checkpoint

llama.cpp's memory holds keys and states here, with every key of a window layer, which is more than
Ollama keeps: only its rules decide what is reused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cachesim.engines.llamacpp.memory.blob import Blob

CHECKPOINTS: Final = 24
"""Checkpoints of a slot: the ring's next entry is overwritten."""

FIRST: Final = 16
"""No checkpoint is taken of a position before it."""

INTERVAL: Final = 1664
"""Positions from a checkpoint to the next, at least: it is taken at the end of a batch."""

ABSENT: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerRules:
    """Rules of Ollama's caches (`kvcache`), for one slot."""

    memory: int = 0
    """Tokens that window layers keep; one window at least (`NewSWAMemCache`)."""


@dataclass(slots=True)
class _Entry:
    pos: int = ABSENT
    state: Blob | None = None


class RunnerCache:
    """Positions that `Causal` keeps of a window, and the checkpoints that `Recurrent` does."""

    def __init__(self, rules: RunnerRules, n_ctx: int, window: int | None, *, hybrid: bool) -> None:
        most = max(rules.memory, window or 0)
        self.window = window or 0
        self.memory = None if window is None or most >= n_ctx else most
        self.hybrid = hybrid
        self.clear()

    def clear(self) -> None:
        """Follows `Remove` from position 0 on."""
        self.first = self.end = 0
        self.entries = [_Entry() for _ in range(CHECKPOINTS if self.hybrid else 0)]
        self._next, self._last = 0, ABSENT

    def start_forward(self, start: int, count: int, save: Callable[[], Blob]) -> None:
        """Follows `StartForward` of a batch: `updateSlidingWindow` and `planCheckpoints`."""
        if self.memory is not None:
            self.first = max(self.first, start - self.memory)
        self.end = start + count
        pos = self.end - 1
        due = self._last < 0 or pos - self._last >= INTERVAL
        if self.hybrid and pos >= FIRST and due:
            self.entries[self._next] = _Entry(pos, save())
            self._next = (self._next + 1) % len(self.entries)
            self._last = pos

    def can_resume(self, pos: int) -> bool:
        """Follows `CanResume` of a window."""
        if self.memory is None:
            return True
        return max(0, pos - self.window) >= self.first and pos <= self.end

    def best_index(self, pos: int) -> _Entry | None:
        """The last checkpoint before a position (`bestIndex`), or None.

        Trap: a prompt that continues all that is held is resumed from a checkpoint as well, never
        from the state of its last token; and a short prompt sent again has no checkpoint before its
        last token (likely what ollama#14780 reports of Qwen 3.5).
        """
        fit = (each for each in self.entries if ABSENT < each.pos < pos)
        return max(fit, key=lambda each: each.pos, default=None)

    def remove(self, end: int) -> None:
        """Follows `Remove` up to the end, and `pruneAfter`."""
        self.end = end
        if not self.hybrid:
            return
        for each in self.entries:
            if each.pos >= end:
                each.pos, each.state = ABSENT, None
        free = (i for i, each in enumerate(self.entries) if each.pos == ABSENT)
        oldest = min(range(len(self.entries)), key=lambda i: self.entries[i].pos)
        self._next = next(free, oldest)
        self._last = end - 1
