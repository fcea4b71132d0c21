"""The cells of one attention stream (`llama_kv_cells`): positions, sequences, pending shifts.

A cell holds one token. Which sequences see it is a bit set; everything else here can be derived
from position and bit set, and `check_integrity` does so. There are records of the first cells only,
as far as any were used; the others are empty.
"""

from collections import Counter
from typing import Final

import numpy as np

from cachesim.errors import ContractError
from cachesim.model.store import grown
from cachesim.units import Array, Integers

EMPTY: Final = -1
_WORD: Final = 64
_LEAST: Final = 512  # cells that there are records of from the beginning


class Cells:
    """Metadata of `size` cells; knows nothing of keys and values."""

    def __init__(self, size: int, *, counts_positions: bool) -> None:
        self.size = size
        self.counts_positions = counts_positions
        least = min(size, _LEAST)
        self.pos: Integers = np.full(least, EMPTY, dtype=np.int64)
        self.shift: Integers = np.zeros(least, dtype=np.int64)
        self.owners: Integers = np.zeros(least, dtype=np.int64)  # sequences that see the cell
        self.bits: Array = np.zeros((1, least), dtype=np.uint64)
        self.has_shift = False
        self.used = 0
        self.ends: dict[int, tuple[int, int]] = {}  # lowest and highest position, where known
        self.phantoms: dict[int, Counter[int]] = {}

    def reset(self) -> None:
        """Empty every cell."""
        self.pos.fill(EMPTY)
        self.shift.fill(0)
        self.owners.fill(0)
        self.bits.fill(0)
        self.has_shift = False
        self.used = 0
        self.ends.clear()
        self.phantoms.clear()

    def cover(self, count: int) -> None:
        """Extend the records to the first `count` cells."""
        held = self.pos.size
        if count <= held:
            return
        reach = min(self.size, max(count, 2 * held))
        self.pos = np.concatenate([self.pos, np.full(reach - held, EMPTY, dtype=np.int64)])
        self.shift, self.owners = grown(self.shift, reach), grown(self.owners, reach)
        more = np.zeros((len(self.bits), reach - held), dtype=np.uint64)
        self.bits = np.concatenate([self.bits, more], axis=1)

    # --- looking

    def has(self, cell: int, seq: int) -> bool:
        """True if the sequence sees the cell."""
        return seq in self.seqs_of(cell)

    def seqs_of(self, cell: int) -> list[int]:
        """The sequences that see the cell, in increasing order."""
        return _set_bits(self.bits[:, cell])

    def seqs_among(self, cells: Integers | slice) -> list[int]:
        """The sequences that see any of the cells, in increasing order."""
        return _set_bits(np.bitwise_or.reduce(self.bits[:, cells], axis=1))

    def members(self, seq: int) -> Array:
        """A mask of all cells: those that the sequence sees."""
        word, bit = divmod(seq, _WORD)
        if word >= len(self.bits):
            return np.zeros(self.pos.size, dtype=np.bool_)
        seen: Array = (self.bits[word] & np.uint64(1 << bit)).astype(np.bool_)
        return seen

    def of(self, seq: int) -> Integers:
        """The cells of the sequence, in the order of cells."""
        word, bit = divmod(seq, _WORD)
        if word >= len(self.bits):  # words are added when a high sequence takes its first cell
            return np.zeros(0, dtype=np.int64)
        found: Integers = (self.bits[word] & np.uint64(1 << bit)).nonzero()[0]
        return found

    def select(self, seq: int, p0: int, p1: int) -> Integers:
        """The cells of the sequence with positions in [p0, p1), in the order of cells."""
        low, high = self._ends(seq)
        if p0 >= p1 or p0 > high or p1 <= low:
            return np.zeros(0, dtype=np.int64)
        cells = self.of(seq)
        if p0 <= low and high < p1:
            return cells
        positions = self.pos[cells]
        inside: Integers = cells[(positions >= p0) & (positions < p1)]
        return inside

    def pos_min(self, seq: int) -> int:
        """Lowest position of the sequence, -1 if none."""
        low, ghosts = self._ends(seq)[0], self.phantoms.get(seq)
        if not ghosts:
            return low
        return min(ghosts) if low < 0 else min(low, *ghosts)

    def pos_max(self, seq: int) -> int:
        """Highest position of the sequence, -1 if none."""
        high, ghosts = self._ends(seq)[1], self.phantoms.get(seq)
        return max(high, *ghosts) if ghosts else high

    def _ends(self, seq: int) -> tuple[int, int]:
        known = self.ends.get(seq)
        if known is None:
            held = self.pos[self.of(seq)]
            known = (int(held.min()), int(held.max())) if held.size else (EMPTY, EMPTY)
            self.ends[seq] = known
        return known

    def _widen_ends(self, seq: int, low: int, high: int) -> None:
        """Positions from low to high come to a sequence."""
        known = self.ends.get(seq)
        if known is not None:
            least = known[0] if known[0] >= 0 else low
            self.ends[seq] = min(least, low), max(known[1], high)

    # --- changing single cells

    def place(self, cell: int, pos: int) -> None:
        """Put a token without sequences into an empty cell."""
        self.cover(cell + 1)
        self.pos[cell] = pos
        self.used += 1

    def add(self, cell: int, seq: int) -> None:
        """Let one more sequence see the cell."""
        self._widen(seq)
        word, bit = divmod(seq, _WORD)
        seqs, pos = int(self.bits[word, cell]), int(self.pos[cell])
        if seqs >> bit & 1:
            self._twice(seq, pos)
            return
        self.bits[word, cell] = seqs | 1 << bit
        self.owners[cell] += 1
        self._widen_ends(seq, pos, pos)

    # --- changing many cells

    def fill_run(self, cells: Integers | range, pos: int, seq: int) -> None:
        """Put tokens of one sequence at `pos`, `pos + 1`, ... into empty cells."""
        self._widen(seq)
        where: slice | Integers
        if isinstance(cells, range):
            self.cover(cells.stop)
            where = slice(cells.start, cells.stop)
        else:
            where = cells
        word, bit = divmod(seq, _WORD)
        last = pos + len(cells) - 1
        self.pos[where] = np.arange(pos, last + 1)
        self.bits[word, where] = 1 << bit
        self.owners[where] = 1
        self.used += len(cells)
        self._widen_ends(seq, pos, last)

    def share(self, cells: Integers, seq: int) -> None:
        """Let a sequence see many cells; those it sees already are counted twice (old releases)."""
        if not cells.size:
            return
        self._widen(seq)
        word, bit = divmod(seq, _WORD)
        known = (self.bits[word, cells] >> np.uint64(bit) & np.uint64(1)).astype(np.bool_)
        for pos in self.pos[cells[known]]:
            self._twice(seq, int(pos))
        fresh = cells[~known]
        self.bits[word, fresh] |= np.uint64(1 << bit)
        self.owners[fresh] += 1
        self.ends.pop(seq, None)

    def release(self, cells: Integers, seq: int) -> Integers:
        """Take a sequence out of some of its cells; returns the cells that became empty."""
        if not cells.size:
            return cells
        word, bit = divmod(seq, _WORD)
        self.bits[word, cells] &= ~np.uint64(1 << bit)
        self.owners[cells] -= 1
        self.ends.pop(seq, None)
        freed: Integers = cells[self.owners[cells] == 0]
        self._vacate(freed)
        return freed

    def give(self, cells: Integers, positions: Integers, bits: Array) -> None:
        """Put tokens into empty cells, as they lay there before."""
        if not cells.size:
            return
        self.pos[cells] = positions
        self.bits[: len(bits), cells] = bits
        self.owners[cells] = _bit_counts(bits)
        self.used += len(cells)
        for seq in self.seqs_among(cells):
            self.ends.pop(seq, None)

    def wipe(self, cells: Integers) -> None:
        """Empty many cells, whatever sequences see them."""
        if cells.size:
            for seq in self.seqs_among(cells):
                self.ends.pop(seq, None)
            self._vacate(cells)

    def keep(self, seq: int) -> Integers:
        """Leave every cell to this sequence alone or to nobody; returns the cells emptied."""
        mine = self.members(seq)
        emptied = np.flatnonzero((self.owners > 0) & ~mine)
        self.ends.clear()
        word, bit = divmod(seq, _WORD)
        self.bits[:, mine] = 0
        if word < len(self.bits):
            self.bits[word, mine] = np.uint64(1 << bit)
        self.owners[mine] = 1
        self._vacate(emptied)
        return emptied

    def move(self, cells: Integers, moved: Integers, shifts: Integers) -> Integers:
        """Give cells new positions and pending shifts; returns those dropped below zero."""
        if not cells.size:
            return cells
        for seq in self.seqs_among(cells):
            self.ends.pop(seq, None)
        self.pos[cells] = moved
        self.shift[cells] += shifts
        self.has_shift = True
        dropped: Integers = cells[moved < 0]
        self._vacate(dropped)
        return dropped

    def settle_shifts(self) -> None:
        """The shifts have been applied to the keys."""
        self.shift.fill(0)
        self.has_shift = False

    # --- inside

    def _vacate(self, cells: Integers) -> None:
        self.bits[:, cells] = 0
        self.owners[cells] = 0
        self.pos[cells] = EMPTY
        self.shift[cells] = 0
        self.used -= len(cells)

    def _twice(self, seq: int, pos: int) -> None:
        """A sequence is added to a cell that it already sees.

        Trap: releases that count positions count up by two while the cell leaves
        once, so the position stays behind as a phantom that only a reset removes.
        """
        if self.counts_positions:
            self.phantoms.setdefault(seq, Counter())[pos] += 1

    def _widen(self, seq: int) -> None:
        words = seq // _WORD + 1
        if words > len(self.bits):
            more = np.zeros((words - len(self.bits), self.pos.size), dtype=np.uint64)
            self.bits = np.concatenate([self.bits, more])

    def check_integrity(self) -> None:
        """Raise ContractError where counts and ends disagree with the cells themselves."""
        if self.used != np.count_nonzero(self.pos != EMPTY):
            msg = f"used is {self.used}, but the cells disagree"
            raise ContractError(msg)
        if np.count_nonzero(self.owners != _bit_counts(self.bits)):
            msg = "owner counts differ from the bit sets"
            raise ContractError(msg)
        if np.count_nonzero(((self.owners | self.shift) != 0) & (self.pos == EMPTY)):
            msg = "an empty cell has sequences or a shift"
            raise ContractError(msg)
        if not self.has_shift and np.count_nonzero(self.shift):
            msg = "a shift is pending but not flagged"
            raise ContractError(msg)
        for seq, ends in self.ends.items():
            held = self.pos[self.members(seq)]
            if ends != ((held.min(), held.max()) if held.size else (EMPTY, EMPTY)):
                msg = f"sequence {seq} is not at {ends[0]}..{ends[1]}"
                raise ContractError(msg)


def _set_bits(words: Array) -> list[int]:
    """The numbers of the bits that are set, in increasing order."""
    return [
        word * _WORD + bit
        for word, bits in enumerate(words.tolist())
        for bit in range(bits.bit_length())
        if bits >> bit & 1
    ]


def _bit_counts(bits: Array) -> Integers:
    seen = np.flatnonzero(bits.any(axis=0))  # most cells are empty
    octets = np.ascontiguousarray(bits[:, seen].T).view(np.uint8)
    counts = np.zeros(bits.shape[1], np.int64)
    counts[seen] = np.unpackbits(octets, axis=1).sum(axis=1)
    return counts
