"""The interface between a network and its caller: one protocol, several arithmetics.

`float` is the real thing in float64; `ring` is its exact twin over the integers modulo 2^64;
`counts` computes nothing, for workloads with cache decisions only. Engines, oracle and scenarios
depend on this interface only.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from cachesim.model import ArithmeticName
from cachesim.model.spec import ModelSpec
from cachesim.model.store import ABSENT, BLOCK, Lane, Lanes, Store, Ubatch
from cachesim.units import Array, Integers, Token

__all__ = ["ArithmeticName", "LayerShape", "Network", "Output", "Place"]

Place: TypeAlias = Literal["attention", "window", "recurrent"]
"""The part of a memory that keeps a layer's data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """The shape of a layer's data in a memory.

    An attention or window layer keeps a key and a value per cell; a recurrent one keeps a flat
    row per sequence and plane. The bytes of the real server are the spec's business, not these.
    """

    layer: int  # the number the network passes to its Store
    place: Place
    dtype: str
    key: tuple[int, ...] = ()
    value: tuple[int, ...] = ()
    row: int = 0
    marks: bool = False  # no layer of the model's: the real server has no bytes for it
    conv: int = 0  # how many numbers at the row's start are the convolution's


class Output(NamedTuple):
    """The result of a ubatch: requested logits, and hidden rows for an MTP head."""

    logits: Array  # (output rows, vocabulary); ring: (output rows, 1) words
    hidden: Array | None = None  # (T, width), last hidden states; None where there is no MTP head


@runtime_checkable
class Network(Protocol):
    """A network that runs ubatches against a Store and is stateless."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The layers with data in memory, in execution order."""
        ...

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        """Run one ubatch through all layers."""
        ...

    def rotate(self, layer: int, keys: Array, shifts: Integers) -> Array:
        """Keys (n, ...) shifted by `shifts` (n,) positions."""
        ...

    def sample(self, logits: Array) -> Token:
        """The greedy token of a row of logits; ties go to the lowest id."""
        ...

    def difference(self, one: Array, other: Array) -> float:
        """The distance of two rows (or blocks) of logits; 0.0 means the same bits."""
        ...

    def companion(self) -> "Network | None":
        """The network of the MTP head, which reads hidden states and next tokens, or None."""
        ...


# The plain store: append-only lists, and not a line in common with any server's memory.
#
# It never removes, moves, shares or reuses anything, so there is nothing in it to get wrong. Cold
# runs go through it, and with them every verdict.


class PlainStore:
    """All tokens of one or several sequences, from position 0 on, in order.

    Every ubatch brings the same number of tokens for each of the `sets` sequences, set after set.
    """

    def __init__(self, network: Network, *, sets: int = 1, planes: int = 1) -> None:
        self.planes = planes
        self._sets = sets
        self._cells: dict[int, tuple[_Cells, ...]] = {}
        self._states: dict[int, Array] = {}
        spec = network.spec
        views = {0: _View(0, chunked=False)}
        for shape in network.shapes:
            if shape.place == "recurrent":
                self._states[shape.layer] = np.zeros((sets, shape.row), shape.dtype)
            else:
                window = spec.window_of(shape.layer) if shape.place == "window" else 0
                view = views.setdefault(window, _View(window, chunked=spec.chunked))
                cells = tuple(_Cells(shape, view) for _ in range(sets))
                self._cells[shape.layer] = cells

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Append one key and one value per token; each token attends to itself and the earlier
        ones.
        """
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
        """Keep the newest plane; the others serve memories that roll back."""
        self._states[layer] = states[:, 0]


@lru_cache(maxsize=8)
def rows_from(first: int, count: int) -> Integers:
    """Row numbers that all layers of an ubatch share; read-only.

    Few are kept: those of a long prompt are large.
    """
    rows = np.arange(first, first + count, dtype=np.int64)
    rows.flags.writeable = False
    return rows


class _Cells:
    """The keys and values of one sequence in one layer; cell `i` is position `i`."""

    def __init__(self, shape: LayerShape, view: "_View") -> None:
        self._keys = GrowingArray(shape.key, shape.dtype)
        self._values = GrowingArray(shape.value, shape.dtype)
        self._view = view

    def append(self, keys: Array, values: Array, first_row: int) -> Lane:
        """Add cells for the rows from `first_row` on, and return their visible keys."""
        first = self._keys.count
        self._keys.append(keys)
        self._values.append(values)
        seen, positions, low, high = self._view.of(first, len(keys))
        rows = rows_from(first_row, len(keys))
        return Lane(rows, self._keys.data[seen], self._values.data[seen], positions, low, high)


class _View:
    """The lane of new cells, shared by layers with the same window.

    |    not visible   |   lane, whole blocks    | ABSENT |
    0                start         first  ...  count     stop
    """

    def __init__(self, window: int, *, chunked: bool) -> None:
        self._window, self._chunked = window, chunked
        self._range = (0, 0)
        self._cached: tuple[slice, Integers, Integers, Integers]

    def of(self, first: int, new: int) -> tuple[slice, Integers, Integers, Integers]:
        """The cells of a lane, their positions, and the end of each new cell's range."""
        if self._range != (first, new):
            count = first + new
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
            self._cached = (slice(start, stop), positions, low, high)
            self._range = (first, new)
        return self._cached


class GrowingArray:
    """An array that doubles when it is full, so that appending stays linear."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.data = np.zeros((BLOCK, *shape), dtype)
        self.count = 0

    def append(self, rows: Array) -> None:
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
