"""What the server holds, as reports show it."""

from collections.abc import Iterable
from typing import Any

from cachesim.units import Tokens


def snapshot(kept: Iterable[Tokens]) -> dict[str, Any]:
    """The kept prompts."""
    entries = [{"n_tokens": len(tokens), "checkpoints": []} for tokens in kept]
    return {"slots": [], "prompt_cache": entries}
