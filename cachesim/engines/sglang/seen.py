"""Where states were saved: all places, or as many of the last ones as are to be remembered."""

from collections.abc import Hashable
from typing import TypeAlias

from cachesim.units import Integers

Ends: TypeAlias = dict[int, set[tuple[Hashable, bytes]]]
"""By their length: the sequences after which a state was saved."""


class States:
    """Where states were saved, whatever became of them."""

    def __init__(self) -> None:
        self._ends: Ends = {}
        self._old: Ends = {}
        self._learned = 0
        self._most: int | None = None

    def remember(self, most: int) -> None:
        """Forget what was saved before the last so many states, and soon after."""
        self._most = most

    def learn(self, tokens: Integers, extra: Hashable) -> None:
        """A state after these tokens."""
        if self._most is not None and self._learned >= self._most:
            self._old, self._ends, self._learned = self._ends, {}, 0
        self._ends.setdefault(len(tokens), set()).add((extra, tokens.tobytes()))
        self._learned += 1

    def deepest(self, tokens: Integers, extra: Hashable, most: int) -> int:
        """The last position up to `most` at which one was saved; 0 if there was none."""
        return max(_deepest(ends, tokens, extra, most) for ends in (self._ends, self._old))


def _deepest(ends: Ends, tokens: Integers, extra: Hashable, most: int) -> int:
    for end in sorted(ends, reverse=True):
        if end <= most and (extra, tokens[:end].tobytes()) in ends[end]:
            return end
    return 0
