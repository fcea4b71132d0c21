"""What the rows of a lane see, worked out once for all layers that show the same lane."""

import numpy as np

from cachesim.model.ring_words import Words
from cachesim.model.store import Lane
from cachesim.units import Integers


class Sight:
    """A lane's cells in the order of their positions: what a row sees is a stretch of them.

    A cell that is not there has the highest position of all, which no row sees. Of a row that is
    alone the cells that it sees are enough, in any order.
    """

    __slots__ = ("_alone", "_below", "_order", "_upto", "lane")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        positions, low, high = lane.positions, lane.low, lane.high
        self._alone = len(low) == 1
        self._order: slice | Integers = slice(None)
        if self._alone:
            self._order = ((positions >= low) & (positions <= high)).nonzero()[0]
            return
        if np.count_nonzero(positions[1:] < positions[:-1]):
            self._order = positions.argsort(kind="stable")
            positions = positions[self._order]
        self._below = positions.searchsorted(low, side="left")
        self._upto = np.maximum(positions.searchsorted(high, side="right"), self._below)

    def sums(self, keys: Words, values: Words) -> Words:
        """For each row the sum of key times value (n,) over the cells it sees, (q,).

        Running sums take linear time, however many rows there are.
        """
        keys, values = keys[self._order], values[self._order]
        if self._alone:
            alone: Words = keys.dot(values)
            return alone
        totals = np.zeros(len(keys) + 1, np.uint64)
        np.add.accumulate(keys * values, out=totals[1:])
        sums: Words = totals[self._upto] - totals[self._below]
        return sums


class Sights:
    """The sights of one ubatch."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int, int], Sight] = {}

    def of(self, lane: Lane) -> Sight:
        """The sight of a lane, or that of one before it with the very same arrays."""
        key = (id(lane.positions), id(lane.low), id(lane.high))
        known = self._seen.get(key)
        if known is None:  # the lane is kept, so that no other can take its arrays' ids
            known = self._seen[key] = Sight(lane)
        return known
