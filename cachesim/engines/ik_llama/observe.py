"""What ik_llama.cpp's server holds: with the marks of a traced network, and as plain data.

Its cells, checkpoints and prompt cache have to be consistent.
"""

from collections.abc import Sequence
from itertools import pairwise
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
    SlotHeld,
    Texts,
    runs_of,
)
from cachesim.engines.ik_llama.context import FREE, Cells, Checkpoint, Context, SequenceState
from cachesim.engines.ik_llama.options import Options
from cachesim.engines.ik_llama.slot import PromptCache, PromptEntry, Slot
from cachesim.engines.ik_llama.speculative import AttentionCompanion, Companion, WindowCompanion
from cachesim.errors import ContractError
from cachesim.model.spec import ModelSpec
from cachesim.units import SeqId


def held(slots: Sequence[Slot], primary: Context, cache: PromptCache) -> Held:
    """Slots, the primary's cells and rows, the prompt cache."""
    return Held(
        slots=tuple(_slot(slot, primary) for slot in slots),
        cells=_cells(primary),
        rows=_rows(slots, primary),
        entries=tuple(
            EntryHeld(
                tokens=tuple(entry.tokens), checkpoints=len(entry.checkpoints), size=entry.size
            )
            for entry in cache.entries
        ),
    )


def texts(slots: Sequence[Slot], cache: PromptCache) -> Texts:
    """The tokens of slots and entries."""
    return Texts(
        slots=tuple((int(slot.id), tuple(slot.cache_tokens)) for slot in slots),
        entries=tuple(tuple(entry.tokens) for entry in cache.entries),
    )


def amounts(slots: Sequence[Slot], primary: Context, cache: PromptCache) -> Amounts:
    """The amount of each kind of content; all layers share one cell table."""
    used = int(np.count_nonzero(primary.cells.pos >= 0))
    return Amounts(
        attention=used,
        window=used,
        states=len(_rows(slots, primary)),
        checkpoints=sum(checkpoint.size for slot in slots for checkpoint in slot.checkpoints),
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
                pos_min=int(checkpoint.pos_min),
                pos_max=int(checkpoint.pos_max),
                n_tokens=int(checkpoint.n_tokens),
                made_by=checkpoint.made_by,
                node=UNKNOWN
                if layer not in checkpoint.state.rows
                else int(checkpoint.state.rows[layer][0]),
            )
            for checkpoint in slot.checkpoints
        ),
    )


