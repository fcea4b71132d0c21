"""The attention cache (`llama_kv_cache`): cells, their keys and values, pending updates, states."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial as bound
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from cachesim.engines.llamacpp.memory import blob
from cachesim.engines.llamacpp.memory.batch import Splitter, Ubatch, as_integers, is_run
from cachesim.engines.llamacpp.memory.cells import (
    MAX,
    NO_WINDOW,
    Cells,
    SlotInfo,
    Streams,
    WindowMask,
    apply_ubatch,
    find_slot,
    prepare,
)
from cachesim.engines.llamacpp.memory.module import Plan, UbatchStore
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.errors import BlobError, UpstreamAbort
from cachesim.model.arithmetic import LayerShape, rows_from
from cachesim.model.store import ABSENT, BLOCK, Frame, Lane, Lanes, grown
from cachesim.units import Array, Integers

# From cells to lanes: the keys that each row of a ubatch attends to, in position order.
#
# The visibility is upstream's mask: a row attends to the cells of its primary sequence whose
# position is not in its future and not hidden by the window; equal positions are visible. The cells
# are determined once per ubatch and cache; each layer then only picks its rows.

MARGIN: Final = BLOCK
NO_ROW: Final = MARGIN - 1
"""A zero row, for absent cells."""


class Rows:
    """The K and V buffers of one stream; erased cells keep their old content, as upstream's do."""

    def __init__(self, shapes: Iterable[LayerShape], size: int) -> None:
        self.shapes = tuple(shapes)
        self.size = size
        self.clear()

    def clear(self) -> None:
        """Zero all rows."""
        self.reach = 0
        self.keys: dict[int, Array] = {}
        self.values: dict[int, Array] = {}
        for shape in self.shapes:
            self.keys[shape.layer] = np.zeros((2 * MARGIN, *shape.key), dtype=shape.dtype)
            self.values[shape.layer] = np.zeros((2 * MARGIN, *shape.value), dtype=shape.dtype)

    def cover(self, cell: int) -> None:
        """Grow the buffers up to and including a cell."""
        if cell < self.reach:
            return
        reach = min(self.size, max(cell + 1, 2 * self.reach, 4 * BLOCK))
        for buffers in (self.keys, self.values):
            for layer, old in buffers.items():
                buffers[layer] = grown(old, reach + 2 * MARGIN)
        self.reach = reach

    def places(self, cells: Integers | range) -> slice | Integers:
        """The rows of some cells, allocated if needed; a slice for consecutive cells.

        The cells ascend except for one wrap-around.
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
        """Copy the content of another stream."""
        self.reach = other.reach
        self.keys = {layer: rows.copy() for layer, rows in other.keys.items()}
        self.values = {layer: rows.copy() for layer, rows in other.values.items()}


class LanePlan(NamedTuple):
    """A lane before its keys and values are picked."""

    stream: int
    frame: Frame
    picked: slice | Integers  # rows of the buffers, a slice if the cells allow it

    @property
    def top_cell(self) -> int:
        """A cell that the buffers must reach for all picked rows to exist."""
        if isinstance(self.picked, slice):
            return int(self.picked.stop) - 1 - 2 * MARGIN
        return int(self.picked.max(initial=MARGIN)) - MARGIN

    def pick(self, buffers: Rows, layer: int) -> Lane:
        keys, values = buffers.keys[layer], buffers.values[layer]
        rows, positions, low, high = self.frame
        return Lane(rows, keys[self.picked], values[self.picked], positions, low, high)


def plan_lanes(streams: Streams, ubatch: Ubatch) -> list[LanePlan]:
    """A lane per primary sequence of the ubatch, as in `set_input_kq_mask`."""
    at, first = as_integers(ubatch.positions), ubatch.seqs[0]
    groups = {first[0]: rows_from(0, len(at))}
    # Trap: of a token with several ids only the primary one decides what it attends to.
    if ubatch.seqs.count(first) < len(at):
        primary = np.array([ids[0] for ids in ubatch.seqs])
        groups = {seq: np.flatnonzero(primary == seq) for seq in dict.fromkeys(primary.tolist())}
    plans = []
    for seq, rows in groups.items():
        stream = streams.of(seq, "set_input_kq_mask")
        low, high = streams.mask.interval(at[rows] if len(groups) > 1 else at)
        if is_run(ubatch.positions) and len(groups) == 1:
            ends = low.item(0), high.item(-1)
        else:
            ends = int(np.minimum.reduce(low)), int(np.maximum.reduce(high))
        positions, picked = _lay_out(streams.cells[stream], seq, *ends)
        plans.append(LanePlan(stream, Frame(rows, positions, low, high), picked))
    return plans


def _lay_out(cells: Cells, seq: int, low: int, high: int) -> tuple[Integers, slice | Integers]:
    """Positions and buffer rows of all cells in [low, high], block by block.

    Empty blocks are left out: they would only add zeros. Cells with a repeated position follow in
    blocks of their own, in cell order.
    """
    least, most, ahead = cells.span(seq)
    least, most = max(low, least), min(high, most)
    if ahead is not None and least <= most:
        base = least // BLOCK * BLOCK
        positions = np.arange(base, (most // BLOCK + 1) * BLOCK, dtype=np.int64)
        positions[: least - base] = positions[most + 1 - base :] = ABSENT
        start = base + ahead + MARGIN
        return positions, slice(start, start + len(positions))
    found = cells.select(seq, low, high + 1)
    held = cells.pos[found]
    distance = held - found
    if held.size and (distance == distance[0]).all():
        least, most = held.item(0), held.item(-1)
        base = least // BLOCK * BLOCK
        positions = np.full((most // BLOCK + 1) * BLOCK - base, ABSENT, dtype=np.int64)
        positions[held - base] = held
        start = base - distance.item(0) + MARGIN
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
    """The indices of the cells that each row attends to, within its sequence's stream.

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


