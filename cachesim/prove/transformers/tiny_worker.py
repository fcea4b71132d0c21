"""Tiny random models of every decoder family of a release; imported by `script_worker` alone.

Sizes are set by the names of a configuration's fields. Windows and chunks are 8, each kind of
layer of the released model is there, and weights are large enough for a lost key to be seen.
"""

import importlib
from typing import Any

Real = Any  # modules and objects of the release: known only when it runs

# Fields by value. A configuration gets those that it has.
SIZES: dict[float, str] = {
    32: """hidden_size d_model n_embd n_embed embed_dim dim mamba_d_ssm lru_width
        word_embed_proj_dim embedding_size project_dim hidden_dim""",
    48: """intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner ffn_hidden_size
        dff d_ff dim_ff""",
    16: """moe_intermediate_size shared_expert_intermediate_size
        moe_shared_expert_intermediate_size expert_ffn_hidden_size shared_intermediate_size
        q_lora_rank o_lora_rank index_n_heads index_n_head""",
    8: """head_dim attention_head_dim v_head_dim qk_nope_head_dim kv_lora_rank global_head_dim
        dim_head swa_head_dim swa_v_head_dim kv_channels sliding_window attention_window
        attention_window_size window_size local_attention sliding_window_size
        attention_chunk_size state_size mamba_d_state mamba_d_head mamba_head_dim
        ssm_state_size mamba_headdim linear_key_head_dim linear_value_head_dim linear_head_dim
        index_head_dim hidden_size_per_layer_input qk_dim d_kv""",
    4: """num_hidden_layers n_layer n_layers num_layers num_attention_heads n_head n_heads
        decoder_attention_heads encoder_attention_heads qk_rope_head_dim rotary_dim num_experts
        n_routed_experts num_local_experts moe_num_experts mamba_d_conv mamba_n_heads
        mamba_chunk_size chunk_size mamba_num_heads num_heads conv1d_width
        linear_num_value_heads linear_num_heads block_size laurel_rank adapter_rank
        swa_num_attention_heads""",
    2: """decoder_layers encoder_layers num_decoder_layers num_key_value_heads o_groups
        num_global_key_value_heads swa_num_key_value_heads num_kv_heads num_experts_per_tok
        top_k_experts moe_k moe_top_k moe_topk num_experts_per_token n_mamba_heads
        time_step_rank mamba_dt_rank linear_num_key_heads topk_blocks num_kv_shared_layers
        type_vocab_size attn_layer_period expert_layer_period hc_mult""",
    1: """n_shared_experts num_shared_experts n_group topk_group first_k_dense_replace
        moe_num_shared_experts zero_expert_num num_dense_layers mamba_ngroups mamba_n_groups
        n_groups attn_layer_offset expert_layer_offset num_mem_blocks moe_layer_freq
        bos_token_id is_decoder""",
    0: """attention_dropout dropout resid_pdrop embd_pdrop attn_pdrop pad_token_id
        num_nextn_predict_layers use_mamba_kernels oe_num_layers input_emb_norm""",
    128: "vocab_size vocab_size_per_layer_input",
    256: """max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length""",
    6: "index_topk indexer_topk",
    3: "conv_L_cache",
    0.5: "partial_rotary_factor rotary_pct",
}
FLAGS = ("is_decoder", "use_mamba_kernels", "input_emb_norm")
FIELDS: dict[str, Any] = {
    name: bool(size) if name in FLAGS else size
    for size, names in SIZES.items()
    for name in names.split()
} | {"eos_token_id": None, "logits_soft_cap": None, "embedding_scale": 1.0}

NOT_ALWAYS_SIZES = ("n_groups", "num_heads", "chunk_size", "dim", "hidden_dim", "num_layers")
"""Fields that hold something else in some families: set where the default is a number."""

ABSENT = ("num_experts", "attention_chunk_size", "num_key_value_heads")
"""Fields that stay None where the default is."""

ALTERNATING = ["full_attention", "sliding_attention"] * 2
MAMBA_AND_HYBRID: dict[str, Any] = {"layers_block_type": ["mamba", "hybrid"] * 2}
WINDOWS_ON = {
    "use_sliding_window": True,
    "max_window_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
EXCEPTIONS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3], "mamba_n_heads": 8},  # heads * 8 = 2 * hidden size
    "deepseek_v4": {  # its heads share one key, whose rope part is half
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "num_key_value_heads": 1,
        "head_dim": 16,
        "qk_rope_head_dim": 8,
    },
    "falcon": {"alibi": False},
    "gpt_neo": {
        "attention_types": [[["global", "local"], 2]],
        "attention_layers": ["global", "local"] * 2,
    },
    "granitemoehybrid": {
        "mamba_n_heads": 8,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "laguna": {"layer_types": ALTERNATING},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "mellum": {"layer_types": ALTERNATING},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "mlp", "mamba"]},
    "nemotron": {"num_key_value_heads": 2},
    "phi3": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}
    },
    "qwen2": WINDOWS_ON,  # off in the default
    "qwen2_moe": WINDOWS_ON,
    "qwen3": WINDOWS_ON,
    "qwen4_exp_text": {
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
        "ngram_vocab_size_base": 64,
        "hc_lowrank": 8,
        "split_ngram_parts": 2,
        "make_ngram_vocab_size_divisible_by": 2,
    },
    "recurrent_gemma": {
        "block_types": ["recurrent", "recurrent", "attention"],
        "num_hidden_layers": 3,
        "logits_soft_cap": 30.0,
    },
    "smollm3": WINDOWS_ON,
    "zamba": MAMBA_AND_HYBRID
    | {"attention_hidden_size": 64, "attention_head_dim": 16, "num_key_value_heads": 4},
    "zamba2": MAMBA_AND_HYBRID
    | {
        "hybrid_layer_ids": [1, 3],
        "mamba_expand": 2,
        "n_mamba_heads": 8,
        "num_key_value_heads": 4,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zaya": {"num_experts_per_tok": 1},
}
"""Exceptions to the rules, by family."""

