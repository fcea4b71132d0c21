"""Block ids: every id stands for a whole prefix, because it names its parent.

    tokens   | b0        | b1        | b2        |
    ids        h0 = (root, b0)   h1 = (h0, b1)   h2 = (h1, b2)

The real server hashes; here prefixes are numbered, so equal numbers are equal prefixes and nothing
can collide.
"""

from collections.abc import Sequence
from typing import Any, Final

ROOT: Final = -1


class Prefixes:
    """Numbers whole prefixes, one hash unit at a time."""

    __slots__ = ("_numbers", "_roots", "unit")

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._roots: dict[Any, int] = {None: ROOT}

    def root(self, extra: object) -> int:
        """The parent of a first block: `cache_salt` and the adapter go in there."""
        return self._roots.setdefault(extra, ROOT - len(self._roots))

    def extend(self, hashes: list[int], tokens: Sequence[int], root: int = ROOT) -> None:
        """Number every whole unit of `tokens` that `hashes` does not have yet."""
        unit, numbers = self.unit, self._numbers
        known, give = numbers.get, hashes.append
        tokens = tuple(tokens) if isinstance(tokens, list) and not hashes else tokens
        start = len(hashes) * unit
        parent = hashes[-1] if hashes else root
        for end in range(start + unit, len(tokens) + 1, unit):
            key = (parent, tuple(tokens[end - unit : end]))  # of a tuple: no second copy
            number = known(key)
            if number is None:
                number = numbers[key] = len(numbers)
            give(number)
            parent = number