Rotate: TypeAlias = Callable[[int, Array, Integers], Array]
"""Rotation of a layer's keys by distances of positions."""


class AttentionCache:
    """An attention cache: a memory of its own, or a part of others (`llama_kv_cache`)."""

    def __init__(
        self,
        rules: MemoryRules,
        shapes: Sequence[LayerShape],
        sizes: Mapping[int, blob.RowBytes],
        *,
        n_seq_max: int,
        unified: bool,
        cells: int,
        mask: WindowMask = NO_WINDOW,
        rotate: Rotate | None = None,
        sections: bool = False,
        element: int = 1,  # f16
        fixed: bool = False,  # keys are of a type that cannot be rotated
    ) -> None:
        self.rules = rules
        self.shapes = tuple(shapes)
        self.layers = tuple(shape.layer for shape in shapes)
        self.sizes = sizes
        self.n_seq_max = n_seq_max
        self.mask = mask
        self.rotate = rotate
        self.fixed = fixed
        self.sections = sections  # a token's position has several (M-RoPE)
        self.can_shift = not sections
        self.ext = rules.ext_bytes if sections else 0  # bytes beside each saved cell
        self.streams = Streams(rules, n_seq_max=n_seq_max, unified=unified, size=cells, mask=mask)
        self.kinds = {s.layer: blob.MARKS if s.marks else element for s in self.shapes}
        self.rows = [Rows(shapes, cells) for _ in range(len(self.streams))]
        # V not transposed, the number of layers, and in later releases the rotations (none)
        size, count = self.rules.attention_header, len(self.layers)
        self.header = blob.Header((0, count) if size == 8 else (0, count, 0, 0), size)
        self.blocks = [
            self._block(part, layer) for part in ("key", "value") for layer in self.layers
        ]
        self.copies: list[tuple[int, int]] = []

    def _block(self, part: str, layer: int) -> tuple[str, int, int, int]:
        size = self.sizes[layer].key if part == "key" else self.sizes[layer].value
        return part, layer, self.kinds[layer], size

    # --- operations on sequences

    def clear(self, *, data: bool) -> None:
        """Empty all cells; queued copies of streams stay queued."""
        self.streams.clear()
        if data:
            for rows in self.rows:
                rows.clear()

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Follows `llama_kv_cache::seq_rm`; always true. Keys and values are not erased."""
        self.streams.seq_rm(seq, p0, p1)
        return True

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Follows `llama_kv_cache::seq_cp`: share cells, or copy a stream."""
        one = self.streams.of(src, "seq_cp")
        other = self.streams.of(dst, "seq_cp")
        if one == other:
            self.streams.share(src, dst, p0, p1)
            return
        self.streams.replicate(one, other, p0, p1)
        # Trap: across streams positions are copied at once, keys and values only in the next
        # update; a state saved in between has the positions of one and the rows of the other.
        self.copies.append((one, other))

    def seq_keep(self, seq: int) -> None:
        """Follows `llama_kv_cache::seq_keep`."""
        self.streams.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Follows `llama_kv_cache::seq_add`; the keys are rotated in the next update."""
        self._require_one_section("seq_add")
        self.streams.seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Follows `llama_kv_cache::seq_div`."""
        self._require_one_section("seq_div")
        self.streams.seq_div(seq, p0, p1, divisor)

    def _require_one_section(self, caller: str) -> None:
        if self.sections:
            where = f"llama_kv_cache::{caller}"
            raise UpstreamAbort(where, "positions of several sections cannot be moved")

    def seq_pos_min(self, seq: int) -> int:
        """Lowest position, -1 if none."""
        return self.streams.pos_min(seq)

    def seq_pos_max(self, seq: int) -> int:
        """Highest position, -1 if none."""
        return self.streams.pos_max(seq)

    # --- decode

    def update(self) -> None:
        """Follows `llama_kv_cache::update`: queued copies, then the rotation of shifted keys."""
        if self.copies:
            copies, self.copies = self.copies, []
            for src, dst in copies:
                self.rows[dst].copy_from(self.rows[src])
        # Trap: until here, positions were new and keys old: a state saved before is never rotated.
        if not self.streams.has_shift:
            return
        if not self.can_shift:
            where = "llama_kv_cache::update"
            raise UpstreamAbort(where, "the model's keys cannot be shifted")
        if all(kind == blob.MARKS for kind in self.kinds.values()):
            # The base cache of a model whose every attention layer has a window.
            where = "llama_kv_cache::set_input_k_shift"
            raise UpstreamAbort(where, "no layer gave the shifts a buffer")
        if self.fixed:  # observed on all wheels
            where = "llama_kv_cache::build_graph_shift"
            raise UpstreamAbort(where, "keys kept as bf16 cannot be turned")
        for cells, rows in zip(self.streams.cells, self.rows, strict=True):
            moved = np.flatnonzero(cells.shift)
            if moved.size and self.rotate is not None:
                rows.cover(int(moved[-1]))
                for layer in self.layers:
                    keys = rows.keys[layer]
                    turned = self.rotate(layer, keys[moved + MARGIN], cells.shift[moved])
                    keys[moved + MARGIN] = turned
            cells.settle_shifts()

    def init_batch(self, split: Splitter, n_ubatch: int, *, all_outputs: bool) -> Plan | None:
        """Follows `llama_kv_cache::init_batch`."""
        del all_outputs  # used only by memories with recurrent rows
        # Sequences with cells of their own need equal numbers of tokens in a ubatch.
        if self.streams.unified:
            pieces = split.all_simple(n_ubatch)
        else:
            pieces = split.all_equal(n_ubatch, sequential=True)
        if pieces is None:
            return None
        slots = self.prepare(pieces)
        return None if slots is None else Plan(pieces, slots)

    def prepare(self, ubatches: list[Ubatch]) -> tuple[list[SlotInfo], ...] | None:
        """Find cells for all ubatches, or None."""
        slots = prepare(self.streams, ubatches)
        return None if slots is None else (slots,)

    def apply(self, plan: Plan, k: int) -> None:
        """Write the cells of ubatch `k`."""
        apply_ubatch(self.streams, plan.slots[0][k], plan.ubatches[k])

    def writers(self, plan: Plan, k: int) -> "list[Writer]":
        """The writers of ubatch `k`."""
        return [Writer(self, plan.slots[0][k], plan.ubatches[k])]

    def set_inputs(self, plan: Plan, k: int) -> UbatchStore:
        """The store of ubatch `k`."""
        return UbatchStore(self.writers(plan, k))

    # --- state

    def state_write(self, seq: int, *, partial: bool) -> list[blob.Field]:
        """Follows `llama_kv_cache::state_write`: per stream cells, keys, values."""
        # A plain cache is cut, not restored: since #28873 a checkpoint has nothing of it.
        if partial and not self.rules.saves_plain_partially:
            return []
        # Trap: pending updates are not applied first, so after `seq_add` the blob has new positions
        # with keys of the old rotation.
        if seq != -1:
            self.streams.of(seq, "state_write")
        fields: list[blob.Field] = [blob.Word(len(self.streams))]
        for stream, cells in enumerate(self.streams.cells):
            saved = self._saved_cells(stream, seq)
            count = len(saved)
            fields.append(blob.Word(count))
            if not count:
                continue
            if seq == -1:
                ids = tuple(
                    tuple(s for s in cells.seqs_of(cell) if s < self.n_seq_max)
                    for cell in map(int, saved)
                )
            else:
                # Trap: an id that the cache accepts but the blob cannot name leaves no ids at all.
                ids = ((seq,) if seq < self.n_seq_max else (),) * count
            positions = cells.pos[saved]
            fields += [blob.CellList.of(positions, ids, self.ext), self.header]
            rows, chunks = self.rows[stream], blob.chunks_of(saved)
            at = rows.places(saved)
            for part, layer, kind, size in self.blocks:
                data = (rows.keys if part == "key" else rows.values)[layer][at]
                data = data.copy() if isinstance(at, slice) else data
                fields.append(blob.RowBlock(kind, size, count, data, chunks))
        return fields

    def _saved_cells(self, stream: int, seq: int) -> Integers:
        """Cells in index order: all of them, or one sequence's that the window does not hide."""
        cells = self.streams.cells[stream]
        if seq == -1:
            return np.flatnonzero(cells.pos >= 0)
        held = cells.select(seq, 0, MAX)
        # Until #23981 cells that the window hides are saved too.
        if self.rules.saves_unmasked_window and held.size:
            held = held[~self.mask.hides_each(cells.pos[held], cells.pos_max(seq))]
        return held

    def state_read(self, reader: blob.Reader, seq: int, *, partial: bool) -> None:
        """Follows `llama_kv_cache::state_read`: restore one sequence, or (-1) everything."""
        if partial and not self.rules.saves_plain_partially:
            return
        if seq != -1:
            self.streams.of(seq, "state_read")
        if reader.word() != len(self.streams):
            raise BlobError("the state has another number of streams")
        if seq == -1 and self.rules.restores_every_stream:
            self.clear(data=True)
        for s in range(len(self.streams)):
            count = reader.word()
            # Trap: a blob without cells leaves the destination unchanged.
            if count == 0:
                continue
            if seq == -1:
                self._read_whole_stream(reader, s, count)
            else:
                # Cells of any owner become private cells of `seq`, in saved cell order.
                #
                # The search is the ordinary one: it may reclaim window cells of other sequences,
                # and its result depends on the head.
                stream = self.streams.of(seq, "state_read")
                # Later releases see at once that it cannot fit, and remove the old content all the
                # same.
                if self.rules.checks_count_first and count > self.streams.size:
                    self.seq_rm(seq, -1, -1)
                    raise BlobError("the state has more cells than the cache")
                # Trap: from here on a failure has removed the destination's old content.
                self.seq_rm(seq, -1, -1)
                listed = reader.take(blob.CellList)
                if not listed.has_one_owner_each:
                    raise BlobError("a cell of the state does not have exactly one sequence")
                ubatch = Ubatch(
                    rows=tuple(range(count)),
                    n_seqs=1,
                    n_seq_tokens=count,
                    positions=listed.positions.tolist(),
                    seqs=((seq,),) * count,
                )
                slot = find_slot(self.streams, ubatch)
                if slot is None:
                    raise BlobError("there are not enough free cells for the state")
                apply_ubatch(self.streams, slot, ubatch)
                self._read_rows(reader, seq, stream, slot.cells[0])

    def _read_whole_stream(self, reader: blob.Reader, stream: int, count: int) -> None:
        """Fill a stream from cell 0 with the saved cells (`llama_kv_cache::state_read_meta`)."""
        cells = self.streams.cells[stream]
        if count > cells.size:
            self.clear(data=True)
            raise BlobError("the state has more cells than the cache")
        # Trap: in older releases every stream with content clears all of them first, so only the
        # last one survives; and a blob without any cells clears none.
        if not self.rules.restores_every_stream:
            self.clear(data=True)
        listed = reader.take(blob.CellList)
        for cell, (pos, ids) in enumerate(zip(listed.positions.tolist(), listed.ids, strict=True)):
            cells.place(cell, pos)
            for s in ids:
                if not 0 <= s < self.n_seq_max:
                    self.clear(data=True)
                    raise BlobError(f"the state names sequence {s}")
                cells.add(cell, s)
        self.streams.heads[stream] = 0
        self._read_rows(reader, -1, stream, range(count))

    def _read_rows(
        self, reader: blob.Reader, seq: int, stream: int, cells: Integers | range
    ) -> None:
        """Queue the rows after a header that must be equal (`llama_kv_cache::state_read_data`)."""
        try:
            self._queue_rows(reader, stream, cells)
        except blob.TruncatedError:
            # Trap: in older releases, if the bytes end here, the new cells stay, with the former
            # content of their rows. Later ones remove the cells and zero the rows.
            if self.rules.clears_failed_restore:
                self._take_back(seq, stream, cells)
            raise
        except BlobError:
            self._take_back(seq, stream, cells)
            raise

    def _queue_rows(self, reader: blob.Reader, stream: int, cells: Integers | range) -> None:
        if reader.take(blob.Header) != self.header:
            raise blob.MisreadError(
                "the state has other layers, or lays out its values differently"
            )
        rows = self.rows[stream]
        chunks = blob.chunks_of(cells)
        for part, layer, kind, size in self.blocks:
            data = reader.rows(kind, size, len(cells), chunks=chunks)
            put = rows.put_keys if part == "key" else rows.put_values
            reader.queue.append(bound(put, layer, cells, data))

    def _take_back(self, seq: int, stream: int, cells: Integers | range) -> None:
        """Undo a failed restore: remove all cells of a whole one, else those of the sequence."""
        if seq == -1:
            self.clear(data=True)
            return
        self.seq_rm(seq, -1, -1)
        # Later releases leave nothing of a failed restore, its rows included.
        if self.rules.clears_failed_restore:
            self.rows[stream].zero(np.asarray(cells))

    def zero_rows(self, seq: int) -> None:
        """Zero the keys and values of all cells of a sequence."""
        stream = self.streams.of(seq, "state_read")
        self.rows[stream].zero(np.flatnonzero(self.streams.cells[stream].members(seq)))

    def check_integrity(self) -> None:
        """Check cells, counts and heads."""
        self.streams.check_integrity()


