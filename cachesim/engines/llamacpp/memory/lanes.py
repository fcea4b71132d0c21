"""From cells to lanes: the keys each row of a ubatch may look at, brought into position order.

The rule of visibility is upstream's mask: a row sees the cells of its primary sequence whose
position is not in its future and not hidden by the window. Equal positions are seen. Which cells
these are is worked out once per ubatch and cache; each layer then only picks its rows.
"""

from typing import Final, NamedTuple

import numpy as np

from cachesim.engines.llamacpp.memory.batch import Ubatch
from cachesim.engines.llamacpp.memory.cells import Cells
from cachesim.engines.llamacpp.memory.mask import WindowMask
from cachesim.engines.llamacpp.memory.rows import MARGIN, NO_ROW, Rows
from cachesim.engines.llamacpp.memory.streams import Streams
from cachesim.engines.llamacpp.memory.track import ABSENT_CELL, Track
from cachesim.model.store import ABSENT, BLOCK, Frame, Lane
from cachesim.units import Integers

_ROWS: Final[Integers] = np.arange(512)
_ROWS.flags.writeable = False


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
        return int(self.picked.max()) - MARGIN

    def pick(self, buffers: Rows, layer: int) -> Lane:
        """The lane of one layer."""
        return self.frame.lane(buffers.keys[layer][self.picked], buffers.values[layer][self.picked])


def plan_lanes(streams: Streams, ubatch: Ubatch, *, causal: bool = True) -> list[LanePlan]:
    """One lane per primary sequence of the ubatch, as `set_input_kq_mask` sees it. Trap: only the
    primary id of a row counts.
    """
    if ubatch.run >= 0 and causal:
        return [_lane_of_run(streams, ubatch.run, ubatch.positions[0], len(ubatch.rows))]
    at = np.array(ubatch.positions, dtype=np.int64)
    plans = []
    for seq, rows in _rows_by_sequence(ubatch):
        stream = streams.of(seq, "set_input_kq_mask")
        low, high = streams.mask.interval(at[rows], causal=causal)
        ends = int(np.minimum.reduce(low)), int(np.maximum.reduce(high))
        positions, picked = _lay_out(streams.cells[stream], seq, *ends)
        plans.append(LanePlan(stream, Frame(rows, positions, low, high), picked))
    return plans


def _lane_of_run(streams: Streams, seq: int, start: int, count: int) -> LanePlan:
    """The lane of one sequence's rows at consecutive positions.

    Whatever the window, no row sees less far down than the first or further up than the last.
    """
    stream = streams.of(seq, "set_input_kq_mask")
    low, high = streams.mask.interval(np.arange(start, start + count, dtype=np.int64))
    positions, picked = _lay_out(streams.cells[stream], seq, low.item(0), high.item(-1))
    rows = _ROWS[:count] if count <= _ROWS.size else np.arange(count)
    return LanePlan(stream, Frame(rows, positions, low, high), picked)


def _rows_by_sequence(ubatch: Ubatch) -> list[tuple[int, Integers]]:
    first = ubatch.seqs[0]
    if ubatch.seqs.count(first) == len(ubatch.seqs):
        return [(first[0], np.arange(len(ubatch.seqs)))]
    by_seq: dict[int, list[int]] = {}
    for row, ids in enumerate(ubatch.seqs):
        by_seq.setdefault(ids[0], []).append(row)
    return [(seq, np.array(rows)) for seq, rows in by_seq.items()]


def _lay_out(cells: Cells, seq: int, low: int, high: int) -> tuple[Integers, slice | Integers]:
    track = cells.track(seq)
    picked: slice | Integers
    if track.sparse is not None:
        positions, picked = _sparse_blocks(track.sparse, track.cells, low, high)
    else:
        positions, picked = _blocks(track, max(low, track.lo), min(high, track.hi))
    if not track.spare.size:
        return positions, picked
    extra = _overflow(cells, track.spare)
    if isinstance(picked, slice):
        picked = np.arange(picked.start, picked.stop)
    return np.concatenate([positions, extra[0]]), np.concatenate([picked, extra[1]])


def _blocks(track: Track, low: int, high: int) -> tuple[Integers, slice | Integers]:
    """The regular part: entry `i` belongs to position `base + i`."""
    base, lo, hi = low // BLOCK * BLOCK, track.lo, track.hi
    n = (high // BLOCK + 1) * BLOCK - base
    at = base - track.origin
    positions = np.arange(base, base + n, dtype=np.int64)
    if track.straight_from() <= max(base, lo):
        if track.count == hi - lo + 1:
            if base < lo:
                positions[: lo - base] = ABSENT
            positions[hi + 1 - base :] = ABSENT
        else:
            positions[track.table[at : at + n] == ABSENT_CELL] = ABSENT
        start = base + int(track.table[hi - track.origin]) - hi + MARGIN
        return positions, slice(start, start + n)
    held = track.table[at : at + n]
    positions[held == ABSENT_CELL] = ABSENT
    return positions, held + MARGIN  # -1 becomes the row that is always zero


def _sparse_blocks(
    positions: Integers, cells: Integers, low: int, high: int
) -> tuple[Integers, Integers]:
    """Far-apart positions: blocks in which nothing lies are left out, each would add zeros."""
    near = (positions >= low) & (positions <= high)
    blocks, which = np.unique(positions[near] // BLOCK, return_inverse=True)
    laid = np.full(len(blocks) * BLOCK, ABSENT, dtype=np.int64)
    picked = np.full(len(laid), NO_ROW, dtype=np.int64)
    entry = which * BLOCK + positions[near] % BLOCK
    laid[entry] = positions[near]
    picked[entry] = cells[near] + MARGIN
    return laid, picked


def _overflow(cells: Cells, spare: Integers) -> tuple[Integers, Integers]:
    """Cells whose position another cell of the sequence holds too, in cell order."""
    n = -(-len(spare) // BLOCK) * BLOCK
    positions = np.full(n, ABSENT, dtype=np.int64)
    picked = np.full(n, NO_ROW, dtype=np.int64)
    positions[: len(spare)] = cells.pos[spare]
    picked[: len(spare)] = spare + MARGIN
    return positions, picked


def visible_cells(
    streams: Streams, mask: WindowMask, ubatch: Ubatch, *, causal: bool
) -> list[list[int]]:
    """For each row the indices of the cells it sees, within its sequence's stream.

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
