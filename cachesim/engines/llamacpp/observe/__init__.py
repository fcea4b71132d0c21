"""The content of llama-server: snapshots, consistency, and the marks of a traced network."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from cachesim.engines.held import (
    UNKNOWN,
    Amounts,
    CellsHeld,
    CheckpointHeld,
    EntryHeld,
    Held,
    Marks,
    RowHeld,
    Runs,
    SlotHeld,
    Texts,
    runs_of,
)
from cachesim.engines.llamacpp.memory.attention import MARGIN, AttentionCache
from cachesim.engines.llamacpp.memory.blob import MARKS, Blob, CellList, RowBlock
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.hybrid import caches_of, parts_of
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Checkpoint, Slot, SlotState
from cachesim.errors import ContractError
from cachesim.units import Integers

TRIED: Final = 64
"""The slow checks of memory calls run on one of this many idle servers."""


def books(server: ServerContext) -> dict[str, Any]:
    """Entries held by the slots and the prompt cache."""
    return {
        "slots": [_slot_snapshot(server, slot) for slot in server.slots],
        "prompt_cache": [
            {"n_tokens": entry.n_tokens, "checkpoints": len(entry.checkpoints), "bytes": entry.size}
            for entry in (server.cache.entries if server.cache else ())
        ],
    }


def snapshot(server: ServerContext) -> dict[str, Any]:
    """Slots, prompt cache, and every part of both memories."""
    companion = server.contexts.companion
    return {
        **books(server),
        "memory": parts(server.contexts.target),
        "companion": None if companion is None else parts(companion),
    }


def _slot_snapshot(server: ServerContext, slot: Slot) -> dict[str, Any]:
    companion = server.contexts.companion
    follows = None if companion is None else int(companion.seq_pos_max(slot.id)) + 1
    return {
        "id": int(slot.id),
        "state": slot.state.value,
        "tokens": [int(token) for token in slot.prompt.tokens],
        "checkpoints": [
            {**checkpoint.as_dict(), "bytes": checkpoint.size}
            for checkpoint in slot.prompt.checkpoints
        ],
        "companion": follows,
        "t_last_used": slot.t_last_used,
    }


def parts(context: Context) -> list[dict[str, Any]]:
    """Every part of a memory."""
    attention, recurrent = parts_of(context.memory)
    held = [_attention(part, cache) for part, cache in caches_of(attention).items()]
    return held if recurrent is None else [*held, _recurrent(recurrent)]


def _attention(part: str, cache: AttentionCache) -> dict[str, Any]:
    streams = []
    for head, cells in zip(cache.streams.heads, cache.streams.cells, strict=True):
        used = [
            {"cell": index, "pos": pos, "seqs": cells.seqs_of(index)}
            for index, pos in enumerate(cells.pos.tolist())
            if pos >= 0
        ]
        streams.append({"head": head, "size": cache.streams.size, "cells": used})
    return {"part": part, "streams": streams}


def _recurrent(memory: RecurrentMemory) -> dict[str, Any]:
    cells = memory.cells
    rows = [
        {"row": row, "pos": cells.pos[row], "seqs": sorted(cells.seqs[row])}
        for row in range(memory.size)
        if cells.seqs[row]
    ]
    return {"part": "recurrent", "size": memory.size, "rows": rows}


def check_integrity(server: ServerContext) -> None:
    """Raise ContractError if slots, memory and prompt cache disagree.

    Not checked, as upstream does not guarantee it: the order of checkpoints, their positions after
    a context shift of older releases, and the token in a slot whose memory is not cut yet.
    """
    # Only checks need these thousand lines: `cachesim run` starts without them.
    from cachesim.engines.llamacpp.observe import integrity, stored  # noqa: PLC0415 - see above

    server.contexts.check_integrity()
    integrity.check_sizes(server)
    integrity.check_saved(server)
    for slot in server.slots:
        has_task = slot.task is not None
        _require(
            has_task == slot.is_processing, "slot {0.id} is {0.state.value} with a wrong task", slot
        )
        n_tokens = int(slot.prompt.n_tokens)
        _require(n_tokens <= slot.n_ctx, "slot {0.id} holds more than its context", slot)
        most = server.options.ctx_checkpoints
        held = slot.prompt.checkpoints
        _require(
            len(held) <= most, "slot {0.id} holds {1} of {2} checkpoints", slot, len(held), most
        )
        ends = {checkpoint.n_tokens for checkpoint in held}
        _require(
            len(ends) == len(held) or not server.rules.checkpoints.supersede_equal,
            "slot {0.id} holds two checkpoints of one length",
            slot,
        )
        for checkpoint in held:
            _require(
                0 <= checkpoint.pos_min <= checkpoint.pos_max,
                "slot {0.id} has a checkpoint from {1.pos_min} to {1.pos_max}",
                slot,
                checkpoint,
            )
            _require(
                checkpoint.pos_max == checkpoint.n_tokens - 1,
                "slot {0.id} has a checkpoint that ends at {1.pos_max}, after {1.n_tokens} tokens",
                slot,
                checkpoint,
            )
        settled = slot.state in {SlotState.IDLE, SlotState.GENERATING}
        if settled and n_tokens:  # an empty slot file leaves the memory as it was
            pos_max = server.contexts.target.seq_pos_max(slot.id)
            _require(
                pos_max == n_tokens - 1,
                "slot {0.id} holds {1} tokens, its memory ends at position {2}",
                slot,
                n_tokens,
                pos_max,
            )
    if server.cache is not None:
        for entry in server.cache.entries:
            _require(len(entry.tokens) > 0, "the prompt cache holds an entry without tokens")
        limit = server.cache.limit_size
        least = 1 if server.cache.rules.limits_keep_one else 0
        full = 0 < limit < server.cache.size and len(server.cache.entries) > least
        _require(not full, "the prompt cache holds more than its {} bytes", limit)
    running = {slot.task.id for slot in server.slots if slot.task is not None}
    waiting = [task.id for task in (*server.queue, *server.deferred)]
    _require(not running & set(waiting), "a task waits and runs at the same time")
    idle = not running and not server.queue
    _require(not (idle and server.deferred), "tasks are deferred on an idle server")
    if idle and sum(int(slot.prompt.n_tokens) for slot in server.slots) % TRIED == 0:
        integrity.check_calls(server.contexts.target)
        stored.check_actions(server)


def _require(holds: object, message: str, *values: object) -> None:
    """Raise ContractError if a law does not hold; only then its message is composed."""
    if not holds:
        raise ContractError(message.format(*values))


def held(server: ServerContext) -> Held:
    """Slots, both memories, prompt cache."""
    cells, rows = memory_held(server.contexts.target)
    companion = server.contexts.companion
    other = ((), ()) if companion is None else memory_held(companion)
    return Held(
        slots=tuple(_slot(slot, server) for slot in server.slots),
        cells=cells,
        rows=rows,
        companion_cells=other[0],
        companion_rows=other[1],
        entries=tuple(
            EntryHeld(
                tokens=tuple(entry.tokens), checkpoints=len(entry.checkpoints), size=entry.size
            )
            for entry in (server.cache.entries if server.cache else ())
        ),
    )


def texts(server: ServerContext) -> Texts:
    """The tokens of slots and entries."""
    return Texts(
        slots=tuple((int(slot.id), tuple(slot.prompt.tokens)) for slot in server.slots),
        entries=tuple(
            tuple(entry.tokens) for entry in (server.cache.entries if server.cache else ())
        ),
    )


def amounts(server: ServerContext) -> Amounts:
    """The amount of each kind of content, without a companion's memory."""
    return replace(
        memory_amounts(server.contexts.target),
        checkpoints=sum(
            checkpoint.size for slot in server.slots for checkpoint in slot.prompt.checkpoints
        ),
        prompt_cache=0 if server.cache is None else server.cache.size,
    )


