"""Weights: from the seed alone, float32, under the names and shapes of the real files."""

import numpy as np
import pytest

from cachesim.model.presets import PRESETS, preset
from cachesim.model.weights import draw

ATTENTION = {
    "attn_norm.weight": (64,),
    "attn_q.weight": (64, 64),
    "attn_k.weight": (32, 64),
    "attn_v.weight": (32, 64),
    "attn_output.weight": (64, 64),
}
MLP = {"ffn_gate.weight": (128, 64), "ffn_up.weight": (128, 64), "ffn_down.weight": (64, 128)}
HEAD_NORMS = {"attn_q_norm.weight": (16,), "attn_k_norm.weight": (16,)}
SSM = {
    "attn_norm.weight": (64,),
    "ssm_in.weight": (328, 64),
    "ssm_conv1d.weight": (192, 4),
    "ssm_conv1d.bias": (192,),
    "ssm_dt.bias": (8,),
    "ssm_a": (8, 1),
    "ssm_d": (8, 1),
    "ssm_norm.weight": (2, 64),
    "ssm_out.weight": (64, 128),
}
FFN_NORM = {"ffn_norm.weight": (64,)}
OF_QWEN = {"post_attention_norm.weight": (64,)}
GATED = {**ATTENTION, **HEAD_NORMS, "attn_q.weight": (128, 64), **OF_QWEN, **MLP}
LAYERS = {
    ("dense", 0): {**ATTENTION, **FFN_NORM, **MLP},
    ("swa", 0): {
        **ATTENTION,
        **HEAD_NORMS,
        "post_attention_norm.weight": (64,),
        **FFN_NORM,
        **MLP,
        "post_ffw_norm.weight": (64,),
    },
    ("recurrent", 3): SSM,
    ("hybrid", 0): {**SSM, **FFN_NORM, **MLP},
    ("hybrid", 2): {**ATTENTION, **FFN_NORM, **MLP},
    ("hybrid-delta", 0): {
        "attn_norm.weight": (64,),
        "attn_qkv.weight": (128, 64),
        "attn_gate.weight": (64, 64),
        "ssm_conv1d.weight": (128, 4),
        "ssm_dt.bias": (4,),
        "ssm_a": (4,),
        "ssm_beta.weight": (4, 64),
        "ssm_alpha.weight": (4, 64),
        "ssm_norm.weight": (16,),
        "ssm_out.weight": (64, 64),
        **OF_QWEN,
        **MLP,
    },
    ("hybrid-delta", 1): GATED,
    ("hybrid-swa", 0): {
        "attn_norm.weight": (64,),
        "shortconv.conv.weight": (64, 3),
        "shortconv.in_proj.weight": (192, 64),
        "shortconv.out_proj.weight": (64, 64),
        **FFN_NORM,
        **MLP,
    },
    ("hybrid-mtp", 4): {
        **GATED,
        "nextn.eh_proj.weight": (64, 128),
        "nextn.enorm.weight": (64,),
        "nextn.hnorm.weight": (64,),
        "nextn.shared_head_norm.weight": (64,),
    },
}


@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_a_layer_has_the_tensors_of_its_family(name: str, layer: int) -> None:
    prefix = f"blk.{layer}."
    tensors = draw(preset(name)).items()

    found = {key.removeprefix(prefix): t.shape for key, t in tensors if key.startswith(prefix)}

    assert LAYERS[name, layer] == found


@pytest.mark.parametrize("name", PRESETS)
def test_every_number_is_a_finite_float32(name: str) -> None:
    for key, tensor in draw(preset(name)).items():
        assert np.float32 == tensor.dtype, key
        assert np.isfinite(tensor).all(), key


def test_the_seed_alone_decides() -> None:
    again, other = draw(preset("hybrid")), draw(preset("hybrid", seed=1))

    for key, tensor in draw(preset("hybrid")).items():
        assert np.array_equal(tensor, again[key])
        assert not np.array_equal(tensor, other[key]), key


def test_the_numbers_of_a_seed_never_change() -> None:
    weights = draw(preset("dense"))

    assert [1.0746559, -0.2387331, 0.8393321] == pytest.approx(
        weights["token_embd.weight"][0, :3].tolist(), abs=1e-6
    )


def test_another_layer_changes_no_other_tensor() -> None:
    short, long = draw(preset("dense", layers=("attention",))), draw(preset("dense"))

    for key, tensor in short.items():
        assert np.array_equal(tensor, long[key])


def test_rows_of_bytes_and_marks_are_zero_in_the_head() -> None:
    head = draw(preset("dense"))["output.weight"]

    assert not head[:265].any()
    assert head[265:].any(axis=1).all()


def test_a_tied_head_and_a_small_vocabulary_have_no_such_rows() -> None:
    assert "output.weight" not in draw(preset("dense", tied_head=True))
    assert draw(preset("dense", vocabulary=64))["output.weight"].any(axis=1).all()


def test_mix_scales_what_blocks_add_and_nothing_else() -> None:
    loud, quiet = draw(preset("hybrid-delta")), draw(preset("hybrid-delta", mix=0.25))

    for key, tensor in loud.items():
        adds = key.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight"))
        assert np.allclose(tensor * (0.25 if adds else 1.0), quiet[key], rtol=1e-6), key
