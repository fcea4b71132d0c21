"""Toy networks as models of mlx-lm: which class holds them, and the names of its tensors.

Tensors carry the names of GGUF files here; the numbers stay the same. Where a family lays heads or
rotations out in another order, rows are put into that order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from cachesim.engines.mlx_lm.families import FAMILIES
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.lab.real.mlx_lm import arguments
from cachesim.lab.real.mlx_lm.arguments import Arguments
from cachesim.model.presets import preset, tiny
from cachesim.model.spec import RECURRENT_KINDS, ModelSpec
from cachesim.model.weights import Tensor, Weights, draw, mlp_norm_name, output_norm_name


@dataclass(frozen=True, slots=True)
class ModelClass:
    """A model class of mlx-lm, and the preset whose network it can hold."""

    preset: str
    arguments: Callable[[ModelSpec], Arguments]
    tensors: Callable[[ModelSpec, Weights], Weights] | None  # None: weights of its own
    changes: Mapping[str, Any]  # what the class has otherwise than the preset
    fades: bool = False  # its own weights forget a spoiled state sooner than the toy's


def _transformer(spec: ModelSpec, weights: Weights) -> Weights:
    """Embedding, attention, MLP and norms under the names of Llama and its relatives."""
    named = {
        "model.embed_tokens.weight": weights["token_embd.weight"],
        "model.norm.weight": weights["output_norm.weight"],
    }
    if not spec.tied_head:
        named["lm_head.weight"] = weights["output.weight"]
    for layer in range(len(spec.layers)):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        names = LAYER | {"post_attention_layernorm": mlp_norm_name(spec, layer).split(".")[2]}
        for name, tensor in names.items():
            found = weights.get(f"{ours}{tensor}.weight")
            if found is not None:
                named[f"{theirs}{name}.weight"] = found
    return named


LAYER: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _of_gemma(spec: ModelSpec, weights: Weights) -> Weights:
    named = _transformer(spec, weights)
    for layer in range(len(spec.layers)):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        named[f"{theirs}post_attention_layernorm.weight"] = weights[
            f"{ours}post_attention_norm.weight"
        ]
        named[f"{theirs}pre_feedforward_layernorm.weight"] = weights[f"{ours}ffn_norm.weight"]
        named[f"{theirs}post_feedforward_layernorm.weight"] = weights[f"{ours}post_ffw_norm.weight"]
    return {name: tensor - 1 if "norm" in name else tensor for name, tensor in named.items()}


def _of_llama4(spec: ModelSpec, weights: Weights) -> Weights:
    named = _transformer(spec, weights).items()
    return {
        f"language_model.{name}".replace(".mlp.", ".feed_forward."): tensor
        for name, tensor in named
    }


def _of_granite(spec: ModelSpec, weights: Weights) -> Weights:
    named = _transformer(spec, weights)
    for layer, kind in enumerate(spec.layers):
        theirs = f"model.layers.{layer}."
        if kind == "ssm":
            named |= mixer(weights, layer, f"{theirs}mamba.")
        else:
            for name in ("q", "k"):
                key = f"{theirs}self_attn.{name}_proj.weight"
                named[key] = _as_halves(named[key], spec.head_size)
    return named


def _of_mamba2(spec: ModelSpec, weights: Weights) -> Weights:
    named = _of_mamba2_ends(weights)
    for layer in range(len(spec.layers)):
        theirs = f"backbone.layers.{layer}."
        named[f"{theirs}norm.weight"] = weights[f"blk.{layer}.attn_norm.weight"]
        named |= mixer(weights, layer, f"{theirs}mixer.")
    return named


def _of_mamba2_ends(weights: Weights) -> Weights:
    """Embedding, last norm and head under the names of Mamba-2 and its kin."""
    return {
        "backbone.embeddings.weight": weights["token_embd.weight"],
        "backbone.norm_f.weight": weights["output_norm.weight"],
        "lm_head.weight": weights["output.weight"],
    }


def mixer(weights: Weights, layer: int, theirs: str) -> Weights:
    """A Mamba-2 mixer: rates as logarithms, taps with a channel axis."""
    ours = f"blk.{layer}.ssm_"
    return {
        f"{theirs}in_proj.weight": weights[f"{ours}in.weight"],
        f"{theirs}conv1d.weight": weights[f"{ours}conv1d.weight"][..., None],
        f"{theirs}conv1d.bias": weights[f"{ours}conv1d.bias"],
        f"{theirs}dt_bias": weights[f"{ours}dt.bias"],
        f"{theirs}A_log": np.log(-weights[f"{ours}a"].reshape(-1)),
        f"{theirs}D": weights[f"{ours}d"].reshape(-1),
        f"{theirs}norm.weight": weights[f"{ours}norm.weight"].reshape(-1),
        f"{theirs}out_proj.weight": weights[f"{ours}out.weight"],
    }


def _of_qwen3_5(spec: ModelSpec, weights: Weights) -> Weights:
    """Gated delta nets; value heads stand by key head, where GGUF files let them take turns."""
    named = _transformer(spec, weights)
    for layer, kind in enumerate(spec.layers):
        if kind == "delta":
            named |= _delta_net(spec, weights, layer)
    return {f"language_model.{name}": tensor for name, tensor in named.items()}


def _delta_net(spec: ModelSpec, weights: Weights, layer: int) -> Weights:
    ours, theirs = f"blk.{layer}.", f"model.layers.{layer}.linear_attn."
    turns = spec.state_heads // spec.groups
    heads = np.arange(spec.state_heads).reshape(turns, spec.groups).T.reshape(-1)
    rows = (heads[:, None] * spec.state_size + np.arange(spec.state_size)).reshape(-1)
    keys = 2 * spec.groups * spec.state_size
    channels = np.concatenate((np.arange(keys), keys + rows))
    return {
        f"{theirs}in_proj_qkv.weight": weights[f"{ours}attn_qkv.weight"][channels],
        f"{theirs}in_proj_z.weight": weights[f"{ours}attn_gate.weight"][rows],
        f"{theirs}in_proj_b.weight": weights[f"{ours}ssm_beta.weight"][heads],
        f"{theirs}in_proj_a.weight": weights[f"{ours}ssm_alpha.weight"][heads],
        f"{theirs}conv1d.weight": weights[f"{ours}ssm_conv1d.weight"][channels][..., None],
        f"{theirs}dt_bias": weights[f"{ours}ssm_dt.bias"][heads],
        f"{theirs}A_log": np.log(-weights[f"{ours}ssm_a"][heads]),
        f"{theirs}norm.weight": weights[f"{ours}ssm_norm.weight"],
        f"{theirs}out_proj.weight": weights[f"{ours}ssm_out.weight"][:, rows],
    }


def _of_nemotron_h(spec: ModelSpec, weights: Weights) -> Weights:
    named = _of_mamba2_ends(weights)
    for layer, kind in enumerate(spec.layers):
        ours, theirs = f"blk.{layer}.", f"backbone.layers.{layer}."
        named[f"{theirs}norm.weight"] = weights[f"{ours}attn_norm.weight"]
        if kind == "ssm":
            named |= mixer(weights, layer, f"{theirs}mixer.")
        else:
            for name in ("q", "k", "v"):
                named[f"{theirs}mixer.{name}_proj.weight"] = weights[f"{ours}attn_{name}.weight"]
            named[f"{theirs}mixer.o_proj.weight"] = weights[f"{ours}attn_output.weight"]
    return named


def _of_qwen3_next(spec: ModelSpec, weights: Weights) -> Weights:
    named = _transformer(spec, weights)
    for layer, kind in enumerate(spec.layers):
        if kind != "delta":
            continue
        theirs = f"model.layers.{layer}.linear_attn."
        parts = _delta_net(spec, weights, layer)
        qkv, keys = parts.pop(f"{theirs}in_proj_qkv.weight"), spec.groups * spec.state_size
        projected = (*np.split(qkv, [keys, 2 * keys]), parts.pop(f"{theirs}in_proj_z.weight"))
        gates = [parts.pop(f"{theirs}in_proj_{name}.weight") for name in ("b", "a")]
        parts[f"{theirs}in_proj_qkvz.weight"] = _by_key_head(spec, projected)
        parts[f"{theirs}in_proj_ba.weight"] = _by_key_head(spec, gates)
        named |= parts
    return named


def _by_key_head(spec: ModelSpec, parts: Sequence[Tensor]) -> Tensor:
    heads = [part.reshape(spec.groups, -1, part.shape[1]) for part in parts]
    return np.concatenate(heads, axis=1).reshape(-1, parts[0].shape[1])


def _of_lfm2(spec: ModelSpec, weights: Weights) -> Weights:
    named = {
        "model.embed_tokens.weight": weights["token_embd.weight"],
        "model.embedding_norm.weight": weights[output_norm_name(spec)],
    }
    for layer in range(len(spec.layers)):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        for name, tensor in LFM2_LAYER.items():
            found = weights.get(f"{ours}{tensor}.weight")
            if found is not None:
                named[f"{theirs}{name}.weight"] = found
        taps = weights.get(f"{ours}shortconv.conv.weight")
        if taps is not None:
            named[f"{theirs}conv.conv.weight"] = taps[..., None]
    return named


LFM2_LAYER: Final = {
    "operator_norm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
}


def _as_halves(tensor: Tensor, size: int) -> Tensor:
    """Rows of heads that rotate neighbours, in the order of those that rotate halves."""
    order = np.concatenate((np.arange(0, size, 2), np.arange(1, size, 2)))
    return tensor.reshape(-1, size, tensor.shape[1])[:, order].reshape(tensor.shape)


WINDOWS: Final = (8, 16, 32, 64)

CHUNKED: Final = {
    "layers": ("window", "window", "window", "attention"),
    "window": 32,
    "chunked": True,
}
"""Llama 4's layers."""

