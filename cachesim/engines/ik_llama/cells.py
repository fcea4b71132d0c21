"""The one cell table of a context: all slots share it (`llama_kv_cache`, the old style).

pos[i]    position of the token in cell i, -1 = free
held[i]   bit s set: sequence s can see cell i
shift[i]  how far the position has moved since the key was rotated
born[i]   the position the key is rotated to; differs from pos after a rollback (an oddity)
"""

import numpy as np

from cachesim.errors import ContractError
from cachesim.units import Array, Integers, Pos, SeqId

FREE = -1


class Cells:
    """Positions and owners of all cells (`llama_kv_cache`); a search is for one contiguous run."""

    def __init__(self, size: int, *, recurrent: bool, hybrid: bool) -> None:
        self.size = size
        self.reach = 0  # cells from here on were never written
        self.recurrent = recurrent
        self.hybrid = hybrid
        self.head = 0
        self.used = 0
        self.pos: Integers = np.full(size, FREE, dtype=np.int64)
        self.born: Integers = np.full(size, FREE, dtype=np.int64)
        self.held: Array = np.zeros(size, dtype=np.uint64)
        self.shift: Integers = np.zeros(size, dtype=np.int64)

    # -- search ------------------------------------------------------------------------------

    def find_slot(self, count: int) -> int | None:
        """The first run of free cells from `head` on (`llama_kv_cache_find_slot`)."""
        if count > self.size:
            return None
        if self.head > self.used + 2 * count:
            self.head = 0
        tested = 0
        while True:
            if self.head + count > self.size:
                tested += self.size - self.head
                self.head = 0
                continue
            taken = np.flatnonzero(self.pos[self.head : self.head + count] >= 0)
            if taken.size == 0:
                return self.head
            self.head += int(taken[0]) + 1
            tested += int(taken[0]) + 1
            if tested >= self.size:
                return None

    def place(self, start: int, positions: Integers, seqs: list[SeqId]) -> None:
        """Write positions and owners into the run that was found."""
        run = slice(start, start + len(positions))
        self.pos[run] = positions
        self.born[run] = positions
        self.held[run] = [1 << seq for seq in seqs]
        self.used += len(positions)
        self.reach = max(self.reach, run.stop)

    def advance(self, count: int) -> None:
        """Move the search on after an ubatch was computed."""
        self.head += count
        if self.head >= self.size:
            self.head = 0

    def place_recurrent(self, seq: SeqId, position: Pos) -> None:
        """A recurrent cell's index is its sequence; only its position moves."""
        if self.pos[seq] < 0:
            self.used += 1
        self.pos[seq] = self.born[seq] = position
        self.held[seq] = 1 << seq
        self.head = seq
        self.reach = max(self.reach, seq + 1)

    # -- edits -------------------------------------------------------------------------------

    def seq_rm(self, seq: SeqId, p0: int, p1: int) -> bool:
        """Forget [p0, p1) of a sequence (`llama_kv_cache_seq_rm`).

        Only a recurrent cache refuses, and then nothing has changed. For a hybrid the answer is
        yes although its recurrent row keeps what it has folded in.
        """
        p0 = max(p0, 0)
        p1 = np.iinfo(np.int64).max if p1 < 0 else p1
        if self.recurrent:
            if seq >= self.size:
                return False
            at = int(self.pos[seq])
            if 0 < p0 <= at or 0 < p1 <= at:
                return False
        hit = self._within(seq, p0, p1)
        self.held[hit] &= ~np.uint64(1 << seq)
        self._free(hit[self.held[hit] == 0], lower_head=True)
        return True

    def seq_add(self, seq: SeqId, p0: int, p1: int, delta: int) -> None:
        """Move [p0, p1); what falls below 0 is freed (`llama_kv_cache_seq_add`)."""
        hit = self._within(seq, p0, p1)
        self.pos[hit] += delta
        self.shift[hit] += delta
        fallen = hit[self.pos[hit] < 0]
        self._free(fallen, lower_head=False)
        self.head = int(fallen[0]) if fallen.size else 0

    def _free(self, cells: Integers, *, lower_head: bool) -> None:
        self.pos[cells] = self.born[cells] = FREE
        self.held[cells] = 0
        self.shift[cells] = 0
        self.used -= len(cells)
        if lower_head and cells.size:
            self.head = min(self.head, int(cells[0]))

    def clear(self) -> None:
        """Free every cell."""
        self._free(np.flatnonzero(self.pos >= 0), lower_head=False)
        self.head = 0

    # -- questions ---------------------------------------------------------------------------

    def of(self, seq: SeqId) -> Integers:
        """The cells of a sequence, in cell order."""
        return (self.held[: self.reach] & np.uint64(1 << seq)).nonzero()[0]

    def _within(self, seq: SeqId, p0: int, p1: int) -> Integers:
        cells = self.of(seq)
        positions = self.pos[cells]
        within: Integers = cells[(positions >= p0) & (positions < p1)]
        return within

    def seq_pos_max(self, seq: SeqId) -> Pos:
        """The largest position, 0 for none, an oddity (`llama_kv_cache_seq_pos_max`)."""
        cells = self.of(seq)
        return Pos(int(self.pos[cells].max())) if cells.size else Pos(0)

    def seq_pos_min(self, seq: SeqId) -> Pos:
        """The first cell's position, no minimum, an oddity (`llama_kv_cache_seq_pos_min`).

        Recurrent and hybrid caches answer with the largest position instead.
        """
        if self.recurrent or self.hybrid:
            return self.seq_pos_max(seq)
        cells = self.of(seq)
        return Pos(int(self.pos[cells[0]])) if cells.size else Pos(-1)

    def check_integrity(self) -> None:
        """Raise where the books disagree."""
        taken, owned = self.pos >= 0, self.held != 0
        if taken.sum() != self.used or not np.array_equal(taken, owned):
            msg = f"used={self.used}: {taken.sum()} cells hold a position, {owned.sum()} an owner"
            raise ContractError(msg)
        if self.held[self.reach :].any():
            msg = f"a cell from {self.reach} on is held, and none was written"
            raise ContractError(msg)
