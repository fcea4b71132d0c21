"""Every field of Transformers 5.24.0's configurations, and what becomes of it here.

`ContinuousBatchingConfig`, `GenerationConfig`, and the flags of `transformers serve`.
"""

from collections.abc import Mapping
from typing import Final

from cachesim.engines.fields import Field, fields_of

_FILE: Final = "transformers/generation/configuration_utils.py"

SOURCES: Final[Mapping[str, str]] = {
    "ContinuousBatchingConfig": _FILE,
    "GenerationConfig": f"{_FILE}:GenerationConfig.__init__",
    "Serve": "transformers/cli/serve.py:Serve.__init__",
}

_KERNELS: Final = "it is about kernels and graphs: numbers change, not what is kept"
_SAMPLING: Final = "it decides which tokens are sampled; a scenario names them"
_BLOCKS: Final = "it decides how much fits into memory; name num_blocks and max_batch_tokens"
_UNLOADED: Final = "the model, and all that is cached, is unloaded after so many idle seconds"
_GENERATE: Final = (
    "`generate` alone reads it, which keeps nothing; "
    "`cachesim real transformers`, in a checkout, compares its caches"
)

FIELDS: Final[tuple[Field, ...]] = (
    *fields_of(
        "ContinuousBatchingConfig",
        simulated="""
            allow_block_sharing max_batch_tokens max_requests_per_batch num_blocks page_size
            safety_margin scheduler_type
        """,
        renamed={"block_size": "page_size"},
        no_influence={
            _KERNELS: """
                auto_switch_to_flash cpu_group_timeout decode_compile_config default_compile_level
                disable_nccl_graph_mixing kv_padding_interval_size max_cached_graphs
                q_padding_interval_size use_cuda_graph use_default_compile_configs
                varlen_compile_config
            """,
            _SAMPLING: "drop_unsupported_processors per_request_processors return_logprobs seed",
        },
        differs={
            _BLOCKS: "max_memory_percent",
            "a batch is formed before the results of the one before are known": (
                "use_async_batching"
            ),
            "another path decodes batches without a prompt, with a table of this length": (
                "max_blocks_per_request"
            ),
            "a request that memory is taken from resumes from a copy on the host": (
                "cpu_offload_space cpu_offload_space_safety_threshold"
            ),
            "a request beyond it waits outside the server": "max_queue_size",
        },
        flags={
            "block_size": "--cb-block-size",
            "max_batch_tokens": "--cb-max-batch-tokens",
            "max_memory_percent": "--cb-max-memory-percent",
            "num_blocks": "--cb-num-blocks",
            "use_cuda_graph": "--cb-use-cuda-graph",
        },
        flagless="*",
    ),
    *fields_of(
        "GenerationConfig",
        no_influence={
            _SAMPLING: """
                bad_words_ids begin_suppress_tokens bos_token_id do_sample epsilon_cutoff
                eos_token_id eta_cutoff exponential_decay_length_penalty forced_bos_token_id
                forced_eos_token_id max_length max_new_tokens max_time min_length min_new_tokens
                min_p no_repeat_ngram_size pad_token_id remove_invalid_values
                renormalize_logits repetition_penalty sequence_bias stop_strings suppress_tokens
                temperature top_h top_k top_p typical_p watermarking_config
            """,
            "it says what is returned": """
                output_attentions output_hidden_states output_logits output_scores
                return_dict_in_generate transformers_version
            """,
            _KERNELS: "compile_config disable_compile",
            "its own fields have rows": "continuous_batching_config",
            _GENERATE: """
                assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight
                assistant_lookbehind cache_config cache_implementation constraints
                decoder_start_token_id diversity_penalty dola_layers early_stopping
                encoder_no_repeat_ngram_size encoder_repetition_penalty force_words_ids
                guidance_scale is_assistant length_penalty low_memory max_cache_len
                max_matching_ngram_size num_assistant_tokens num_assistant_tokens_schedule
                num_beam_groups num_beams penalty_alpha prefill_chunk_size
                prompt_lookup_num_tokens speculation_type target_lookbehind token_healing
                use_cache use_mtp
            """,
        },
        differs={"a prompt is prefilled once for several replies": "num_return_sequences"},
        flagless="*",
    ),
    *fields_of(
        "Serve",
        renamed={
            "cb_block_size": "page_size",
            "cb_max_batch_tokens": "max_batch_tokens",
            "cb_num_blocks": "num_blocks",
        },
        no_influence={
            _KERNELS: "attn_implementation cb_use_cuda_graph compile device dtype quantization",
            _SAMPLING: "default_seed",
            "it is about clients and logs": "enable_cors host log_level non_blocking port",
            "the model of the scenario stands in its place": "force_model trust_remote_code",
            "the prompt is given as it is after the template": "chat_template_kwargs reasoning",
            "it labels answers of another endpoint": "decision_config",
        },
        differs={
            "without it each request is a `generate`, which keeps nothing; it is on here": (
                "continuous_batching"
            ),
            _BLOCKS: "cb_max_memory_percent",
            _UNLOADED: "model_timeout",
        },
    ),
)
