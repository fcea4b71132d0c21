"""Matrix products whose rows do not depend on the rows beside them.

A BLAS picks its kernel by the shape of a product, and kernels add in different orders: a row
multiplied alone may differ in the last bit from the same row in a crowd. Here every product is
cut into tiles of few agreed heights, rows of zeros filling the last one. Heights may be mixed
where all of them give the same bits on the running machine, which `heights` finds out once per
shape; where they do not, one height serves for all.
"""

from functools import lru_cache
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from cachesim.units import Array

Cuts: TypeAlias = tuple[slice, ...]

LADDER: Final = (4, 8, 16, 32, 64, 128, 256, 512)
"""The heights that may be mixed; 1 to 3 rows take other kernels on most machines."""

ALONE: Final = (16,)
"""The one height of a machine that cannot mix."""

ROUND_UP_TO: Final = 64
"""Up to this height a tile is rather filled with zeros than split."""

COLUMNS: Final = 16
"""Columns of a weight come in multiples of this: kernels treat odd edges on their own."""


def padded_columns(columns: int) -> int:
    """The least multiple of COLUMNS that holds them."""
    return -(-columns // COLUMNS) * COLUMNS


def packed(*blocks: Array) -> Array:
    """Weights (out, in) side by side as one (in, out) matrix, zeros up to the edge, C order."""
    joined = np.concatenate([np.asarray(block, np.float64) for block in blocks], axis=0)
    matrix = np.zeros((joined.shape[1], padded_columns(joined.shape[0])))
    matrix[:, : joined.shape[0]] = joined.T
    return matrix


@lru_cache(maxsize=4096)
def cuts(rows: int, ladder: tuple[int, ...] = LADDER) -> Cuts:
    """Where to cut that many rows; the last cut's end is the padded count."""
    edges = [0]
    left = rows
    while left > 0:
        fits = [height for height in ladder if height >= left]
        if fits and (fits[0] <= ROUND_UP_TO or len(ladder) == 1):
            height = fits[0]
        else:
            height = max((h for h in ladder if h <= left), default=ladder[0])
        edges.append(edges[-1] + height)
        left -= height
    return tuple(slice(a, b) for a, b in pairwise(edges))


def product(rows: Array, matrix: Array, tiles: Cuts) -> Array:
    """rows (R, in) @ matrix (in, out), tile by tile."""
    if len(tiles) == 1:
        return np.matmul(rows, matrix)
    result = np.empty((rows.shape[0], matrix.shape[1]))
    for tile in tiles:
        np.matmul(rows[tile], matrix, out=result[tile])
    return result


@lru_cache(maxsize=256)
def mixes(inner: int, columns: int, *, transposed: bool = False) -> bool:
    """True if all heights of the ladder give the same bits for such a product, here and now."""
    rows = _noise(LADDER[-1], inner)
    right = _noise(columns, inner).T if transposed else _noise(inner, columns)
    whole = np.matmul(rows, right)
    return all(
        np.array_equal(
            np.matmul(np.ascontiguousarray(rows[start : start + h]), right),
            whole[start : start + h],
        )
        for h in LADDER[:-1]
        for start in (0, LADDER[-1] - h)
    )


def _noise(rows: int, columns: int) -> Array:
    """Numbers without a pattern that a sum could hide behind."""
    ticks = np.arange(1, rows * columns + 1, dtype=np.float64).reshape(rows, columns)
    return np.sin(ticks * ticks * 0.7390851332151607)
