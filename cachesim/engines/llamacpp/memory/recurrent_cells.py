"""Recurrent cells and their owners: sharing, copy on write, compaction; and the rows of states."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from cachesim.engines.llamacpp.memory.batch import Ids, Ubatch
from cachesim.engines.llamacpp.memory.rules import ShortUbatch
from cachesim.errors import ContractError, UpstreamAbort
from cachesim.model.arithmetic import LayerShape
from cachesim.units import Array

NONE = -1


class Saved(NamedTuple):
    """The cells before a dry run."""

    pos: list[int]
    src: list[int]
    src0: list[int]
    tail: list[int]
    seqs: list[set[int]]
    head: int
    used: int


class Found(NamedTuple):
    """The cells after the search for a ubatch."""

    saved: Saved
    rs_z: int
    n: int


class RecurrentCells:
    """A record per index; `tail` belongs to the sequence of that number, the rest to the cell."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.src0 = [NONE] * size
        self.rs_z = NONE
        self.n = 0
        self.clear()

    def clear(self) -> None:
        """Empty all records except those of the last graph: src0, rs_z and n."""
        self.pos = [NONE] * self.size
        self.src = [NONE] * self.size
        self.tail = [NONE] * self.size
        self.seqs: list[set[int]] = [set() for _ in range(self.size)]
        self.head = 0
        self.used = 0

    def position_of(self, seq: int) -> int:
        """The position of a sequence's only cell, -1 without one."""
        for cell, seqs in enumerate(self.seqs):
            if seq in seqs:
                return self.pos[cell]
        return NONE

    def held(self) -> Saved:
        """The records that a dry run changes and restores."""
        return Saved(self.pos, self.src, self.src0, self.tail, self.seqs, self.head, self.used)

    def change_copies(self) -> None:
        """Copy the records, so that later changes leave the saved ones as they are."""
        self.pos, self.src = self.pos.copy(), self.src.copy()
        self.src0, self.tail = self.src0.copy(), self.tail.copy()
        self.seqs = [set(seqs) for seqs in self.seqs]

    def put_back(self, saved: Saved) -> None:
        """Undo a dry run; `rs_z` and `n` stay changed."""
        self.pos, self.src, self.src0, self.tail, self.seqs, self.head, self.used = saved

    def found(self) -> Found:
        """The cells found by a dry run, to be set when the ubatch runs."""
        return Found(self.held(), self.rs_z, self.n)

    def take(self, found: Found) -> None:
        """Set the cells to the result of this ubatch's dry run."""
        self.put_back(found.saved)
        self.rs_z, self.n = found.rs_z, found.n

    # --- sequences

    def leave(self, seq: int) -> None:
        """Remove a sequence from its cell, which is freed without other sequences."""
        cell = self.tail[seq]
        self.seqs[cell].discard(seq)
        self.tail[seq] = NONE
        if not self.seqs[cell]:
            self.pos[cell] = self.src[cell] = NONE
            self.used -= 1

    def join(self, src: int, dst: int) -> None:
        """Share the cell of `src` with `dst`; if `src` has none, `dst` has none either."""
        if self.tail[dst] >= 0:
            self.leave(dst)
        if self.tail[src] >= 0:
            self.seqs[self.tail[src]].add(dst)
            self.tail[dst] = self.tail[src]

    def keep(self, seq: int) -> None:
        """Drop all sequences but one; the head moves down to the first cell without it."""
        self.tail = [tail if s == seq else NONE for s, tail in enumerate(self.tail)]
        others = [cell for cell in range(self.size) if seq not in self.seqs[cell]]
        for cell in range(self.size):
            if seq in self.seqs[cell]:
                self.seqs[cell] = {seq}
                continue
            self.used -= self.pos[cell] >= 0
            self.pos[cell] = self.src[cell] = NONE
            self.seqs[cell] = set()
        if others:
            self.head = min(self.head, others[0])

    def erase(self, seq: int, p0: int, p1: int) -> None:
        """Remove a sequence from the cells with positions in [p0, p1)."""
        self._free([c for c in self._within(p0, p1) if seq in self.seqs[c]], {seq})

    def erase_all(self, p0: int, p1: int) -> None:
        """Empty the cells with positions in [p0, p1), whatever their sequences. The tails stay."""
        self._free(self._within(p0, p1), set(range(self.size)))

    def _within(self, p0: int, p1: int) -> list[int]:
        return [cell for cell, pos in enumerate(self.pos) if p0 <= pos < p1]

    def _free(self, cells: list[int], seq_ids: set[int]) -> None:
        freed = []
        for cell in cells:
            self.seqs[cell] -= seq_ids
            if not self.seqs[cell]:
                self.used -= 1
                self.pos[cell] = self.src[cell] = NONE
                freed.append(cell)
        if freed:
            self.head = min(self.head, freed[0])

    # --- cells for a ubatch

    def find_slot(self, ubatch: Ubatch) -> bool:
        """Follows `llama_memory_recurrent::find_slot`; False for an id out of range."""
        n_seqs = ubatch.n_seqs
        # As in an attention cache: many cells before the head are free, so the search starts over.
        if self.head > self.used + 2 * n_seqs:
            self.head = 0
        if n_seqs == 1 and (cell := self._own_cell(ubatch.seqs[0])) != NONE:
            # The branches below, where they neither move a cell nor give one.
            self.pos[cell], self.src0[cell] = ubatch.positions[-1], cell
            self.rs_z, self.head, self.n = NONE, cell, 1
            self.used = sum(map(bool, self.seqs))
            return True
        sets = [ubatch.set_ids(k) for k in range(n_seqs)]
        if not self._uncouple(sets):
            return False
        low, high = self._give_cells([ids[0] for ids in sets])
        # The cells of a ubatch have to be neighbours, because the graph writes one range of rows.
        for cell, ids in enumerate(sets, low):
            self._swap(cell, self.tail[ids[0]])
        for k, ids in enumerate(sets):
            # A position that does not follow the old one only makes upstream log a warning.
            self.pos[low + k] = ubatch.last_position(k)
            self.seqs[low + k] = set(ids)
            for seq in ids:
                self.tail[seq] = low + k
        # Set the source row of each cell of the window: `rs_z`, zeroed first, for new states.
        unnamed = [cell for cell in range(low, high + 1) if cell not in self.src]
        self.rs_z = unnamed[0] if unnamed else NONE
        for cell in range(low, high + 1):
            if self.src[cell] < 0 and self.rs_z < 0:
                where = "llama_memory_recurrent::find_slot"
                raise UpstreamAbort(where, "rs_z >= 0")
            self.src0[cell] = self.rs_z if self.src[cell] < 0 else self.src[cell]
            self.src[cell] = cell
        # Unlike in an attention cache the head is the start of the used cells, not their end.
        self.head, self.n = low, high - low + 1
        self.used = sum(map(bool, self.seqs))
        return self.n >= n_seqs

    def _own_cell(self, ids: Ids) -> int:
        """The cell of a single sequence that shares it with no other, with its own source."""
        if len(ids) > 1 or not 0 <= ids[0] < self.size:
            return NONE
        cell = self.tail[ids[0]]
        own = cell >= 0 and self.seqs[cell] == {*ids} and self.src[cell] == cell
        return cell if own else NONE

    def _uncouple(self, sets: list[Ids]) -> bool:
        """Remove secondary ids from their cells, as they will share the primary one's."""
        for ids in sets:
            for j, seq in enumerate(ids):
                if not 0 <= seq < self.size:
                    return False
                # Coupled ids share the state of the first one from now on; their own ones are lost.
                if j > 0 and self.tail[seq] >= 0:
                    self.leave(seq)
        return True

    def _give_cells(self, primary: list[int]) -> tuple[int, int]:
        """Give every set a cell of its own; return the lowest and highest cell in use."""
        low, high, start = self.size - 1, 0, self.head
        for seq in primary:
            old = self.tail[seq]
            if old >= 0 and seq not in self.seqs[old]:
                where = "llama_memory_recurrent::find_slot"
                raise UpstreamAbort(where, "cell.has_seq_id(seq_id)")
            if old < 0 or len(self.seqs[old]) != 1:
                free = self._next_free(start)
                if self.seqs[free]:
                    where = "llama_memory_recurrent::find_slot"
                    raise UpstreamAbort(where, "empty_cell.is_empty()")
                # Copy on write: a sequence that shares its cell gets a free one that reads from the
                # shared row, and the others keep the old cell unchanged.
                if old >= 0:
                    self.pos[free], self.src[free] = self.pos[old], self.src[old]
                    self.seqs[old].discard(seq)
                    self.seqs[free].add(seq)
                self.tail[seq] = free
                start = free + 1
            low, high = min(low, self.tail[seq]), max(high, self.tail[seq])
        return low, high

    def _next_free(self, start: int) -> int:
        """The first cell without sequences from `start` on, circularly."""
        for step in range(self.size):
            cell = (start + step) % self.size
            if not self.seqs[cell]:
                return cell
        return start % self.size

    def _swap(self, one: int, other: int) -> None:
        """Exchange two cells. Trap: their planes do not move, only the live row later does."""
        if one == other:
            return
        for column in (self.pos, self.src):
            column[one], column[other] = column[other], column[one]
        self.seqs[one], self.seqs[other] = self.seqs[other], self.seqs[one]
        trade = {one: other, other: one}
        self.tail = [trade.get(tail, tail) for tail in self.tail]

    def check_integrity(self) -> None:
        """Check the cells of sequences, their tails, and the head."""
        owners = [seq for seqs in self.seqs for seq in seqs]
        if len(owners) != len(set(owners)):
            raise ContractError("a sequence has two recurrent cells")
        for cell, seqs in enumerate(self.seqs):
            for seq in seqs:
                if seq < self.size and self.tail[seq] not in {cell, NONE}:
                    raise ContractError(f"sequence {seq} is in cell {cell}, its tail is not")
        if self.used != sum(map(bool, self.seqs)):
            msg = f"{self.used} recurrent cells are used, but their sequences disagree"
            raise ContractError(msg)
        if not 0 <= self.head <= self.size:
            raise ContractError(f"head {self.head} is outside the {self.size} cells")


