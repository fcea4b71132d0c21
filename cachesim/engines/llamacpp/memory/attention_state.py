"""Saving and restoring an attention cache (`llama_kv_cache::state_write`, `state_read`)."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cachesim.engines.llamacpp.memory.batch import Ubatch
from cachesim.engines.llamacpp.memory.blob import (
    CellList,
    Field,
    Header,
    MisreadError,
    Reader,
    RowBlock,
    TruncatedError,
    Word,
    chunks_of,
)
from cachesim.engines.llamacpp.memory.find_slot import apply_ubatch, fill_straight, find_slot
from cachesim.engines.llamacpp.memory.streams import MAX
from cachesim.errors import BlobError
from cachesim.units import Integers

if TYPE_CHECKING:
    from cachesim.engines.llamacpp.memory.attention import AttentionCache


def write(cache: "AttentionCache", seq: int) -> list[Field]:
    """Per stream: how many cells, which ones, the layers' keys, the layers' values.

    Trap: no pending update is done first. After `seq_add` the blob has new positions with keys
    still at the old rotation, and nothing will turn them after a restore.
    """
    if seq != -1:
        cache.streams.of(seq, "state_write")
    fields: list[Field] = [Word(len(cache.streams))]
    for stream, cells in enumerate(cache.streams.cells):
        saved = _saved_cells(cache, stream, seq)
        count = len(saved)
        fields.append(Word(count))
        if not count:
            continue
        if seq == -1:
            ids = tuple(
                tuple(s for s in cells.seqs_of(cell) if s < cache.n_seq_max)
                for cell in map(int, saved)
            )
        else:
            # Trap: an id that the cache accepts but the blob cannot name leaves no ids at all.
            ids = ((seq,) if seq < cache.n_seq_max else (),) * count
        if isinstance(saved, range):
            positions = cells.pos[saved.start : saved.stop].copy()
        else:
            positions = cells.pos[saved]
        fields += [CellList.of(positions, ids, cache.ext), cache.header]
        rows, chunks = cache.rows[stream], chunks_of(saved)
        at = rows.places(saved)
        for part, layer, kind, size in cache.blocks:
            data = (rows.keys if part == "key" else rows.values)[layer][at]
            data = data.copy() if isinstance(at, slice) else data
            fields.append(RowBlock(kind, size, count, data, chunks))
    return fields


def _saved_cells(cache: "AttentionCache", stream: int, seq: int) -> Integers | range:
    """Cells in index order: all of them, or one sequence's that the window does not hide."""
    cells = cache.streams.cells[stream]
    if seq == -1:
        return np.flatnonzero(cells.pos >= 0)
    run = cells.stretch(seq, 0, MAX)
    if run is not None:
        if not cache.rules.saves_unmasked_window or cache.mask.kind == "none":
            return run
        held = cells.pos[run.start : run.stop]
        hidden = cache.mask.hides_each(held, cells.pos_max(seq))  # from the lowest on
        return run[int(np.count_nonzero(hidden)) :]
    held = np.sort(cells.select(seq, 0, MAX))
    if cache.rules.saves_unmasked_window and held.size:
        held = held[~cache.mask.hides_each(cells.pos[held], cells.pos_max(seq))]
    return held


def read(cache: "AttentionCache", reader: Reader, seq: int) -> None:
    """Restore one sequence, or (-1) everything.

    Traps: a blob without cells leaves the destination as it was; any other failure has already
    cost the destination its old contents.

    Upstream: `llama_kv_cache::state_read`.
    """
    if seq != -1:
        cache.streams.of(seq, "state_read")
    if reader.word() != len(cache.streams):
        msg = "the state has another number of streams"
        raise BlobError(msg)
    if seq == -1 and cache.rules.restores_every_stream:
        cache.clear(data=True)
    for s in range(len(cache.streams)):
        count = reader.word()
        if count == 0:
            continue
        if seq == -1:
            _read_whole_stream(cache, reader, s, count)
        else:
            _read_sequence(cache, reader, seq, count)


