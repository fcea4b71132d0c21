"""The cells of one attention stream (`llama_kv_cells`): positions, sequences, pending shifts.

A cell holds one token. Which sequences see it is a bit set; everything else here (counts, tracks)
can be derived from position and bit set, and `cells_check` does so. There are records of the first
cells only, as far as any were looked for; the others are empty.
"""

from collections import Counter
from typing import Final

import numpy as np

from cachesim.engines.llamacpp.memory.track import Track
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
        self.owners: Integers = np.zeros(least, dtype=np.int64)  # how many sequences see the cell
        self.bits: Array = np.zeros((1, least), dtype=np.uint64)
        self.has_shift = False
        self.shared = False  # a cell may have several sequences
        self.used = 0
        self.end = 0  # from here on all cells are empty
        self.tracks: dict[int, Track] = {}
        self.phantoms: dict[int, Counter[int]] = {}

    def reset(self) -> None:
        """Empty every cell."""
        self.pos.fill(EMPTY)
        self.shift.fill(0)
        self.owners.fill(0)
        self.bits.fill(0)
        self.has_shift = self.shared = False
        self.used = self.end = 0
        for track in self.tracks.values():
            track.clear()
        self.phantoms.clear()

    def cover(self, count: int) -> None:
        """Make sure that there are records of the first `count` cells."""
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
        """Whether the sequence sees the cell."""
        word, bit = divmod(seq, _WORD)
        return word < len(self.bits) and bool(int(self.bits[word, cell]) >> bit & 1)

    def seqs_of(self, cell: int) -> list[int]:
        """The sequences that see the cell, in increasing order."""
        found = []
        for word in range(len(self.bits)):
            rest = int(self.bits[word, cell])
            while rest:
                low = rest & -rest
                found.append(word * _WORD + low.bit_length() - 1)
                rest ^= low
        return found

    def members(self, seq: int) -> Array:
        """For every cell whether the sequence sees it."""
        word, bit = divmod(seq, _WORD)
        if word >= len(self.bits):
            return np.zeros(self.pos.size, dtype=np.bool_)
        seen: Array = (self.bits[word] & np.uint64(1 << bit)).astype(np.bool_)
        return seen

    def track(self, seq: int) -> Track:
        """Where the sequence's tokens lie, up to date."""
        track = self.tracks.get(seq)
        if track is None:
            track = self.tracks[seq] = Track()
        if track.stale:
            cells = np.flatnonzero(self.members(seq))
            track.read(self.pos[cells], cells)
        return track

    def pos_min(self, seq: int) -> int:
        """Lowest position of the sequence, -1 if none."""
        low = self.track(seq).lo if seq in self.tracks else EMPTY
        ghosts = self.phantoms.get(seq) if self.phantoms else None
        if not ghosts:
            return low
        return min(ghosts) if low < 0 else min(low, *ghosts)

    def pos_max(self, seq: int) -> int:
        """Highest position of the sequence, -1 if none."""
        track = self.tracks.get(seq)
        high = EMPTY if track is None else self.track(seq).hi if track.stale else track.hi
        ghosts = self.phantoms.get(seq) if self.phantoms else None
        return max(high, *ghosts) if ghosts else high

    def select(self, seq: int, p0: int, p1: int) -> Integers:
        """Cells of the sequence with positions in [p0, p1), in no particular order."""
        if seq not in self.tracks or p0 >= p1:
            return _NONE
        track = self.track(seq)
        if track.irregular:
            inside = self.members(seq) & (self.pos >= p0) & (self.pos < p1)
            return np.flatnonzero(inside)
        if p0 > track.hi or p1 <= track.lo:
            return _NONE
        return track.cells_in(p0, p1)

    def stretch(self, seq: int, p0: int, p1: int) -> range | None:
        """What `select` finds, where these are neighbours in the order of their positions."""
        track = self.tracks.get(seq)
        if track is None:
            return None
        if track.stale:
            track = self.track(seq)
        low, high = max(p0, track.lo), min(p1, track.hi + 1)
        if low >= high or not track.has_no_gaps or track.straight_from() > low:
            return None
        distance = track.cell_of(track.hi) - track.hi
        return range(low + distance, high + distance)

    # --- changing single cells

    def place(self, cell: int, pos: int) -> None:
        """Put a token without sequences into an empty cell."""
        self.cover(cell + 1)
        self.pos[cell] = pos
        self.used += 1
        self.end = max(self.end, cell + 1)

    def add(self, cell: int, seq: int) -> None:
        """Let one more sequence see the cell."""
        self._widen(seq)
        word, bit = divmod(seq, _WORD)
        seqs, own = int(self.bits[word, cell]), 1 << bit
        if seqs & own:
            self._twice(seq, int(self.pos[cell]))
            return
        self.bits[word, cell] = seqs | own
        self.owners[cell] += 1
        self.shared = self.shared or seqs > 0
        self._own_track(seq).put(int(self.pos[cell]), cell)

    def empty(self, cell: int) -> None:
        """Take everything out of one non-empty cell."""
        pos = int(self.pos[cell])
        for seq in self.seqs_of(cell):
            self.tracks[seq].drop(pos, cell)
        self.bits[:, cell] = 0
        self.owners[cell] = 0
        self.pos[cell] = EMPTY
        self.shift[cell] = 0
        self.used -= 1

    # --- changing many cells

    def fill_run(self, cells: Integers | range, pos: int, seq: int) -> None:
        """Put tokens of one sequence at `pos`, `pos + 1`, ... into empty cells.

        The cells ascend but for one turn.
        """
        word, bit = divmod(seq, _WORD)
        if word:
            self._widen(seq)
        count, first, last = len(cells), int(cells[0]), int(cells[-1])
        straight = last - first == count - 1
        end = last + 1 if straight else self.size
        self.used += count
        if end > self.end:
            if end > self.pos.size:
                self.cover(end)
            self.end = end
        if count == 1:
            self.pos[first] = pos
            self.bits[word, first] = 1 << bit
            self.owners[first] = 1
            self._own_track(seq).put(pos, first)
            return
        where = slice(first, last + 1) if straight else np.asarray(cells)
        self.pos[where] = np.arange(pos, pos + count)
        self.bits[word, where] = 1 << bit
        self.owners[where] = 1
        self._own_track(seq).put_run(pos, cells)

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
        self.shared = True
        self._spoil(seq)

    def release(self, cells: Integers, seq: int, p0: int, p1: int) -> Integers:
        """Take a sequence out of all its cells in [p0, p1); returns the cells that became empty."""
        word, bit = divmod(seq, _WORD)
        self.bits[word, cells] &= ~np.uint64(1 << bit)
        self.owners[cells] -= 1
        self.tracks[seq].drop_range(p0, p1)
        freed: Integers = cells[self.owners[cells] == 0]
        self._vacate(freed)
        return freed

    def release_run(self, cells: range, seq: int, p0: int, p1: int) -> bool:
        """`release` of neighbours that nobody else sees, all of which become empty; else False."""
        where = slice(cells.start, cells.stop)
        if self.shared and np.count_nonzero(self.owners[where] != 1):
            return False
        self.bits[seq // _WORD, where] = 0
        self.owners[where] = 0
        self.pos[where] = EMPTY
        if self.has_shift:
            self.shift[where] = 0
        self.used -= len(cells)
        if cells.stop == self.end:
            self.end = cells.start
        self.tracks[seq].drop_range(p0, p1)
        return True

    def sole_owner(self, cells: Integers) -> int | None:
        """The one sequence that sees these cells, if nobody else sees any of them."""
        if not (self.owners[cells] == 1).all():
            return None
        seqs = self.seqs_among(cells)
        return seqs[0] if len(seqs) == 1 else None

    def take(self, cells: Integers, seq: int) -> None:
        """Empty cells that one sequence alone sees; mostly those of its oldest tokens."""
        positions = self.pos[cells]
        low, high = int(positions.min()), int(positions.max()) + 1
        if len(self.select(seq, low, high)) == len(cells):
            self.tracks[seq].drop_range(low, high)
        else:
            self._spoil(seq)
        self._vacate(cells)

    def give(self, cells: Integers, positions: Integers, seq: int) -> None:
        """Put tokens of one sequence into empty cells, as they lay there before."""
        word, bit = divmod(seq, _WORD)
        self.pos[cells] = positions
        self.bits[word, cells] = np.uint64(1 << bit)
        self.owners[cells] = 1
        self.used += len(cells)
        self.end = max(self.end, int(cells.max()) + 1)
        self._spoil(seq)

    def wipe(self, cells: Integers) -> None:
        """Empty many cells, whatever sequences see them."""
        for seq in self.seqs_among(cells):
            self._spoil(seq)
        self._vacate(cells)

    def keep(self, seq: int) -> Integers:
        """Leave every cell to this sequence alone or to nobody; returns the cells emptied."""
        mine = self.members(seq)
        owned = self.owners > 0
        emptied = np.flatnonzero(owned & ~mine)
        for other in self.tracks:
            if other != seq:
                self._spoil(other)
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
            self._spoil(seq)
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

    def seqs_among(self, cells: Integers) -> list[int]:
        """The sequences that see any of the cells."""
        if not cells.size:
            return []
        united = np.bitwise_or.reduce(self.bits[:, cells], axis=1)
        return [s for s in self.tracks if s < _WORD * len(united) and _bit(united, s)]

    # --- inside

    def _vacate(self, cells: Integers) -> None:
        self.bits[:, cells] = 0
        self.owners[cells] = 0
        self.pos[cells] = EMPTY
        self.shift[cells] = 0
        self.used -= len(cells)

    def _own_track(self, seq: int) -> Track:
        track = self.tracks.get(seq)
        if track is None:
            track = self.tracks[seq] = Track()
        return track

    def _spoil(self, seq: int) -> None:
        self._own_track(seq).stale = True

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


def _bit(words: Array, seq: int) -> bool:
    word, bit = divmod(seq, _WORD)
    return bool(int(words[word]) >> bit & 1)


_NONE: Final[Integers] = np.zeros(0, dtype=np.int64)
