"""Matrix products whose rows do not depend on the rows beside them.

A BLAS picks its kernel by the shape of a product, and kernels add in different orders: a row
multiplied alone may differ in the last bit from the same row in a crowd. Here every product is
cut into tiles of few agreed heights, rows of zeros filling the last one. Heights may be mixed
where all of them give the same bits on the running machine, which `mixes` finds out once per
shape; where they do not, one height serves for all.

Tiles stay below the size from which a BLAS wakes its threads: for products this small they cost
more than they bring, and on a busy machine a hundred times more.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import numpy as np

from cachesim.units import Array

Ladder: TypeAlias = tuple[int, ...]
Side: TypeAlias = Literal["weights", "keys", "values"]

LADDER: Final[Ladder] = (4, 8, 16, 32)
"""The heights that may be mixed; 1 to 3 rows take other kernels on most machines."""

ATTENTION_LADDER: Final[Ladder] = (*LADDER, 64, 128)
"""Blocks of keys are narrow, so more rows fit."""

ALONE: Final[Ladder] = (16,)
"""The one height of a machine that cannot mix."""

COLUMNS: Final = 16
"""Columns come in multiples of this: kernels treat odd edges on their own."""

MOST_COLUMNS: Final = 128
"""Wider matrices are cut into blocks of so many columns."""

SERIAL: Final = 1 << 18
"""Multiplications of one product that OpenBLAS does in one thread at least."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights (in, out) for `product`: blocks of columns, each in C order."""

    blocks: tuple[Array, ...]
    edges: tuple[int, ...]  # where each block begins, and where the last one ends

    @property
    def columns(self) -> int:
        """How wide a product with it is: all columns, and zeros up to a full edge."""
        return self.edges[-1]


def packed(*parts: Array) -> Matrix:
    """Weights (out, in) side by side as one matrix (in, out)."""
    joined = np.concatenate([np.asarray(part, np.float64) for part in parts], axis=0)
    columns = -(-joined.shape[0] // COLUMNS) * COLUMNS
    whole = np.zeros((joined.shape[1], columns))
    whole[:, : joined.shape[0]] = joined.T
    edges = (*range(0, columns, MOST_COLUMNS), columns)
    blocks = (whole[:, edge : edge + MOST_COLUMNS] for edge in edges[:-1])
    return Matrix(tuple(np.ascontiguousarray(block) for block in blocks), edges)


@lru_cache(maxsize=4096)
def padded(rows: int, ladder: Ladder) -> int:
    """That many rows and the zeros that fill the last tile."""
    full = rows // ladder[-1] * ladder[-1]
    return full + next((height for height in ladder if height >= rows - full > 0), 0)


def product(rows: Array, matrix: Matrix, ladder: Ladder) -> Array:
    """Rows (R, in) times a matrix (in, out), R as `padded` says: (R, out)."""
    height = ladder[-1]
    result = np.empty((rows.shape[0], matrix.columns))
    full = rows.shape[0] // height * height
    for block, first in zip(matrix.blocks, matrix.edges, strict=False):
        last = first + block.shape[1]
        if full:
            tiled = rows[:full].reshape(-1, height, rows.shape[1])
            out = result[:full].reshape(-1, height, matrix.columns)
            np.matmul(tiled, block, out=out[:, :, first:last])
        if full < rows.shape[0]:
            np.matmul(rows[full:], block, out=result[full:, first:last])
    return result


def ladder_for(matrices: tuple[Matrix, ...]) -> Ladder:
    """The heights that products with these matrices may mix, here and now."""
    shapes = sorted({block.shape for matrix in matrices for block in matrix.blocks})
    deepest = max(inner * columns for inner, columns in shapes)
    ladder = below_threads(LADDER, deepest)
    mixed = (mixes(ladder, inner, columns, 1, "weights") for inner, columns in shapes)
    return ladder if all(mixed) else ALONE


def attention_ladder_for(heads: int, size: int, block: int) -> Ladder:
    """The same for rows times a block of one head's keys, or of its values."""
    ladder = below_threads(ATTENTION_LADDER, block * size)
    keys, values = (
        mixes(ladder, size, block, heads, "keys"),
        mixes(ladder, block, size, heads, "values"),
    )
    return ladder if keys and values else ALONE


def below_threads(ladder: Ladder, deep: int) -> Ladder:
    """The heights at which rows times a matrix of that many numbers stay in one thread."""
    return tuple(height for height in ladder if height * deep <= SERIAL) or ladder[:1]


@lru_cache(maxsize=1024)
def mixes(ladder: Ladder, inner: int, columns: int, heads: int, side: Side) -> bool:
    """True if all heights give a row the same bits, wherever it stands in its tile.

    Keys and values are seen as attention sees them: one head of several in every cell.
    """
    if side == "keys":
        right = noise(columns, heads * inner)[:, :inner].T
    else:
        right = noise(inner, heads * columns)[:, :columns]
    top = ladder[-1]
    rows = noise(top, inner)
    whole = np.matmul(rows, right)
    if not np.array_equal(np.matmul(np.roll(rows, 1, axis=0), right), np.roll(whole, 1, axis=0)):
        return False
    return all(
        np.array_equal(np.matmul(rows[start : start + height], right), whole[start:][:height])
        for height in ladder[:-1]
        for start in (0, top - height)
    )


def noise(rows: int, columns: int) -> Array:
    """Numbers without a pattern that a sum could hide behind: the same ones on every call."""
    ticks = np.arange(1, rows * columns + 1, dtype=np.float64).reshape(rows, columns)
    return np.sin(ticks * ticks * 0.7390851332151607)