CLASSES: Final[Mapping[str, ModelClass]] = {
    "llama": ModelClass("dense", arguments.llama, _transformer, {}),
    "gemma3_text": ModelClass("swa", arguments.gemma3, _of_gemma, {}),
    "llama4": ModelClass("dense", arguments.llama4, _of_llama4, CHUNKED),
    "mamba2": ModelClass("recurrent", arguments.mamba2, _of_mamba2, {"groups": 1}),
    "granitemoehybrid": ModelClass("hybrid", arguments.granite, _of_granite, {"groups": 1}),
    "nemotron_h": ModelClass(
        "hybrid", arguments.nemotron_h, _of_nemotron_h, {"mlp_width": 0, "rope": "none"}
    ),
    "qwen3_5": ModelClass("hybrid-delta", arguments.qwen3_5, _of_qwen3_5, {}),
    "qwen3_next": ModelClass("hybrid-delta", arguments.qwen3_next, _of_qwen3_next, {}),
    "lfm2": ModelClass("hybrid-swa", arguments.lfm2, _of_lfm2, {"tied_head": True}),
}
"""Model family -> how a toy becomes one. Most mixers of mlx-lm norm all channels at once, so there
they have one group; its LFM2 has no window, and none of its classes has an MTP head."""

OTHERS: Final[Mapping[str, ModelClass]] = {
    "falcon_h1": ModelClass("hybrid", arguments.falcon_h1, None, {"groups": 1}),
    "plamo2": ModelClass("hybrid", arguments.plamo2, None, {"groups": 1}),
    "gemma3n": ModelClass("swa", arguments.gemma3n, None, {}),
    "deepseek_v41": ModelClass("swa", arguments.deepseek_v41, None, {}),
    "jamba": ModelClass("hybrid", arguments.jamba, None, {"groups": 1}, fades=True),
}
"""Classes whose layers no toy of ours has: other weights, the same caches and the same rules."""


