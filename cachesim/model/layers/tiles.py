"""Matrix products whose rows do not depend on the rows beside them.

A BLAS picks its kernel by the shape of a product, and kernels add in different orders: a row
multiplied alone may differ in the last bit from the same row in a crowd. Here every product is
cut into tiles of few agreed heights, rows of zeros filling the last one. Heights may be mixed
where all of them give the same bits on the running machine, which `mixes` finds out once per
shape; where they do not, one height serves for all.
"""

from functools import lru_cache
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from cachesim.units import Array

Cuts: TypeAlias = tuple[slice, ...]
Ladder: TypeAlias = tuple[int, ...]

LADDER: Final[Ladder] = (4, 8, 16, 32, 64, 128, 256, 512)
"""The heights that may be mixed; 1 to 3 rows take other kernels on most machines."""

ALONE: Final[Ladder] = (16,)
"""The one height of a machine that cannot mix."""

ROUND_UP_TO: Final = 64
"""Up to this height a tile is rather filled with zeros than split."""

COLUMNS: Final = 16
"""Columns of a weight come in multiples of this: kernels treat odd edges on their own."""


def packed(*blocks: Array) -> Array:
    """Weights (out, in) side by side as one (in, out) matrix, zeros up to the edge, C order."""
    joined = np.concatenate([np.asarray(block, np.float64) for block in blocks], axis=0)
    columns = -(-joined.shape[0] // COLUMNS) * COLUMNS
    matrix = np.zeros((joined.shape[1], columns))
    matrix[:, : joined.shape[0]] = joined.T
    return matrix


@lru_cache(maxsize=4096)
def cuts(rows: int, ladder: Ladder) -> Cuts:
    """Where to cut that many rows; the last cut's end is the padded count."""
    edges = [0]
    left = rows
    while left > 0:
        above = next((height for height in ladder if height >= left), None)
        if above is not None and (above <= ROUND_UP_TO or above == ladder[0]):
            height = above
        else:
            height = max(height for height in ladder if height <= left)
        edges.append(edges[-1] + height)
        left -= height
    return tuple(slice(a, b) for a, b in pairwise(edges))


def product(rows: Array, matrix: Array, tiles: Cuts) -> Array:
    """Rows (R, in) @ matrix (in, out), tile by tile."""
    result = np.empty((rows.shape[0], matrix.shape[1]))
    for tile in tiles:
        np.matmul(rows[tile], matrix, out=result[tile])
    return result


def ladder_for(matrices: tuple[Array, ...], cell: tuple[int, int], block: int) -> Ladder:
    """The heights that a network with these matrices and cells (K, size) may mix, here and now.

    Attention multiplies rows with a block of keys and a block of values, both seen across cells.
    """
    heads, size = cell
    shapes = {(*matrix.shape, 1, "plain") for matrix in matrices}
    shapes |= {(size, block, heads, "keys"), (block, size, heads, "values")}
    return LADDER if all(mixes(*shape) for shape in sorted(shapes)) else ALONE


@lru_cache(maxsize=1024)
def mixes(inner: int, columns: int, heads: int, kind: str) -> bool:
    """True if all heights of the ladder give the same bits for such a product on this machine."""
    if kind == "keys":
        right = noise(columns, heads * inner)[:, :inner].T
    else:
        right = noise(inner, heads * columns)[:, :columns]
    rows = noise(LADDER[-1], inner)
    whole = np.matmul(rows, right)
    if not np.array_equal(np.matmul(np.roll(rows, 1, axis=0), right), np.roll(whole, 1, axis=0)):
        return False
    return all(
        np.array_equal(np.matmul(rows[start : start + height], right), whole[start:][:height])
        for height in LADDER[:-1]
        for start in (0, LADDER[-1] - height)
    )


def noise(rows: int, columns: int) -> Array:
    """Numbers without a pattern that a sum could hide behind: the same ones on every call."""
    ticks = np.arange(1, rows * columns + 1, dtype=np.float64).reshape(rows, columns)
    return np.sin(ticks * ticks * 0.7390851332151607)
