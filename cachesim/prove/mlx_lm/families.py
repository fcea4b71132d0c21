"""Toy networks as models of mlx-lm: which class holds them, and the names of its tensors.

Tensors carry the names of GGUF files here; the numbers stay the same. Where a family lays heads or
rotations out in another order, rows are put into that order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from cachesim.engines.mlx_lm.caches.kv_cache import RATIO
from cachesim.engines.mlx_lm.families import FAMILIES
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.model.presets import preset, tiny
from cachesim.model.spec import RECURRENT_KINDS, ModelSpec
from cachesim.model.weights import Tensor, Weights, draw, mlp_norm_name, output_norm_name

Arguments: TypeAlias = dict[str, Any]


def common(spec: ModelSpec) -> Arguments:
    """Arguments that most of mlx-lm's model classes need."""
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
    return common(spec) | {"rope_traditional": spec.rope == "pairs"}


def gemma3(spec: ModelSpec) -> Arguments:
    """Gemma 3's text model."""
    return common(spec) | {
        "rope_local_base_freq": spec.rope_base,
        "query_pre_attn_scalar": spec.head_size,
        "sliding_window": spec.window,
        "sliding_window_pattern": 2,
    }


def gemma3n(spec: ModelSpec) -> Arguments:
    """Gemma 3n's text model: behind the layers of the toy, as many that share their keys."""
    kinds = ["sliding_attention" if kind == "window" else "full_attention" for kind in spec.layers]
    own = {
        "model_type": "gemma3n",
        "num_hidden_layers": 2 * len(kinds),
        "num_kv_shared_layers": len(kinds),
        "layer_types": [*kinds, *kinds],
        "sliding_window": spec.window,
        "rope_local_base_freq": spec.rope_base,
        "vocab_size_per_layer_input": spec.vocabulary,
        "hidden_size_per_layer_input": spec.head_size,
        "final_logit_softcapping": 30.0,
        "activation_sparsity_pattern": [0.0] * (2 * len(kinds)),
        "altup_num_inputs": 2,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_active_idx": 0,
        "laurel_rank": 4,
    }
    return {"text_config": common(spec) | own}


def llama4(spec: ModelSpec) -> Arguments:
    """Llama 4's text model, without experts: the layer that would have the first is never built."""
    own = {
        "model_type": "llama4",
        "attention_bias": False,
        "attention_chunk_size": spec.window,
        "attn_temperature_tuning": 0,
        "interleave_moe_layer_step": len(spec.layers) + 1,
        "intermediate_size_mlp": spec.mlp_width,
        "num_experts_per_tok": 1,
        "num_local_experts": 1,
        "rope_scaling": None,
        "use_qk_norm": False,
    }
    return {"text_config": common(spec) | own}


