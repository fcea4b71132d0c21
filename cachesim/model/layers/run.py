"""What all layers of one pass share."""

from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np

from cachesim.model.layers.sight import Sights
from cachesim.model.layers.tiles import Ladder, Matrix, padded
from cachesim.model.store import Lane, Padding, Store
from cachesim.units import Array, Integers

Turns: TypeAlias = tuple[Array, Array]
"""Cosines and sines that turn rows to their positions."""


@dataclass(frozen=True, slots=True)
class Run:
    """One ubatch on its way through the layers.

    Rows `[0, count)` of x are real, `[count, R)` fill the last tile with zeros and stay zero.

    In the last layer only some rows may be asked for: it reads all of x and keeps what it must of
    all tokens, but what it returns are those rows alone, in tiles of their own.
    """

    count: int
    sets: int
    ladder: Ladder  # heights of tiles for products with weights
    attention_ladder: Ladder  # and with blocks of keys and values
    sights: Sights
    turns: Turns | None
    store: Store
    padding: Padding | None = None
    asked: Integers | None = None  # rows that somebody reads; None: all of them

    @property
    def height(self) -> int:
        """R', the rows of what a layer returns: those asked for, and zeros."""
        return padded(self.count if self.asked is None else len(self.asked), self.ladder)

    def asking(self, outputs: Integers | None) -> "Run":
        """The same run where nothing follows but these rows' logits."""
        if outputs is None or len(outputs) == self.count:
            return self
        return replace(self, asked=outputs)

    def rows(self, x: Array) -> Array:
        """Those of rows (T, ...) that are asked for."""
        return x if self.asked is None else x[self.asked]

    def tiled(self, x: Array) -> Array:
        """The same of x (R, d), with the zeros that fill their last tile: (R', d)."""
        if self.asked is None:
            return x
        result = np.zeros((self.height, x.shape[1]))
        result[: len(self.asked)] = x[self.asked]
        return result

    def lane(self, lane: Lane) -> Lane:
        """A lane as the rows asked for see it, under the numbers they have among themselves."""
        if self.asked is None:
            return lane
        places = np.full(self.count, -1)
        places[lane.rows] = np.arange(len(lane.rows))
        mine = places[self.asked]
        (rows,) = np.nonzero(mine >= 0)
        return lane._replace(rows=rows, low=lane.low[mine[rows]], high=lane.high[mine[rows]])


class InAndOut:
    """Layers of two matrices: one that rows come in by, and one by which they leave."""

    __slots__ = ()

    entry: Matrix
    exit: Matrix

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """What rows are multiplied with."""
        return (self.entry, self.exit)


class Layer(Protocol):
    """One summand of the residual stream: what mixes tokens, or an MLP."""

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """What rows are multiplied with."""
        ...

    def __call__(self, x: Array, run: Run) -> Array:
        """What the layer adds to rows x (R, d), or to those of them that are asked for."""
        ...
