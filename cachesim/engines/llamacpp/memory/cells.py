"""The cells of one attention stream (`llama_kv_cells`): positions, sequences, pending shifts.

A cell holds one token. Its sequences are a bit set; everything else is derived from position and
bit set, and `check_integrity` compares both. The arrays cover the first cells only, as far as any
were used; the others are empty.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from cachesim.engines.llamacpp.memory.batch import MAX_SEQUENCES, Ids, Ubatch, is_run
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.errors import ContractError, UpstreamAbort
from cachesim.model.store import FAR, grown
from cachesim.units import Array, Integers

WindowType: TypeAlias = Literal["none", "standard", "chunked", "symmetric"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMask:
    """A window's type and length (`swa_type`, `n_swa`)."""

    kind: WindowType = "none"
    n_swa: int = 0

    def hides(self, key: int, query: int) -> bool:
        """True if the window hides key position `key` from query position `query`.

        Follows `llama_hparams::is_masked_swa`.
        """
        # Trap: the cell search calls it with pos_max + 1, a save with pos_max, so one position can
        # be both saved and reclaimable.
        match self.kind:
            case "standard":
                return query - key >= self.n_swa
            case "chunked":
                return key < query // self.n_swa * self.n_swa
            case "symmetric":
                return abs(query - key) > self.n_swa // 2
            case _:
                return False

    def hides_each(self, keys: Array, query: int) -> Array:
        """`hides` for many keys at once."""
        hidden: Array = np.zeros(keys.shape, dtype=np.bool_)
        match self.kind:
            case "standard":
                hidden = query - keys >= self.n_swa
            case "chunked":
                hidden = keys < query // self.n_swa * self.n_swa
            case "symmetric":
                hidden = np.abs(query - keys) > self.n_swa // 2
        return hidden

    def interval(self, queries: Integers, *, causal: bool = True) -> tuple[Integers, Integers]:
        """The lowest and highest position that each query attends to, both included.

        The predicate alone hides the future only in the symmetric case; otherwise causality does.
        """
        high = queries if causal else np.full_like(queries, FAR)
        match self.kind:
            case "standard":
                return queries - self.n_swa + 1, high
            case "chunked":
                return queries // self.n_swa * self.n_swa, high
            case "symmetric":
                half = self.n_swa // 2
                return queries - half, np.minimum(high, queries + half)
            case _:
                return np.zeros(len(queries), np.int64), high


NO_WINDOW: Final = WindowMask()
"""The mask of a cache without a window."""


EMPTY: Final = -1

Span: TypeAlias = tuple[int, int, int | None]
"""The lowest and the highest position of a sequence, EMPTY without any; and where it is in a row,
each cell minus its position.

    cell        7    8    9   10        0 to 3, 7 ahead
    position    0    1    2    3
"""

_WORD: Final = 64
_LEAST: Final = 512  # initial size of the arrays


