"""What ik_llama.cpp's server holds, with the marks that a traced network has written."""

from typing import TYPE_CHECKING

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
    SlotHeld,
    Texts,
    runs_of,
)
from cachesim.engines.ik_llama.context import Context
from cachesim.engines.ik_llama.slot import Slot
from cachesim.units import SeqId

if TYPE_CHECKING:
    from cachesim.engines.ik_llama.server import IkLlama


def held(server: "IkLlama") -> Held:
    """Slots, the primary's cells and rows, the prompt cache."""
    return Held(
        slots=tuple(_slot(slot, server.primary) for slot in server.slots),
        cells=_cells(server.primary),
        rows=_rows(server),
        entries=tuple(
            EntryHeld(tokens=tuple(each.tokens), checkpoints=len(each.checkpoints), size=each.size)
            for each in server.cache.entries
        ),
    )


def texts(server: "IkLlama") -> Texts:
    """The tokens alone."""
    return Texts(
        slots=tuple((int(slot.id), tuple(slot.cache_tokens)) for slot in server.slots),
        entries=tuple(tuple(each.tokens) for each in server.cache.entries),
    )


def amounts(server: "IkLlama") -> Amounts:
    """The same in numbers; one table for all layers, those with a window too."""
    used = int(np.count_nonzero(server.primary.cells.pos >= 0))
    return Amounts(
        attention=used,
        window=used,
        states=len(_rows(server)),
        checkpoints=sum(each.size for slot in server.slots for each in slot.checkpoints),
        parked=server.cache.size,
    )


def _cells(context: Context) -> tuple[CellsHeld, ...]:
    cells = context.cells
    used = np.flatnonzero(cells.pos >= 0)
    marks = Marks.of(context.network)
    own = [shape for shape in context.network.shapes if not shape.marks]
    places = [place for place in ("attention", "window") if place in {s.place for s in own}]
    return tuple(
        CellsHeld(
            part=place,
            stream=0,
            size=cells.size,
            window=context.network.spec.window if place == "window" else None,
            runs=runs_of(
                used, cells.pos[used], cells.held[used], marks.births(context.keys, place, used)
            ),
        )
        for place in places
    )


def _rows(server: "IkLlama") -> tuple[RowHeld, ...]:
    """Each slot's recurrent row; nothing in it says at which position it stands."""
    context = server.primary
    if not context.rows:
        return ()
    layer = Marks.of(context.network).layers.get("recurrent")
    return tuple(
        RowHeld(
            row=int(slot.id),
            position=int(context.cells.seq_pos_max(SeqId(slot.id))),
            owners=1 << int(slot.id),
            node=UNKNOWN if layer is None else int(context.rows[layer][slot.id, 0]),
        )
        for slot in server.slots
        if context.cells.of(SeqId(slot.id)).size
    )


def _slot(slot: Slot, context: Context) -> SlotHeld:
    layer = Marks.of(context.network).layers.get("recurrent")
    return SlotHeld(
        id=int(slot.id),
        state=slot.state.value,
        tokens=tuple(slot.cache_tokens),
        checkpoints=tuple(
            CheckpointHeld(
                pos_min=int(each.pos_min),
                pos_max=int(each.pos_max),
                n_tokens=int(each.n_tokens),
                made_by=each.made_by,
                node=UNKNOWN if layer not in each.state.rows else int(each.state.rows[layer][0]),
            )
            for each in slot.checkpoints
        ),
    )
