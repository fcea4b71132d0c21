"""The cells of all streams of an attention cache, and the operations on whole sequences."""

from operator import attrgetter
from typing import Final

import numpy as np

from cachesim.engines.llamacpp.memory.batch import MAX_SEQUENCES
from cachesim.engines.llamacpp.memory.cells import Cells
from cachesim.engines.llamacpp.memory.mask import WindowMask
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.errors import ContractError, UpstreamAbort
from cachesim.units import Integers

MAX: Final = 2**31 - 1
"""The open end of a range of positions."""

_HAS_SHIFT: Final = attrgetter("has_shift")


def normalised(p0: int, p1: int) -> tuple[int, int]:
    """A half-open range whose negative ends are open."""
    return max(p0, 0), p1 if p1 >= 0 else MAX


class Streams:
    """Independent arrays of cells, each with its own head, the place where a search begins.

    Upstream: `llama_kv_cache::v_cells`.
    """

    def __init__(
        self, rules: MemoryRules, *, n_seq_max: int, unified: bool, size: int, mask: WindowMask
    ) -> None:
        self.unified = unified
        self.n_seq_max = n_seq_max
        self.size = size
        self.mask = mask
        count = 1 if unified else n_seq_max
        self.cells = [Cells(size, counts_positions=rules.counts_positions) for _ in range(count)]
        self.heads = [0] * count

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def has_shift(self) -> bool:
        """True if a cell of any stream has a pending shift."""
        return any(map(_HAS_SHIFT, self.cells))

    def of(self, seq: int, caller: str) -> int:
        """The stream of a sequence (`seq_to_stream`); the real process aborts on a wrong id."""
        if not 0 <= seq < (MAX_SEQUENCES if self.unified else self.n_seq_max):
            where = f"llama_kv_cache::{caller}"
            raise UpstreamAbort(where, f"sequence id {seq} is out of range")
        return 0 if self.unified else seq

    def clear(self) -> None:
        """Empty all cells and put all heads back."""
        for cells in self.cells:
            cells.reset()
        self.heads = [0] * len(self.heads)

    def pos_min(self, seq: int) -> int:
        """Lowest position of a sequence, -1 if none; holes in between do not show."""
        return self.cells[self.of(seq, "seq_pos_min")].pos_min(seq)

    def pos_max(self, seq: int) -> int:
        """Highest position of a sequence, -1 if none."""
        return self.cells[self.of(seq, "seq_pos_max")].pos_max(seq)

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """Take a sequence out of its cells in [p0, p1); -1 empties the cells of everybody.

        0        p0          p1
        [  kept  |  removed  |  kept  ]     the head moves down to the first freed cell, never up
        """
        p0, p1 = normalised(p0, p1)
        if seq == -1:
            for stream, cells in enumerate(self.cells):
                inside = np.flatnonzero((cells.pos >= p0) & (cells.pos < p1))
                cells.wipe(inside)
                self._lower_head(stream, inside)
            return
        stream = self.of(seq, "seq_rm")
        cells = self.cells[stream]
        self._lower_head(stream, cells.release(cells.select(seq, p0, p1), seq))

    def share(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Let `dst` see the cells of `src` in [p0, p1), within one stream; no data moves."""
        if src == dst:
            return
        cells = self.cells[self.of(src, "seq_cp")]
        cells.share(cells.select(src, *normalised(p0, p1)), dst)

    def replicate(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Copy a sequence into another stream, cell by cell at the same indices.

        Trap: everything that the destination stream held is gone, and the range is only looked at
        to refuse (by abort) what is not a copy of the whole.
        """
        if (p0 > 0 and p0 + 1 < self.size) or (p1 > 0 and p1 + 1 < self.size):
            where = "llama_kv_cache::seq_cp"
            raise UpstreamAbort(where, "a copy across streams must be full")
        source, target = self.cells[src], self.cells[dst]
        target.reset()
        held = np.flatnonzero(source.members(src))
        for cell in held:
            target.place(int(cell), int(source.pos[cell]))
        target.shift[held] = source.shift[held]
        target.has_shift = bool(source.shift[held].any())
        target.share(held, dst)
        self.heads[dst] = self.heads[src]

    def seq_keep(self, seq: int) -> None:
        """Leave the stream of a sequence to it alone. Trap: other streams keep everything."""
        stream = self.of(seq, "seq_keep")
        self._lower_head(stream, self.cells[stream].keep(seq))

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move the positions in [p0, p1) by `delta`; what falls below zero is dropped.

        Traps: whole cells move, so other sequences in them move (or vanish) too; and the head goes
        to 0 whenever nothing was dropped, even if no cell matched.
        """
        stream = self.of(seq, "seq_add")
        if delta == 0:
            return
        p0, p1 = normalised(p0, p1)
        if p0 == p1:
            return
        cells = self.cells[stream]
        inside = cells.select(seq, p0, p1)
        moved = cells.pos[inside] + delta
        dropped = cells.move(inside, moved, np.full_like(moved, delta))
        self.heads[stream] = int(dropped.min()) if dropped.size else 0

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide the positions in [p0, p1); the head stays.

        Trap: the pending shift is old minus new, the opposite sign of `seq_add`, so that the next
        update rotates the keys the wrong way.
        """
        stream = self.of(seq, "seq_div")
        if divisor == 1:
            return
        p0, p1 = normalised(p0, p1)
        cells = self.cells[stream]
        inside = cells.select(seq, p0, p1)
        old = cells.pos[inside]
        cells.move(inside, old // divisor, old - old // divisor)

    def _lower_head(self, stream: int, freed: Integers) -> None:
        if freed.size:
            self.heads[stream] = min(self.heads[stream], int(freed.min()))

    def check_integrity(self) -> None:
        """Every stream's own check, and heads within range."""
        for cells, head in zip(self.cells, self.heads, strict=True):
            cells.check_integrity()
            if not 0 <= head <= self.size:
                msg = f"head {head} is outside the {self.size} cells"
                raise ContractError(msg)
