"""Recurrent memory (`llama_memory_recurrent`): one row of state per sequence, in a few planes.

Cell `i` has a row in each of the `1 + n_rs_seq` planes; plane 0 is the live state, plane `j` the
state `j` tokens earlier, as far as the last ubatch reached. Several sequences may share a cell.
A cell's index is independent of a sequence's: `tail[s]` is the cell of sequence `s`, and
cells are swapped to bring those of a ubatch together.
"""

from collections.abc import Mapping, Sequence
from functools import partial as bound
from typing import Final

import numpy as np

from cachesim.engines.llamacpp.memory import blob
from cachesim.engines.llamacpp.memory.batch import Splitter, Ubatch
from cachesim.engines.llamacpp.memory.cells import MAX, normalised
from cachesim.engines.llamacpp.memory.module import Plan, UbatchStore
from cachesim.engines.llamacpp.memory.recurrent_cells import (
    Found,
    Planes,
    PlaneWriter,
    RecurrentCells,
    StateWindow,
)
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.errors import BlobError, ContractError, UpstreamAbort
from cachesim.model.arithmetic import LayerShape

F32: Final = 0
"""Upstream's number of the element type of R and S rows."""


class RecurrentMemory:
    """The state rows of all recurrent layers (`llama_memory_recurrent`)."""

    can_shift = True

    def __init__(
        self,
        rules: MemoryRules,
        shapes: Sequence[LayerShape],
        sizes: Mapping[int, blob.RowBytes],
        *,
        n_seq_max: int,
        n_rs_seq: int = 0,
        n_layers: int | None = None,
    ) -> None:
        self.rules = rules
        self.shapes = tuple(shapes)
        self.layers = tuple(shape.layer for shape in shapes)
        self.sizes = sizes
        self.kinds = {s.layer: blob.MARKS if s.marks else F32 for s in self.shapes}
        self.n_seq_max = n_seq_max
        self.n_layers = len(self.layers) if n_layers is None else n_layers
        self.size = max(1, n_seq_max)
        self.n_rs_seq = n_rs_seq
        self.cells = RecurrentCells(self.size)
        self.rs_idx = [0] * self.size
        self.planes = Planes(shapes, self.size, n_rs_seq + 1)
        self.header = blob.Header((0, self.n_layers), 8)  # not transposed; of the whole model
        self.blocks = [self._block(layer, part) for part in ("r", "s") for layer in self.layers]

    def _block(self, layer: int, part: str) -> tuple[int, int, int, slice]:
        """The convolution's (R) or the state's (S) part of a layer's rows in a saved state.

        Returns the layer, its element type, the bytes of a row, and the part's range in a row.
        """
        split, size = self.planes.split(layer), self.sizes[layer]
        if part == "r":
            return layer, self.kinds[layer], size.r, slice(split)
        return layer, self.kinds[layer], size.s, slice(split, None)

    # --- operations on sequences

    def clear(self, *, data: bool) -> None:
        """Empty all cells, reset pending rollbacks."""
        self.cells.clear()
        self.rs_idx = [0] * self.size
        if data:
            self.planes.clear()

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Follows `llama_memory_recurrent::seq_rm`.

        0        p0        P    p1       P: the position of the state, the only position
        [        |  cut    |    )        0 < p0 <= P < p1: needs a rollback, may be refused
        [  all of it       |    )        p0 = 0: the sequence is removed
        [  p0   p1 )       |             ends at or before P: true, without any change (#17009;
                                         was: refused)
        """
        foreign = not 0 <= seq < self.n_seq_max
        # Until b11434 an id of -1 wipes cells and keeps their tails.
        if foreign and self.rules.refuses_foreign_ids:
            return False
        p0, p1 = normalised(p0, p1)
        if (p0, p1) == (0, MAX) and 0 <= seq < self.size:
            # Trap: only the fully open range resets a pending rollback; a removal up to a finite
            # position does not, and the next sequence of that id starts from an old plane.
            self.rs_idx[seq] = 0
        if seq >= self.size:
            return False
        cells = self.cells
        if seq < 0:
            # Trap: in older releases cells are erased, tails stay, and the next decode aborts.
            whole = p0 == p1 or (p0, p1) == (0, MAX)
            if whole:
                cells.erase_all(p0, p1)
            return whole
        tail = cells.tail[seq]
        if tail >= 0:
            last = cells.pos[tail]
            # Until #17009 such a range is refused; since then it is accepted, and nothing changes.
            if 0 < p1 <= last and not self.rules.middle_cut_passes:
                return False
            # A state includes all tokens up to its position: without an older plane it cannot lose
            # the last ones.
            if 0 < p0 <= last < p1:
                return self._roll_back(seq, tail, p0)
            if p0 <= last < p1:
                cells.tail[seq] = -1
        cells.erase(seq, p0, p1)
        return True

    def _roll_back(self, seq: int, tail: int, p0: int) -> bool:
        """Select an older plane instead of the live one; no row moves."""
        cells = self.cells
        # Without layers there is no state that could be wrong.
        if not self.layers and self.rules.zero_layer_rollback:
            cells.pos[tail] = p0 - 1
            return True
        depth = cells.pos[tail] - p0 + 1
        # Older releases accept a second rollback: its depth overwrites the first one's.
        if self.rs_idx[seq] and self.rules.single_use_rollback:
            return False
        if len(cells.seqs[tail]) > 1 and not self.rules.rolls_back_shared:
            return False
        # #24797, declined, moves the position even without a plane for it.
        if depth > self.n_rs_seq and not self.rules.impossible_rollback_passes:
            return False
        # Traps: it is not checked whether the last ubatch wrote that plane, so after a short one it
        # is stale (#26695). And where a shared cell goes back, all its sequences do, but only this
        # one's index is set.
        self.rs_idx[seq] = depth if depth <= self.n_rs_seq else 0
        cells.pos[tail] = p0 - 1
        return True

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Follows `llama_memory_recurrent::seq_cp`: both share a cell afterwards."""
        # Traps: the range is ignored, and the pending rollback is neither copied nor cleared.
        if src != dst and 0 <= dst < self.size and 0 <= src < self.size:
            self.cells.join(src, dst)

    def seq_keep(self, seq: int) -> None:
        """Follows `llama_memory_recurrent::seq_keep`."""
        # Trap: pending rollbacks of the dropped sequences stay.
        self.cells.keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Follows `llama_memory_recurrent::seq_add`: only the position changes."""
        if delta:
            tail = self._cell_within(seq, p0, p1)
            if tail >= 0:
                # Trap: it may become negative; then pos_max is -1, any start is accepted, and the
                # state is not reset.
                self.cells.pos[tail] += delta

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Follows `llama_memory_recurrent::seq_div`."""
        if divisor != 1:
            tail = self._cell_within(seq, p0, p1)
            if tail >= 0:
                self.cells.pos[tail] //= divisor

    def _cell_within(self, seq: int, p0: int, p1: int) -> int:
        """The cell of a sequence, if its position is in [p0, p1); else -1."""
        if not 0 <= seq < self.size:
            return -1
        p0, p1 = normalised(p0, p1)
        tail = self.cells.tail[seq]
        if tail >= 0 and seq in self.cells.seqs[tail] and p0 <= self.cells.pos[tail] < p1:
            return tail
        return -1

    def seq_pos_min(self, seq: int) -> int:
        """The position of the state, -1 if none."""
        return self.cells.position_of(seq)

    def seq_pos_max(self, seq: int) -> int:
        """The position of the state, never below -1."""
        pos = self.cells.position_of(seq)
        return max(pos, -1)

    # --- decode

    def update(self) -> None:
        """Do nothing: a recurrent memory has no pending updates."""

    def cut(
        self, split: Splitter, n_ubatch: int, *, all_outputs: bool, sequential: bool
    ) -> list[Ubatch] | None:
        """The split of a batch for recurrent states, alone or in a hybrid."""
        # Every token has an output, in an embedding context: sequences go one by one.
        if all_outputs:
            return split.all_by_sequence(n_ubatch)
        keep_tail = 0
        if self.n_rs_seq > 0:
            # Trap: the last tokens of a batch may be in a short ubatch of their own, after which
            # the planes do not fit a rollback.
            if self.rules.rollback_split == "sequence":
                return split.all_by_sequence(n_ubatch)
            # #25278 keeps the last tokens of a sequence in one ubatch, which writes all planes.
            if self.rules.rollback_split == "keep-tail":
                keep_tail = self.n_rs_seq + 1
        return split.all_equal(n_ubatch, sequential=sequential, keep_tail=keep_tail)

    def init_batch(self, split: Splitter, n_ubatch: int, *, all_outputs: bool) -> Plan | None:
        """Follows `llama_memory_recurrent::init_batch`."""
        pieces = self.cut(split, n_ubatch, all_outputs=all_outputs, sequential=True)
        found = None if pieces is None else self.prepare(pieces)
        return None if pieces is None or found is None else Plan(pieces, found=found)

    def prepare(self, ubatches: list[Ubatch]) -> list[Found | None] | None:
        """Follows `llama_memory_recurrent::prepare`: a dry run, undone completely."""
        # The cells of a single ubatch (None) are searched once, in `apply`.
        if len(ubatches) == 1:
            ids = ubatches[0].ids
            return [None] if ids[0] >= 0 and ids[-1] < self.size else None
        before, found = self.cells.held(), list[Found | None]()
        for ubatch in ubatches:
            self.cells.change_copies()
            if not self.cells.find_slot(ubatch):
                break
            found.append(self.cells.found())
        self.cells.put_back(before)
        return found if len(found) == len(ubatches) else None

    def apply(self, plan: Plan, k: int) -> None:
        """Set the cells of ubatch `k`, as found by the dry run or by a search now."""
        found = plan.found[k]
        if found is None:
            self.cells.find_slot(plan.ubatches[k])
        else:
            self.cells.take(found)

    def keeper(self, plan: Plan, k: int) -> PlaneWriter:
        """The state writer of ubatch `k`; resets the pending rollbacks of its sequences."""
        window = StateWindow(self.cells.head, self.cells.rs_z, self.source_rows())
        return PlaneWriter(self.planes, window, plan.ubatches[k], self.rules.short_ubatch)

    def set_inputs(self, plan: Plan, k: int) -> UbatchStore:
        """The store of ubatch `k`."""
        return UbatchStore([], self.keeper(plan, k))

    def source_rows(self) -> tuple[int, ...]:
        """Follows `s_copy`: the source row of each cell of the window."""
        cells, rows = self.cells, list[int]()
        if not self.n_rs_seq:
            return tuple(cells.src0[cells.head : cells.head + cells.n])
        for cell in range(cells.head, cells.head + cells.n):
            plane = 0
            # Trap: of several sequences in a cell only the lowest id's rollback is read, and reset.
            if cells.seqs[cell]:
                first = min(cells.seqs[cell])
                plane, self.rs_idx[first] = self.rs_idx[first], 0
            rows.append(plane * self.size + cells.src0[cell])
        return tuple(rows)

    # --- state

    def state_write(self, seq: int, *, partial: bool) -> list[blob.Field]:
        """The number of cells, their list, the layers' R rows, the layers' S rows.

        Upstream: `llama_memory_recurrent::state_write`. Trap: `partial` (PARTIAL_ONLY) is ignored
        by a pure recurrent memory.
        """
        cells = self.cells
        chosen = [c for c, seqs in enumerate(cells.seqs) if (seqs if seq == -1 else seq in seqs)]
        # #22673 before its merge; since then the row of the plane is saved with the rolled-back
        # position, so the blob is right without a record of the rollback.
        if seq != -1 and self.rs_idx[seq] and not self.rules.saves_rolled_back:
            where = "llama_memory_recurrent::state_write"
            raise UpstreamAbort(where, "state read/write is not supported with partial rollback")
        count = len(chosen)
        ids: tuple[tuple[int, ...], ...] = ((),) * count
        if seq == -1:
            ids = tuple(tuple(sorted(cells.seqs[c])) for c in chosen)
        positions = np.array([cells.pos[c] for c in chosen], dtype=np.int64)
        rows = [self._plane(seq, c) * self.size + c for c in chosen]
        fields: list[blob.Field] = [blob.Word(count), blob.CellList.of(positions, ids), self.header]
        for layer, kind, size, part in self.blocks:
            data = self.planes.copy_of(layer, rows, part)
            fields.append(blob.RowBlock(kind, size, count, data))
        return fields

    def _plane(self, seq: int, cell: int) -> int:
        if seq != -1:
            return self.rs_idx[seq]
        depths = {self.rs_idx[s] for s in self.cells.seqs[cell]}
        if len(depths) > 1:
            where = "llama_memory_recurrent::state_write"
            raise UpstreamAbort(where, "sequences of one cell roll back differently")
        return depths.pop()

    def state_read(self, reader: blob.Reader, seq: int, *, partial: bool) -> None:
        """Restore one sequence, or (-1) everything (`llama_memory_recurrent::state_read`)."""
        # Trap: unlike in an attention cache, a blob without cells clears the destination.
        count = reader.word()
        if self.rules.checks_count_first and count > self.size:
            self._take_back(seq, [])
            raise BlobError("the state has more cells than the memory")
        written: list[int] = []
        try:
            if seq == -1:
                written += self._read_whole(reader, count)
            else:
                written += self._read_one(reader, seq, count)
            self._queue_rows(reader, written)
        except blob.TruncatedError:
            # Older releases keep the cells whose rows did not arrive.
            if self.rules.clears_failed_restore:
                self._take_back(seq, written)
            raise
        except BlobError:
            self._take_back(seq, written)
            raise
        if seq == -1:
            self.rs_idx = [0] * self.size
        elif self.n_rs_seq:
            # Trap: the other planes are stale now, but a rollback is accepted.
            self.rs_idx[seq] = 0

    def _read_one(self, reader: blob.Reader, seq: int, count: int) -> list[int]:
        """Restore one sequence into a cell of its own; return the written cells.

        Upstream: `llama_memory_recurrent::state_read_meta`.
        """
        self.seq_rm(seq, -1, -1)
        listed = reader.take(blob.CellList)
        if count == 0:
            return []
        if any(listed.ids):
            raise blob.MisreadError("the state is one of a whole memory")
        ubatch = Ubatch(
            rows=tuple(range(count)),
            n_seqs=1,
            n_seq_tokens=count,
            positions=tuple(listed.positions.tolist()),
            seqs=((seq,),) * count,
        )
        if not self.cells.find_slot(ubatch):
            raise BlobError(f"there is no cell for sequence {seq}")
        head = self.cells.head
        written = list(range(head, head + count))
        # The state is read from its own cell, not from a row to be zeroed.
        for cell in written:
            self.cells.src[cell] = cell
        return written

    def _read_whole(self, reader: blob.Reader, count: int) -> list[int]:
        """Restore cells 0 .. count-1 and the tails, by the saved ids.

        Upstream: `llama_memory_recurrent::state_read_meta`.
        """
        listed = reader.take(blob.CellList)
        if count > self.size:
            raise BlobError("the state has more cells than the memory")
        self.clear(data=True)
        cells = self.cells
        for cell, (pos, ids) in enumerate(zip(listed.positions.tolist(), listed.ids, strict=True)):
            cells.pos[cell] = pos
            for seq in ids:
                if not 0 <= seq < self.n_seq_max or cells.tail[seq] != -1:
                    raise BlobError(f"the state names sequence {seq} wrongly")
                cells.seqs[cell].add(seq)
                cells.tail[seq] = cell
        cells.head, cells.used = 0, count
        for cell in range(count):
            cells.src[cell] = cell
        return list(range(count))

    def _queue_rows(self, reader: blob.Reader, cells: list[int]) -> None:
        if reader.take(blob.Header) != self.header:
            raise blob.MisreadError("the state has other layers")
        where = slice(cells[0], cells[-1] + 1) if cells else slice(0, 0)
        for layer, kind, size, part in self.blocks:
            data = reader.rows(kind, size, len(cells), chunks=1)  # the cells are neighbours
            reader.queue.append(bound(self.planes.put, layer, (where, part), data))

    def _take_back(self, seq: int, cells: list[int]) -> None:
        if seq == -1:
            self.clear(data=True)
            return
        self.seq_rm(seq, -1, -1)
        if self.rules.clears_failed_restore:
            for rows in self.planes.rows.values():
                rows[cells] = 0

    def check_integrity(self) -> None:
        """Check cells and pending rollbacks."""
        self.cells.check_integrity()
        for seq, depth in enumerate(self.rs_idx):
            if not 0 <= depth <= self.n_rs_seq:
                raise ContractError(f"sequence {seq} would roll back by {depth}")
