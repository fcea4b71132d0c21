"""What the server holds, as plain data."""

from typing import TYPE_CHECKING, Any

from cachesim.engines.ik_llama.slot import Slot
from cachesim.units import SeqId

if TYPE_CHECKING:
    from cachesim.engines.ik_llama.server import IkLlama


def snapshot(server: "IkLlama") -> dict[str, Any]:
    """Slots with checkpoints, cells, the prompt cache, the companion's tail."""
    found = books(server)
    return {
        **found,
        "slots": [
            {**told, "cells": _cells(server, slot)}
            for told, slot in zip(found["slots"], server.slots, strict=True)
        ],
        "companion": None if server.companion is None else {"tail": int(server.companion.tail)},
    }


def books(server: "IkLlama") -> dict[str, Any]:
    """Slots with checkpoints, and the prompt cache."""
    return {
        "slots": [_slot(slot) for slot in server.slots],
        "prompt_cache": [
            {
                "n_tokens": int(entry.length),
                "checkpoints": len(entry.checkpoints),
                "bytes": entry.size,
            }
            for entry in server.cache.entries
        ],
    }


def _cells(server: "IkLlama", slot: Slot) -> list[list[int]]:
    cells = server.primary.cells
    return [[int(i), int(cells.pos[i])] for i in cells.of(SeqId(slot.id))]


def _slot(slot: Slot) -> dict[str, Any]:
    return {
        "id": int(slot.id),
        "state": slot.state.value,
        "tokens": [int(token) for token in slot.cache_tokens],
        "checkpoints": [checkpoint.as_dict() for checkpoint in slot.checkpoints],
    }
