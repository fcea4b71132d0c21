"""Matrix products whose rows do not depend on the rows beside them.

A BLAS picks its kernel by the shape of a product, and kernels add in different orders: a row
multiplied alone may differ in the last bit from the same row in a batch. Here every product is cut
into tiles of few agreed heights, rows of zeros filling the last one. Heights may be mixed where all
of them give the same bits on the running machine, which `mixes` finds out once per shape and order
of the weights in memory. A BLAS with kernels for small products (OpenBLAS with AVX-512) mixes for
row-major weights, most others also for column-major ones. Where neither does, one height serves for
all.

Tiles stay below the size from which a BLAS wakes its threads: for products this small they cost
more than they save, and on a busy machine a hundred times more.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from cachesim.model.store import BLOCK, Lane, Padding, Store
from cachesim.units import Array, Integers

Ladder: TypeAlias = tuple[int, ...]
Order: TypeAlias = Literal["F", "C"]

LADDER: Final[Ladder] = (4, 8, 16, 32)
"""The heights that may be mixed; 1 to 3 rows take other kernels on most machines."""

ATTENTION_LADDER: Final[Ladder] = (2, *LADDER, 64, 128)
"""Blocks of keys are narrow, so more rows fit; and two rows alone are a token's usual ones."""

ORDERS: Final[tuple[Order, ...]] = ("F", "C")
"""Columns in one piece, rows in one piece: the quicker first."""

SMALL: Final = (64, 128)
"""A matrix that is small to every BLAS: the order in which it mixes is the quicker for all."""

ALONE: Final[Ladder] = (16,)
"""The one height of a machine that cannot mix."""

COLUMNS: Final = 16
"""Columns come in multiples of this: kernels treat odd edges on their own."""

MOST_COLUMNS: Final = 128
"""Wider matrices are cut into blocks of this many columns, or more where tiles are low."""

SERIAL: Final = 1 << 18
"""Multiplications of one product that OpenBLAS does in one thread at least."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights (in, out) for `product`, in the order of memory in which this machine mixes heights.

    Few rows times contiguous columns take many a BLAS a third less time than rows times
    rows, so that order comes first. Kernels for small products need contiguous rows instead, and
    then even large matrices are faster in that order, block by block.
    """

    factor: Array

    @property
    def inner(self) -> int:
        """The depth of a product with it."""
        return int(self.factor.shape[0])

    @property
    def columns(self) -> int:
        """The width of a product with it: all columns, and zeros up to a full edge."""
        return int(self.factor.shape[1])


