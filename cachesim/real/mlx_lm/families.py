"""The presets as models of mlx-lm: which class holds them, and the names of its tensors.

Tensors carry the names of GGUF files here; the numbers stay the same. Where a family lays heads or
rotations out in another order, rows are put into that order.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from cachesim.model.spec import ModelSpec
from cachesim.model.weights import Tensor, Weights, draw, mlp_norm_name

Arguments: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """One model class of mlx-lm."""

    module: str
    arguments: Callable[[ModelSpec], Arguments]
    tensors: Callable[[ModelSpec, Weights], Weights]
    changes: Mapping[str, Any]  # what the class cannot hold of the preset


def common(spec: ModelSpec) -> Arguments:
    """What most of mlx-lm's model classes ask for."""
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "intermediate_size": spec.mlp_width,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_size,
        "rms_norm_eps": spec.norm_epsilon,
        "rope_theta": spec.rope_base,
        "vocab_size": spec.vocabulary,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": spec.tied_head,
    }


def llama(spec: ModelSpec) -> Arguments:
    """Llama, rotating neighbours as GGUF files do."""
    return common(spec) | {"model_type": "llama", "rope_traditional": spec.rope == "pairs"}


def gemma3(spec: ModelSpec) -> Arguments:
    """Gemma 3's text model."""
    return common(spec) | {
        "model_type": "gemma3_text",
        "rope_local_base_freq": spec.rope_base,
        "query_pre_attn_scalar": spec.head_size,
        "sliding_window": spec.window,
        "sliding_window_pattern": 2,
    }


def qwen3_5(spec: ModelSpec) -> Arguments:
    """Qwen 3.5's text model."""
    return common(spec) | {
        "model_type": "qwen3_5",
        "linear_num_value_heads": spec.state_heads,
        "linear_num_key_heads": spec.groups,
        "linear_key_head_dim": spec.state_size,
        "linear_value_head_dim": spec.state_size,
        "linear_conv_kernel_dim": spec.conv_size,
        "full_attention_interval": 2,
        "rope_parameters": {
            "type": "default",
            "rope_theta": spec.rope_base,
            "partial_rotary_factor": 1.0,
        },
    }


def granite(spec: ModelSpec) -> Arguments:
    """Granite 4 hybrid, without experts."""
    return common(spec) | {
        "model_type": "granitemoehybrid",
        "attention_bias": False,
        "embedding_multiplier": spec.embedding_scale,
        "attention_multiplier": spec.head_size**-0.5,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "layer_types": ["mamba" if kind == "ssm" else "attention" for kind in spec.layers],
        "mamba_n_heads": spec.state_heads,
        "mamba_d_head": spec.inner // spec.state_heads,
        "mamba_proj_bias": False,
        "mamba_d_state": spec.state_size,
        "mamba_d_conv": spec.conv_size,
        "mamba_n_groups": spec.groups,
        "mamba_conv_bias": True,
        "time_step_limit": [0.0, 1e9],
    }


def mamba2(spec: ModelSpec) -> Arguments:
    """Mamba-2."""
    return {
        "model_type": "mamba2",
        "num_heads": spec.state_heads,
        "head_dim": spec.inner // spec.state_heads,
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "intermediate_size": spec.inner,
        "state_size": spec.state_size,
        "num_hidden_layers": len(spec.layers),
        "layer_norm_epsilon": spec.norm_epsilon,
        "conv_kernel": spec.conv_size,
        "n_groups": spec.groups,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": spec.tied_head,
        "time_step_limit": [0.0, 1e9],
        "time_step_rank": "auto",
    }


def transformer(spec: ModelSpec, weights: Weights) -> Weights:
    """Embedding, attention, MLP and norms under the names of Llama and its kin."""
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


def of_gemma(spec: ModelSpec, weights: Weights) -> Weights:
    """Four norms a layer; every norm weight is one less."""
    named = transformer(spec, weights)
    for layer in range(len(spec.layers)):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        named[f"{theirs}post_attention_layernorm.weight"] = weights[
            f"{ours}post_attention_norm.weight"
        ]
        named[f"{theirs}pre_feedforward_layernorm.weight"] = weights[f"{ours}ffn_norm.weight"]
        named[f"{theirs}post_feedforward_layernorm.weight"] = weights[f"{ours}post_ffw_norm.weight"]
    return {name: tensor - 1 if "norm" in name else tensor for name, tensor in named.items()}


def of_granite(spec: ModelSpec, weights: Weights) -> Weights:
    """Mamba-2 mixers beside attention that rotates halves."""
    named = transformer(spec, weights)
    for layer, kind in enumerate(spec.layers):
        theirs = f"model.layers.{layer}."
        if kind == "ssm":
            named |= mixer(weights, layer, f"{theirs}mamba.")
        else:
            for name in ("q", "k"):
                key = f"{theirs}self_attn.{name}_proj.weight"
                named[key] = as_halves(named[key], spec.head_size)
    return named


def of_mamba2(spec: ModelSpec, weights: Weights) -> Weights:
    """Mixers alone."""
    named = {
        "backbone.embeddings.weight": weights["token_embd.weight"],
        "backbone.norm_f.weight": weights["output_norm.weight"],
        "lm_head.weight": weights["output.weight"],
    }
    for layer in range(len(spec.layers)):
        theirs = f"backbone.layers.{layer}."
        named[f"{theirs}norm.weight"] = weights[f"blk.{layer}.attn_norm.weight"]
        named |= mixer(weights, layer, f"{theirs}mixer.")
    return named


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


def of_qwen3_5(spec: ModelSpec, weights: Weights) -> Weights:
    """Gated delta nets; value heads stand by key head, where GGUF files let them take turns."""
    named = transformer(spec, weights)
    for layer, kind in enumerate(spec.layers):
        if kind == "delta":
            named |= delta_net(spec, weights, layer)
    return {f"language_model.{name}": tensor for name, tensor in named.items()}


def delta_net(spec: ModelSpec, weights: Weights, layer: int) -> Weights:
    """One gated delta net."""
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


def as_halves(tensor: Tensor, size: int) -> Tensor:
    """Rows of heads that rotate neighbours, in the order of those that rotate halves."""
    order = np.concatenate((np.arange(0, size, 2), np.arange(1, size, 2)))
    return tensor.reshape(-1, size, tensor.shape[1])[:, order].reshape(tensor.shape)


FAMILIES: Final[Mapping[str, Family]] = {
    "dense": Family("llama", llama, transformer, {}),
    "swa": Family("gemma3_text", gemma3, of_gemma, {}),
    "recurrent": Family("mamba2", mamba2, of_mamba2, {"groups": 1}),
    "hybrid": Family("granitemoehybrid", granite, of_granite, {"groups": 1}),
    "hybrid-delta": Family("qwen3_5", qwen3_5, of_qwen3_5, {}),
}
"""Preset -> model class. mlx-lm's mixers norm all channels at once, so there they have one group;
its LFM2 has no window, and none of its classes has an MTP head."""


def tensors_of(name: str, spec: ModelSpec) -> Weights:
    """A preset's weights under the names of its model class."""
    return FAMILIES[name].tensors(spec, draw(spec))