def memory_amounts(context: Context) -> Amounts:
    """The amount of each kind of content in a memory."""
    attention, recurrent = parts_of(context.memory)
    used = {
        part: sum(cells.used for cells in cache.streams.cells)
        for part, cache in caches_of(attention).items()
    }
    rows = () if recurrent is None else recurrent.cells.seqs
    return Amounts(
        attention=used.get("attention", 0),
        window=used.get("window", 0),
        states=sum(1 for seqs in rows if seqs),
    )


def memory_held(context: Context) -> tuple[tuple[CellsHeld, ...], tuple[RowHeld, ...]]:
    """The cells and the rows of a memory."""
    attention, recurrent = parts_of(context.memory)
    window = context.network.spec.window
    cells = tuple(
        cell
        for part, cache in caches_of(attention).items()
        for cell in _cells(part, cache, window if part == "window" else None)
    )
    return cells, () if recurrent is None else _rows(recurrent)


def _cells(part: str, cache: AttentionCache, window: int | None) -> list[CellsHeld]:
    """The used cells of each stream, without parts that have only mark layers."""
    if all(shape.marks for shape in cache.shapes):
        return []
    marks = Marks.among(cache.shapes)
    cells_held = []
    for stream, (cells, rows) in enumerate(zip(cache.streams.cells, cache.rows, strict=True)):
        used = np.flatnonzero(cells.pos >= 0)
        if used.size:
            rows.cover(int(used[-1]))  # a copy for a further completion is made with the next batch
        births = marks.births(rows.keys, part, used + MARGIN)
        runs = runs_of(used, cells.pos[used], cells.bits[0, used], births)
        size = cache.streams.size
        cells_held.append(CellsHeld(part=part, stream=stream, size=size, window=window, runs=runs))
    return cells_held


