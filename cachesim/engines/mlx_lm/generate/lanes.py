"""From the rows of a cache, in whatever order they lie, to lanes in the order of positions."""

from typing import Final

import numpy as np

from cachesim.engines.mlx_lm.generate.rows import Seen
from cachesim.model.store import ABSENT, BLOCK, FAR, Lane, Lanes
from cachesim.units import Array, Integers

NOWHERE: Final = -1
"""The position of a row that has none."""


def lanes_of(seen: Seen, rows: Integers, low: Integers, positions: Integers) -> Lanes:
    """One lane where every column sees what it should by position, else a lane per column."""
    lane = _common_lane(seen, rows, low, positions)
    if lane is not None:
        return (lane,)
    return tuple(
        _lane_of_one(seen, column, int(row), int(positions[column]))
        for column, row in enumerate(rows)
    )


def _common_lane(seen: Seen, rows: Integers, low: Integers, high: Integers) -> Lane | None:
    """The lane of all columns, if their masks show just the rows between `low` and `high`.

    Rows that are missing there stay missing; rows without a position, and second ones of one
    position, have no place in such a lane.
    """
    places = seen.positions
    if len(high) == 1 and seen.visible.all() and _is_run(places, int(low[0]), int(high[0])):
        used = np.arange(len(places))
        keys, values, positions = _in_blocks(seen, used)
        return Lane(rows=rows, keys=keys, values=values, positions=positions, low=low, high=high)
    used = np.flatnonzero(seen.visible.any(axis=0))
    places = seen.positions[used]
    if not len(places) or places.min() == NOWHERE or not _differ(places):
        return None
    between = (places >= low[:, None]) & (places <= high[:, None])
    if not np.array_equal(between, seen.visible[:, used]):
        return None
    keys, values, positions = _in_blocks(seen, used)
    return Lane(rows=rows, keys=keys, values=values, positions=positions, low=low, high=high)


def _is_run(places: Integers, low: int, high: int) -> bool:
    """Whether these are consecutive positions within bounds; what one token of a reply sees."""
    first, count = (int(places[0]), len(places)) if len(places) else (NOWHERE, 0)
    within = low <= first and first + count - 1 <= high
    return within and first != NOWHERE and int(places[-1]) == first + count - 1 and _rise(places)


def _differ(places: Integers) -> bool:
    """Whether no position comes twice; nearly always they rise, and no search is needed."""
    return _rise(places) or len(np.unique(places)) == len(places)


def _rise(numbers: Integers) -> bool:
    return bool((numbers[1:] > numbers[:-1]).all())


def _as_slice(numbers: Integers) -> Integers | slice:
    """Consecutive numbers as a slice: whole blocks are copied instead of row after row."""
    first, count = int(numbers[0]), len(numbers)
    if int(numbers[-1]) - first == count - 1 and _rise(numbers):
        return slice(first, first + count)
    return numbers


def _lane_of_one(seen: Seen, column: int, row: int, position: int) -> Lane:
    """What one column sees, rows without a position and second rows of one at the end.

    | by position, whole blocks | the others, padded to a block |
    """
    used = np.flatnonzero(seen.visible[column])
    places = seen.positions[used]
    _, firsts = np.unique(places, return_index=True)
    regular = np.zeros(len(used), bool)
    regular[firsts] = True
    regular &= places != NOWHERE
    keys, values, positions = _in_blocks(seen, used[regular])
    others = used[~regular]
    if len(others) or not len(used):
        size = max(BLOCK, -(-len(others) // BLOCK) * BLOCK)
        keys = np.concatenate((keys, _padded(seen.keys[others], size)))
        values = np.concatenate((values, _padded(seen.values[others], size)))
        more = np.full(size, ABSENT)
        more[: max(1, len(others))] = position
        positions = np.concatenate((positions, more))
    return Lane(
        rows=np.array([row]),
        keys=keys,
        values=values,
        positions=positions,
        low=np.array([0]),
        high=np.array([FAR]),
    )


def _in_blocks(seen: Seen, used: Integers) -> tuple[Array, Array, Integers]:
    """Rows scattered to their positions, from a multiple of the block to a multiple of it."""
    places = seen.positions[used]
    if not len(places):
        return seen.keys[:0], seen.values[:0], places
    base = int(places.min()) // BLOCK * BLOCK
    size = -(-(int(places.max()) + 1 - base) // BLOCK) * BLOCK
    keys = np.zeros((size, *seen.keys.shape[1:]), seen.keys.dtype)
    values = np.zeros((size, *seen.values.shape[1:]), seen.values.dtype)
    positions = np.full(size, ABSENT)
    to, of = _as_slice(places - base), _as_slice(used)
    keys[to] = seen.keys[of]
    values[to] = seen.values[of]
    positions[to] = places
    return keys, values, positions


def _padded(rows: Array, size: int) -> Array:
    padded = np.zeros((size, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    return padded