def snapshot(
    slots: Sequence[Slot], primary: Context, cache: PromptCache, companion: Companion | None
) -> dict[str, Any]:
    """Slots with checkpoints and cells, the prompt cache, the companion's tail."""
    held = books(slots, cache)
    return {
        **held,
        "slots": [
            {
                **entry,
                "cells": [
                    [int(i), int(primary.cells.pos[i])] for i in primary.cells.of(SeqId(slot.id))
                ],
            }
            for entry, slot in zip(held["slots"], slots, strict=True)
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


HEAD: Final = 16
"""Bytes of a saved sequence: its number of cells, kind of values, number of layers, states."""

CELL: Final = 8
"""Bytes of each cell's position and number of owners."""

LAYER: Final = 24
"""Bytes of each layer's types and sizes of keys and values."""

ROW: Final = 16
"""Bytes of each layer's types and sizes of states."""


def check_slots(
    slots: Sequence[Slot], primary: Context, cache: PromptCache, options: Options
) -> None:
    """Raise ContractError at the first disagreement."""
    # Trap: a rollback of a draft longer than a batch writes a position below 0 into a cell
    if not (primary.hybrid and any(slot.stray for slot in slots)):
        _check_cells(primary.cells)
    for slot in slots:
        held = len(primary.cells.of(SeqId(slot.id))) - slot.stray
        if slot.available and not primary.recurrent and held > len(slot.cache_tokens):
            _fail(f"slot {slot.id}: {held} cells for {len(slot.cache_tokens)} tokens")
        _checkpoints(slot.checkpoints, primary, options)
    for entry in cache.entries:
        _entry(entry, primary, options)
    if cache.limit is not None and len(cache.entries) > 1 and cache.size > cache.limit:
        _fail(f"the prompt cache holds {cache.size} of {cache.limit} bytes")


def check_companion(companion: Companion | None) -> None:
    """Raise ContractError if a companion's memory is inconsistent."""
    if isinstance(companion, AttentionCompanion):
        _check_cells(companion.context.cells)
    if isinstance(companion, WindowCompanion):
        rolled = companion.base > 0
        if not companion.window * rolled <= companion.live <= companion.capacity:
            _fail(f"{companion.live} rows from {companion.base} on, of {companion.capacity}")


def _check_cells(cells: Cells) -> None:
    """Cells: keys are rotated to their positions but for pending shifts; free cells have none."""
    cells.check_integrity()
    free = cells.held == 0
    if (cells.born[free] != FREE).any() or (cells.shift[free] != 0).any():
        _fail("a free cell has a key or a shift")
    if not 0 <= cells.head <= cells.size:
        _fail(f"cells are searched from {cells.head} on, of {cells.size}")
    # Trap: a rollback of a hybrid model writes a position into a cell whatever it holds
    moved = cells.pos - cells.shift != cells.born
    if moved.any() and not cells.hybrid:
        _fail(f"keys of {moved.sum()} cells are not rotated to their positions")


def _checkpoints(found: list[Checkpoint], primary: Context, options: Options) -> None:
    """Checkpoints: at most as many as the flag, in order; each has a state and its position."""
    if len(found) > options.ctx_checkpoints:
        _fail(f"{len(found)} checkpoints of at most {options.ctx_checkpoints}")
    for one, other in pairwise(found):
        if other.n_tokens and one.n_tokens >= other.n_tokens:  # 0: of a slot file (an oddity)
            _fail(f"a checkpoint of {other.n_tokens} tokens follows one of {one.n_tokens}")
    for checkpoint in found:
        _state(checkpoint.state, primary, partial=True)
        end = max(checkpoint.state.positions, default=0)
        if not checkpoint.pos_min == checkpoint.pos_max == end:
            _fail(
                f"a checkpoint from {checkpoint.pos_min} to {checkpoint.pos_max} "
                f"of a state at {end}"
            )
        if (
            checkpoint.pos_max_prompt - checkpoint.pos_max
            != checkpoint.pos_min_prompt - checkpoint.pos_min
        ):
            _fail(
                f"a checkpoint begins at {checkpoint.pos_min_prompt} "
                f"and ends at {checkpoint.pos_max_prompt}"
            )


def _entry(entry: PromptEntry, primary: Context, options: Options) -> None:
    _state(entry.state, primary, partial=False)
    _checkpoints(entry.checkpoints, primary, options)
    if entry.tokens and len(entry.tokens) != entry.length:
        _fail(f"an entry of {entry.length} tokens lists {len(entry.tokens)}")
    positions = entry.state.positions
    at = max(positions, default=0) if primary.rows else positions[0] if positions else -1
    if entry.pos_min != at:
        _fail(f"an entry from {entry.pos_min} on has a state from {at} on")


def _state(state: SequenceState, primary: Context, *, partial: bool) -> None:
    """A saved sequence: its parts, and its bytes."""
    rows = {} if partial and primary.recurrent else primary.rows
    kept = {} if partial else primary.keys
    if (state.keys is None) != partial or (state.keys or {}).keys() != kept.keys():
        _fail("a saved sequence has other layers than the model")
    if state.rows.keys() != rows.keys():
        _fail(f"a saved sequence has the states of {len(state.rows)} layers")
    size = bytes_of(primary.network.spec, len(state.positions), partial=partial)
    if state.size != size:
        _fail(f"a saved sequence has {size} bytes, {state.size} count")


def bytes_of(spec: ModelSpec, cells: int, *, partial: bool) -> int:
    """Bytes of a saved sequence, part by part as they are written."""
    total = HEAD + CELL * cells
    states = any(spec.state_bytes(n) or spec.conv_bytes(n) for n in range(len(spec.layers)))
    for n in range(len(spec.layers)):
        total += LAYER + (ROW + spec.conv_bytes(n) + spec.state_bytes(n) if states else 0)
        total += 0 if partial else cells * (spec.key_bytes(n) + spec.value_bytes(n))
    return total


def _fail(what: str) -> None:
    raise ContractError(f"ik_llama.cpp: {what}")