def spec_of(family: str, *, small: bool = False, **changes: Any) -> ModelSpec:
    """The toy that a family's class holds, `small` or in its usual shape."""
    held = CLASSES.get(family) or OTHERS[family]
    spec = (tiny if small else preset)(held.preset, **{**held.changes, "family": family, **changes})
    if family == "lfm2":
        layers = tuple("attention" if kind == "window" else kind for kind in spec.layers)
        spec = replace(spec, layers=layers, window=0)
    return spec


def alone(release: str, family: str) -> bool:
    """True if a class's requests are served one at a time, for its caches have no batch."""
    known = FAMILIES[family]
    recurrent = not set(RECURRENT_KINDS).isdisjoint(known.layers)
    batched = FAMILY.release(release).rules.caches.batches_recurrent
    return not known.batches or (recurrent and not batched)


def windows_at(release: str, family: str) -> tuple[int, ...]:
    """The windows that a family's toys have at a release; none where nothing asks for one.

    Before #1673 a chunk's front was counted in allocated rows, which come 256 at a time: no chunk
    of a real model is smaller.
    """
    if "window" not in FAMILIES[family].layers or family == "lfm2":
        return ()
    by_step = (
        FAMILIES[family].chunked
        and not FAMILY.release(release).rules.caches.chunk_front_counts_valid_rows
    )
    return (256,) if by_step else WINDOWS


def toy_of(model: Mapping[str, Any], vocabulary: int) -> ModelSpec:
    """The small toy of a workload's model."""
    changes = {name: model[name] for name in ("window", "head_size") if model.get(name)}
    return spec_of(model["family"], small=True, vocabulary=vocabulary, **changes)


def order_of(spec: ModelSpec, weights: Path) -> dict[str, Any]:
    """The message from which a worker builds the real model; the tensors are written to a file."""
    held = CLASSES.get(spec.family) or OTHERS[spec.family]
    order: dict[str, Any] = {"module": spec.family, "arguments": held.arguments(spec)}
    if held.tensors is None:
        return order
    tensors: dict[str, Any] = dict(held.tensors(spec, draw(spec)))
    np.savez(weights, **tensors)
    return order | {"weights": str(weights)}
