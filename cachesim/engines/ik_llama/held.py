"""The content of ik_llama.cpp's server: with the marks of a traced network, and as plain data."""

from collections.abc import Sequence
from typing import Any

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
from cachesim.engines.ik_llama.slot import PromptCache, Slot
from cachesim.engines.ik_llama.speculative import Companion
from cachesim.units import SeqId


def held(slots: Sequence[Slot], primary: Context, cache: PromptCache) -> Held:
    """Slots, the primary's cells and rows, the prompt cache."""
    return Held(
        slots=tuple(_slot(slot, primary) for slot in slots),
        cells=_cells(primary),
        rows=_rows(slots, primary),
        entries=tuple(
            EntryHeld(tokens=tuple(each.tokens), checkpoints=len(each.checkpoints), size=each.size)
            for each in cache.entries
        ),
    )


def texts(slots: Sequence[Slot], cache: PromptCache) -> Texts:
    """The tokens of slots and entries."""
    return Texts(
        slots=tuple((int(slot.id), tuple(slot.cache_tokens)) for slot in slots),
        entries=tuple(tuple(each.tokens) for each in cache.entries),
    )


def amounts(slots: Sequence[Slot], primary: Context, cache: PromptCache) -> Amounts:
    """The amount of each kind of content; all layers share one cell table."""
    used = int(np.count_nonzero(primary.cells.pos >= 0))
    return Amounts(
        attention=used,
        window=used,
        states=len(_rows(slots, primary)),
        checkpoints=sum(each.size for slot in slots for each in slot.checkpoints),
        prompt_cache=cache.size,
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


def _rows(slots: Sequence[Slot], context: Context) -> tuple[RowHeld, ...]:
    """Each slot's recurrent row, at the last position of the slot's cells."""
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
        for slot in slots
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


def snapshot(
    slots: Sequence[Slot], primary: Context, cache: PromptCache, companion: Companion | None
) -> dict[str, Any]:
    """Slots with checkpoints and cells, the prompt cache, the companion's tail."""
    found = books(slots, cache)
    return {
        **found,
        "slots": [
            {
                **entry,
                "cells": [
                    [int(i), int(primary.cells.pos[i])] for i in primary.cells.of(SeqId(slot.id))
                ],
            }
            for entry, slot in zip(found["slots"], slots, strict=True)
        ],
        "companion": None if companion is None else {"tail": int(companion.tail)},
    }


def books(slots: Sequence[Slot], cache: PromptCache) -> dict[str, Any]:
    """Slots with checkpoints, and the prompt cache."""
    return {
        "slots": [
            {
                "id": int(slot.id),
                "state": slot.state.value,
                "tokens": [int(token) for token in slot.cache_tokens],
                "checkpoints": [checkpoint.as_dict() for checkpoint in slot.checkpoints],
            }
            for slot in slots
        ],
        "prompt_cache": [
            {
                "n_tokens": int(entry.length),
                "checkpoints": len(entry.checkpoints),
                "bytes": entry.size,
            }
            for entry in cache.entries
        ],
    }
