"""What all steps share: one row in a tile of zeros, and the norm of one row."""

import math
from typing import Protocol

import numpy as np

from cachesim.model.layers.run import Turns
from cachesim.model.layers.sight import Sights
from cachesim.model.layers.tiles import Matrix, blocks
from cachesim.model.store import Store
from cachesim.units import Array


class Step(Protocol):
    """One summand of the residual stream."""

    def __call__(self, x: Array, store: Store, sights: Sights, turns: Turns | None) -> Array:
        """What the layer adds to the row x (d,); it is read before the step is taken again."""
        ...


class Tile:
    """One row times a matrix: `row` is written first, `result` is read after the call."""

    def __init__(self, matrix: Matrix, height: int) -> None:
        self._tile, self._factor = np.zeros((height, matrix.inner)), matrix.factor
        self._products = np.empty((height, matrix.columns))
        self._blocks = blocks(height, matrix.inner, matrix.columns)
        self.row: Array = self._tile[0]
        self.result: Array = self._products[0]

    def __call__(self) -> None:
        """Multiply; the rows of zeros give zeros."""
        if len(self._blocks) == 1:  # the same product as below, and a quicker call
            self._tile.dot(self._factor, self._products)
            return
        for some in self._blocks:
            np.matmul(self._tile, self._factor[:, some], self._products[:, some])


def root_mean_square(row: Array, epsilon: float) -> float:
    """What `rms_norm` divides a single row (d,) by."""
    return math.sqrt(float(row.dot(row)) * (1.0 / len(row)) + epsilon)


class Norms:
    """What `rms_norm` makes of the rows of an array, row by row: quicker where they are few."""

    def __init__(self, rows: Array, epsilon: float, out: Array) -> None:
        self._pairs, self._epsilon = list(zip(rows, out, strict=True)), epsilon

    def __call__(self) -> None:
        """Read the rows as they are now, and write them at a root mean square of one."""
        for row, out in self._pairs:
            np.divide(row, root_mean_square(row, self._epsilon), out)


def normed(row: Array, norm: Array | None, epsilon: float) -> Array:
    """A row after the norm that follows a layer, if one does."""
    if norm is None:
        return row
    result: Array = np.divide(row, root_mean_square(row, epsilon))
    result *= norm
    return result
