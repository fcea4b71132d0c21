"""Tiny caches, and how much one has room for.

A leak shows only where room is short: where the constructor takes a size by one of the names
below, half of the examples open the cache with room for `FEW` blocks or entries.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from cachesim.testing.contents import Request, Server, rows_of
from cachesim.units import Token

FEW: Final = 3

COUNTS: Final = frozenset({
    "blocks", "num_blocks", "n_blocks", "max_blocks", "capacity", "capacity_blocks", "room",
    "entries", "max_entries", "size", "max_size", "pages", "num_pages", "max_pages",
})  # fmt: skip
TOKENS: Final = frozenset({"max_tokens", "num_tokens", "capacity_tokens", "token_capacity"})
BYTES: Final = frozenset({"max_bytes", "limit_bytes", "capacity_bytes", "max_memory"})

NO_SIZE: Final = (
    "caches had their own size: the constructor has no parameter for one, such as capacity, "
    "max_entries, max_tokens or max_bytes"
)

PROBES: Final = 8


def size_of(make: Callable[..., Any], unit: int) -> tuple[str, Callable[[Server], int]] | None:
    """The parameter of a constructor that is its size, and a small value of it for a server."""
    try:
        parameters = [*inspect.signature(make).parameters][2:]
    except (TypeError, ValueError):  # of a builtin
        return None
    bound = make.keywords if isinstance(make, partial) else {}
    for name in (name for name in parameters if name not in bound):
        if name in COUNTS:
            return name, lambda _: FEW
        if name in TOKENS:
            return name, lambda _: FEW * unit
        if name in BYTES:
            return name, partial(_bytes, Request(tokens=(Token(1),) * unit))
    return None


def _bytes(block: Request, server: Server) -> int:
    return FEW * sum(row.nbytes for row in rows_of(server, block))


def probes(unit: int) -> Sequence[Request]:
    """Short prompts without a common token, a block and one token long."""
    return [Request(tokens=(Token(10 + n),) * (unit + 1)) for n in range(PROBES)]