def qwen3_5(spec: ModelSpec) -> Arguments:
    """Qwen 3.5's text model."""
    return common(spec) | {
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


def nemotron_h(spec: ModelSpec) -> Arguments:
    """Nemotron-H without its MLP blocks: attention knows no positions there."""
    return common(spec) | {
        "attention_bias": False,
        "mamba_num_heads": spec.state_heads,
        "mamba_head_dim": spec.inner // spec.state_heads,
        "mamba_proj_bias": False,
        "ssm_state_size": spec.state_size,
        "conv_kernel": spec.conv_size,
        "n_groups": spec.groups,
        "mlp_bias": False,
        "layer_norm_epsilon": spec.norm_epsilon,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M" if kind == "ssm" else "*" for kind in spec.layers],
        "time_step_limit": [0.0, 1e9],
    }


def qwen3_next(spec: ModelSpec) -> Arguments:
    """Qwen3-Next, without experts."""
    return qwen3_5(spec) | {
        "num_experts": 0,
        "num_experts_per_tok": 1,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": spec.mlp_width,
        "mlp_only_layers": [],
        "moe_intermediate_size": spec.mlp_width,
        "partial_rotary_factor": 1.0,
    }


def lfm2(spec: ModelSpec) -> Arguments:
    """LFM2."""
    return common(spec) | {
        "norm_eps": spec.norm_epsilon,
        "conv_bias": False,
        "conv_L_cache": spec.conv_size,
        "block_dim": spec.width,
        "block_ff_dim": spec.mlp_width,
        "block_multiple_of": 1,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [i for i, kind in enumerate(spec.layers) if kind == "attention"],
    }


def deepseek_v41(spec: ModelSpec) -> Arguments:
    """DeepSeek V4.1 with two small experts; full attention is a window with groups beside it."""
    ratios = [0 if kind == "window" else RATIO for kind in spec.layers]
    with_groups = [layer for layer, ratio in enumerate(ratios) if ratio]
    return common(spec) | {
        "q_lora_rank": spec.head_size,
        "qk_rope_head_dim": spec.head_size // 2,
        "o_groups": 1,
        "o_lora_rank": spec.head_size,
        "moe_intermediate_size": spec.width,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "sliding_window": spec.window,
        "compress_ratios": ratios,
        "kv_source_layer_ids": with_groups,
        "index_source_layer_ids": with_groups,
        "index_n_heads": spec.heads,
        "index_head_dim": spec.head_size,
        "hc_mult": 2,
        "hc_sinkhorn_iters": 2,
    }


def falcon_h1(spec: ModelSpec) -> Arguments:
    """Falcon-H1: a mixer and attention side by side in every layer, so it has half as many."""
    return common(spec) | {
        "num_hidden_layers": len(spec.layers) // 2,
        "mamba_d_conv": spec.conv_size,
        "mamba_d_head": spec.inner // spec.state_heads,
        "mamba_d_ssm": spec.inner,
        "mamba_d_state": spec.state_size,
        "mamba_n_groups": spec.groups,
        "mamba_n_heads": spec.state_heads,
        "mamba_rms_norm": True,
        "lm_head_multiplier": 1.0,
    }


def plamo2(spec: ModelSpec) -> Arguments:
    """PLaMo 2, where mixers and attention take turns."""
    return common(spec) | {
        "hidden_size_per_head": spec.head_size,
        "mamba_d_state": spec.state_size,
        "mamba_d_conv": spec.conv_size,
        "mamba_num_heads": spec.state_heads,
        "mamba_step": 2,
    }


def jamba(spec: ModelSpec) -> Arguments:
    """Jamba, without experts."""
    return common(spec) | {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 0,
        "expert_layer_period": 1,
        "mamba_d_conv": spec.conv_size,
        "mamba_d_state": spec.state_size,
        "mamba_expand": 2,
        "num_experts": 1,
        "num_experts_per_tok": 1,
    }


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
        norm = {"post_attention_layernorm": mlp_norm_name(spec, layer).split(".")[2]}
        named |= _of_layer(weights, layer, LAYER | norm)
    return named


def _of_layer(weights: Weights, layer: int, names: Mapping[str, str]) -> Weights:
    """The tensors of a layer that there are, by other names."""
    tensors = {name: weights.get(f"blk.{layer}.{ours}.weight") for name, ours in names.items()}
    return {
        f"model.layers.{layer}.{name}.weight": tensor
        for name, tensor in tensors.items()
        if tensor is not None
    }


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


GEMMA_NORMS: Final = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _of_gemma(spec: ModelSpec, weights: Weights) -> Weights:
    named = _transformer(spec, weights)
    for layer in range(len(spec.layers)):
        named |= _of_layer(weights, layer, GEMMA_NORMS)
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
        named |= _of_layer(weights, layer, LFM2_LAYER)
        taps = weights.get(f"blk.{layer}.shortconv.conv.weight")
        if taps is not None:
            named[f"model.layers.{layer}.conv.conv.weight"] = taps[..., None]
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
    "llama": ModelClass("dense", llama, _transformer, {}),
    "gemma3_text": ModelClass("swa", gemma3, _of_gemma, {}),
    "llama4": ModelClass("dense", llama4, _of_llama4, CHUNKED),
    "mamba2": ModelClass("recurrent", mamba2, _of_mamba2, {"groups": 1}),
    "granitemoehybrid": ModelClass("hybrid", granite, _of_granite, {"groups": 1}),
    "nemotron_h": ModelClass(
        "hybrid", nemotron_h, _of_nemotron_h, {"mlp_width": 0, "rope": "none"}
    ),
    "qwen3_5": ModelClass("hybrid-delta", qwen3_5, _of_qwen3_5, {}),
    "qwen3_next": ModelClass("hybrid-delta", qwen3_next, _of_qwen3_next, {}),
    "lfm2": ModelClass("hybrid-swa", lfm2, _of_lfm2, {"tied_head": True}),
}
"""Model family -> how a toy becomes one. Most mixers of mlx-lm norm all channels at once, so there
they have one group; its LFM2 has no window, and none of its classes has an MTP head."""

OTHERS: Final[Mapping[str, ModelClass]] = {
    "falcon_h1": ModelClass("hybrid", falcon_h1, None, {"groups": 1}),
    "plamo2": ModelClass("hybrid", plamo2, None, {"groups": 1}),
    "gemma3n": ModelClass("swa", gemma3n, None, {}),
    "deepseek_v41": ModelClass("swa", deepseek_v41, None, {}),
    "jamba": ModelClass("hybrid", jamba, None, {"groups": 1}, fades=True),
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
    if "ids" in model:
        name, held = model["family"], CLASSES[model["family"]]
        return preset(f"recall-{held.preset}", **{**held.changes, "family": name, **changes})
    return spec_of(model["family"], small=True, vocabulary=vocabulary, **changes)


def order_of(spec: ModelSpec, weights: Path, ids: Sequence[int] = ()) -> dict[str, Any]:
    """The message from which a worker builds the real model; the tensors are written to a file.

    `ids`: the number of each token in the real vocabulary, where that is another one.
    """
    held = CLASSES.get(spec.family) or OTHERS[spec.family]
    drawn = draw(spec) if held.tensors else {}
    if ids:
        spec = replace(spec, vocabulary=max(ids) + 1)
        for name in ("token_embd.weight", "output.weight"):
            rows = np.zeros((spec.vocabulary, spec.width), np.float32)
            rows[list(ids)] = drawn[name]
            drawn[name] = rows
    arguments = {"model_type": spec.family} | held.arguments(spec)
    order: dict[str, Any] = {"module": spec.family, "arguments": arguments}
    if held.tensors is None:
        return order
    tensors: dict[str, Any] = dict(held.tensors(spec, drawn))
    np.savez(weights, **tensors)
    return order | {"weights": str(weights)}
