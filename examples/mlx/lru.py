"""mlx-lm's `LRUPromptCache` behind the protocol of `check_live_cache`; runs beside its wheel.

As in its server, a key is the model with its adapter and the tokens, and a request is handed a
copy of an entry when it comes. Salts and images are no part of its keys and are not varied.
"""

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mlx_lm.models.cache import KVCache, LRUPromptCache

from cachesim.testing import Request, Server
from cachesim.testing.contents import Rows
from examples.findings import check
from examples.mlx.cache import made


def rows_in(caches: list[Any]) -> Rows:
    """The rows in the caches of a model's layers; releases differ in what `state` holds."""
    found = []
    for cache in caches:
        if isinstance(cache, KVCache):
            parts = (cache.keys, cache.values)
            pair = [np.array(part[0, :, : cache.offset]).swapaxes(0, 1) for part in parts]
            found.append(np.stack(pair, 1))
        else:
            found.append(np.array(cache[0]))
    return found


class Conversations:
    """The store of the server, with as many entries as `--prompt-cache-size` says."""

    def __init__(self, server: Server, place: Path, max_size: int = 10) -> None:
        self.server, self.cache = server, LRUPromptCache(max_size)
        self.held: dict[Request, list[Any]] = {}

    @property
    def nbytes(self) -> int:
        return int(self.cache.nbytes)

    def key(self, request: Request) -> tuple[tuple[str, str], list[int]]:
        return (self.server.model, request.adapter), [*map(int, request.tokens)]

    def store(self, request: Request, rows: Rows) -> None:
        self.cache.insert_cache(*self.key(request), made(self.server, rows))

    def lookup(self, request: Request) -> int:
        caches, rest = self.cache.fetch_nearest_cache(*self.key(request))
        count = len(request.tokens) - len(rest) if caches else 0
        if count:
            self.held.setdefault(request, []).append(caches)
        return count

    def load(self, request: Request, count: int) -> Rows | None:
        return rows_in(self.held[request].pop(0))

    def release(self, request: Request) -> None:
        self.held[request].pop(0)

    def clear(self) -> None:
        self.cache.trim_to(n_sequences=0)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    told: Any = {"varied": ("adapter",), "keeps": True, "outstanding": 2, "examples": 300}
    for preset in ("dense", "hybrid", "recurrent"):
        name = f"mlx-lm {sys.argv[2]}, LRUPromptCache, {preset}"
        check(name, Conversations, presets=(preset,), **told)
