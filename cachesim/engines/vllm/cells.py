"""The cells of a request's chunk: in blocks, or in a ring."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cachesim.engines.vllm.block_pool import NULL, GroupSpec, cdiv
from cachesim.model.store import ABSENT, Frame, Lane
from cachesim.units import Array, Integers


class Cells(NamedTuple):
    """The cells of a group that a chunk writes and reads."""

    blocks: Integers  # the written blocks
    written: Integers
    cells: Integers
    frame: Frame  # ABSENT at the positions of null blocks, before the window

    @classmethod
    def of(
        cls, spec: GroupSpec, table: Sequence[int], start: int, count: int, *, local: bool = False
    ) -> "Cells":
        """The cells of a chunk of `count` tokens; `local`: of a layer with a window or chunks."""
        size, end = spec.block, start + count
        blocks = np.array(table[: cdiv(end, size)], np.int64)
        seen = spec.chunk or spec.window if local or spec.kind != "full" else 0
        frame = Frame.of_run(start, end, seen, chunked=spec.chunk > 0)
        positions, first = frame.positions, int(frame.positions[0])
        inside = np.minimum(positions, end - 1)
        # Null blocks are before the window: their cells exist, and are never attended to.
        owners = blocks[inside // size]
        cells = owners * size + inside % size
        positions[owners == NULL] = ABSENT
        return cls(blocks[start // size :], cells[start - first : end - first], cells, frame)


def through_ring(
    spec: GroupSpec, block: int, held: tuple[Array, Array], new: tuple[Array, Array], start: int
) -> Lane:
    """Read the open group of tokens from a ring, then write a chunk's last rows into it.

    Follows the layout of `CircularBufferSpec`.

    position    0 1 2 3 4 5 6 7 8 9    row `position % 8`, and of a long chunk the last 8 rows
    row         0 1 2 3 4 5 6 7 0 1
    """
    size, end = spec.block, start + len(new[0])
    frame = Frame.of_run(start, end, spec.chunk, chunked=True)
    first = int(frame.low[0])
    at = np.clip(frame.positions, first, end - 1) - first
    frame.positions[frame.positions < first] = ABSENT
    # Before the writes: a long chunk overwrites the rows that its first tokens still read.
    open_rows = block * size + np.arange(first, start) % size
    keys, values = (
        np.concatenate([old[open_rows], rows])[at] for old, rows in zip(held, new, strict=True)
    )
    # Of a chunk longer than the ring only the last rows are still there.
    kept = np.arange(max(start, end - size), end)
    for old, rows in zip(held, new, strict=True):
        old[block * size + kept % size] = rows[-len(kept) :]
    return frame.lane(keys, values)