class Planes:
    """Per layer an array of rows; row `plane * cells + cell`."""

    def __init__(self, shapes: Iterable[LayerShape], cells: int, count: int) -> None:
        self.shapes = {shape.layer: shape for shape in shapes}
        self.cells = cells
        self.count = count
        self.clear()

    def clear(self) -> None:
        """Zero all rows."""
        self.rows: dict[int, Array] = {
            layer: np.zeros((self.count * self.cells, shape.row), dtype=shape.dtype)
            for layer, shape in self.shapes.items()
        }

    def copy_of(self, layer: int, rows: list[int], part: slice) -> Array:
        """A copy of a part of some rows."""
        if len(rows) == 1:  # the common case: a slice is faster than a list
            return self.rows[layer][rows[0] : rows[0] + 1, part].copy()
        return self.rows[layer][np.array(rows, dtype=np.int64), part]

    def put(self, layer: int, where: tuple[slice, slice], data: Array) -> None:
        """Write a part of some rows."""
        self.rows[layer][where] = data

    def split(self, layer: int) -> int:
        """The number of values in a row's convolution part (R); its state (S) follows."""
        return self.shapes[layer].conv


class StateWindow(NamedTuple):
    """The recurrent cells of a ubatch: `head` is the first, one source row for each."""

    head: int
    zeroed: int  # the cell whose live row is zeroed first, or -1
    sources: tuple[int, ...]  # plane * cells + cell


