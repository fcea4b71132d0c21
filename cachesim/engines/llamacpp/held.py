"""The content of llama-server's memory, with the marks written by a traced network."""

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
from cachesim.engines.llamacpp.memory.attention import AttentionCache
from cachesim.engines.llamacpp.memory.blob import Blob, CellList, RowBlock
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.hybrid import caches_of, parts_of
from cachesim.engines.llamacpp.memory.lanes import MARGIN
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.memory.sizes import MARKS
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Checkpoint, Slot
from cachesim.units import Integers


def held(server: ServerContext) -> Held:
    """Slots, both memories, prompt cache."""
    cells, rows = _context(server.contexts.target, server)
    companion = server.contexts.companion
    other = ((), ()) if companion is None else _context(companion, server)
    return Held(
        slots=tuple(_slot(slot, server) for slot in server.slots),
        cells=cells,
        rows=rows,
        companion_cells=other[0],
        companion_rows=other[1],
        entries=tuple(
            EntryHeld(tokens=tuple(each.tokens), checkpoints=len(each.checkpoints), size=each.size)
            for each in (server.cache.entries if server.cache else ())
        ),
    )


def texts(server: ServerContext) -> Texts:
    """The tokens alone."""
    return Texts(
        slots=tuple((int(slot.id), tuple(slot.prompt.tokens)) for slot in server.slots),
        entries=tuple(
            tuple(each.tokens) for each in (server.cache.entries if server.cache else ())
        ),
    )


def amounts(server: ServerContext) -> Amounts:
    """The content in numbers; a companion's memory is left out."""
    attention, recurrent = parts_of(server.contexts.target.memory)
    used = {
        part: sum(cells.used for cells in cache.streams.cells)
        for part, cache in caches_of(attention).items()
    }
    rows = () if recurrent is None else recurrent.cells.seqs
    return Amounts(
        attention=used.get("attention", 0),
        window=used.get("window", 0),
        states=sum(1 for seqs in rows if seqs),
        checkpoints=sum(each.size for slot in server.slots for each in slot.prompt.checkpoints),
        parked=0 if server.cache is None else server.cache.size,
    )


def _context(
    context: Context, server: ServerContext
) -> tuple[tuple[CellsHeld, ...], tuple[RowHeld, ...]]:
    attention, recurrent = parts_of(context.memory)
    window = server.network.spec.window
    cells = tuple(
        each
        for part, cache in caches_of(attention).items()
        for each in _cells(part, cache, window if part == "window" else None)
    )
    return cells, () if recurrent is None else _rows(recurrent)


def _cells(part: str, cache: AttentionCache, window: int | None) -> list[CellsHeld]:
    """The used cells of each stream; parts without a layer of the model's own are left out."""
    if all(shape.marks for shape in cache.shapes):
        return []
    marks = Marks.among(cache.shapes)
    found = []
    for stream, (cells, rows) in enumerate(zip(cache.streams.cells, cache.rows, strict=True)):
        used = np.flatnonzero(cells.pos >= 0)
        if used.size:
            rows.cover(int(used[-1]))  # a copy for a further completion waits for the next batch
        births = marks.births(rows.keys, part, used + MARGIN)
        runs = runs_of(used, cells.pos[used], cells.bits[0, used], births)
        size = cache.streams.size
        found.append(CellsHeld(part=part, stream=stream, size=size, window=window, runs=runs))
    return found


def _rows(memory: RecurrentMemory) -> tuple[RowHeld, ...]:
    """The live states; one that was rolled back is read from the plane it stands in now."""
    layer = Marks.among(memory.shapes).layers.get("recurrent")
    cells = memory.cells
    found = []
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
        found.append(RowHeld(row=row, position=int(cells.pos[row]), owners=owners, node=node))
    return tuple(found)


def _slot(slot: Slot, server: ServerContext) -> SlotHeld:
    _, recurrent = parts_of(server.contexts.target.memory)
    return SlotHeld(
        id=int(slot.id),
        state=slot.state.value,
        tokens=tuple(slot.prompt.tokens),
        checkpoints=tuple(
            _checkpoint(each, has_row=recurrent is not None) for each in slot.prompt.checkpoints
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
    found: list[tuple[Integers, Integers]] = []
    positions: Integers | None = None
    for part in blob.fields:
        if isinstance(part, CellList):
            positions = part.positions
        elif positions is not None and isinstance(part, RowBlock) and part.kind == MARKS:
            data = part.data
            if data is not None and data.size:
                found.append((positions, data.reshape(len(positions), -1)[:, 0]))
                positions = None
    return found
