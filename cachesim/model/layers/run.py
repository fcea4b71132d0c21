"""The pass of a ubatch through the layers: its tiles, the rows asked for, the masks of its keys.

q   queries taken at once      b   blocks of 64 positions in a lane
"""

from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np

from cachesim.model.layers.tiles import Ladder, Matrix, padded
from cachesim.model.store import BLOCK, Lane, Padding, Store
from cachesim.units import Array, Integers

Turns: TypeAlias = tuple[Array, Array]
"""Cosines and sines that turn rows to their positions."""


@dataclass(frozen=True, slots=True)
class KeyMask:
    """Some rows of a lane: the blocks in which they see any key, and the keys hidden in these."""

    rows: slice  # of the lane's rows
    blocks: slice  # of the lane's blocks
    hidden: tuple[tuple[slice, Array], ...]  # blocks among those, and a mask (blocks, q, 1, 64)

    @classmethod
    def of(cls, positions: Integers, lane: Lane, rows: slice) -> "KeyMask":
        """The mask of some rows of a lane, whose blocks have these positions (b, 64)."""
        low, high = lane.low[rows], lane.high[rows]
        if len(low) == 1:
            mask = (positions > high[0]) | (positions < low[0])
            return cls(rows, slice(None), ((slice(None), mask[:, None, None]),))
        seen = (positions <= high.max()) & (positions >= low.min())
        found = seen.any(axis=1).nonzero()[0]
        blocks = slice(int(found[0]), int(found[-1]) + 1) if len(found) else slice(0, 1)
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

    In the last layer only some rows may be asked for: it reads all of x and keeps what it must of
    all tokens, but what it returns are those rows alone, in tiles of their own.
    """

    count: int
    sets: int
    ladder: Ladder  # heights of tiles for products with weights
    attention_ladder: Ladder  # and with blocks of keys and values
    masks: KeyMasks
    turns: Turns | None
    store: Store
    padding: Padding | None = None
    asked: Integers | None = None  # rows that somebody reads; None: all of them

    @property
    def height(self) -> int:
        """R', the rows of what a layer returns: those asked for, and zeros."""
        return padded(self.count if self.asked is None else len(self.asked), self.ladder)

    def asking(self, outputs: Integers | None) -> "Run":
        """The run of a last layer of which only these rows' logits are wanted."""
        if outputs is None or len(outputs) == self.count:
            return self
        return replace(self, asked=outputs)

    def rows(self, x: Array) -> Array:
        """The rows asked for among rows (T, ...)."""
        return x if self.asked is None else x[self.asked]

    def tiled(self, x: Array) -> Array:
        """The rows asked for of x (R, d), with the zeros that fill their last tile: (R', d)."""
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
        """The matrices that rows are multiplied with."""
        return (self.entry, self.exit)


class Layer(Protocol):
    """A summand of the residual stream: a layer that mixes tokens, or an MLP."""

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices that rows are multiplied with."""
        ...

    def __call__(self, x: Array, run: Run) -> Array:
        """The layer's summand for rows x (R, d), or for those of them that are asked for."""
        ...
