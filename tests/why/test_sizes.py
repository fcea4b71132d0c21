"""Bytes of a real model: from the log's lines, from a file's fields, and in a scenario."""

from dataclasses import replace
from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.errors import SpecError
from cachesim.model.presets import PRESETS, preset
from cachesim.model.spec import Sizes
from cachesim.prove.llama_cpp.gguf import model_keys
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Model
from cachesim.units import as_tokens
from cachesim.why.infer.sizes import (
    ASSUMED,
    BOUNDED,
    MIB,
    PRINTED,
    how_known,
    sizes_of,
    sizes_of_fields,
)
from cachesim.why.read.observed import ServerLog


def test_a_log_of_a_real_hybrid_gives_state_and_tokens() -> None:
    log = ServerLog(first_line=1)
    log.checkpoint_mib = [(2064, 149.063), (2576, 149.063)]
    log.sizes = [(80_000, 149.063 + 80_000 * 0.0625), (40_000, 149.063 + 40_000 * 0.0625)]

    assert sizes_of(log, preset("hybrid-delta")) == Sizes(
        token=65_536, window=0, state=round(149.063 * MIB)
    )


def test_three_decimals_of_a_toy_say_less_than_its_preset() -> None:
    log = ServerLog(first_line=1)
    log.checkpoint_mib, log.sizes = [(64, 0.011)], [(3000, 0.829)]

    assert sizes_of(log, preset("hybrid-delta")) is None


@pytest.mark.parametrize(
    ("parked", "states", "model", "known"),
    [
        ([(80_000, 5149.063)], [(2064, 149.063)], "hybrid-delta", PRINTED),
        ([], [(2064, 149.063)], "hybrid-delta", BOUNDED),
        ([], [(2064, 149.063)], "recurrent", PRINTED),
        ([], [], "hybrid-delta", ASSUMED),
    ],
)
def test_how_bytes_are_known_is_what_the_log_prints(
    parked: list[tuple[int, float]], states: list[tuple[int, float]], model: str, known: str
) -> None:
    log = ServerLog(first_line=1)
    log.checkpoint_mib, log.sizes = states, parked
    spec = preset(model)

    assert known == how_known(log, replace(spec, sizes=sizes_of(log, spec)))


def test_a_file_of_gated_delta_nets() -> None:
    fields = {
        "general.architecture": "qwen35",
        "qwen35.block_count": 8,
        "qwen35.full_attention_interval": 4,
        "qwen35.attention.head_count": 16,
        "qwen35.attention.head_count_kv": 2,
        "qwen35.attention.key_length": 256,
        "qwen35.attention.value_length": 256,
        "qwen35.embedding_length": 4096,
        "qwen35.ssm.inner_size": 4096,
        "qwen35.ssm.state_size": 128,
        "qwen35.ssm.conv_kernel": 4,
        "qwen35.ssm.group_count": 16,
    }

    found = sizes_of_fields(fields)
    assert found.token == 2 * (2 * 2 * (256 + 256))
    assert found.state == 6 * 4 * (128 * 4096 + 3 * (4096 + 2 * 16 * 128))


def test_a_file_with_windows() -> None:
    fields = {
        "general.architecture": "gemma3",
        "gemma3.block_count": 12,
        "gemma3.attention.head_count": 8,
        "gemma3.attention.head_count_kv": 4,
        "gemma3.attention.key_length": 256,
        "gemma3.attention.value_length": 256,
        "gemma3.attention.sliding_window": 1024,
        "gemma3.attention.sliding_window_pattern": 6,
    }

    per_layer = 2 * 4 * 512
    assert sizes_of_fields(fields) == Sizes(token=2 * per_layer, window=10 * per_layer)


def fields_of(name: str, **keys: Any) -> dict[str, Any]:
    return {
        "general.architecture": name,
        **{f"{name}.{key.replace('__', '.')}": value for key, value in keys.items()},
    }


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        (  # MLA: the cache has no values
            fields_of(
                "deepseek2", block_count=62, nextn_predict_layers=1, attention__head_count=128,
                attention__head_count_kv=1, attention__key_length=576, attention__value_length=512,
                attention__key_length_mla=192, attention__value_length_mla=128,
            ),
            Sizes(token=61 * 2 * 576),
        ),
        (  # heads and widths differ by layer, the last layer reads another one's keys
            fields_of(
                "gemma4", block_count=4, attention__head_count=8, attention__shared_kv_layers=1,
                attention__head_count_kv=[4, 4, 1, 4], attention__sliding_window=9,
                attention__sliding_window_pattern=[True, True, False, True],
                attention__key_length=512, attention__value_length=512,
                attention__key_length_swa=256, attention__value_length_swa=256,
            ),
            Sizes(token=2 * 1024, window=2 * 2 * 4 * 512),
        ),
        (  # a layer that is an MLP alone keeps nothing
            fields_of(
                "nemotron_h", block_count=4, attention__head_count=8, embedding_length=64,
                attention__head_count_kv=[0, 0, 2, 0], feed_forward_length=[0, 99, 0, 0],
                ssm__inner_size=32, ssm__state_size=4, ssm__conv_kernel=4, ssm__group_count=2,
            ),
            Sizes(token=2 * 2 * 16, state=4 * 2 * (32 * 4 + 3 * (32 + 16))),
        ),
        (
            fields_of(
                "kimi-linear", block_count=2, attention__head_count=8, kda__head_dim=16,
                attention__head_count_kv=[0, 1], attention__key_length=576, ssm__conv_kernel=4,
                attention__key_length_mla=192,
            ),
            Sizes(token=2 * 576, state=4 * (8 * 16 * 16 + 3 * 3 * 8 * 16)),
        ),
    ],
)  # fmt: skip
def test_what_differs_by_layer_is_counted_by_layer(fields: dict[str, Any], sizes: Sizes) -> None:
    assert sizes == sizes_of_fields(fields)


@pytest.mark.parametrize("name", PRESETS)
def test_the_file_of_a_preset_says_what_the_preset_has(name: str) -> None:
    """The files that real servers load, key by key."""
    spec = preset(name)
    fields = {key: model_key.value for key, model_key in model_keys(spec).items()}
    own = dict.fromkeys(("attention", "window"), 0)
    for layer, kind in enumerate(spec.layers):
        if kind in own:
            own[kind] += spec.key_bytes(layer) + spec.value_bytes(layer)
    states = sum(spec.conv_bytes(i) + spec.state_bytes(i) for i, _ in enumerate(spec.layers))

    assert sizes_of_fields(fields) == Sizes(
        token=own["attention"], window=own["window"], state=states
    )


def test_sizes_in_a_scenario_decide_what_is_parked() -> None:
    parked = []
    for token in (1000, 100_000):
        spec = spec_of(Model(preset="dense", sizes={"token": token}))
        engine = Engine.create(
            "llama.cpp@b9538", model=spec, options={"cache_ram": 2}, arithmetic="counts"
        )
        for first in (300, 1300, 2300):
            prompt = tuple(300 + (first + number) % 200 for number in range(40))
            engine.submit(Request(prompt=as_tokens(prompt), predict=1, reply=as_tokens([301])))
            engine.run()
        parked.append(len(engine.snapshot()["prompt_cache"]))

    assert parked[0] >= parked[1]
    assert spec_of(Model(preset="dense", sizes={"token": 7})).key_bytes(0) == 7


def test_a_size_of_another_name_is_refused() -> None:
    with pytest.raises(SpecError, match="has no 'tokens'"):
        spec_of(Model(preset="dense", sizes={"tokens": 7}))
