"""`--kv-bits`: packed keys and values, what they take, and what they switch off."""

from typing import Any

import numpy as np
import pytest

from cachesim.engines import Engine, Request
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.quantized_kv_cache import QuantizedKVCache
from cachesim.engines.mlx_lm.events import RequestAdmitted
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.errors import OptionError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import tiny
from cachesim.units import as_tokens

PROMPT = as_tokens(range(300, 330))
PACKED = {"kv_bits": 4, "kv_group_size": 32, "quantized_kv_start": 20}


def served(preset: str, arithmetic: ArithmeticName = "float", **options: Any) -> Engine:
    """A server that has answered one prompt of 30 tokens."""
    model = tiny(preset, head_size=64)
    engine = Engine.create(
        "mlx-lm@0.32.2", model=model, arithmetic=arithmetic, options=PACKED | options
    )
    engine.submit(Request(prompt=PROMPT, predict=3))
    engine.run()
    return engine


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


def test_layers_are_packed_from_the_given_length_on() -> None:
    assert ["KVCache"] * 2 == kinds(served("dense", quantized_kv_start=5000))
    assert ["QuantizedKVCache"] * 2 == kinds(served("dense"))
    assert ["ArraysCache", "QuantizedKVCache"] == kinds(served("hybrid-delta"))


def kinds(engine: Engine) -> list[str]:
    """The classes of what was stored last."""
    insertion = [event for event in engine.events if event.name() == "insertion"][-1]
    return [layer["class"] for layer in insertion.as_dict()["layers"]]


def test_they_take_a_few_bits_and_a_scale_and_a_bias_for_each_group() -> None:
    stored = served("dense").snapshot()["prompt_cache"]

    numbers = 2 * 64  # of a key and a value
    row = numbers * 4 // 8 + 2 * (numbers // 32) * 2
    assert [2 * 256 * row] == [each["nbytes"] for each in stored]


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_the_answer_is_another_one_by_design(arithmetic: ArithmeticName) -> None:
    engine = served("dense", arithmetic)
    ticket = engine.submit(Request(prompt=(*PROMPT, *PROMPT[:4]), predict=3))
    engine.run()
    reply = engine.reply(ticket)

    assert reply is not None
    assert (30, "quantised keys and values") == (reply.cached, reply.approximated)


def test_no_batches_then_so_no_checkpoints() -> None:
    engine = served("hybrid-delta")
    paths = [each.path for each in engine.events if isinstance(each, RequestAdmitted)]

    assert ["single"] == paths
    assert 1 == len(engine.snapshot()["prompt_cache"])


def test_a_ring_refuses_and_the_client_is_told() -> None:
    engine = served("swa")
    ticket = engine.submit(Request(prompt=PROMPT, predict=3))
    engine.run()
    reply = engine.reply(ticket)

    assert reply is not None
    assert "NotImplementedError" == reply.error
    assert "alive" == engine.snapshot()["worker"]


def test_heads_that_no_group_fits_into_are_refused_as_by_the_library() -> None:
    engine = Engine.create("mlx-lm@0.32.2", model=tiny("dense"), options=PACKED)
    ticket = engine.submit(Request(prompt=PROMPT, predict=3))
    engine.run()
    reply = engine.reply(ticket)

    assert reply is not None
    assert "ValueError" == reply.error
    assert "divisible by the quantization group size 32" in reply.message


def test_older_servers_have_no_such_option() -> None:
    with pytest.raises(OptionError, match=r"0\.32"):
        Engine.create("mlx-lm@0.31.3", model=tiny("dense"), options={"kv_bits": 4})


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