class Cells:
    """Metadata of `size` cells, without keys and values."""

    def __init__(self, size: int, *, counts_positions: bool) -> None:
        self.size = size
        self.counts_positions = counts_positions
        least = min(size, _LEAST)
        self.pos: Integers = np.full(least, EMPTY, dtype=np.int64)
        self.shift: Integers = np.zeros(least, dtype=np.int64)
        self.owners: Integers = np.zeros(least, dtype=np.int64)  # number of sequences of each cell
        self.bits: Array = np.zeros((1, least), dtype=np.uint64)
        self.has_shift = False
        self.used = 0
        self.spans: dict[int, Span] = {}  # of sequences, where known
        self.phantoms: dict[int, Counter[int]] = {}

    def reset(self) -> None:
        """Empty every cell."""
        self.pos.fill(EMPTY)
        self.shift.fill(0)
        self.owners.fill(0)
        self.bits.fill(0)
        self.has_shift = False
        self.used = 0
        self.spans.clear()
        self.phantoms.clear()

    def cover(self, count: int) -> None:
        """Extend the arrays to the first `count` cells."""
        held = self.pos.size
        if count <= held:
            return
        reach = min(self.size, max(count, 2 * held))
        self.pos = np.concatenate([self.pos, np.full(reach - held, EMPTY, dtype=np.int64)])
        self.shift, self.owners = grown(self.shift, reach), grown(self.owners, reach)
        more = np.zeros((len(self.bits), reach - held), dtype=np.uint64)
        self.bits = np.concatenate([self.bits, more], axis=1)

    # --- queries

    def has(self, cell: int, seq: int) -> bool:
        """True if the cell belongs to the sequence."""
        return seq in self.seqs_of(cell)

    def seqs_of(self, cell: int) -> list[int]:
        """The sequences of the cell, in increasing order."""
        return _set_bits(self.bits[:, cell])

    def seqs_among(self, cells: Integers | slice) -> list[int]:
        """The sequences of any of the cells, in increasing order."""
        return _set_bits(np.bitwise_or.reduce(self.bits[:, cells], axis=1))

    def members(self, seq: int) -> Array:
        """A mask of all cells: True for those of the sequence."""
        word, bit = divmod(seq, _WORD)
        if word >= len(self.bits):
            return np.zeros(self.pos.size, dtype=np.bool_)
        seen: Array = (self.bits[word] & np.uint64(1 << bit)).astype(np.bool_)
        return seen

    def of(self, seq: int) -> Integers:
        """The cells of the sequence, in index order."""
        word, bit = divmod(seq, _WORD)
        if word >= len(self.bits):  # words are added with the first cell of a high sequence
            return np.zeros(0, dtype=np.int64)
        cells: Integers = (self.bits[word] & np.uint64(1 << bit)).nonzero()[0]
        return cells

    def select(self, seq: int, p0: int, p1: int) -> Integers:
        """The cells of the sequence with positions in [p0, p1), in index order."""
        low, high, ahead = self.span(seq)
        if p0 >= p1 or p0 > high or p1 <= low:
            return np.zeros(0, dtype=np.int64)
        if ahead is not None:
            first, end = max(p0, low) + ahead, min(p1, high + 1) + ahead
            return np.arange(first, end, dtype=np.int64)
        cells = self.of(seq)
        if p0 <= low and high < p1:
            return cells
        positions = self.pos[cells]
        inside: Integers = cells[(positions >= p0) & (positions < p1)]
        return inside

    def pos_min(self, seq: int) -> int:
        """Lowest position of the sequence, -1 if none."""
        low, ghosts = self.span(seq)[0], self.phantoms.get(seq)
        # Phantoms count as upstream counts them: positions that no cell has any more.
        if not ghosts:
            return low
        return min(ghosts) if low < 0 else min(low, *ghosts)

    def pos_max(self, seq: int) -> int:
        """Highest position of the sequence, -1 if none."""
        high = self.span(seq)[1]
        ghosts = self.phantoms.get(seq) if self.phantoms else None
        return max(high, *ghosts) if ghosts else high

    def span(self, seq: int) -> Span:
        """The ends of a sequence, and how far its cells are ahead of its positions."""
        known = self.spans.get(seq)
        if known is None:
            known = self.spans[seq] = self._span(seq)
        return known

    def _span(self, seq: int) -> Span:
        cells = self.of(seq)
        if not cells.size:
            return EMPTY, EMPTY, None
        held = self.pos[cells]
        low, high, count = int(held.min()), int(held.max()), len(held)
        ahead = cells.item(0) - low
        in_a_row = high - low == count - 1 == cells.item(-1) - cells.item(0)
        if in_a_row and not np.count_nonzero(cells - held != ahead):
            return low, high, ahead
        return low, high, None

    def _widen_span(self, seq: int, cell: int | None, low: int, high: int) -> None:
        """Add positions from a cell on; None for cells that are not in a row."""
        known = self.spans.get(seq)
        if known is None:
            return
        least, most, ahead = known
        if most < 0:
            self.spans[seq] = low, high, None if cell is None else cell - low
        elif cell is not None and low == most + 1 and cell - low == ahead:
            self.spans[seq] = least, high, ahead
        else:
            self.spans[seq] = min(least, low), max(most, high), None

    def _cut_span(self, seq: int, cells: Integers) -> None:
        """Keep what is known of a sequence only if the cells it loses are the end of its row."""
        low, high, ahead = self.spans.pop(seq, (EMPTY, EMPTY, None))
        if ahead is None:
            return
        first = cells.item(0) - ahead
        if len(cells) == high + 1 - first:
            self.spans[seq] = (low, first - 1, ahead) if low < first else (EMPTY, EMPTY, None)

    # --- changing single cells

    def place(self, cell: int, pos: int) -> None:
        """Put a token without sequences into an empty cell."""
        self.cover(cell + 1)
        self.pos[cell] = pos
        self.used += 1

    def add(self, cell: int, seq: int) -> None:
        self._widen(seq)
        word, bit = divmod(seq, _WORD)
        seqs, pos = int(self.bits[word, cell]), int(self.pos[cell])
        # Added again: the cell is the sequence's already.
        if seqs >> bit & 1:
            self._count_duplicate(seq, pos)
            return
        self.bits[word, cell] = seqs | 1 << bit
        self.owners[cell] += 1
        self._widen_span(seq, cell, pos, pos)

    # --- changing many cells

    def fill_run(self, cells: Integers | range, pos: int, seq: int) -> None:
        """Put tokens of one sequence at `pos`, `pos + 1`, ... into empty cells."""
        where: slice | Integers
        if isinstance(cells, range):
            first, end = cells.start, cells.stop
            if end > self.pos.size:
                self.cover(end)
            where = slice(first, end)
        else:
            first, where = None, cells
        word, bit = divmod(seq, _WORD)
        if word >= len(self.bits):
            self._widen(seq)
        last = pos + len(cells) - 1
        self.pos[where] = pos if last == pos else np.arange(pos, last + 1)
        self.bits[word, where] = 1 << bit
        self.owners[where] = 1
        self.used += len(cells)
        self._widen_span(seq, first, pos, last)

    def share(self, cells: Integers, seq: int) -> None:
        """Add a sequence to many cells; its own cells count twice (old releases)."""
        if not cells.size:
            return
        self._widen(seq)
        word, bit = divmod(seq, _WORD)
        known = (self.bits[word, cells] >> np.uint64(bit) & np.uint64(1)).astype(np.bool_)
        for pos in self.pos[cells[known]]:
            self._count_duplicate(seq, int(pos))
        fresh = cells[~known]
        self.bits[word, fresh] |= np.uint64(1 << bit)
        self.owners[fresh] += 1
        self.spans.pop(seq, None)

    def release(self, cells: Integers, seq: int) -> Integers:
        """Remove a sequence from some of its cells; return the emptied cells."""
        if not cells.size:
            return cells
        word, bit = divmod(seq, _WORD)
        where = _in_a_row(cells)
        self.bits[word, where] &= np.uint64(((1 << _WORD) - 1) ^ 1 << bit)
        self.owners[where] -= 1
        self._cut_span(seq, cells)
        freed: Integers = cells[self.owners[where] == 0]
        self._vacate(freed)
        return freed

    def give(self, cells: Integers, positions: Integers, bits: Array) -> None:
        """Restore the former content of emptied cells."""
        if not cells.size:
            return
        self.pos[cells] = positions
        self.bits[: len(bits), cells] = bits
        self.owners[cells] = _bit_counts(bits)
        self.used += len(cells)
        for seq in self.seqs_among(cells):
            self.spans.pop(seq, None)

    def wipe(self, cells: Integers) -> None:
        """Empty many cells, whatever their sequences."""
        if cells.size:
            for seq in self.seqs_among(cells):
                self.spans.pop(seq, None)
            self._vacate(cells)

    def keep(self, seq: int) -> Integers:
        """Remove all other sequences from all cells; return the emptied cells."""
        mine = self.members(seq)
        emptied = np.flatnonzero((self.owners > 0) & ~mine)
        self.spans.clear()
        word, bit = divmod(seq, _WORD)
        self.bits[:, mine] = 0
        if word < len(self.bits):
            self.bits[word, mine] = np.uint64(1 << bit)
        self.owners[mine] = 1
        self._vacate(emptied)
        return emptied

    def move(self, cells: Integers, moved: Integers, shifts: Integers) -> Integers:
        """Set new positions and pending shifts; return the cells dropped below zero."""
        if not cells.size:
            return cells
        for seq in self.seqs_among(cells):
            self.spans.pop(seq, None)
        # Positions are new at once; the keys are rotated by `shift` in the next update.
        self.pos[cells] = moved
        self.shift[cells] += shifts
        self.has_shift = True
        dropped: Integers = cells[moved < 0]
        self._vacate(dropped)
        return dropped

    def settle_shifts(self) -> None:
        """Reset the shifts, which have been applied to the keys."""
        self.shift.fill(0)
        self.has_shift = False

    # --- internals

    def _vacate(self, cells: Integers) -> None:
        if not cells.size:
            return
        where = _in_a_row(cells)
        self.bits[:, where] = 0
        self.owners[where] = 0
        self.pos[where] = EMPTY
        self.shift[where] = 0
        self.used -= len(cells)

    def _count_duplicate(self, seq: int, pos: int) -> None:
        """Count a sequence that is added to one of its own cells."""
        # Trap: releases that count positions count up by two, but the cell is removed once, so the
        # position stays as a phantom until a reset.
        if self.counts_positions:
            self.phantoms.setdefault(seq, Counter())[pos] += 1

    def _widen(self, seq: int) -> None:
        words = seq // _WORD + 1
        if words > len(self.bits):
            more = np.zeros((words - len(self.bits), self.pos.size), dtype=np.uint64)
            self.bits = np.concatenate([self.bits, more])

    def check_integrity(self) -> None:
        """Raise ContractError if counts and ends disagree with the cells."""
        if self.used != np.count_nonzero(self.pos != EMPTY):
            raise ContractError(f"used is {self.used}, but the cells disagree")
        if np.count_nonzero(self.owners != _bit_counts(self.bits)):
            raise ContractError("owner counts differ from the bit sets")
        if np.count_nonzero(((self.owners | self.shift) != 0) & (self.pos == EMPTY)):
            raise ContractError("an empty cell has sequences or a shift")
        if not self.has_shift and np.count_nonzero(self.shift):
            raise ContractError("a shift is pending but not flagged")
        for seq, span in self.spans.items():
            low, high, ahead = self._span(seq)
            if span[:2] != (low, high) or span[2] not in {ahead, None}:
                raise ContractError(f"sequence {seq} is not at {span[0]}..{span[1]}")


