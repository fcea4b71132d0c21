"""Small hands for the tests of mlx-lm's caches: tokens in, tokens out."""

from collections.abc import Sequence

import numpy as np

from cachesim.engines.mlx_lm.caches.prompt_cache import (
    BatchKVCache,
    BatchRotatingKVCache,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
)
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.units import Array

NEWEST = FAMILY.release("0.32.2").rules
RULES = NEWEST.caches

Rows = KVCache | RotatingKVCache | ChunkedKVCache | BatchKVCache | BatchRotatingKVCache


def block(*rows: Sequence[int]) -> Array:
    """Tokens as keys: one head, width 1, float32."""
    return np.array(rows, dtype=np.float32)[:, None, :, None]


def write(cache: Rows, *rows: Sequence[int]) -> list[list[int]]:
    """Write one row of tokens per row of the batch; what comes back."""
    keys, values = cache.update_and_fetch(block(*rows), block(*rows))
    assert np.array_equal(keys, values)
    return tokens(keys)


def singly(cache: Rows, tokens_: Sequence[int]) -> None:
    """Write tokens one by one."""
    for token in tokens_:
        write(cache, [token])


def tokens(buffer: Array | None) -> list[list[int]]:
    """The tokens of a whole buffer, row by row."""
    assert buffer is not None
    return [[int(token) for token in row[0, :, 0]] for row in buffer]


def rows(cache: Rows) -> list[int]:
    """The tokens of the whole buffer of a single cache."""
    return tokens(cache.keys)[0]


def used(cache: Rows) -> list[list[int]]:
    """What attention may look at."""
    return tokens(cache.keys_and_values()[0])


def kv(*tokens_: int, release: str = "0.32.2") -> KVCache:
    """A `KVCache` that was given these tokens at once."""
    cache = KVCache(FAMILY.release(release).rules.caches)
    if tokens_:
        write(cache, tokens_)
    return cache


def ring(
    max_size: int, *tokens_: int, keep: int = 0, release: str = "0.32.2", step: int = 0
) -> RotatingKVCache:
    """A ring that was given these tokens at once, or one by one (`step` 1)."""
    cache = RotatingKVCache(FAMILY.release(release).rules.caches, max_size, keep)
    if step:
        singly(cache, tokens_)
    elif tokens_:
        write(cache, tokens_)
    return cache
