"""True if a stored state is the one its key promises, layer by layer and bit by bit."""

from collections.abc import Sequence

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import (
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    SparseCache,
)
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.families import RecurrentRules
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PromptCache, leaves
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.model.arithmetic import Network
from cachesim.units import Array, Tokens


class ColdStates:
    """Computes the state of a key afresh and holds stored states against it.

    `within` is how far numbers may lie apart, as a share of the largest: where a chunk is counted
    from a later position, what it leads to is the same but for the rounding of rotations.
    """

    def __init__(
        self, network: Network, recurrent: RecurrentRules | None = None, *, within: float = 0.0
    ) -> None:
        self._forward = Forward(network, CacheRules(), recurrent=recurrent)
        self._within = within
        self._known: dict[Tokens, PromptCache] = {}

    def state(self, key: Tokens) -> PromptCache:
        """The caches after a cold run over the key."""
        if key not in self._known:
            cache = self._forward.make_cache()
            if key:
                self._forward(np.array([key], dtype=np.int64), cache)
            self._known[key] = cache
        return self._known[key]

    def agree(self, key: Tokens, cache: PromptCache) -> list[bool | None]:
        """Layer by layer: the same tokens, at the same places, with the same numbers.

        Layers of a draft model come last; nobody judges them.
        """
        cold, held = leaves(self.state(key)), leaves(cache)
        found = [_agrees(*pair, len(key), self._within) for pair in zip(cold, held, strict=False)]
        return [*found, *[None] * (len(held) - len(cold))]


def _agrees(cold: LayerCache, layer: LayerCache, count: int, within: float) -> bool | None:
    if isinstance(layer, QuantizedKVCache):
        return None  # packed numbers are never the computed ones
    if isinstance(cold, ArraysCache) and isinstance(layer, ArraysCache):
        return _alike(cold.cache, layer.cache, within)
    if getattr(layer, "offset", None) != count:
        return False
    return _alike(rows(cold), rows(layer), within)


def _alike(one: Sequence[Array | None], other: Sequence[Array | None], within: float) -> bool:
    return all(_same(*pair, within) for pair in zip(one, other, strict=True))


def _same(one: Array | None, two: Array | None, within: float) -> bool:
    if one is None or two is None:
        return one is two
    if not within or one.shape != two.shape or not one.size:
        return np.array_equal(one, two)
    return bool(np.abs(one - two).max() <= within * np.abs(one).max())


def rows(layer: LayerCache) -> tuple[Array | None, Array | None]:
    """Keys and values that a query may still see, oldest first."""
    if isinstance(layer, RotatingKVCache) and layer.keys is not None:
        kept = slice(-layer.size(), None) if layer.size() else slice(0, 0)
        keys, values = layer.temporal_order(layer.keys), layer.temporal_order(layer.values)
        return keys[:, :, kept], values[:, :, kept]
    if isinstance(layer, ChunkedKVCache) and layer.keys is not None and layer.values is not None:
        first = layer.offset // layer.chunk_size * layer.chunk_size  # of the chunk that goes on
        kept = slice(first - layer.start_position, layer.offset - layer.start_position)
        return layer.keys[:, :, kept], layer.values[:, :, kept]
    if isinstance(layer, KVCache | SparseCache) and layer.keys is not None:
        return layer.keys_and_values()
    return None, None
