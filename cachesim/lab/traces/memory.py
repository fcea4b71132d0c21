"""The pools of a server from the bytes of its device, by each engine's own rule (`pool_flags`)."""

from collections.abc import Mapping
from typing import Any, Final

from cachesim.engines.base import Engine
from cachesim.engines.option import bytes_of_text
from cachesim.errors import InputError

MEMORY: Final = "memory"
"""The name beside a server's flags that gives the bytes of its pools."""

SET: Final = frozenset(
    {"num_gpu_blocks_override", "max_total_tokens", "max_mamba_cache_size", "ctx_size"}
)
"""Flags that the memory decides."""

LONGEST: Final[Mapping[str, int]] = {"max_model_len": -1, "context_length": 1 << 24}
"""Flags that are checked against the pools, and do not size them, with their values for a trace
whose model is not known: no limit beside the pool.
"""


def memory_in(options: Mapping[str, Any]) -> int | None:
    """The bytes that are given, if any."""
    given = options.get(MEMORY)
    if given is None:
        return None
    value = bytes_of_text(given)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        msg = f"memory is {str(given)[:40]}; write a number of bytes, or a text such as 40GB"
        raise InputError(msg)
    both = SET & options.keys()
    if both:
        msg = f"memory and {' and '.join(sorted(both))} both size the pools; leave one out"
        raise InputError(msg)
    return value


def longest_of(engine: Engine) -> dict[str, int]:
    """The flags that limit a request, with the values that the pools leave."""
    options = getattr(engine, "options", None)
    return {name: getattr(options, name) for name in LONGEST if hasattr(options, name)}


def pools(engine: Engine, memory: int) -> dict[str, int]:
    """The flags that size the pools of a server with so much memory."""
    name, found = engine.profile.engine, engine.pool_flags(memory)
    if found is None:
        msg = f"memory sizes no pool of {name}: {name} takes the limits of its own flags"
        raise InputError(msg)
    small = next((flag for flag, value in found.items() if value < 2), None)
    if small is not None:
        msg = f"memory = {memory:,} bytes is too little for {name}: {small} would be {found[small]}"
        raise InputError(msg)
    return found
