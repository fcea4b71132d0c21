"""From cells to lanes: the keys each row of a ubatch may look at, brought into position order.

The rule of visibility is upstream's mask: a row sees the cells of its primary sequence whose
position is not in its future and not hidden by the window. Equal positions are seen. Which cells
these are is worked out once per ubatch and cache; each layer then only picks its rows.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from cachesim.engines.llamacpp.memory.batch import Ubatch
from cachesim.engines.llamacpp.memory.cells import Cells
from cachesim.engines.llamacpp.memory.mask import WindowMask
from cachesim.engines.llamacpp.memory.streams import Streams
from cachesim.model.arithmetic import LayerShape
from cachesim.model.store import ABSENT, BLOCK, Frame, Lane, grown
from cachesim.units import Array, Integers

MARGIN: Final = BLOCK
NO_ROW: Final = MARGIN - 1
"""A row that is always zero: what stands for a cell that is not there."""


class Rows:
    """The K and V buffers of one stream; erased cells keep their old content, as upstream's do."""

    def __init__(self, shapes: Iterable[LayerShape], size: int) -> None:
        self.shapes = tuple(shapes)
        self.size = size
        self.clear()

    def clear(self) -> None:
        """All zeros."""
        self.reach = 0
        self.keys: dict[int, Array] = {}
        self.values: dict[int, Array] = {}
        for shape in self.shapes:
            self.keys[shape.layer] = np.zeros((2 * MARGIN, *shape.key), dtype=shape.dtype)
            self.values[shape.layer] = np.zeros((2 * MARGIN, *shape.value), dtype=shape.dtype)

    def cover(self, cell: int) -> None:
        """Make sure that there are rows up to and including this cell."""
        if cell < self.reach:
            return
        reach = min(self.size, max(cell + 1, 2 * self.reach, 4 * BLOCK))
        for buffers in (self.keys, self.values):
            for layer, old in buffers.items():
                buffers[layer] = grown(old, reach + 2 * MARGIN)
        self.reach = reach

    def places(self, cells: Integers | range) -> slice | Integers:
        """The rows of some cells, which are there from now on; a slice where cells are neighbours.

        The cells ascend but for one turn.
        """
        low, last = int(cells[0]), int(cells[-1])
        if last - low == len(cells) - 1:
            if last >= self.reach:
                self.cover(last)
            return slice(low + MARGIN, last + 1 + MARGIN)
        turned = np.asarray(cells)
        self.cover(int(turned.max()))
        return turned + MARGIN

    def put_keys(self, layer: int, cells: Integers | range, data: Array) -> None:
        """Write the keys of some cells."""
        places = self.places(cells)
        self.keys[layer][places] = data

    def put_values(self, layer: int, cells: Integers | range, data: Array) -> None:
        """Write the values of some cells."""
        places = self.places(cells)
        self.values[layer][places] = data

    def zero(self, cells: Integers) -> None:
        """Zero the rows of some cells."""
        known = cells[cells < self.reach] + MARGIN
        for buffers in (self.keys, self.values):
            for rows in buffers.values():
                rows[known] = 0

    def copy_from(self, other: "Rows") -> None:
        """Take over everything another stream holds."""
        self.reach = other.reach
        self.keys = {layer: rows.copy() for layer, rows in other.keys.items()}
        self.values = {layer: rows.copy() for layer, rows in other.values.items()}


class LanePlan(NamedTuple):
    """A lane before its keys and values are picked."""

    stream: int
    frame: Frame
    picked: slice | Integers  # rows of the buffers, as a plain slice where the cells allow it

    @property
    def top_cell(self) -> int:
        """A cell that the buffers must reach for all picked rows to exist."""
        if isinstance(self.picked, slice):
            return int(self.picked.stop) - 1 - 2 * MARGIN
        return int(self.picked.max(initial=MARGIN)) - MARGIN

    def pick(self, buffers: Rows, layer: int) -> Lane:
        """The lane of one layer."""
        return self.frame.lane(buffers.keys[layer][self.picked], buffers.values[layer][self.picked])


def plan_lanes(streams: Streams, ubatch: Ubatch) -> list[LanePlan]:
    """A lane per primary sequence of the ubatch, as `set_input_kq_mask` sees it. Trap: only the
    primary id of a row counts.
    """
    at = np.array(ubatch.positions, dtype=np.int64)
    primary = np.array([ids[0] for ids in ubatch.seqs])
    plans = []
    for seq in dict.fromkeys(primary.tolist()):
        rows = np.flatnonzero(primary == seq)
        stream = streams.of(seq, "set_input_kq_mask")
        low, high = streams.mask.interval(at[rows])
        ends = int(np.minimum.reduce(low)), int(np.maximum.reduce(high))
        positions, picked = _lay_out(streams.cells[stream], seq, *ends)
        plans.append(LanePlan(stream, Frame(rows, positions, low, high), picked))
    return plans


def _lay_out(cells: Cells, seq: int, low: int, high: int) -> tuple[Integers, slice | Integers]:
    """Positions and buffer rows of everything in [low, high], block after block.

    Blocks in which nothing lies are left out: each would add zeros. Cells whose position another
    cell of the sequence holds too follow in blocks of their own, in cell order.
    """
    found = cells.select(seq, low, high + 1)
    held = cells.pos[found]
    distance = held - found
    if held.size and not np.count_nonzero(distance != distance[0]):
        base = int(held[0]) // BLOCK * BLOCK
        positions = np.full((int(held[-1]) // BLOCK + 1) * BLOCK - base, ABSENT, dtype=np.int64)
        positions[held - base] = held
        start = base - int(distance[0]) + MARGIN
        return positions, slice(start, start + len(positions))
    order = held.argsort(kind="stable")
    found, held = found[order], held[order]
    first = np.ones(len(held), dtype=np.bool_)
    first[1:] = held[1:] != held[:-1]
    spare, found, held = np.sort(found[~first]), found[first], held[first]
    blocks, block = np.unique(held // BLOCK, return_inverse=True)
    entry, regular = block * BLOCK + held % BLOCK, len(blocks) * BLOCK
    size = regular + -(-len(spare) // BLOCK) * BLOCK
    positions = np.full(size, ABSENT, dtype=np.int64)
    positions[entry] = held
    positions[regular : regular + len(spare)] = cells.pos[spare]
    picked = np.full(size, NO_ROW, dtype=np.int64)
    picked[entry] = found + MARGIN
    picked[regular : regular + len(spare)] = spare + MARGIN
    return positions, picked


def visible_cells(
    streams: Streams, mask: WindowMask, ubatch: Ubatch, *, causal: bool
) -> list[list[int]]:
    """The indices of the cells that each row sees, within its sequence's stream.

    Upstream: `llama_kv_cache::set_input_kq_mask`.
    """
    at = np.array(ubatch.positions, dtype=np.int64)
    low, high = mask.interval(at, causal=causal)
    seen = []
    for row, ids in enumerate(ubatch.seqs):
        cells = streams.cells[streams.of(ids[0], "set_input_kq_mask")]
        inside = cells.members(ids[0]) & (cells.pos >= low[row]) & (cells.pos <= high[row])
        seen.append(np.flatnonzero(inside).tolist())
    return seen
