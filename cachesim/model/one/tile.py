"""What all steps share: one row in a tile of zeros, and the norm of one row."""

import math
from collections.abc import Callable, Sequence
from functools import partial
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

    def __init__(self, matrix: Matrix, height: int, epsilon: float = 0.0) -> None:
        tile, products = np.zeros((height, matrix.inner)), np.empty((height, matrix.columns))
        self.row: Array = tile[0]
        self.result: Array = products[0]
        self._epsilon, self._scale = epsilon, np.empty(())
        first, *others = blocks(height, matrix.inner, matrix.columns)
        if others:
            parts = [(matrix.factor[:, some], products[:, some]) for some in (first, *others)]
            self._multiply: Callable[[], object] = partial(multiply_parts, tile, parts)
        else:  # the same product, and a quicker call
            self._multiply = partial(tile.dot, matrix.factor, products)

    def __call__(self) -> None:
        """Multiply; the rows of zeros give zeros."""
        self._multiply()

    def normed(self, x: Array) -> None:
        """Multiply the row x (d,) at a root mean square of one, as `rms_norm` makes it."""
        self._scale[()] = root_mean_square(x, self._epsilon)
        np.divide(x, self._scale, self.row)
        self._multiply()


def multiply_parts(tile: Array, parts: Sequence[tuple[Array, Array]]) -> None:
    """A tile times parts of a matrix, each into its own columns."""
    for factor, product in parts:
        np.matmul(tile, factor, product)


def root_mean_square(row: Array, epsilon: float) -> float:
    """What `rms_norm` divides a single row (d,) by."""
    return math.sqrt(float(row.dot(row)) * (1.0 / len(row)) + epsilon)


class Norms:
    """What `rms_norm` makes of the rows of an array, row by row: quicker where they are few."""

    def __init__(self, rows: Array, epsilon: float, out: Array) -> None:
        self._pairs = list(zip(rows, out, strict=True))
        self._epsilon, self._scale = epsilon, np.empty(())

    def __call__(self) -> None:
        """Read the rows as they are now, and write them at a root mean square of one."""
        scale = self._scale
        for row, out in self._pairs:
            scale[()] = root_mean_square(row, self._epsilon)
            np.divide(row, scale, out)


def normed(row: Array, norm: Array | None, epsilon: float) -> Array:
    """A row after the norm that follows a layer, if one does."""
    if norm is None:
        return row
    result: Array = np.divide(row, root_mean_square(row, epsilon))
    result *= norm
    return result
