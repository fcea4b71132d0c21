"""Flags of the server."""

from dataclasses import dataclass

from cachesim.engines.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Flags of the server."""

    entries: int = option("--entries", "kept prompts", default=8, low=1, high=4096, tried=(8, 1))
