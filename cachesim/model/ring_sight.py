"""What the rows of a lane see, worked out once for all layers that show the same lane."""

import numpy as np

from cachesim.model.ring_words import Words
from cachesim.model.store import Lane, Lanes
from cachesim.units import Integers


def seen_by(place: int, lane: Lane) -> int:
    """The sum of key times value over the cells that one row of a lane sees, in any order."""
    low, high = lane.low.item(place), lane.high.item(place)
    inside = lane.positions <= high
    if low > 0:  # no position lies below 0
        inside &= lane.positions >= low
    return int(lane.keys[:, 0][inside].dot(lane.values[:, 0][inside]))


def place_of(row: int, lanes: Lanes) -> tuple[int, Lane]:
    """The lane that a row lies in, and its place there."""
    if len(lanes) == 1 and lanes[0].rows.item(row) == row:  # one sequence, its rows in order
        return row, lanes[0]
    places = ((np.flatnonzero(lane.rows == row), lane) for lane in lanes)
    return next((found.item(), lane) for found, lane in places if found.size)


class Sight:
    """A lane's cells in the order of their positions: what a row sees is a stretch of them.

    A cell that is not there has the highest position of all, which no row sees.
    """

    __slots__ = ("_below", "_order", "_upto", "lane")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        positions, low, high = lane.positions, lane.low, lane.high
        self._order: slice | Integers = slice(None)
        if np.count_nonzero(positions[1:] < positions[:-1]):
            self._order = positions.argsort(kind="stable")
            positions = positions[self._order]
        self._upto = positions.searchsorted(high, side="right")
        self._below: Integers | None = None
        if np.count_nonzero(low):
            self._below = positions.searchsorted(low, side="left")
            self._upto = np.maximum(self._upto, self._below)

    def sums(self, keys: Words, values: Words) -> Words:
        """For each row the sum of key times value (n,) over the cells it sees, (q,).

        Running sums take linear time, however many rows there are.
        """
        keys, values = keys[self._order], values[self._order]
        totals = np.zeros(len(keys) + 1, np.uint64)
        np.add.accumulate(keys * values, out=totals[1:])
        sums: Words = totals[self._upto]
        return sums if self._below is None else sums - totals[self._below]


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