def _rows(memory: RecurrentMemory) -> tuple[RowHeld, ...]:
    """The live states; a rolled-back one is read from its current plane."""
    layer = Marks.among(memory.shapes).layers.get("recurrent")
    cells = memory.cells
    rows = []
    for row in range(memory.size):
        if not cells.seqs[row]:
            continue
        plane = memory.rs_idx[min(cells.seqs[row])]
        node = (
            UNKNOWN
            if layer is None
            else int(memory.planes.rows[layer][plane * memory.size + row, 0])
        )
        owners = sum(1 << seq for seq in cells.seqs[row])
        rows.append(RowHeld(row=row, position=int(cells.pos[row]), owners=owners, node=node))
    return tuple(rows)


def _slot(slot: Slot, server: ServerContext) -> SlotHeld:
    _, recurrent = parts_of(server.contexts.target.memory)
    return SlotHeld(
        id=int(slot.id),
        state=slot.state.value,
        tokens=tuple(slot.prompt.tokens),
        checkpoints=tuple(
            _checkpoint(checkpoint, has_row=recurrent is not None)
            for checkpoint in slot.prompt.checkpoints
        ),
    )


def _checkpoint(checkpoint: Checkpoint, *, has_row: bool) -> CheckpointHeld:
    blob = checkpoint.state.target
    marks = [] if blob is None else _marks(blob)
    node = UNKNOWN
    if has_row and marks:
        node = int(marks.pop()[1][-1])
    runs: Runs = ()
    if marks:
        positions, births = marks[-1]
        runs = runs_of(np.arange(len(positions)), positions, np.ones(len(positions)), births)
    return CheckpointHeld(
        pos_min=int(checkpoint.pos_min),
        pos_max=int(checkpoint.pos_max),
        n_tokens=int(checkpoint.n_tokens),
        made_by=int(checkpoint.id_task),
        node=node,
        runs=runs,
    )


def _marks(blob: Blob) -> list[tuple[Integers, Integers]]:
    marks: list[tuple[Integers, Integers]] = []
    positions: Integers | None = None
    for part in blob.fields:
        if isinstance(part, CellList):
            positions = part.positions
        elif positions is not None and isinstance(part, RowBlock) and part.kind == MARKS:
            data = part.data
            if data is not None and data.size:
                marks.append((positions, data.reshape(len(positions), -1)[:, 0]))
                positions = None
    return marks
