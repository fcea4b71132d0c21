"""What the server holds, as plain data for JSON, lessons and pages."""

from typing import Any

from cachesim.engines.llamacpp.prompt import Prompt
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot


def snapshot(server: ServerContext) -> dict[str, Any]:
    """Slots, prompt cache, and every part of both memories."""
    return {
        "slots": [_slot(slot) for slot in server.slots],
        "prompt_cache": prompt_cache(server),
    }


def prompt_cache(server: ServerContext) -> list[dict[str, int]]:
    """The parked conversations, oldest first."""
    entries = server.cache.entries if server.cache else []
    return [
        {"n_tokens": entry.n_tokens, "checkpoints": len(entry.checkpoints), "bytes": entry.size}
        for entry in entries
    ]


def checkpoints(prompt: Prompt) -> list[dict[str, int]]:
    """A slot's checkpoints, in the order they were made."""
    return [each.as_dict() for each in prompt.checkpoints]


def _slot(slot: Slot) -> dict[str, Any]:
    return {
        "id": int(slot.id),
        "state": slot.state.value,
        "tokens": [int(token) for token in slot.prompt.tokens],
        "checkpoints": checkpoints(slot.prompt),
        "t_last_used": slot.t_last_used,
    }
