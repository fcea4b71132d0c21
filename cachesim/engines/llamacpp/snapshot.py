"""The server's content as plain data for JSON, lessons and pages."""

from typing import Any

from cachesim.engines.llamacpp.memory.attention import AttentionCache
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.hybrid import caches_of, parts_of
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot


def books(server: ServerContext) -> dict[str, Any]:
    """Slots and prompt cache."""
    return {
        "slots": [_slot(server, slot) for slot in server.slots],
        "prompt_cache": _prompt_cache(server),
    }


def snapshot(server: ServerContext) -> dict[str, Any]:
    """Slots, prompt cache, and every part of both memories."""
    companion = server.contexts.companion
    return {
        **books(server),
        "memory": _parts(server.contexts.target),
        "companion": None if companion is None else _parts(companion),
    }


def _slot(server: ServerContext, slot: Slot) -> dict[str, Any]:
    companion = server.contexts.companion
    follows = None if companion is None else int(companion.seq_pos_max(slot.id)) + 1
    return {
        "id": int(slot.id),
        "state": slot.state.value,
        "tokens": [int(token) for token in slot.prompt.tokens],
        "checkpoints": [{**each.as_dict(), "bytes": each.size} for each in slot.prompt.checkpoints],
        "companion": follows,
        "t_last_used": slot.t_last_used,
    }


def _prompt_cache(server: ServerContext) -> list[dict[str, int]]:
    return [
        {"n_tokens": entry.n_tokens, "checkpoints": len(entry.checkpoints), "bytes": entry.size}
        for entry in (server.cache.entries if server.cache else ())
    ]


def _parts(context: Context) -> list[dict[str, Any]]:
    attention, recurrent = parts_of(context.memory)
    found = [_attention(part, cache) for part, cache in caches_of(attention).items()]
    return found if recurrent is None else [*found, _recurrent(recurrent)]


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
    """The states that are held: row, position of the last token in it, sequences."""
    cells = memory.cells
    rows = [
        {"row": row, "pos": cells.pos[row], "seqs": sorted(cells.seqs[row])}
        for row in range(memory.size)
        if cells.seqs[row]
    ]
    return {"part": "recurrent", "size": memory.size, "rows": rows}