def _read_sequence(cache: "AttentionCache", reader: Reader, seq: int, count: int) -> None:
    """Cells of any owner become private cells of `seq`, placed in saved cell order.

    The search is the ordinary one: it may reclaim window cells of other sequences, and its
    outcome depends on the head.
    """
    stream = cache.streams.of(seq, "state_read")
    if cache.rules.checks_count_first and count > cache.streams.size:
        cache.seq_rm(seq, -1, -1)
        msg = "the state has more cells than the cache"
        raise BlobError(msg)
    cache.seq_rm(seq, -1, -1)
    listed = reader.take(CellList)
    if not listed.has_one_owner_each:
        msg = "a cell of the state does not have exactly one sequence"
        raise BlobError(msg)
    if listed.is_straight:
        cells = fill_straight(cache.streams, stream, seq, int(listed.positions[0]), count)
        if cells is not None:
            _read_rows(cache, reader, seq, stream, cells)
            return
    ubatch = Ubatch(
        rows=tuple(range(count)),
        n_seqs=1,
        n_seq_tokens=count,
        positions=tuple(listed.positions.tolist()),
        seqs=((seq,),) * count,
    )
    slot = find_slot(cache.streams, ubatch)
    if slot is None:
        msg = "there are not enough free cells for the state"
        raise BlobError(msg)
    apply_ubatch(cache.streams, slot, ubatch)
    _read_rows(cache, reader, seq, stream, slot.cells[0])


def _read_whole_stream(cache: "AttentionCache", reader: Reader, stream: int, count: int) -> None:
    """Fill a stream from cell 0 with what was saved.

    Trap: in older releases every stream that holds something clears all of them first, so
    only the last one survives; and a blob without any cells clears nothing.

    Upstream: `llama_kv_cache::state_read_meta`.
    """
    cells = cache.streams.cells[stream]
    if count > cells.size:
        cache.clear(data=True)
        msg = "the state has more cells than the cache"
        raise BlobError(msg)
    if not cache.rules.restores_every_stream:
        cache.clear(data=True)
    listed = reader.take(CellList)
    for cell, (pos, ids) in enumerate(zip(listed.positions.tolist(), listed.ids, strict=True)):
        cells.place(cell, pos)
        for s in ids:
            if not 0 <= s < cache.n_seq_max:
                cache.clear(data=True)
                msg = f"the state names sequence {s}"
                raise BlobError(msg)
            cells.add(cell, s)
    cache.streams.heads[stream] = 0
    _read_rows(cache, reader, -1, stream, range(count))


def _read_rows(
    cache: "AttentionCache", reader: Reader, seq: int, stream: int, cells: Integers | range
) -> None:
    """Queue the rows behind a header that must be equal.

    Trap: in older releases, when the bytes run out here, the new cells stay, with whatever
    their rows held before. Later ones take the cells back and zero the rows.

    Upstream: `llama_kv_cache::state_read_data`.
    """
    try:
        _queue_rows(cache, reader, stream, cells)
    except TruncatedError:
        if cache.rules.clears_failed_restore:
            _take_back(cache, seq, stream, cells)
        raise
    except BlobError:
        _take_back(cache, seq, stream, cells)
        raise


def _queue_rows(
    cache: "AttentionCache", reader: Reader, stream: int, cells: Integers | range
) -> None:
    if reader.take(Header) != cache.header:
        msg = "the state has other layers, or lays out its values differently"
        raise MisreadError(msg)
    rows = cache.rows[stream]
    chunks = chunks_of(cells)
    for part, layer, kind, size in cache.blocks:
        data = reader.rows(kind, size, len(cells), chunks=chunks)
        put = rows.put_keys if part == "key" else rows.put_values
        reader.queue.append(partial(put, layer, cells, data))


def _take_back(cache: "AttentionCache", seq: int, stream: int, cells: Integers | range) -> None:
    """Undo a restore that failed: all cells of a whole one, those of the sequence otherwise."""
    if seq == -1:
        cache.clear(data=True)
        return
    cache.seq_rm(seq, -1, -1)
    if cache.rules.clears_failed_restore:
        cache.rows[stream].zero(np.asarray(cells))
