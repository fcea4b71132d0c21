"""Every argument of llama-cpp-python 0.3.36's `Llama`, every setting of its server, and what
becomes of it here.
"""

from collections.abc import Mapping
from typing import Final

from cachesim.engines.fields import Field, fields_of

_SETTINGS: Final = "llama_cpp/server/settings.py"

SOURCES: Final[Mapping[str, str]] = {
    "Llama": "llama_cpp/llama.py:Llama.__init__",
    "ModelSettings": _SETTINGS,
    "ServerSettings": _SETTINGS,
}

_DEVICES: Final = "it is about threads, devices and where weights are"
_SAMPLING: Final = "it decides which tokens are sampled; a scenario names them"
_COMPUTED: Final = "it changes what is computed, for all calls alike"
_MODEL: Final = "the model of the scenario stands in its place"
_PROMPT: Final = "the prompt is given as it is after the template and the tokenizer"
_CALLS: Final = "the instance makes no completions"
_ADAPTER: Final = "all calls have the same adapter, as a part of the model"

_BOTH: Final = {
    _DEVICES: """
        flash_attn main_gpu n_gpu_layers n_threads n_threads_batch numa offload_kqv split_mode
        tensor_split use_mlock use_mmap
    """,
    _SAMPLING: "last_n_tokens_size seed",
    _COMPUTED: """
        kv_overrides rope_freq_base rope_freq_scale rope_scaling_type yarn_attn_factor
        yarn_beta_fast yarn_beta_slow yarn_ext_factor yarn_orig_ctx
    """,
    _ADAPTER: "lora_base lora_path",
}

FIELDS: Final[tuple[Field, ...]] = (
    *fields_of(
        "Llama",
        simulated="""
            draft_model embedding logits_all n_batch n_ctx n_ubatch swa_full type_k type_v
        """,
        no_influence={
            **_BOTH,
            _DEVICES: f"{_BOTH[_DEVICES]} op_offload",
            _ADAPTER: f"{_BOTH[_ADAPTER]} lora_scale",
            _MODEL: "model_path",
            _PROMPT: "chat_format chat_handler spm_infill tokenizer",
            "it is about logs and timings": "no_perf verbose",
        },
        differs={
            _CALLS: "vocab_only",
            "embeddings are made of other tokens, or of whole prompts": (
                "attention_type pooling_type"
            ),
        },
        flagless="*",
    ),
    *fields_of(
        "ModelSettings",
        simulated="cache draft_model embedding logits_all n_batch n_ctx n_ubatch type_k type_v",
        renamed={
            "cache_size": "capacity_bytes",
            "cache_type": "cache",
            "draft_model_num_pred_tokens": "num_pred_tokens",
        },
        no_influence={
            **_BOTH,
            _DEVICES: f"{_BOTH[_DEVICES]} mul_mat_q rpc_servers",
            _MODEL: "clip_model_path model model_alias",
            _PROMPT: """
                chat_format chat_template_kwargs hf_model_repo_id hf_pretrained_model_name_or_path
                hf_tokenizer_config_path
            """,
            "it is about logs and timings": "verbose",
        },
        differs={_CALLS: "vocab_only"},
        flags={"model": "--model"},
    ),
    *fields_of(
        "ServerSettings",
        no_influence={
            "it is about clients": (
                "api_key disable_ping_events host port root_path ssl_certfile ssl_keyfile"
            )
        },
        differs={
            "a streamed reply ends when another request waits; cancel it there instead": (
                "interrupt_requests"
            )
        },
    ),
)
