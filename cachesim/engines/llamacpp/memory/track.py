"""Where one sequence's tokens lie: its positions, their cells, lowest and highest.

    origin        lo              hi              a table by position, one cell number each;
      |...........[0 1 2 . 4 5 6 7]......|        -1 where the sequence has no token

Appending, cutting the end off and reclaiming the oldest are kept up in place. Anything else marks
the track stale; it is read afresh from the cells when next asked, once per operation at most.
Two cells at one position (upstream allows it) and far-apart positions are read afresh each time.
"""

from typing import Final

import numpy as np

from cachesim.model.store import BLOCK
from cachesim.units import Integers

ABSENT_CELL: Final = -1
_LEAST: Final = 256  # entries of a new table
_HOLES: Final = 1 << 16  # a table may be this much longer than eight times its tokens


class Track:
    """The cells of one sequence by position."""

    __slots__ = (
        "cells",
        "count",
        "hi",
        "irregular",
        "lo",
        "origin",
        "spare",
        "sparse",
        "stale",
        "straight",
        "table",
    )

    def __init__(self) -> None:
        self.table: Integers = np.full(_LEAST, ABSENT_CELL, dtype=np.int64)
        self.stale = False
        self._empty()

    def _empty(self) -> None:
        self.origin = 0
        self.lo = self.hi = -1
        self.count = 0  # positions in the table
        self.straight: int | None = 0  # from here on cell and position keep one distance
        self.irregular = False  # the table does not tell everything
        self.spare: Integers = _NOTHING  # cells whose position another cell already has
        self.sparse: Integers | None = None  # positions, if too far apart for a table
        self.cells: Integers = _NOTHING  # their cells

    @property
    def has_no_gaps(self) -> bool:
        """Whether every position from lowest to highest has one cell."""
        return self.count == self.hi - self.lo + 1 and not self.irregular

    def cell_of(self, pos: int) -> int:
        """The cell of a position that is held; only of a regular track."""
        return int(self.table[pos - self.origin])

    def clear(self) -> None:
        """Forget everything."""
        self.table.fill(ABSENT_CELL)
        self.stale = False
        self._empty()

    def put(self, pos: int, cell: int) -> None:
        """One more cell holds a token of this sequence."""
        if self.stale:
            return
        if self.irregular or pos < 0:
            self.stale = True
        elif self.count == 0:
            self._start(pos)
            self.table[pos - self.origin] = cell
            self.lo = self.hi = self.straight = pos
            self.count = 1
        elif pos > self.hi:
            self._append(pos, cell)
        elif self.origin <= pos < self.lo:  # the undoing of a reclaim
            self.table[pos - self.origin] = cell
            if self.straight is not None:
                self.straight = max(self.straight, self.lo)
            self.lo = pos
            self.count += 1
        else:
            self.stale = True

    def put_run(self, pos: int, cells: Integers | range) -> None:
        """Cells with the positions `pos`, `pos + 1`, ...; they ascend but for one turn."""
        if self.stale or self.irregular or pos < 0 or (self.count and pos <= self.hi):
            self.stale = True
            return
        self.put(pos, int(cells[0]))
        if self.stale or len(cells) == 1:
            return
        last = pos + len(cells) - 1
        if not self._reach(last, self.count + len(cells)):
            self.stale = True
            return
        at = pos - self.origin
        run = np.arange(cells.start, cells.stop) if isinstance(cells, range) else cells
        self.table[at : at + len(cells)] = run
        self.hi = last
        self.count += len(cells) - 1
        if int(cells[-1]) - int(cells[0]) != len(cells) - 1:
            self.straight = None

    def drop(self, pos: int, cell: int) -> None:
        """One cell less."""
        if self.stale:
            return
        if self.irregular or self.table[pos - self.origin] != cell:
            self.stale = True
            return
        self.table[pos - self.origin] = ABSENT_CELL
        self.count -= 1
        self._settle()

    def drop_range(self, p0: int, p1: int) -> None:
        """All cells with positions in [p0, p1) are gone."""
        if self.stale or self.irregular:
            self.stale = True
            return
        low, high = max(p0, self.lo), min(p1, self.hi + 1)
        part = self.table[low - self.origin : high - self.origin]
        whole = self.has_no_gaps
        self.count -= len(part) if whole else int(np.count_nonzero(part != ABSENT_CELL))
        part.fill(ABSENT_CELL)
        if whole and self.lo < low < high == self.hi + 1:  # the end is cut off
            self.hi = low - 1
            if self.straight is not None and self.straight > self.hi:
                self.straight = None
            return
        self._settle()

    def cells_in(self, p0: int, p1: int) -> Integers:
        """The cells with positions in [p0, p1), in position order; only of a regular track."""
        part = self.table[max(p0, self.lo) - self.origin : min(p1, self.hi + 1) - self.origin]
        return part[part != ABSENT_CELL] if self.count != self.hi - self.lo + 1 else part.copy()

    def straight_from(self) -> int:
        """The lowest position from which on cell number and position keep one distance."""
        if self.straight is None:
            part = self.table[self.lo - self.origin : self.hi + 1 - self.origin]
            at = np.flatnonzero(part != ABSENT_CELL)
            turns = np.flatnonzero(np.diff(part[at] - at))
            self.straight = self.lo + (int(at[turns[-1] + 1]) if turns.size else 0)
        return max(self.lo, self.straight)

    def read(self, positions: Integers, cells: Integers) -> None:
        """Take the sequence's cells (in index order) and their positions afresh."""
        self.table.fill(ABSENT_CELL)
        self.stale = False
        self._empty()
        if not cells.size:
            return
        order = np.argsort(positions, kind="stable")
        held, at = positions[order], cells[order]
        first = np.ones(len(held), dtype=np.bool_)
        first[1:] = held[1:] != held[:-1]
        self.spare = np.sort(at[~first])
        self.irregular = self.spare.size > 0
        held, at = held[first], at[first]
        self.lo, self.hi = int(held[0]), int(held[-1])
        self.count = len(held)
        self.straight = None
        if self.lo < 0 or self.hi - self.lo > 8 * self.count + _HOLES:
            self.sparse, self.cells, self.irregular = held, at, True
            return
        self._start(self.lo)
        self._reach(self.hi, self.count)
        self.table[held - self.origin] = at

    def _start(self, pos: int) -> None:
        self.origin = pos // BLOCK * BLOCK

    def _append(self, pos: int, cell: int) -> None:
        if pos - self.origin >= len(self.table) and not self._reach(pos, self.count + 1):
            self.stale = True
            return
        table, origin = self.table, self.origin
        if self.straight is not None and int(table[self.hi - origin]) - self.hi != cell - pos:
            self.straight = pos
        table[pos - origin] = cell
        self.hi = pos
        self.count += 1

    def _reach(self, pos: int, count: int) -> bool:
        """Make the table long enough for `pos`; False if `count` tokens leave mostly holes."""
        needed = pos - self.origin + 1
        if needed <= len(self.table):
            return True
        if pos - self.lo > 8 * count + _HOLES:
            return False
        start = self.lo // BLOCK * BLOCK
        old = self.table[start - self.origin : self.hi + 1 - self.origin]
        size = -(-max(_LEAST, 2 * (pos - start + 1)) // BLOCK) * BLOCK
        self.table = np.full(size, ABSENT_CELL, dtype=np.int64)
        if self.count:
            self.table[: len(old)] = old
        self.origin = start
        return True

    def _settle(self) -> None:
        if self.count == 0:
            self._empty()
            return
        table, origin = self.table, self.origin
        if table[self.lo - origin] == ABSENT_CELL:
            self.lo += 1  # mostly the next position is there
            if table[self.lo - origin] == ABSENT_CELL:
                self.lo += int(np.argmax(table[self.lo - origin :] != ABSENT_CELL))
        if table[self.hi - origin] == ABSENT_CELL:
            self.hi -= 1
            if table[self.hi - origin] == ABSENT_CELL:
                self.hi -= int(np.argmax(table[self.hi - origin :: -1] != ABSENT_CELL))
        if self.straight is not None and self.straight > self.hi:
            self.straight = None


_NOTHING: Final[Integers] = np.zeros(0, dtype=np.int64)
