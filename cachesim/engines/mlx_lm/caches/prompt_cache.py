"""The cache classes of `mlx_lm.models.cache`, and what is done to a whole prompt cache."""

from collections.abc import Sequence

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.batch_kv_cache import BatchKVCache
from cachesim.engines.mlx_lm.caches.batch_rotating_kv_cache import BatchRotatingKVCache
from cachesim.engines.mlx_lm.caches.cache_list import CacheList
from cachesim.engines.mlx_lm.caches.chunked_kv_cache import ChunkedKVCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.caches.quantized_kv_cache import QuantizedKVCache
from cachesim.engines.mlx_lm.caches.rotating_kv_cache import RotatingKVCache


def can_trim_prompt_cache(cache: Sequence[LayerCache]) -> bool:
    """Check whether every layer can be trimmed, now; follows `can_trim_prompt_cache`."""
    return all(each.is_trimmable() for each in cache)


def trim_prompt_cache(cache: Sequence[LayerCache], num_tokens: int) -> int:
    """Trim all layers or none; what the first layer says counts. Follows `trim_prompt_cache`."""
    if not can_trim_prompt_cache(cache) or len(cache) == 0:
        return 0
    trimmed = [each.trim(num_tokens) for each in cache]
    return trimmed[0]


def copy_prompt_cache(cache: Sequence[LayerCache]) -> list[LayerCache]:
    """Independent layers, arrays included; upstream's `copy.deepcopy` of a prompt cache."""
    return [each.copy() for each in cache]


__all__ = [
    "ArraysCache",
    "BatchKVCache",
    "BatchRotatingKVCache",
    "CacheList",
    "ChunkedKVCache",
    "KVCache",
    "LayerCache",
    "QuantizedKVCache",
    "RotatingKVCache",
    "can_trim_prompt_cache",
    "copy_prompt_cache",
    "trim_prompt_cache",
]
