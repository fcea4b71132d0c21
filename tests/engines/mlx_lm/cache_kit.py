"""Small hands for the tests of mlx-lm's caches: tokens in, tokens out."""

from collections.abc import Sequence

import numpy as np

from cachesim.engines.base import Message
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    BatchKVCache,
    BatchRotatingKVCache,
    ChunkedKVCache,
    KVCache,
    LayerCache,
    RotatingKVCache,
)
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.store.lru_prompt_cache import UNLIMITED, Fetched, LRUPromptCache
from cachesim.model.presets import tiny
from cachesim.typed import of_kind
from cachesim.units import Array

ATTN = tiny("dense")
HYB = tiny("hybrid-delta")


def text(count: int, first: int) -> str:
    return " ".join(f"w{first + i}" for i in range(count))


def system(count: int = 10, first: int = 0) -> Message:
    return Message(role="system", content=text(count, first))


def user(count: int, first: int) -> Message:
    return Message(role="user", content=text(count, first))


def said(template: str = "chatml") -> Message:
    """The part of a reply that the client sends back."""
    first = 90 if template == "think" else 92
    return Message(role="assistant", content=text(3, first))


def tool(count: int, first: int) -> Message:
    return Message(role="tool", content=text(count, first))


NEWEST = FAMILY.release("0.32.2").rules
RULES = NEWEST.caches

Rows = KVCache | RotatingKVCache | ChunkedKVCache | BatchKVCache | BatchRotatingKVCache


def block(*rows: Sequence[int]) -> Array:
    """Tokens as keys: one head, width 1, float32."""
    return np.array(rows, dtype=np.float32)[:, None, :, None]


def write(cache: Rows, *rows: Sequence[int]) -> list[list[int]]:
    keys, values = cache.update_and_fetch(block(*rows), block(*rows))
    assert np.array_equal(keys, values)
    return tokens(keys)


def singly(cache: Rows, tokens_: Sequence[int]) -> None:
    for token in tokens_:
        write(cache, [token])


def tokens(buffer: Array | None) -> list[list[int]]:
    assert buffer is not None
    return [[int(token) for token in row[0, :, 0]] for row in buffer]


def rows(cache: Rows) -> list[int]:
    """The tokens of the whole buffer of a single cache."""
    return tokens(cache.keys)[0]


def used(cache: Rows) -> list[list[int]]:
    """The keys that attention may read."""
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


GENERATIONS = {
    "G0": FAMILY.release("0.30.7").rules.store,
    "G1": FAMILY.release("after-906").rules.store,
    "G2": FAMILY.release("0.31.1").rules.store,
    "G3": FAMILY.release("after-1019").rules.store,
    "G4": FAMILY.release("0.32.2").rules.store,
}


class Mock(LayerCache):
    """A layer whose state is its list of tokens; T: it can be trimmed, N: it cannot."""

    def __init__(self, tokens: Sequence[int], *, trimmable: bool, nbytes: int = 1) -> None:
        super().__init__(RULES)
        self.tokens = list(tokens)
        self._trimmable = trimmable
        self._bytes = nbytes

    def is_trimmable(self) -> bool:
        return self._trimmable

    def trim(self, n: int) -> int:
        n = min(len(self.tokens), n)
        self.tokens = self.tokens[: len(self.tokens) - n]
        return n

    def size(self) -> int:
        return len(self.tokens)

    def count_bytes(self) -> int:
        return self._bytes


class Store(LRUPromptCache):
    """A store with short hands: keys are texts of one-digit tokens."""

    def T(self, key: str, kind: str = "assistant", nbytes: int = 1) -> list[LayerCache]:  # noqa: N802
        return self.put(key, kind, nbytes=nbytes, trimmable=True)

    def N(self, key: str, kind: str = "assistant", nbytes: int = 1) -> list[LayerCache]:  # noqa: N802
        return self.put(key, kind, nbytes=nbytes, trimmable=False)

    def put(
        self, key: str, kind: str, *, nbytes: int, trimmable: bool, model: str = "m"
    ) -> list[LayerCache]:
        cache: list[LayerCache] = [Mock(digits(key), trimmable=trimmable, nbytes=nbytes)]
        self.insert_cache(model, digits(key), cache, cache_type=kind)
        return cache

    def look(self, key: str) -> tuple[str, str] | None:
        """(state, rest), or None for a miss."""
        cache, rest = self.fetch_nearest_cache("m", digits(key))
        if cache is None:
            assert digits(key) == list(rest)
            return None
        layer = of_kind(Mock, cache[0])
        return "".join(map(str, layer.tokens)), "".join(map(str, rest))

    @property
    def keys(self) -> set[str]:
        return {"".join(map(str, tokens)) for _, tokens, _ in self.trie.items()}

    def queue(self, name: str) -> list[str]:
        return ["".join(map(str, tokens)) for _, tokens in self.order.queues[name]]


def of(found: Fetched) -> tuple[int, int, list[str]]:
    """Tokens of the entry, tokens to process, causes."""
    return len(found.key or ()), len(found.rest), [loss.cause.id for loss in found.losses]


def digits(key: str) -> list[int]:
    return [int(digit) for digit in key]


def store(generation: str = "G4", max_size: int = 10, max_bytes: int = UNLIMITED) -> Store:
    return Store(GENERATIONS[generation], max_size, max_bytes)
