"""What the server holds, as plain data."""

from typing import TYPE_CHECKING, Any

from cachesim.engines.ik_llama.checkpoint import Checkpoint
from cachesim.engines.ik_llama.slot import Slot
from cachesim.units import SeqId

if TYPE_CHECKING:
    from cachesim.engines.ik_llama.server import IkLlama


def snapshot(server: "IkLlama") -> dict[str, Any]:
    """Slots with checkpoints, cells, the prompt cache, the companion's tail."""
    return {
        "slots": [_slot(server, slot) for slot in server.slots],
        "prompt_cache": [
            {
                "n_tokens": int(entry.length),
                "checkpoints": len(entry.checkpoints),
                "bytes": entry.size,
            }
            for entry in server.cache.entries
        ],
        "companion": None if server.companion is None else {"tail": int(server.companion.tail)},
    }


def _slot(server: "IkLlama", slot: Slot) -> dict[str, Any]:
    cells = server.primary.cells
    mine = cells.of(SeqId(slot.id))
    return {
        "id": int(slot.id),
        "state": slot.state.value,
        "tokens": [int(token) for token in slot.cache_tokens],
        "checkpoints": [_checkpoint(checkpoint) for checkpoint in slot.checkpoints],
        "cells": [[int(i), int(cells.pos[i])] for i in mine],
    }


def _checkpoint(checkpoint: Checkpoint) -> dict[str, int]:
    return {
        "pos_min": int(checkpoint.pos_min),
        "pos_max": int(checkpoint.pos_max),
        "n_tokens": int(checkpoint.n_tokens),
    }