def packed(*parts: Array) -> Matrix:
    """Weights (out, in) side by side as one matrix (in, out)."""
    joined = np.concatenate([np.asarray(part, np.float64) for part in parts], axis=0)
    columns = -(-joined.shape[0] // COLUMNS) * COLUMNS
    order = order_for(joined.shape[1], columns)
    factor = np.zeros((joined.shape[1], columns), order=order)
    factor[:, : joined.shape[0]] = joined.T
    return Matrix(factor)


@lru_cache(maxsize=4096)
def padded(rows: int, ladder: Ladder) -> int:
    """The number of rows, and of zeros that fill the last tile."""
    full = rows // ladder[-1] * ladder[-1]
    return full + next((height for height in ladder if height >= rows - full > 0), 0)


def product(rows: Array, matrix: Matrix, ladder: Ladder) -> Array:
    """Rows (R, in) times a matrix (in, out), R from `padded`: (R, out)."""
    factor, height, count = matrix.factor, ladder[-1], rows.shape[0]
    inner, columns = factor.shape
    if 0 < count < height and len(blocks(count, inner, columns)) == 1:
        whole: Array = np.matmul(rows, factor)
        return whole
    result = np.empty((count, columns))
    full = count // height * height
    if full:
        tiles = rows[:full].reshape(-1, height, inner)
        out = result[:full].reshape(-1, height, columns)
        for some in blocks(height, inner, columns):
            np.matmul(tiles, factor[:, some], out=out[:, :, some])
    if full < count:
        for some in blocks(count - full, inner, columns):
            np.matmul(rows[full:], factor[:, some], out=result[full:, some])
    return result


@lru_cache(maxsize=4096)
def blocks(height: int, inner: int, columns: int) -> tuple[slice, ...]:
    """Blocks of columns multiplied with a tile of `height` rows: lower tiles, wider blocks."""
    most = max(MOST_COLUMNS, SERIAL // (height * inner) // COLUMNS * COLUMNS)
    return tuple(slice(first, min(first + most, columns)) for first in range(0, columns, most))


def ladder_for(matrices: tuple[Matrix, ...]) -> Ladder:
    """The heights that products with these matrices may mix, here and now."""
    shapes = sorted({(matrix.inner, matrix.columns) for matrix in matrices})
    ladder = min(heights(*shape) for shape in shapes)
    mixable = all(mixes(ladder, *shape, order_for(*shape)) for shape in shapes)
    return ladder if mixable else ALONE


def heights(inner: int, columns: int) -> Ladder:
    """The heights at which a product of that shape stays in one thread."""
    return below_threads(LADDER, inner * min(columns, MOST_COLUMNS))


@lru_cache(maxsize=1024)
def order_for(inner: int, columns: int) -> Order:
    """The memory order of weights of that shape: that of small ones, if heights mix so."""
    ladder = heights(inner, columns)
    orders = ORDERS if mixes(heights(*SMALL), *SMALL, ORDERS[0]) else ORDERS[::-1]
    return next((order for order in orders if mixes(ladder, inner, columns, order)), orders[0])


def attention_ladder_for(heads: int, size: int, block: int) -> Ladder:
    """The heights for rows times a block of one head's keys, or of its values."""
    ladder = below_threads(ATTENTION_LADDER, block * size)
    mixable = (tall for tall in (ladder, ladder[1:]) if sides_mix(tall, heads, size, block))
    return next(mixable, ALONE)


def below_threads(ladder: Ladder, deep: int) -> Ladder:
    """The heights at which rows times a matrix of that many numbers stay in one thread."""
    return tuple(height for height in ladder if height * deep <= SERIAL) or ladder[:1]


@lru_cache(maxsize=1024)
def mixes(ladder: Ladder, inner: int, columns: int, order: Order) -> bool:
    """True if all heights of tiles give a row the same bits."""
    matrix = Matrix(np.asarray(noise(inner, columns), order=order))
    return alike(ladder, inner, lambda rows: product(rows, matrix, ladder))


@lru_cache(maxsize=1024)
def sides_mix(ladder: Ladder, heads: int, size: int, block: int) -> bool:
    """`mixes` for keys and values as attention sees them: one head of several in every cell."""
    values = noise(block, heads * size)[:, :size]
    keys = values.T
    return alike(ladder, size, lambda rows: np.matmul(rows, keys)) and alike(
        ladder, block, lambda rows: np.matmul(rows, values)
    )


def alike(ladder: Ladder, inner: int, multiply: Callable[[Array], Array]) -> bool:
    """True if a row has the same bits at any place in tiles of any height."""
    top = ladder[-1]
    rows = noise(top, inner)
    whole = multiply(rows)
    if not np.array_equal(multiply(np.roll(rows, 1, axis=0)), np.roll(whole, 1, axis=0)):
        return False
    return all(
        np.array_equal(multiply(rows[start : start + height]), whole[start:][:height])
        for height in ladder[:-1]
        for start in (0, top - height)
    )


def noise(rows: int, columns: int) -> Array:
    """Irregular numbers, the same on every call."""
    ticks = np.arange(1, rows * columns + 1, dtype=np.float64).reshape(rows, columns)
    return np.sin(ticks * ticks * 0.7390851332151607)


# The pass of a ubatch through the layers: its tiles, its output rows, the masks of its keys.
#
# q   queries taken at once      b   blocks of 64 positions in a lane

Turns: TypeAlias = tuple[Array, Array]
"""Cosines and sines that turn rows to their positions."""


class KeyMask(NamedTuple):
    """Some rows of a lane: the blocks in which they see any key, and the keys hidden in these."""

    rows: slice  # of the lane's rows
    blocks: slice  # of the lane's blocks
    hidden: tuple[tuple[slice, Array], ...]  # blocks among those, and a mask (blocks, q, 1, 64)

    @classmethod
    def of(cls, positions: Integers, lane: Lane, rows: slice) -> "KeyMask":
        """The mask of some rows of a lane, whose blocks have these positions (b, 64)."""
        low, high = lane.low[rows], lane.high[rows]
        if len(low) == 1:
            mask, first = positions > high.item(), low.item()
            if first > 0:
                mask |= positions < first
            return cls(rows, slice(None), ((slice(None), mask[:, None, None]),))
        seen = (positions <= high.max()) & (positions >= low.min())
        columns = seen.any(axis=1).nonzero()[0]
        blocks = slice(int(columns[0]), int(columns[-1]) + 1) if len(columns) else slice(0, 1)
        near = positions[blocks]
        partly = ((near > high.min()) | (near < low.max())).any(axis=1).nonzero()[0]
        masks = []
        for block in partly.tolist():
            mask = (near[block] > high[:, None]) | (near[block] < low[:, None])
            masks.append((slice(block, block + 1), mask[None, :, None]))
        return cls(rows, blocks, tuple(masks))


class KeyMasks:
    """The masks of one ubatch: those of a lane that many layers share are computed once."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._known: dict[tuple[int, int, int], tuple[Lane, tuple[KeyMask, ...]]] = {}

    def of(self, lane: Lane, group: int) -> tuple[KeyMask, ...]:
        """The masks of a lane whose queries come in groups, as many queries at once as fit."""
        key = (id(lane.positions), id(lane.low), id(lane.high))
        known = self._known.get(key)
        if known is None:  # the lane is kept, so that no other can take its arrays' ids
            queries = max(1, self._rows // group)
            positions = lane.positions.reshape(-1, BLOCK)
            starts = range(0, len(lane.low), queries)
            masks = [KeyMask.of(positions, lane, slice(s, s + queries)) for s in starts]
            known = self._known[key] = (lane, tuple(masks))
        return known[1]


@dataclass(frozen=True, slots=True)
class Run:
    """The pass of a ubatch through the layers.

    Rows `[0, count)` of x are real, `[count, R)` fill the last tile with zeros and stay zero.

    The last layer may have fewer output rows: it reads all of x and stores keys, values and states
    of all tokens, but returns only those rows, in tiles of their own.
    """

    count: int
    sets: int
    ladder: Ladder  # heights of tiles for products with weights
    attention_ladder: Ladder  # and with blocks of keys and values
    masks: KeyMasks
    turns: Turns | None
    store: Store
    padding: Padding | None = None
    outputs: Integers | None = None  # output rows; None: all

    @property
    def n_outputs(self) -> int:
        """The number of output rows."""
        return self.count if self.outputs is None else len(self.outputs)

    @property
    def height(self) -> int:
        """R', the rows that a layer returns: its output rows, and zeros."""
        return padded(self.n_outputs, self.ladder)

    def with_outputs(self, outputs: Integers | None) -> "Run":
        """The run of a last layer of which only these rows' logits are wanted."""
        if outputs is None or len(outputs) == self.count:
            return self
        return replace(self, outputs=outputs)

    def rows(self, x: Array) -> Array:
        """The output rows among rows (T, ...)."""
        return x if self.outputs is None else x[self.outputs]

    def tiled(self, x: Array) -> Array:
        """The output rows of x (R, d), with the zeros that fill their last tile: (R', d)."""
        if self.outputs is None:
            return x
        result = np.zeros((self.height, x.shape[1]))
        result[: len(self.outputs)] = x[self.outputs]
        return result

    def lane(self, lane: Lane) -> Lane:
        """A lane restricted to the output rows, numbered among themselves."""
        if self.outputs is None:
            return lane
        places = np.full(self.count, -1)
        places[lane.rows] = np.arange(len(lane.rows))
        mine = places[self.outputs]
        (rows,) = np.nonzero(mine >= 0)
        return lane._replace(rows=rows, low=lane.low[mine[rows]], high=lane.high[mine[rows]])


class InAndOut:
    """Layers of two matrices: one that rows come in by, and one by which they leave."""

    __slots__ = ()

    entry: Matrix
    exit: Matrix

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices that rows are multiplied with."""
        return (self.entry, self.exit)


class Layer(Protocol):
    """A summand of the residual stream: a layer that mixes tokens, or an MLP."""

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices that rows are multiplied with."""
        ...

    def __call__(self, x: Array, run: Run) -> Array:
        """The layer's summand for rows x (R, d), or for the output rows among them."""
        ...
