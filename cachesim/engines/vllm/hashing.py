"""Block ids: every id stands for a whole prefix, because it names its parent.

    tokens   | b0        | b1        | b2        |
    ids        h0 = (root, b0)   h1 = (h0, b1)   h2 = (h1, b2)

The real server hashes; here prefixes are numbered, so equal numbers are equal prefixes and nothing
can collide. With a drafter an id may cover the tokens after its block, too: what the drafter writes
for a block's last token is computed from the next one.

A long replay forgets prefixes that nothing holds and nobody asks for:

    recent   h0 h1 h2        asked for since the last cut
    earlier  h0 h3 h4        asked for before it; at the next cut those that are held stay
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

ROOT: Final = -1


class Prefixes:
    """Numbers whole prefixes, one hash unit at a time. Follows `get_request_block_hasher`."""

    __slots__ = ("_earlier", "_given", "_numbers", "_roots", "lookahead", "unit")

    def __init__(self, unit: int, lookahead: int = 0) -> None:
        """`lookahead`: tokens after a unit that its number stands for, too."""
        self.unit = unit
        self.lookahead = lookahead
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._earlier: dict[tuple[int, tuple[int, ...]], int] = {}
        self._given = 0
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
        ahead = self.lookahead
        for end in range(start + unit, len(tokens) + 1 - ahead, unit):
            key = (parent, tuple(tokens[end - unit : end + ahead]))  # of a tuple: no second copy
            number = known(key)
            if number is None:
                number = numbers[key] = self._number(key)
            give(number)
            parent = number

    def __len__(self) -> int:
        """Prefixes that were asked for since the last cut."""
        return len(self._numbers)

    def _number(self, key: tuple[int, tuple[int, ...]]) -> int:
        number = self._earlier.pop(key, None)
        if number is None:
            number, self._given = self._given, self._given + 1
        return number

    def cut(self, held: Iterable[int]) -> set[int]:
        """Forget what was not asked for since the last cut, unless it is held or begins what is.

        Returns the numbers that are left.
        """
        known = self._numbers | self._earlier
        keys = {number: key for key, number in known.items()}
        left = set(self._numbers.values())
        for number in held:
            at = number
            while at in keys and at not in left:
                left.add(at)
                at = keys[at][0]
        self._earlier = {keys[number]: number for number in left}
        self._numbers = {}
        return left
