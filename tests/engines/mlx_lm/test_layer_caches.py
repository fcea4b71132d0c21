"""The worked rows C-1 to C-22: one layer, one sequence."""

import pytest

from cachesim.engines.mlx_lm.caches.layer_cache import (
    UpstreamAttributeError,
    UpstreamNotImplementedError,
)
from cachesim.engines.mlx_lm.caches.prompt_cache import KVCache, RotatingKVCache
from cachesim.engines.mlx_lm.family import FAMILY
from tests.engines.mlx_lm.cache_kit import RULES


def test_the_oldest_release_has_no_bytes() -> None:
    with pytest.raises(UpstreamAttributeError):
        _ = KVCache(FAMILY.release("0.30.7").rules.caches).nbytes


def test_rings_cannot_be_quantised() -> None:
    with pytest.raises(UpstreamNotImplementedError):
        RotatingKVCache(RULES, 4).to_quantized()
