"""Finding cells for a ubatch, filling them, and the dry run over a whole batch."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from cachesim.engines.llamacpp.memory.batch import Ids, Ubatch
from cachesim.engines.llamacpp.memory.cells import EMPTY, Cells
from cachesim.engines.llamacpp.memory.streams import Streams
from cachesim.errors import UpstreamAbort
from cachesim.units import Array, Integers

_NONE: Final[Integers] = np.zeros(0, dtype=np.int64)


class SlotInfo(NamedTuple):
    """The cells of a ubatch: per list of tokens a stream and as many cells.

    A range stands for cells that are empty and follow one another.
    """

    streams: tuple[int, ...]
    cells: tuple[Integers | range, ...]


class _Saved(NamedTuple):
    """The state before a dry run: every head, and the content of each list's used cells."""

    slot: SlotInfo
    heads: tuple[int, ...]
    contents: tuple[tuple[Integers, Integers, Array], ...]  # cells, positions, bit sets


def find_slot(streams: Streams, ubatch: Ubatch) -> SlotInfo | None:
    """Follows `llama_kv_cache::find_slot`: searches only, changes nothing.

    One list with all tokens when there is one stream; else one list per sequence, each in its own
    stream. The first list that finds no room fails the whole ubatch.
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
        if found is None:
            return None
        lists.append(stream)
        cells.append(found)
    return SlotInfo(tuple(lists), tuple(cells))


def _search(streams: Streams, stream: int, n: int) -> Integers | range | None:
    """The first `n` usable cells from the head on, wrapping once around.

    Trap: first usable, not oldest: cells that the window hides are taken in index order, mixed
    with empty ones, even while empty ones remain (a full-size window cache included).
    """
    cells, start = streams.cells[stream], streams.heads[stream]
    if start > cells.used + 2 * n:
        start = 0
    if n > cells.size:
        return None
    end = start + n
    if end <= cells.size and not np.count_nonzero(cells.pos[start:end] != EMPTY):
        return range(start, end)
    cells.cover(cells.size)
    usable = _usable_cells(streams, cells)
    found = np.flatnonzero(usable[start:])[:n] + start
    if len(found) < n:
        found = np.concatenate([found, np.flatnonzero(usable[:start])[: n - len(found)]])
    return found if len(found) == n else None


def _usable_cells(streams: Streams, cells: Cells) -> Array:
    """All cells that are empty or reclaimable.

    Trap: the sequence may be any, not only the one that is being written: a busy conversation
    reclaims the old cells of an idle one. Shared cells are never reclaimed.
    """
    usable: Array = cells.pos == EMPTY
    if streams.mask.kind == "none":
        return usable
    single = cells.owners == 1
    for seq in cells.seqs_among(slice(None)):
        alone = np.flatnonzero(single & cells.members(seq))
        hidden = streams.mask.hides_each(cells.pos[alone], cells.pos_max(seq) + 1)
        usable[alone[hidden]] = True
    return usable


def free_cells(streams: Streams, stream: int) -> int:
    """The number of empty cells of a stream."""
    return streams.size - streams.cells[stream].used


def fill_straight(
    streams: Streams, stream: int, seq: int, start: int, count: int
) -> Integers | range | None:
    """Put a run of a sequence's tokens into empty cells; None where there are too few."""
    found = _search(streams, stream, count)
    cells = streams.cells[stream]
    if found is None or len(_full(cells, found)):
        return None
    cells.fill_run(found, start, seq)
    streams.heads[stream] = int(found[-1]) + 1
    return found


def _full(cells: Cells, found: Integers | range) -> Integers:
    """The cells in use among those just found."""
    return _NONE if isinstance(found, range) else found[cells.pos[found] != EMPTY]


def apply_ubatch(streams: Streams, slot: SlotInfo, ubatch: Ubatch) -> None:
    """Follows `llama_kv_cache::apply_ubatch`: write positions and ids into the found cells.

    Cells that were taken over leave their sequence; what it has below the highest position
    overwritten is purged (#13746), so that the rest stays without holes at its low end.
    """
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
        low = streams.pos_min(seq)
        if low <= overwritten[seq]:
            streams.seq_rm(seq, low, overwritten[seq] + 1)
    for stream, found in zip(slot.streams, slot.cells, strict=True):
        streams.heads[stream] = int(found[-1]) + 1


def _fill(
    cells: Cells, found: Integers | range, positions: Sequence[int], seqs: tuple[Ids, ...]
) -> None:
    """Put tokens into empty cells; a plain run of one sequence goes in as a whole.

    Upstream: `llama_kv_cache::apply_ubatch`.
    """
    n, ids, run = len(found), seqs[0], range(positions[0], positions[0] + len(found))
    alike = len(ids) == 1 and seqs.count(ids) == n
    if alike and (positions == run or tuple(positions) == tuple(run)):
        cells.fill_run(found, run.start, ids[0])
        return
    for cell, pos, own in zip(map(int, found), positions, seqs, strict=True):
        cells.place(cell, pos)
        for seq in own:
            cells.add(cell, seq)


def prepare(streams: Streams, ubatches: list[Ubatch]) -> list[SlotInfo] | None:
    """Follows `llama_kv_cache::prepare`: a dry run that finds the cells of a whole batch.

    Afterwards the found cells and the heads are put back, last one first.

    Traps: cells that a purge emptied beside them stay empty, so a failed decode can cost window
    positions; and heads are put back by list number instead of stream number.
    """
    if len(ubatches) == 1:
        slot = find_slot(streams, ubatches[0])
        if slot is None:
            return None
        if all(isinstance(found, range) for found in slot.cells):  # only the heads would change
            _put_back_heads(streams, slot, tuple(streams.heads))
            return [slot]
    slots: list[SlotInfo] = []
    saved: list[_Saved] = []
    for ubatch in ubatches:
        slot = find_slot(streams, ubatch)
        if slot is None:
            break
        slots.append(slot)
        saved.append(_Saved(slot, tuple(streams.heads), _contents(streams, slot)))
        apply_ubatch(streams, slot, ubatch)
    for step in reversed(saved):
        _put_back(streams, step)
    return slots if len(slots) == len(ubatches) else None


def _contents(streams: Streams, slot: SlotInfo) -> tuple[tuple[Integers, Integers, Array], ...]:
    """The content of the found cells, list by list."""
    kept = []
    for stream, found in zip(slot.streams, slot.cells, strict=True):
        cells = streams.cells[stream]
        full = _full(cells, found)
        kept.append((full, cells.pos[full], cells.bits[:, full]))
    return tuple(kept)


def _put_back(streams: Streams, step: _Saved) -> None:
    slot = step.slot
    for stream, found, content in zip(slot.streams, slot.cells, step.contents, strict=True):
        cells, filled = streams.cells[stream], np.asarray(found)
        cells.wipe(filled[cells.pos[filled] != EMPTY])  # a later purge may have emptied some
        cells.give(*content)
    _put_back_heads(streams, slot, step.heads)


def _put_back_heads(streams: Streams, slot: SlotInfo, heads: tuple[int, ...]) -> None:
    """Each stream in use gets the head of the stream that has its list's number, as upstream."""
    for stream, head in zip(slot.streams, heads, strict=False):
        streams.heads[stream] = head
