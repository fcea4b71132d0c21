"""`--kv-bits`: packed keys and values, what they take, and what they switch off."""

import numpy as np

from cachesim.engines import Engine, Request
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache, QuantizedKVCache
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.model.presets import tiny
from cachesim.units import as_tokens

PROMPT = as_tokens(range(300, 330))
PACKED = {"kv_bits": 4, "kv_group_size": 32, "quantized_kv_start": 20}


def test_numbers_are_packed_as_by_the_real_library() -> None:
    rows = np.array([[i * i % 17 - 5.5 for i in range(32)]])
    real = [-5.25, -5.25, 0.0, 5.25, 10.5, 0.0, -5.25, 10.5, 5.25, 5.25, 10.5, -5.25, 0.0, 10.5]

    packed = QuantizedKVCache(CacheRules(), 32, 2).rounded(rows)[0]

    assert np.allclose([*real, 5.25, 0.0], packed[:16])
    assert np.allclose(packed[0], -5.25)


def test_keys_are_packed_in_the_order_that_the_real_ones_have() -> None:
    cache = QuantizedKVCache(CacheRules(), 32, 2)
    rows = np.random.default_rng(0).normal(size=(3, 1, 64))
    cache.key_order = np.concatenate((np.arange(0, 64, 2), np.arange(1, 64, 2)))

    real = cache.rounded(rows)
    assert np.array_equal(
        real[..., cache.key_order], cache.rounded_keys(rows[..., cache.key_order])
    )


def test_heads_that_no_group_fits_into_are_refused_as_by_the_library() -> None:
    engine = Engine.create("mlx-lm@0.32.2", model=tiny("dense"), options=PACKED)
    ticket = engine.submit(Request(prompt=PROMPT, predict=3))
    engine.run()
    reply = engine.reply(ticket)

    assert reply is not None
    assert "ValueError" == reply.error
    assert "divisible by the quantization group size 32" in reply.message


def test_it_is_trimmed_like_any_other() -> None:
    cache = QuantizedKVCache(CacheRules(), 32, 4)
    cache.take(filled(10), (32,))

    assert (4, 6) == (cache.trim(4), cache.offset)
    assert (0, False) == (cache.size(), cache.has_merge)


def filled(count: int) -> KVCache:
    """A cache of some tokens, one head of 32 numbers."""
    cache = KVCache(CacheRules())
    rows = np.random.default_rng(1).normal(size=(1, 1, count, 32))
    cache.update_and_fetch(rows, rows)
    return cache