def _in_a_row(cells: Integers) -> slice | Integers:
    """A slice for cells that follow one another, which NumPy takes sooner; they ascend or wrap."""
    first, last = cells.item(0), cells.item(-1)
    return slice(first, last + 1) if last - first == len(cells) - 1 else cells


def _set_bits(words: Array) -> list[int]:
    """The numbers of the bits that are set, in increasing order."""
    return [
        word * _WORD + bit
        for word, bits in enumerate(words.tolist())
        for bit in range(bits.bit_length())
        if bits >> bit & 1
    ]


def _bit_counts(bits: Array) -> Integers:
    seen = np.bitwise_or.reduce(bits, axis=0).nonzero()[0]  # most cells are empty
    octets = np.ascontiguousarray(bits[:, seen].T).view(np.uint8)
    counts = np.zeros(bits.shape[1], np.int64)
    counts[seen] = np.unpackbits(octets, axis=1).sum(axis=1)
    return counts


MAX: Final = 2**31 - 1
"""The open end of a range of positions."""

_HAS_SHIFT: Final = attrgetter("has_shift")


def normalised(p0: int, p1: int) -> tuple[int, int]:
    """A half-open range; negative ends are open."""
    return max(p0, 0), p1 if p1 >= 0 else MAX


class Streams:
    """Independent arrays of cells, each with its own head, the start of a search.

    Upstream: `llama_kv_cache::v_cells`.
    """

    def __init__(
        self, rules: MemoryRules, *, n_seq_max: int, unified: bool, size: int, mask: WindowMask
    ) -> None:
        self.unified = unified
        self.n_seq_max = n_seq_max
        self.size = size
        self.mask = mask
        self.reclaims = mask.kind != "none"  # takes cells that the window hides
        self.restores = rules.dry_run_restores
        self.lost = False  # a dry run has emptied cells that the window does not hide
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
        """Empty all cells and reset all heads."""
        for cells in self.cells:
            cells.reset()
        self.heads = [0] * len(self.heads)

    def pos_min(self, seq: int) -> int:
        """Lowest position of a sequence, -1 if none; gaps are not visible."""
        return self.cells[self.of(seq, "seq_pos_min")].pos_min(seq)

    def pos_max(self, seq: int) -> int:
        """Highest position of a sequence, -1 if none."""
        return self.cells[self.of(seq, "seq_pos_max")].pos_max(seq)

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """Remove a sequence from its cells in [p0, p1); -1 empties the cells of all sequences.

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
        """Add `dst` to the cells of `src` in [p0, p1), within one stream; no data moves."""
        if src == dst:
            return
        cells = self.cells[self.of(src, "seq_cp")]
        cells.share(cells.select(src, *normalised(p0, p1)), dst)

    def replicate(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Copy a sequence into another stream, cell by cell at the same indices."""
        # Trap: the range is only checked to refuse (by abort) a partial copy.
        if (p0 > 0 and p0 + 1 < self.size) or (p1 > 0 and p1 + 1 < self.size):
            where = "llama_kv_cache::seq_cp"
            raise UpstreamAbort(where, "a copy across streams must be full")
        source, target = self.cells[src], self.cells[dst]
        # Trap: the content of the destination stream is lost.
        target.reset()
        held = np.flatnonzero(source.members(src))
        for cell in held:
            target.place(int(cell), int(source.pos[cell]))
        target.shift[held] = source.shift[held]
        target.has_shift = bool(source.shift[held].any())
        target.share(held, dst)
        self.heads[dst] = self.heads[src]

    def seq_keep(self, seq: int) -> None:
        """Keep only one sequence in its stream. Trap: other streams are unchanged."""
        stream = self.of(seq, "seq_keep")
        self._lower_head(stream, self.cells[stream].keep(seq))

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move the positions in [p0, p1) by `delta`; cells below zero are dropped.

        0        p0        p1
        [  kept  |  moved  |  kept  ]       by delta; the keys are rotated in the next update
        """
        stream = self.of(seq, "seq_add")
        if delta == 0:
            return
        p0, p1 = normalised(p0, p1)
        if p0 == p1:
            return
        cells = self.cells[stream]
        # Trap: whole cells move, so other sequences in them move (or vanish) too.
        inside = cells.select(seq, p0, p1)
        moved = cells.pos[inside] + delta
        dropped = cells.move(inside, moved, np.full_like(moved, delta))
        # Trap: the head is set to 0 if no cell was dropped, even if none matched.
        self.heads[stream] = int(dropped.min()) if dropped.size else 0

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide the positions in [p0, p1); the head stays."""
        stream = self.of(seq, "seq_div")
        if divisor == 1:
            return
        p0, p1 = normalised(p0, p1)
        cells = self.cells[stream]
        inside = cells.select(seq, p0, p1)
        old = cells.pos[inside]
        # Trap: the pending shift is old minus new, the opposite sign of `seq_add`, so that the next
        # update rotates the keys the wrong way.
        cells.move(inside, old // divisor, old - old // divisor)

    def _lower_head(self, stream: int, freed: Integers) -> None:
        if freed.size:  # in index order
            self.heads[stream] = min(self.heads[stream], freed.item(0))

    def check_integrity(self) -> None:
        """Check every stream, and its head."""
        for cells, head in zip(self.cells, self.heads, strict=True):
            cells.check_integrity()
            if not 0 <= head <= self.size:
                raise ContractError(f"head {head} is outside the {self.size} cells")


_NONE: Final[Integers] = np.zeros(0, dtype=np.int64)


class SlotInfo(NamedTuple):
    """The cells of a ubatch: for each list of tokens a stream and its cells.

    A range stands for consecutive empty cells.
    """

    streams: tuple[int, ...]
    cells: tuple[Integers | range, ...]


class _Saved(NamedTuple):
    """The state before a dry run: every head, and the content of each list's used cells."""

    slot: SlotInfo
    heads: tuple[int, ...]
    contents: tuple[tuple[Integers, Integers, Array], ...]  # cells, positions, bit sets


def find_slot(streams: Streams, ubatch: Ubatch) -> SlotInfo | None:
    """Follows `llama_kv_cache::find_slot`: a search without any change.

    One list with all tokens for a single stream; else one list per sequence, each in its own
    stream.
    """
    if streams.unified:
        found = _search(streams, 0, len(ubatch.rows))
        return None if found is None else SlotInfo((0,), (found,))
    ids = ubatch.ids
    n = ubatch.n_tokens // len(ids)
    lists: list[int] = []
    cells: list[Integers | range] = []
    for k, seq in enumerate(ids):
        if ubatch.seqs[k * n] != (seq,):
            where = "llama_kv_cache::find_slot"
            raise UpstreamAbort(where, "one sequence id per token and list")
        stream = streams.of(seq, "find_slot")
        found = _search(streams, stream, n)
        # One list without room fails the whole ubatch, though the others have found cells.
        if found is None:
            return None
        lists.append(stream)
        cells.append(found)
    return SlotInfo(tuple(lists), tuple(cells))


def _search(streams: Streams, stream: int, n: int) -> Integers | range | None:
    """The first `n` usable cells from the head on, wrapping once around."""
    cells, start = streams.cells[stream], streams.heads[stream]
    # Many cells before the head are free by now: the search starts over.
    if start > cells.used + 2 * n:
        start = 0
    if n > cells.size:
        return None
    end = start + n
    if end <= cells.size and _is_empty(cells.pos, start, n):
        return range(start, end)
    cells.cover(cells.size)
    usable = _usable_cells(streams, cells)
    # Trap: first usable, not oldest: cells hidden by the window are taken in index order, mixed
    # with empty ones, even while empty ones remain (also in a full-size window cache).
    found = np.flatnonzero(usable[start:])[:n] + start
    if len(found) < n:
        found = np.concatenate([found, np.flatnonzero(usable[:start])[: n - len(found)]])
    return found if len(found) == n else None


def _is_empty(pos: Integers, start: int, n: int) -> bool:
    """True if `n` cells from `start` on are empty; those past the array's end are."""
    if n == 1:  # the token of each step: no array is made for it
        return start >= len(pos) or pos.item(start) == EMPTY
    return not np.count_nonzero(pos[start : start + n] != EMPTY)


def _usable_cells(streams: Streams, cells: Cells) -> Array:
    """All cells that are empty or reclaimable."""
    usable: Array = cells.pos == EMPTY
    if not streams.reclaims:
        return usable
    # Shared cells are never reclaimed, although the window may hide them from all their sequences.
    single = cells.owners == 1
    for seq in cells.seqs_among(slice(None)):
        # Trap: those of any sequence, not only of the written one: a busy conversation reclaims the
        # old cells of an idle one.
        alone = np.flatnonzero(single & cells.members(seq))
        hidden = streams.mask.hides_each(cells.pos[alone], cells.pos_max(seq) + 1)
        usable[alone[hidden]] = True
    return usable


def free_cells(streams: Streams, stream: int) -> int:
    """Number of empty cells of a stream."""
    return streams.size - streams.cells[stream].used


def fill_straight(
    streams: Streams, stream: int, seq: int, start: int, count: int
) -> Integers | range | None:
    """Put a run of a sequence's tokens into empty cells; None without enough of them."""
    found = _search(streams, stream, count)
    cells = streams.cells[stream]
    if found is None or len(_full(cells, found)):
        return None
    cells.fill_run(found, start, seq)
    streams.heads[stream] = int(found[-1]) + 1
    return found


def _full(cells: Cells, found: Integers | range) -> Integers:
    return _NONE if isinstance(found, range) else found[cells.pos[found] != EMPTY]


def apply_ubatch(streams: Streams, slot: SlotInfo, ubatch: Ubatch) -> None:
    """Follows `llama_kv_cache::apply_ubatch`: write positions and ids into the found cells."""
    if len(slot.cells) == 1 and isinstance(slot.cells[0], range):  # empty cells for all tokens
        _fill(streams.cells[slot.streams[0]], slot.cells[0], ubatch.positions, ubatch.seqs)
        streams.heads[slot.streams[0]] = slot.cells[0].stop
        return
    overwritten: dict[int, int] = {}
    first = 0
    for stream, found in zip(slot.streams, slot.cells, strict=True):
        cells = streams.cells[stream]
        full = _full(cells, found)
        if full.size:
            for seq in cells.seqs_among(full):
                highest = int(cells.pos[full[cells.members(seq)[full]]].max())
                overwritten[seq] = max(overwritten.get(seq, EMPTY), highest)
            cells.wipe(full)
        rows = slice(first, first + len(found))
        _fill(cells, found, ubatch.positions[rows], ubatch.seqs[rows])
        first += len(found)
    for seq in sorted(overwritten):
        # Purged up to the highest overwritten position (#13746), so that the rest has no gap at its
        # low end.
        low = streams.pos_min(seq)
        if low <= overwritten[seq]:
            streams.seq_rm(seq, low, overwritten[seq] + 1)
    for stream, found in zip(slot.streams, slot.cells, strict=True):
        streams.heads[stream] = int(found[-1]) + 1


def _fill(
    cells: Cells, found: Integers | range, positions: Sequence[int], seqs: tuple[Ids, ...]
) -> None:
    """Put tokens into empty cells; a run of one sequence at once.

    Upstream: `llama_kv_cache::apply_ubatch`.
    """
    n, ids, start = len(found), seqs[0], positions[0]
    alike = len(ids) == 1 and seqs.count(ids) == n
    if alike and (is_run(positions) or tuple(positions) == tuple(range(start, start + n))):
        cells.fill_run(found, start, ids[0])
        return
    for cell, pos, own in zip(map(int, found), positions, seqs, strict=True):
        cells.place(cell, pos)
        for seq in own:
            cells.add(cell, seq)


def prepare(streams: Streams, ubatches: list[Ubatch]) -> list[SlotInfo] | None:
    """Follows `llama_kv_cache::prepare`: a dry run that finds the cells of a whole batch."""
    if len(ubatches) == 1:
        slot = find_slot(streams, ubatches[0])
        if slot is None:
            return None
        if {*map(type, slot.cells)} == {range}:  # only the heads would change
            if slot.streams != (0,):
                _put_back_heads(streams, slot, tuple(streams.heads))
            return [slot]
    slots: list[SlotInfo] = []
    saved: list[_Saved] = []
    before = [(cells.pos.copy(), cells.bits.copy()) for cells in streams.cells]
    for ubatch in ubatches:
        slot = find_slot(streams, ubatch)
        if slot is None:
            break
        slots.append(slot)
        kept = []
        for stream, found in zip(slot.streams, slot.cells, strict=True):
            cells = streams.cells[stream]
            full = _full(cells, found)
            kept.append((full, cells.pos[full], cells.bits[:, full]))
        saved.append(_Saved(slot, tuple(streams.heads), tuple(kept)))
        apply_ubatch(streams, slot, ubatch)
    # Cells and heads are restored, the last ones first. Trap: other cells emptied by a purge stay
    # empty. What a later ubatch does not need is gone before an earlier one is computed:
    #
    #     seq 1          [ ... window )
    #     ubatches       [ seq 0 .... )[ seq 0 .. seq 1, from there on )[ seq 1 ........ )
    #     the last one   takes an old cell of seq 1, and purges the window from there down
    for step in reversed(saved):
        slot = step.slot
        for stream, found, content in zip(slot.streams, slot.cells, step.contents, strict=True):
            cells, filled = streams.cells[stream], np.asarray(found)
            cells.wipe(filled[cells.pos[filled] != EMPTY])  # a later purge may have emptied some
            cells.give(*content)
        _put_back_heads(streams, slot, step.heads)
    _purged(streams, before)
    return slots if len(slots) == len(ubatches) else None


def _purged(streams: Streams, before: Sequence[tuple[Array, Array]]) -> None:
    """Put back what a dry run purged, or note that a window lacks some of it now.

    Upstream: `llama_kv_cache::prepare`, which restores the cells that the dry run filled.
    """
    for cells, (pos, bits) in zip(streams.cells, before, strict=True):
        words, width = bits.shape
        gone = np.flatnonzero((bits & ~cells.bits[:words, :width]).any(axis=0))
        if gone.size and streams.restores:
            cells.wipe(gone[cells.pos[gone] != EMPTY])
            cells.give(gone, pos[gone], bits[:, gone])
        elif gone.size and not streams.lost:
            streams.lost = any(
                not streams.mask.hides_each(pos[gone], cells.pos_max(seq) + 1).all()
                for seq in _set_bits(np.bitwise_or.reduce(bits[:, gone], axis=1))
            )


def _put_back_heads(streams: Streams, slot: SlotInfo, heads: tuple[int, ...]) -> None:
    """Restore heads as upstream."""
    # Trap: by list number instead of stream number.
    for stream, head in zip(slot.streams, heads, strict=False):
        streams.heads[stream] = head
