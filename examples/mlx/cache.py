"""Prefix caches on mlx-lm's cache classes behind the protocol; runs beside an unpacked wheel.

One server has one model and no adapters, so nothing is varied but the tokens. As in the schedulers,
a request is handed its entry once, and continues on a copy.
"""

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, KVCache

from cachesim.testing import Request, Server
from cachesim.testing.contents import Rows
from examples.findings import check

PACKAGE = sys.argv[1]


def made(server: Server, rows: Rows) -> list[Any]:
    """The caches of a model's layers, with these rows in them."""
    found: list[Any] = []
    for shape, layer in zip(server.shapes, rows, strict=True):
        if shape.place == "recurrent":
            states = ArraysCache(size=1)
            states[0] = mx.array(layer[-1:])
            found.append(states)
        else:
            cells = KVCache()
            keys, values = (mx.array(layer[:, i].swapaxes(0, 1)[None]) for i in (0, 1))
            cells.update_and_fetch(keys, values)
            found.append(cells)
    return found


def rows_in(caches: list[Any]) -> Rows:
    """The rows in the caches of a model's layers."""
    found = []
    for cache in caches:
        if isinstance(cache, KVCache):
            pair = [np.array(part[0, :, : cache.offset]).swapaxes(0, 1) for part in cache.state]
            found.append(np.stack(pair, 1))
        else:
            found.append(np.array(cache[0]))
    return found


class MemoryAware:
    """`MemoryAwarePrefixCache`, the default; the scheduler clones what it is handed."""

    def __init__(self, server: Server, place: Path) -> None:
        module = importlib.import_module(f"{PACKAGE}.memory_cache")
        config = module.MemoryCacheConfig(max_memory_mb=64, **self.options(module))
        self.server, self.cache = server, module.MemoryAwarePrefixCache(object(), config)
        self.held: dict[Request, tuple[Any, int]] = {}

    @staticmethod
    def options(module: Any) -> dict[str, int]:
        names = module.MemoryCacheConfig.__dataclass_fields__
        wanted = {"min_prefix_tokens": 1, "hybrid_reuse_max_entries": 8}
        return {name: value for name, value in wanted.items() if name in names}

    def store(self, request: Request, rows: Rows) -> None:
        self.cache.store(list(map(int, request.tokens)), made(self.server, rows))

    def fetched(self, request: Request) -> tuple[Any, int]:
        caches, rest = self.cache.fetch(list(map(int, request.tokens)))
        return caches, len(request.tokens) - len(rest) if caches else 0

    def lookup(self, request: Request) -> int:
        held = self.fetched(request)
        self.held = {**self.held, request: held}
        return held[1]

    def load(self, request: Request, count: int) -> Rows | None:
        caches, found = self.held.pop(request)  # a request keeps what it was handed when it came
        if found != count:
            return None
        clone = getattr(self.cache, "clone_for_replay", None)
        if clone is None:  # the scheduler merges it into a batch of its own
            return rows_in(caches)
        caches = clone(caches)
        rows = rows_in(caches)
        for cache, layer in zip(caches, rows, strict=True):
            if isinstance(cache, KVCache):
                key = mx.zeros((1, layer.shape[2], 1, layer.shape[3]))
                cache.update_and_fetch(key, key)
        return rows

    def clear(self) -> None:
        self.cache.clear()


class Trie(MemoryAware):
    """`PrefixCacheManager`, with `--no-memory-aware-cache`."""

    def __init__(self, server: Server, place: Path) -> None:
        module = importlib.import_module(f"{PACKAGE}.prefix_cache")
        self.server, self.cache = server, module.PrefixCacheManager(object(), 8)
        self.held = {}

    def store(self, request: Request, rows: Rows) -> None:
        self.cache.store_cache(list(map(int, request.tokens)), made(self.server, rows))

    def fetched(self, request: Request) -> tuple[Any, int]:
        caches, rest = self.cache.fetch_cache(list(map(int, request.tokens)))
        return caches, len(request.tokens) - len(rest) if caches else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for kind in (MemoryAware, Trie):
        for preset in ("dense", "hybrid", "recurrent"):
            name = f"{PACKAGE} {sys.argv[2]}, {kind.__name__}, {preset}"
            try:
                check(name, kind, presets=(preset,), varied=(), examples=100)
            except AssertionError as error:
                print(f"{name}: {error}", flush=True)
