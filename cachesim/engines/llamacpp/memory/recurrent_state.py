"""Saving and restoring recurrent rows (`llama_memory_recurrent::state_write`, `state_read`)."""

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
)
from cachesim.errors import BlobError, UpstreamAbort

if TYPE_CHECKING:
    from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory


def write(memory: "RecurrentMemory", seq: int) -> list[Field]:
    """How many cells, which ones, the layers' R rows, the layers' S rows.

    With a rollback pending the row comes from the plane it points at and the position is the
    rolled-back one: the blob is right, and does not say that anything was pending.

    Upstream: `llama_memory_recurrent::state_write`.
    """
    cells = memory.cells
    chosen = [c for c, seqs in enumerate(cells.seqs) if (seqs if seq == -1 else seq in seqs)]
    if seq != -1 and memory.rs_idx[seq] and not memory.rules.saves_rolled_back:
        where = "llama_memory_recurrent::state_write"
        raise UpstreamAbort(where, "state read/write is not supported with partial rollback")
    count = len(chosen)
    ids: tuple[tuple[int, ...], ...] = ((),) * count
    if seq == -1:
        ids = tuple(tuple(sorted(cells.seqs[c])) for c in chosen)
    positions = np.array([cells.pos[c] for c in chosen], dtype=np.int64)
    rows = [_plane(memory, seq, c) * memory.size + c for c in chosen]
    fields: list[Field] = [Word(count), CellList.of(positions, ids), memory.header]
    for layer, kind, size, part in memory.blocks:
        data = memory.planes.copy_of(layer, rows, part)
        fields.append(RowBlock(kind, size, count, data))
    return fields


def _plane(memory: "RecurrentMemory", seq: int, cell: int) -> int:
    if seq != -1:
        return memory.rs_idx[seq]
    depths = {memory.rs_idx[s] for s in memory.cells.seqs[cell]}
    if len(depths) > 1:
        where = "llama_memory_recurrent::state_write"
        raise UpstreamAbort(where, "sequences of one cell roll back differently")
    return depths.pop()


def read(memory: "RecurrentMemory", reader: Reader, seq: int) -> None:
    """Restore one sequence, or (-1) everything. Trap: a blob without cells does clear here.

    Upstream: `llama_memory_recurrent::state_read`.
    """
    count = reader.word()
    if memory.rules.checks_count_first and count > memory.size:
        _take_back(memory, seq, [])
        msg = "the state has more cells than the memory"
        raise BlobError(msg)
    written: list[int] = []
    try:
        if seq == -1:
            written += _read_whole(memory, reader, count)
        else:
            written += _read_one(memory, reader, seq, count)
        _queue_rows(memory, reader, written)
    except TruncatedError:
        if memory.rules.clears_failed_restore:
            _take_back(memory, seq, written)
        raise
    except BlobError:
        _take_back(memory, seq, written)
        raise
    if seq == -1:
        memory.rs_idx = [0] * memory.size
    elif memory.n_rs_seq:
        # Trap: the other planes are stale now, and a rollback is accepted all the same.
        memory.rs_idx[seq] = 0


def _read_one(memory: "RecurrentMemory", reader: Reader, seq: int, count: int) -> list[int]:
    """One sequence gets a cell of its own; the cells that were written.

    Upstream: `llama_memory_recurrent::state_read_meta`.
    """
    memory.seq_rm(seq, -1, -1)
    listed = reader.take(CellList)
    if count == 0:
        return []
    if any(listed.ids):
        msg = "the state is one of a whole memory"
        raise MisreadError(msg)
    ubatch = Ubatch(
        rows=tuple(range(count)),
        n_seqs=1,
        n_seq_tokens=count,
        positions=tuple(listed.positions.tolist()),
        seqs=((seq,),) * count,
    )
    if not memory.cells.find_slot(ubatch):
        msg = f"there is no cell for sequence {seq}"
        raise BlobError(msg)
    head = memory.cells.head
    written = list(range(head, head + count))
    for cell in written:
        memory.cells.src[cell] = cell
    return written


def _read_whole(memory: "RecurrentMemory", reader: Reader, count: int) -> list[int]:
    """Cells 0 .. count-1 and the tails, as the saved ids name them.

    Upstream: `llama_memory_recurrent::state_read_meta`.
    """
    listed = reader.take(CellList)
    if count > memory.size:
        msg = "the state has more cells than the memory"
        raise BlobError(msg)
    memory.clear(data=True)
    cells = memory.cells
    for cell, (pos, ids) in enumerate(zip(listed.positions.tolist(), listed.ids, strict=True)):
        cells.pos[cell] = pos
        for seq in ids:
            if not 0 <= seq < memory.n_seq_max or cells.tail[seq] != -1:
                msg = f"the state names sequence {seq} wrongly"
                raise BlobError(msg)
            cells.seqs[cell].add(seq)
            cells.tail[seq] = cell
    cells.head, cells.used = 0, count
    for cell in range(count):
        cells.src[cell] = cell
    return list(range(count))


def _queue_rows(memory: "RecurrentMemory", reader: Reader, cells: list[int]) -> None:
    if reader.take(Header) != memory.header:
        msg = "the state has other layers"
        raise MisreadError(msg)
    where = slice(cells[0], cells[-1] + 1) if cells else slice(0, 0)
    for layer, kind, size, part in memory.blocks:
        data = reader.rows(kind, size, len(cells), chunks=1)  # the cells are neighbours
        reader.queue.append(partial(memory.planes.put, layer, (where, part), data))


def _take_back(memory: "RecurrentMemory", seq: int, cells: list[int]) -> None:
    if seq == -1:
        memory.clear(data=True)
        return
    memory.seq_rm(seq, -1, -1)
    if memory.rules.clears_failed_restore:
        for rows in memory.planes.rows.values():
            rows[cells] = 0