class PlaneWriter:
    """The recurrent rows during one ubatch (`build_rs` of the real graph).

    The window's first cells belong to the ubatch's sets, the others were only moved.
    """

    __slots__ = ("kept", "planes", "rows", "short_ubatch", "start", "ubatch", "unreached", "window")

    def __init__(
        self, rows: Planes, window: StateWindow, ubatch: Ubatch, short_ubatch: ShortUbatch
    ) -> None:
        self.rows = rows
        self.planes = rows.count  # states kept per sequence
        self.window = window
        self.ubatch = ubatch
        self.short_ubatch = short_ubatch
        self.start: dict[int, Array] = {}
        self.kept: list[slice]
        self.unreached: list[slice]
        if self.planes == 1:
            self.kept, self.unreached = [slice(window.head, window.head + ubatch.n_seqs)], []
            return
        firsts = range(window.head, window.head + self.planes * rows.cells, rows.cells)
        places = [slice(first, first + ubatch.n_seqs) for first in firsts]  # plane by plane
        reached = min(ubatch.n_seq_tokens, self.planes)
        self.kept, self.unreached = places[:reached], places[reached:]

    def states(self, layer: int) -> Array:
        """Zero the fresh row, read all sources, then move the other cells of the window.

        Trap: of those only the live row moves; their planes stay.
        """
        rows = self.rows.rows[layer]
        head, n_seqs, sources = self.window.head, self.ubatch.n_seqs, self.window.sources
        if self.window.zeroed >= 0:
            rows[self.window.zeroed] = 0
        if len(sources) == 1:
            start = rows[sources[0] : sources[0] + 1].copy()
        else:
            read = rows[list(sources)]
            rows[head + n_seqs : head + len(read)] = read[n_seqs:]
            start = read[:n_seqs]
        if self.unreached:  # `keep_states` copies from it
            self.start[layer] = start.copy()
        return start

    def keep_states(self, layer: int, states: Array) -> None:
        """Store in plane `j` of each set's cell the state after its last token but `j`.

        In planes that a short ubatch does not reach, the convolution's part is set to that of the
        ubatch's start. The state's part stays, or in releases that copy it uncomputed is undefined:
        here zeros, which no state for a rollback is. A layer that is a convolution alone leaves
        those planes as they are.
        """
        rows = self.rows.rows[layer]
        for plane, place in enumerate(self.kept):
            rows[place] = states[:, plane]
        if not self.unreached:
            return
        split = self.rows.split(layer)
        if split == rows.shape[1]:
            return  # Trap: so going back by a whole ubatch ends in a state of earlier tokens.
        for place in self.unreached:
            rows[place, :split] = self.start[layer][:, :split]
            if self.short_ubatch == "undefined":
                rows[place, split:] = 0
