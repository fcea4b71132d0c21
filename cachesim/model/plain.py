"""The plain store: append-only lists, and not a line in common with any server's memory.

It never removes, moves, shares or reuses anything, so there is nothing in it to get wrong. Cold
runs go through it, and with them every verdict.
"""

from functools import lru_cache

import numpy as np

from cachesim.model.arithmetic import LayerShape, Network
from cachesim.model.store import ABSENT, BLOCK, Lane, Lanes
from cachesim.units import Array, Integers


class PlainStore:
    """All that one or several sequences have said, from position 0 on, in the order they said it.

    Every ubatch brings the same number of tokens for each of the `sets` sequences, set after set.
    """

    def __init__(self, network: Network, *, sets: int = 1, planes: int = 1) -> None:
        self.planes = planes
        self._sets = sets
        self._cells: dict[int, tuple[_Cells, ...]] = {}
        self._states: dict[int, Array] = {}
        spec = network.spec
        views = _View(0, chunked=False), _View(spec.window, chunked=spec.chunked)
        for shape in network.shapes:
            if shape.place == "recurrent":
                self._states[shape.layer] = np.zeros((sets, shape.row), shape.dtype)
            else:
                windowed = shape.place == "window"
                cells = tuple(_Cells(shape, views[windowed]) for _ in range(sets))
                self._cells[shape.layer] = cells

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Append one key and one value per token; each token sees itself and what came before."""
        if self._sets == 1:
            return (self._cells[layer][0].append(keys, values, 0),)
        count = len(keys) // self._sets
        return tuple(
            cells.append(keys[first : first + count], values[first : first + count], first)
            for cells, first in zip(self._cells[layer], range(0, len(keys), count), strict=True)
        )

    def states(self, layer: int) -> Array:
        """The states after the last ubatch, zeros at first."""
        return self._states[layer]

    def keep_states(self, layer: int, states: Array) -> None:
        """Keep the newest plane; the others are for memories that roll back."""
        self._states[layer] = states[:, 0]


@lru_cache(maxsize=8)
def rows_from(first: int, count: int) -> Integers:
    """The numbers of so many rows, which all layers of an ubatch share and none changes.

    Few are kept: those of a long prompt are large.
    """
    rows = np.arange(first, first + count, dtype=np.int64)
    rows.flags.writeable = False
    return rows


class _Cells:
    """The keys and values of one sequence in one layer; cell `i` is position `i`."""

    def __init__(self, shape: LayerShape, view: "_View") -> None:
        self._keys = Growing(shape.key, shape.dtype)
        self._values = Growing(shape.value, shape.dtype)
        self._view = view

    def append(self, keys: Array, values: Array, first_row: int) -> Lane:
        """Add cells for the rows from `first_row` on, and say what they see."""
        first = self._keys.count
        self._keys.append(keys)
        self._values.append(values)
        seen, positions, low, high = self._view.of(first, len(keys))
        rows = rows_from(first_row, len(keys))
        return Lane(rows, self._keys.data[seen], self._values.data[seen], positions, low, high)


class _View:
    """The lane of new cells: the same in all layers with one kind of window.

    |  seen by nobody  |   lane, whole blocks    | ABSENT |
    0                start         first  ...  count     stop
    """

    def __init__(self, window: int, *, chunked: bool) -> None:
        self._window, self._chunked = window, chunked
        self._asked = (0, 0)
        self._told: tuple[slice, Integers, Integers, Integers]

    def of(self, first: int, new: int) -> tuple[slice, Integers, Integers, Integers]:
        """The cells of a lane, their positions, and the ends of what each new one sees."""
        if self._asked != (first, new):
            self._told = self._look(first, first + new)
            self._asked = (first, new)
        return self._told

    def _look(self, first: int, count: int) -> tuple[slice, Integers, Integers, Integers]:
        high = np.arange(first, count, dtype=np.int64)
        low = np.zeros(len(high), np.int64)
        if self._window and self._chunked:
            low = high // self._window * self._window
        elif self._window:
            low = np.maximum(high - self._window + 1, 0)
        start = int(low[0]) // BLOCK * BLOCK
        stop = -(-count // BLOCK) * BLOCK
        positions = np.arange(start, stop, dtype=np.int64)
        positions[count - start :] = ABSENT
        return slice(start, stop), positions, low, high


class Growing:
    """An array that only gets longer; it doubles, so that long runs stay linear."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.data = np.zeros((BLOCK, *shape), dtype)
        self.count = 0

    def append(self, rows: Array) -> None:
        """Put rows behind the last one."""
        count = self.count + len(rows)
        size = len(self.data)
        if count > size:
            while size < count:
                size *= 2
            grown = np.zeros((size, *self.data.shape[1:]), self.data.dtype)
            grown[: self.count] = self.data[: self.count]
            self.data = grown
        self.data[self.count : count] = rows
        self.count = count
