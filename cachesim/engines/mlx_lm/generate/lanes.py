"""From the rows of a cache, in whatever order they lie, to lanes in the order of positions."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays import every, same
from cachesim.engines.mlx_lm.caches.masks import Bounds
from cachesim.model.store import ABSENT, BLOCK, FAR, Frame, Lane
from cachesim.units import Array, Integers

NOWHERE: Final = -1
"""The position of a row that has none."""


@dataclass(frozen=True, slots=True)
class Way:
    """How rows of a cache come into a lane: row `of[i]` lies at place `to[i]`."""

    of: Integers | slice
    to: Integers | slice
    frame: Frame

    def lane(self, keys: Array, values: Array) -> Lane:
        """The lane of one layer's keys and values, as they lie in its cache."""
        return self.frame.lane(self._brought(keys), self._brought(values))

    def _brought(self, held: Array) -> Array:
        lane = np.zeros((len(self.frame.positions), *held.shape[1:]), held.dtype)
        lane[self.to] = held[self.of]
        return lane


@dataclass(frozen=True, slots=True)
class Sight:
    """What the columns of one row see, worked out once for all layers of which the same is true."""

    marks: Array  # (n,) the position of each key plus one
    visible: Array | Bounds | None  # (columns, n)
    ways: tuple[Way, ...]

    @classmethod
    def of(
        cls,
        marks: Array,
        visible: Array | Bounds | None,
        rows: Integers,
        low: Integers,
        high: Integers,
    ) -> "Sight":
        """One lane where every column sees what it should by position, else a lane per column.

        `visible` says which column may look at which key, all of them at all where it is None; a
        column should see the positions from its `low` to its `high`.
        """
        places = marks.astype(np.int64) - 1
        way = _common_way(places, visible, rows, low, high)
        if way is not None:
            return cls(marks, visible, (way,))
        ways = (
            _way_of_one(places, np.flatnonzero(seen), row=int(row), position=int(position))
            for row, position, seen in zip(
                rows, high, _written(visible, len(rows), len(places)), strict=True
            )
        )
        return cls(marks, visible, tuple(ways))

    def is_of(self, marks: Array, visible: Array | Bounds | None) -> bool:
        """Whether these keys lie at the same positions, under the same mask."""
        if not same(self.marks, marks):
            return False
        if isinstance(visible, np.ndarray) and isinstance(self.visible, np.ndarray):
            return same(self.visible, visible)
        return type(visible) is type(self.visible) and visible == self.visible

    def lanes(self, keys: Array, values: Array) -> list[Lane]:
        """The lanes of a layer's keys and values."""
        return [way.lane(keys, values) for way in self.ways]


def _written(visible: Array | Bounds | None, columns: int, keys: int) -> Array:
    if visible is None:
        return np.ones((columns, keys), bool)
    return visible.dense(keys) if isinstance(visible, Bounds) else visible


def _common_way(
    places: Integers,
    visible: Array | Bounds | None,
    rows: Integers,
    low: Integers,
    high: Integers,
) -> Way | None:
    """The lane of all columns, if their masks show just the rows between `low` and `high`.

    Rows that are missing there stay missing; rows without a position, and second ones of one
    position, have no place in such a lane.
    """
    used: Integers | slice = slice(0, len(places))
    if isinstance(visible, Bounds):
        used = visible.seen
    elif visible is not None and not every(visible[-1]):  # the last column sees most
        some = np.flatnonzero(visible.any(axis=0))
        used = _as_slice(some) if len(some) else some
    seen = places[used]
    if not len(seen):
        return None
    where = _as_slice(seen)
    first, last = _ends(where)
    if first == NOWHERE or (isinstance(where, np.ndarray) and not _differ(where)):
        return None
    shown = len(high) == 1 and low[0] <= first and last <= high[0]
    if not shown and isinstance(visible, Bounds) and isinstance(where, slice):
        shown = visible.shows(first, low, high)
    if not shown:
        mask = _written(visible, len(high), len(places))[:, used]
        if not same(mask, _between(seen, low, high)):
            return None
    base, size = _blocks(first, last)
    to = slice(first - base, last + 1 - base) if isinstance(where, slice) else where - base
    positions = np.full(size, ABSENT)
    positions[to] = seen
    return Way(used, to, Frame(rows, positions, low, high))


def _between(seen: Integers, low: Integers, high: Integers) -> Array:
    between: Array = seen <= high[:, None]
    if low[-1] > seen.min():  # the bounds rise from column to column
        between &= seen >= low[:, None]
    return between


def _as_slice(numbers: Integers) -> Integers | slice:
    """Consecutive numbers as a slice: whole blocks are copied instead of row after row."""
    first, stop = int(numbers[0]), int(numbers[-1]) + 1
    if stop - first == len(numbers) and same(numbers, np.arange(first, stop)):
        return slice(first, stop)
    return numbers


def _ends(numbers: Integers | slice) -> tuple[int, int]:
    if isinstance(numbers, slice):
        return numbers.start, numbers.stop - 1
    return int(numbers.min()), int(numbers.max())


def _rise(numbers: Integers) -> bool:
    return every(numbers[1:] > numbers[:-1])


def _differ(places: Integers) -> bool:
    """Whether no position comes twice; nearly always they rise, and no search is needed."""
    return _rise(places) or len(np.unique(places)) == len(places)


def _blocks(first: int, last: int) -> tuple[int, int]:
    """The place of the first block that positions lie in, and the size of all up to the last."""
    base = first // BLOCK * BLOCK
    return base, -(-(last + 1 - base) // BLOCK) * BLOCK


def _way_of_one(places: Integers, used: Integers, row: int, position: int) -> Way:
    """What one column sees, rows without a position and second rows of one at the end.

    | by position, whole blocks | the others, padded to a block |
    """
    _, firsts = np.unique(places[used], return_index=True)
    regular = np.zeros(len(used), bool)
    regular[firsts] = True
    regular &= places[used] != NOWHERE
    seen, others = places[used[regular]], np.flatnonzero(~regular)
    base, size = _blocks(*_ends(seen)) if len(seen) else (0, 0)
    more = max(BLOCK, -(-len(others) // BLOCK) * BLOCK) if len(others) or not len(used) else 0
    positions = np.full(size + more, ABSENT)
    positions[seen - base] = seen
    positions[size : size + max(1, len(others))] = position  # where there are more
    return Way(
        of=np.concatenate((used[regular], used[others])),
        to=np.concatenate((seen - base, np.arange(size, size + len(others)))),
        frame=Frame(np.array([row]), positions, np.array([0]), np.array([FAR])),
    )
