"""Finding cells for a ubatch, filling them, and the dry run over a whole batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from cachesim.engines.llamacpp.memory.batch import Ids, Ubatch
from cachesim.engines.llamacpp.memory.cells import EMPTY, Cells
from cachesim.engines.llamacpp.memory.streams import Streams
from cachesim.errors import UpstreamAbort
from cachesim.units import Array, Integers

_GLANCE: Final = 4  # cells looked at one by one before all are looked at together
_NONE: Final[Integers] = np.zeros(0, dtype=np.int64)


class SlotInfo(NamedTuple):
    """Where a ubatch goes: per list of tokens a stream and as many cells.

    A range stands for cells that are empty and follow one another.
    """

    streams: tuple[int, ...]
    cells: tuple[Integers | range, ...]


@dataclass(frozen=True, slots=True)
class _Content:
    """What some cells hold: their positions, and the one sequence of all or those of each."""

    cells: Integers
    positions: Integers
    owner: int | None
    seqs: list[list[int]]


@dataclass(frozen=True, slots=True)
class _Saved:
    """What a dry run puts back: the found cells and every head."""

    slot: SlotInfo
    heads: tuple[int, ...]
    contents: tuple[_Content, ...]


def find_slot(streams: Streams, ubatch: Ubatch) -> SlotInfo | None:
    """Follows `llama_kv_cache::find_slot`: searches only, changes nothing.

    One list with all tokens when there is one stream; else one list per sequence, each in its own
    stream. The first list that finds no room fails the whole ubatch.
    """
    if streams.unified:
        found = _search(streams, 0, len(ubatch.rows))
        return None if found is None else SlotInfo((0,), (found,))
    if ubatch.run >= 0:
        stream = streams.of(ubatch.run, "find_slot")
        found = _search(streams, stream, len(ubatch.rows))
        return None if found is None else SlotInfo((stream,), (found,))
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
    if end <= cells.size:
        behind = start >= cells.end
        if behind or (n > 1 and not np.count_nonzero(cells.pos[start:end] != EMPTY)):
            return range(start, end)
    cells.cover(cells.size)
    if n == 1:
        for cell in range(start, min(start + _GLANCE, cells.size)):
            if cells.pos[cell] == EMPTY:
                return range(cell, cell + 1)
            if _reclaimable(streams, cells, cell):
                return np.array([cell])
    usable = _usable_cells(streams, cells)
    found = np.flatnonzero(usable[start:])[:n] + start
    if len(found) < n:
        found = np.concatenate([found, np.flatnonzero(usable[:start])[: n - len(found)]])
    return found if len(found) == n else None


def _reclaimable(streams: Streams, cells: Cells, cell: int) -> bool:
    if streams.mask.kind == "none" or cells.owners[cell] != 1:
        return False
    (seq,) = cells.seqs_of(cell)
    return streams.mask.hides(int(cells.pos[cell]), cells.pos_max(seq) + 1)


def _usable_cells(streams: Streams, cells: Cells) -> Array:
    """All cells that are empty or reclaimable.

    Trap: the sequence may be any, not only the one that is being written: a busy conversation
    reclaims the old cells of an idle one. Shared cells are never reclaimed.
    """
    usable: Array = cells.pos == EMPTY
    if streams.mask.kind == "none":
        return usable
    single = cells.owners == 1
    for seq in list(cells.tracks):
        alone = np.flatnonzero(single & cells.members(seq))
        if alone.size:
            hidden = streams.mask.hides_each(cells.pos[alone], cells.pos_max(seq) + 1)
            usable[alone[hidden]] = True
    return usable


def free_cells(streams: Streams, stream: int) -> int:
    """How many cells of a stream are empty."""
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
    return _NONE if isinstance(found, range) else found[cells.pos[found] != EMPTY]


def apply_ubatch(streams: Streams, slot: SlotInfo, ubatch: Ubatch) -> None:
    """Follows `llama_kv_cache::apply_ubatch`: write positions and ids into the found cells.

    Cells that were taken over leave their sequence; what it has below the highest position
    overwritten is purged (#13746), so that the rest stays without holes at its low end.
    """
    neighbours = slot.cells[0]
    if ubatch.run >= 0 and isinstance(neighbours, range):
        streams.cells[slot.streams[0]].fill_run(neighbours, ubatch.positions[0], ubatch.run)
        streams.heads[slot.streams[0]] = neighbours.stop
        return
    overwritten: dict[int, int] = {}
    first = 0
    for stream, found in zip(slot.streams, slot.cells, strict=True):
        cells = streams.cells[stream]
        full = _full(cells, found)
        owner = cells.sole_owner(full) if len(full) > _GLANCE else None
        if owner is not None:
            overwritten[owner] = max(overwritten.get(owner, EMPTY), int(cells.pos[full].max()))
            cells.take(full, owner)
            full = full[:0]
        for cell in full.tolist():
            pos = int(cells.pos[cell])
            for seq in cells.seqs_of(cell):
                overwritten[seq] = max(overwritten.get(seq, EMPTY), pos)
            cells.empty(cell)
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
    n, ids, start = len(found), seqs[0], positions[0]
    alike = n > 1 and len(ids) == 1 and seqs.count(ids) == n
    if alike and tuple(positions) == tuple(range(start, start + n)):
        cells.fill_run(found, start, ids[0])
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
        if len(streams.cells) == 1:  # what the dry run would leave, the ubatch's own apply does too
            return [slot]
        if not sum(map(len, _reclaimed(streams, slot))):  # it would only leave the heads
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


def _contents(streams: Streams, slot: SlotInfo) -> tuple[_Content, ...]:
    kept = []
    for stream, full in zip(slot.streams, _reclaimed(streams, slot), strict=True):
        cells = streams.cells[stream]
        owner = cells.sole_owner(full) if len(full) > _GLANCE else None
        seqs = [cells.seqs_of(cell) for cell in full.tolist()] if owner is None else []
        kept.append(_Content(full, cells.pos[full], owner, seqs))
    return tuple(kept)


def _reclaimed(streams: Streams, slot: SlotInfo) -> list[Integers]:
    return [
        _full(streams.cells[stream], found)
        for stream, found in zip(slot.streams, slot.cells, strict=True)
    ]


def _put_back_heads(streams: Streams, slot: SlotInfo, heads: tuple[int, ...]) -> None:
    """Each stream in use gets the head of the stream that has its list's number, as upstream."""
    for stream, head in zip(slot.streams, heads, strict=False):
        streams.heads[stream] = head


def _put_back(streams: Streams, step: _Saved) -> None:
    for k, (stream, found) in enumerate(zip(step.slot.streams, step.slot.cells, strict=True)):
        cells, filled = streams.cells[stream], np.array(found)
        full = filled[cells.pos[filled] != EMPTY]  # a later purge may have emptied some
        if len(full) > _GLANCE:
            cells.wipe(full)
        else:
            for cell in full.tolist():
                cells.empty(cell)
        held = step.contents[k]
        if held.owner is not None:
            cells.give(held.cells, held.positions, held.owner)
        for cell, pos, seqs in zip(
            held.cells.tolist(), held.positions.tolist(), held.seqs, strict=False
        ):
            cells.place(cell, pos)
            for seq in seqs:
                cells.add(cell, seq)
    _put_back_heads(streams, step.slot, step.heads)