LARGE = 1.5
"""Standard deviation of a row's sum: attention is not uniform, and a lost key is seen."""


def settable(cls: Real, key: str) -> bool:
    """True if a configuration takes this field; some are read-only properties."""
    held = getattr(cls, getattr(cls, "attribute_map", {}).get(key, key), None)
    return not isinstance(held, property) or held.fset is not None


def default_of(cls: Real) -> Real:
    """The default configuration, with values that differ by layer readable (since 5.24)."""
    default = cls()
    default.allow_global_per_layer_attribute_access = True
    return default


def fields_of(kind: str) -> dict[str, Any]:
    """The fields of a family's tiny configuration."""
    return _fields_for(importlib.import_module("transformers").CONFIG_MAPPING[kind], kind)


def _fields_for(cls: Real, kind: str) -> dict[str, Any]:
    """The fields of a class, and of each configuration in it."""
    default, aliases = default_of(cls), getattr(cls, "attribute_map", {})
    known = set(default.to_dict()) | set(getattr(cls, "__dataclass_fields__", {})) | set(aliases)
    given = {key: value for key, value in FIELDS.items() if key in known}
    for alias, target in aliases.items():  # never both names of one field
        if target in given:
            given.pop(alias, None)
    for key in given:
        if "drop" in key and isinstance(getattr(default, key, None), float):
            given[key] = 0.0
    for key in NOT_ALWAYS_SIZES:
        if not isinstance(getattr(default, key, None), int):
            given.pop(key, None)
    for key in ABSENT:
        if getattr(default, key, None) is None:
            given.pop(key, None)
    if "qk_rope_head_dim" in given:  # multi-head latent attention: one key a head, of its rope part
        given |= {key: 4 for key in ("head_dim", "num_key_value_heads") if key in given}
    given |= _layers_of(cls, default) | EXCEPTIONS.get(kind, {})
    for key in getattr(cls, "sub_configs", {}):
        part: Real = getattr(default, key, None)
        if hasattr(part, "to_dict"):
            given[key] = _fields_for(type(part), part.model_type)
    return {key: value for key, value in given.items() if settable(cls, key)}


def _layers_of(cls: Real, default: Real) -> dict[str, Any]:
    """Each kind of layer of the released model, in its order, until there are four."""
    kinds = getattr(default, "layer_types", None)
    if not kinds or not settable(cls, "layer_types"):
        return {}
    seen = list(dict.fromkeys(kinds))
    layers = (seen * 4)[: max(4, len(seen))]
    given: dict[str, Any] = {"layer_types": layers, "num_hidden_layers": len(layers)}
    for key in ("mlp_layer_types", "kv_sharing_modes"):
        if isinstance(getattr(default, key, None), list) and settable(cls, key):
            given[key] = list(dict.fromkeys(getattr(default, key)))[-1:] * len(layers)
    return given


def without_defaults(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not those of a default configuration, for a short program."""
    default = default_of(importlib.import_module("transformers").CONFIG_MAPPING[kind])
    missing = object()
    return {key: value for key, value in fields.items() if getattr(default, key, missing) != value}


def model_of(kind: str, fields: dict[str, Any], attention: str = "eager") -> Real:
    """A model in float64 with weights of its own."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    config = transformers.CONFIG_MAPPING[kind](**fields)
    config._attn_implementation = attention
    config._experts_implementation = "eager"  # the grouped kernel takes no float64
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float64).eval()
    convolutions = {
        id(module.weight) for module in model.modules() if type(module) is torch.nn.Conv1d
    }
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and name.endswith("weight"):
                table = "embed" in name or "wte" in name
                weight.normal_(0, 1.0 if table else LARGE / weight.shape[1] ** 0.5)
            elif id(weight) in convolutions:  # one row for all columns of a group's channels
                weight.normal_(0, LARGE / weight[0].numel() ** 0.5)
            elif weight.dim() == 3 and ("expert" in name or name.endswith("weight")):
                weight.normal_(0, LARGE / weight.shape[-1] ** 0.5)
            elif name.endswith("qk_norm.temp"):
                weight.fill_(1.0)  # zero at first: keys would be, too
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def keep_double() -> None:
    """Keep float64 where models compute norms, softmaxes, routers and states in float32.

    Rounding to float32 differs with the shape of a batch, and would hide small errors.
    """
    torch: Any = importlib.import_module("torch")
    functional = torch.nn.functional
    to = torch.Tensor.to

    def wide(dtype: Real) -> Real:
        return torch.float64 if isinstance(dtype, torch.dtype) and dtype == torch.float32 else dtype

    def widened(function: Real) -> Real:
        def call(*given: Real, **more: Real) -> Real:
            return function(*map(wide, given), **{key: wide(value) for key, value in more.items()})

        return call

    torch.Tensor.to, torch.Tensor.float = widened(to), torch.Tensor.double
    for owner, names in (
        (functional, "softmax log_softmax"),
        (torch, "softmax zeros zeros_like ones empty empty_like full"),
    ):
        for name in names.split():
            setattr(owner, name, widened(getattr(owner, name)))