class Writer:
    """An attention cache during one ubatch: writes its rows, returns lanes.

    Upstream: `llama_kv_cache_context`.
    """

    __slots__ = ("_parts", "_plans", "cache", "layers", "slot", "ubatch")

    def __init__(self, cache: AttentionCache, slot: SlotInfo, ubatch: Ubatch) -> None:
        self.cache = cache
        self.layers = cache.layers
        self.slot = slot
        self.ubatch = ubatch
        self._parts: list[tuple[Rows, slice | Integers, slice | None]] = []
        self._plans: list[tuple[LanePlan, Rows]] = []

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Write the ubatch's keys and values into its cells, then return the lanes of its rows."""
        if not self._parts:
            first, one = 0, len(self.slot.streams) == 1  # one list takes all rows of the ubatch
            for stream, cells in zip(self.slot.streams, self.slot.cells, strict=True):
                rows, n = self.cache.rows[stream], len(cells)
                part = None if one else slice(first, first + n)
                self._parts.append((rows, rows.places(cells), part))
                first += n
        for rows, to, part in self._parts:
            rows.keys[layer][to] = keys if part is None else keys[part]
            rows.values[layer][to] = values if part is None else values[part]
        return self._lanes(layer)

    def _lanes(self, layer: int) -> Iterator[Lane]:
        """The lanes of the ubatch's rows, planned for the first layer that reads them."""
        if not self._plans:
            for plan in plan_lanes(self.cache.streams, self.ubatch):
                rows, top = self.cache.rows[plan.stream], plan.top_cell
                if top >= rows.reach:
                    rows.cover(top)
                self._plans.append((plan, rows))
        for plan, rows in self._plans:
            yield plan.pick(rows, layer)
