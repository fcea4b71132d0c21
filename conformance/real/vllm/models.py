"""Tiny models as configurations of real classes; the engine draws their weights itself."""

from typing import Any, Final

_COMMON: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}

MODELS: Final[dict[str, dict[str, Any]]] = {
    "dense": _COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "float32",
    },
    "hybrid-delta": _COMMON
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_key_value_heads": 1,
        "head_dim": 64,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "full_attention_interval": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "partial_rotary_factor": 0.25,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
    },
}
"""By the preset that has layers of the same kinds."""

LONGEST: Final = 1 << 16
"""`max_model_len` of a scheduler whose workload names none."""

_LONG: Final = {"max_position_embeddings": 1 << 22, "torch_dtype": "bfloat16"}

COMPRESSED: Final[dict[str, Any]] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "n_shared_experts": 1,
    "sliding_window": 128,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "num_nextn_predict_layers": 1,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "rms_norm_eps": 1e-6,
    "vocab_size": 129280,
    "max_position_embeddings": 1 << 22,
    "torch_dtype": "bfloat16",
}
"""DeepSeek V4 Flash; the last ratio is its MTP layer's."""

STARTED: Final[dict[str, dict[str, Any]]] = {
    "compressed": COMPRESSED,
    "dense": MODELS["dense"] | _LONG,
    "eagle": MODELS["dense"] | _LONG | {"num_hidden_layers": 1},
    "hybrid": MODELS["hybrid-delta"] | _LONG | {"num_nextn_predict_layers": 1},
    "mtp": MODELS["dense"]
    | _LONG
    | {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_nextn_predict_layers": 1,
    },
}
"""Of which vLLM makes the configuration of a scheduler: without states, a drafter for that; with
states and an MTP head, and with the head alone."""
