"""Where states were saved, and never forgotten."""

from collections.abc import Hashable

from cachesim.units import Integers


class States:
    """Where states were saved, whatever became of them."""

    def __init__(self) -> None:
        self._ends: dict[int, set[tuple[Hashable, bytes]]] = {}

    def learn(self, tokens: Integers, extra: Hashable) -> None:
        """A state after these tokens."""
        self._ends.setdefault(len(tokens), set()).add((extra, tokens.tobytes()))

    def deepest(self, tokens: Integers, extra: Hashable, most: int) -> int:
        """The last position up to `most` at which one was saved; 0 if there was none."""
        for end in sorted(self._ends, reverse=True):
            if end <= most and (extra, tokens[:end].tobytes()) in self._ends[end]:
                return end
        return 0
