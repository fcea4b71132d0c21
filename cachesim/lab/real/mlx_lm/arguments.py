"""Arguments of mlx-lm's model classes, for a toy network of ours."""

from typing import Any, TypeAlias

from cachesim.engines.mlx_lm.caches.kv_cache import RATIO
from cachesim.model.spec import ModelSpec

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
    return {"model_type": "gemma3n", "text_config": common(spec) | own}


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
    return {"model_type": "llama4", "text_config": common(spec) | own}


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


def nemotron_h(spec: ModelSpec) -> Arguments:
    """Nemotron-H without its MLP blocks: attention knows no positions there."""
    return common(spec) | {
        "model_type": "nemotron_h",
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
        "model_type": "qwen3_next",
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
        "model_type": "lfm2",
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
        "model_type": "deepseek_v41",
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
        "model_type": "falcon_h1",
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
        "model_type": "plamo2",
        "hidden_size_per_head": spec.head_size,
        "mamba_d_state": spec.state_size,
        "mamba_d_conv": spec.conv_size,
        "mamba_num_heads": spec.state_heads,
        "mamba_step": 2,
    }


def jamba(spec: ModelSpec) -> Arguments:
    """Jamba, without experts."""
    return common(spec) | {
        "model_type": "jamba",
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
