"""Specs: what cannot be built is refused with a remedy; what can knows its bytes."""

from typing import Any

import pytest

from cachesim.errors import LimitError, SpecError
from cachesim.model.presets import PRESETS, one_of_each, preset, tiny
from cachesim.model.spec import LARGEST, ModelSpec


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"layers": ()}, "name at least one layer"),
        ({"layers": ["attention"]}, "name at least one layer"),
        ({"layers": ("attention", "rwkv")}, "'rwkv' is none of attention, window, ssm"),
        ({"rope": "spirals"}, "write one of none, pairs, halves"),
        ({"activation": "relu"}, "write one of silu, gelu, gelu-table"),
        ({"width": 0}, "write 1 or more"),
        ({"width": 64.0}, "write a whole number"),
        ({"width": True}, "write a whole number"),
        ({"vocabulary": 1}, "write 2 or more"),
        ({"mlp_width": -1}, "write 0 or more"),
        ({"kv_heads": 3}, "write a divisor of heads = 4"),
        ({"head_size": 15}, "write an even number"),
        ({"layers": ("window",), "window": 0}, "window layers need a window of 1 or more"),
        ({"layers": ("conv",), "conv_size": 1}, "needs 2 taps or more"),
        ({"layers": ("ssm",), "state_heads": 7}, "write a divisor of inner = 128"),
        ({"layers": ("ssm",), "groups": 3}, "write a divisor of state_heads = 8"),
        ({"layers": ("delta",), "inner": 64}, "write inner = 128"),
        ({"layers": ("delta",), "post_norms": True}, "leave them off"),
        ({"mtp_depth": 2}, "write 0 or 1"),
        ({"norm_epsilon": 0.0}, "write a finite number above 0"),
        ({"mix": float("inf")}, "write a finite number above 0"),
        ({"embedding_scale": float("nan")}, "write a finite number above 0"),
        ({"rope_base": 1.0}, "write a finite number above 1"),
        ({"seed": -1}, "write 0 or more"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_value_and_the_remedy(
    wrong: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(SpecError) as refused:
        ModelSpec(**{"name": "mine", "layers": ("attention",), **wrong})

    message = str(refused.value)
    assert "model 'mine'" in message
    assert remedy in message
    assert repr(next(iter(reversed(wrong.values())))) in message


@pytest.mark.parametrize("field", LARGEST)
def test_each_size_has_a_stated_limit(field: str) -> None:
    with pytest.raises(LimitError, match=f"{field} = {LARGEST[field] + 1} is past the limit"):
        ModelSpec(layers=("attention",), **{field: LARGEST[field] + 1})


def test_there_are_no_towers_of_layers() -> None:
    with pytest.raises(LimitError, match="129 layers; 128 is the most"):
        ModelSpec(layers=("attention",) * 129)


def test_a_window_without_window_layers_is_idle_not_wrong() -> None:
    assert 16 == ModelSpec(layers=("ssm", "attention"), window=16).window


def test_cells_and_rows_have_the_bytes_of_the_real_servers() -> None:
    hybrid = preset("hybrid")

    assert (64, 64) == (hybrid.key_bytes(2), hybrid.value_bytes(2))
    assert (0, 0) == (hybrid.key_bytes(0), hybrid.value_bytes(0))
    assert (4 * 3 * (128 + 2 * 2 * 16), 4 * 16 * 128) == (
        hybrid.conv_bytes(0),
        hybrid.state_bytes(0),
    )
    assert (0, 0) == (hybrid.conv_bytes(2), hybrid.state_bytes(2))


def test_a_short_convolution_keeps_its_inputs_and_no_state() -> None:
    lfm2 = preset("hybrid-swa")

    assert (4 * 64 * 2, 0) == (lfm2.conv_bytes(0), lfm2.state_bytes(0))


def test_layers_fall_into_their_parts() -> None:
    assert (2, 5) == preset("hybrid").attention_layers
    assert (0, 1, 3, 4) == preset("hybrid").recurrent_layers
    assert ((0, 2), (1, 3)) == (preset("swa").window_layers, preset("swa").attention_layers)
    assert ((1, 3), (0, 2)) == (
        preset("hybrid-swa").window_layers,
        preset("hybrid-swa").recurrent_layers,
    )


def test_the_mtp_layer_follows_the_last_and_attends() -> None:
    spec = preset("hybrid-mtp")

    assert 4 == spec.mtp_layer
    assert "attention" == spec.kind(4)
    assert 64 == spec.key_bytes(4)
    assert preset("hybrid-delta").mtp_layer is None


def test_reach_is_how_far_back_a_last_logit_can_look() -> None:
    assert 1 + 2 + 31 + 2 + 31 == preset("hybrid-swa").reach
    assert [None] * 6 == [preset(name).reach for name in PRESETS if name != "hybrid-swa"]


def test_a_preset_scales_by_argument() -> None:
    wide = preset("dense", width=128, heads=8, seed=3)

    assert (128, 8, 3, "dense") == (wide.width, wide.heads, wide.seed, wide.name)
    assert preset("dense") == preset("dense", width=64)


def test_a_preset_or_field_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(SpecError, match="no preset 'mamba'; there are dense, swa, recurrent"):
        preset("mamba")
    with pytest.raises(SpecError, match="has no 'depth'"):
        preset("dense", depth=3)


@pytest.mark.parametrize("name", PRESETS)
def test_the_tiny_variant_has_two_layers_of_the_kinds_it_needs(name: str) -> None:
    small = tiny(name)

    assert (16, 2) == (small.width, len(small.layers))
    assert set(PRESETS[name].layers) == set(small.layers)
    assert PRESETS[name].mtp_depth == small.mtp_depth


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("dense", ("attention", "attention")),
        ("recurrent", ("ssm",)),
        ("hybrid", ("ssm", "attention")),
        ("swa", ("window", "attention", "window")),
        ("hybrid-mtp", PRESETS["hybrid-mtp"].layers),
    ],
)
def test_one_layer_of_each_kind_stays_after_one_that_has_seen_all_tokens(
    name: str, layers: tuple[str, ...]
) -> None:
    assert layers == one_of_each(preset(name)).layers


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("hybrid", ("ssm", "ssm", "attention")),
        ("swa", ("window", "attention", "window", "attention")),
        ("recurrent", ("ssm",)),
    ],
)
def test_in_ratio_one_period_of_layers_stays(name: str, layers: tuple[str, ...]) -> None:
    assert layers == one_of_each(preset(name), in_ratio=True).layers
