"""Every field of vLLM's own configuration at the newest release, and what becomes of it here."""

from dataclasses import replace
from typing import Final

from cachesim.engines.fields import Field, fields_of

SOURCES: Final = {
    "CacheConfig": "vllm/config/cache.py",
    "SchedulerConfig": "vllm/config/scheduler.py",
    "SpeculativeConfig": "vllm/config/speculative.py",
    "LoRAConfig": "vllm/config/lora.py",
    "KVTransferConfig": "vllm/config/kv_transfer.py",
    "KVEventsConfig": "vllm/config/kv_events.py",
    "ECTransferConfig": "vllm/config/ec_transfer.py",
    "MambaConfig": "vllm/config/mamba.py",
    "OffloadConfig": "vllm/config/offload.py",
    "UVAOffloadConfig": "vllm/config/offload.py",
    "PrefetchOffloadConfig": "vllm/config/offload.py",
    "ParallelConfig": "vllm/config/parallel.py",
    "ModelConfig": "vllm/config/model.py",
}
"""Owner -> the file of the wheel that declares its fields."""

COMPUTED: Final = "a start computes it of other fields"
OF_MODEL: Final = "it is copied from the model, which a scenario's [model] describes"
OF_WEIGHTS: Final = "it moves weights to the processor's memory, not the cache"


def _below(prefix: str, rows: tuple[Field, ...]) -> tuple[Field, ...]:
    """Rows whose flags are keys of another flag's value."""
    return tuple(replace(row, flag=f"{prefix}.{row.flag.lstrip('-')}") for row in rows)


CACHE: Final = fields_of(
    "CacheConfig",
    simulated="block_size enable_mamba_shared_prefix_checkpoint enable_prefix_caching"
    " kv_offloading_backend kv_offloading_size"
    " mamba_block_size mamba_cache_mode num_gpu_blocks_override prefix_cache_retention_interval"
    " prefix_match_unit",
    renamed={
        "gpu_memory_utilization": "num_gpu_blocks_override",
        "kv_cache_memory_bytes": "num_gpu_blocks_override",
    },
    no_influence={
        "equal prefixes have equal ids under each, and collisions are not simulated": (
            "prefix_caching_hash_algo"
        ),
        "it changes the bytes of an entry; how many blocks there are, and how many tokens each"
        " has, are options here": "cache_dtype mamba_cache_dtype mamba_ssm_cache_dtype",
        "layers that share the keys of another skip a part of the computing, and cache the same": (
            "kv_sharing_fast_prefill"
        ),
        COMPUTED: "cache_hit_alignment_tokens effective_attention_block_size hash_block_size"
        " kv_cache_layout kv_cache_max_concurrency kv_cache_size_tokens mamba_page_size_padded"
        " num_cpu_blocks num_gpu_blocks simple_cpu_offload_num_blocks skip_page_size_padded"
        " use_kda_recoverssm user_specified_block_size",
        OF_MODEL: "is_attention_free sliding_window",
    },
    differs={
        "layers with entries of other sizes would have blocks of other sizes, perhaps in groups of"
        " their own": "kv_cache_dtype_skip_layers",
        "a block would also hold the inputs since its state was written, and a hit would rebuild"
        " the state from both": "replayssm_buffer_len use_replayssm",
        "DeepSeek-V4.1 would recompute the last window of a hit, which it does not cache; option"
        " 'rings' is that model with it off": "swa_bounded_replay",
    },
    flags={
        "cache_dtype": "--kv-cache-dtype",
    },
    flagless="cache_hit_alignment_tokens effective_attention_block_size hash_block_size"
    " is_attention_free kv_cache_layout kv_cache_max_concurrency kv_cache_size_tokens"
    " mamba_page_size_padded num_cpu_blocks num_gpu_blocks simple_cpu_offload_num_blocks"
    " skip_page_size_padded sliding_window use_kda_recoverssm user_specified_block_size",
)

SCHEDULER: Final = fields_of(
    "SchedulerConfig",
    simulated="async_scheduling disable_hybrid_kv_cache_manager long_prefill_token_threshold"
    " long_prefill_token_threshold_adaptive max_model_len max_num_active_seqs"
    " max_num_batched_tokens max_num_scheduled_tokens max_num_seqs prefill_schedule_interval"
    " scheduler_reserve_full_isl watermark",
    renamed={"policy": "scheduling_policy"},
    no_influence={
        "it says how often tokens are sent": "stream_interval",
        "a start makes it of max_num_batched_tokens": (
            "encoder_cache_size max_num_encoder_input_tokens"
        ),
        OF_MODEL: "is_encoder_decoder is_multimodal_model runner_type",
    },
    differs={
        "a chunk would end before an image that it does not hold whole": "disable_chunked_mm_input",
        "with it off a prompt would wait for a step that has room for all of it": (
            "enable_chunked_prefill"
        ),
        "a request beyond the limit would end with status 503, and cache nothing": (
            "max_num_queued_reqs max_num_queued_tokens"
        ),
        "another scheduler takes decisions of its own": "scheduler_cls",
    },
    flags={"policy": "--scheduling-policy"},
    flagless="encoder_cache_size is_encoder_decoder is_multimodal_model"
    " max_num_encoder_input_tokens runner_type",
)

SPECULATIVE: Final = fields_of(
    "SpeculativeConfig",
    simulated="disable_eagle_block_drop disable_lookahead_block_hashes num_speculative_tokens"
    " num_speculative_tokens_per_batch_size",
    renamed={"method": "speculative_method"},
    no_influence={
        "it says how drafts are computed; a scenario names them": (
            "attention_backend code_revision disable_padded_drafter_batch"
            " draft_lm_head_quantization draft_load_config draft_sample_method"
            " draft_tensor_parallel_size dspark_draft_topk enforce_eager"
            " index_share_for_mtp_iteration model moe_backend quantization revision"
            " tensor_parallel_size use_local_argmax_reduction xpress_topc"
        ),
        "it says which drafts are accepted; here those are that equal the reply": (
            "fly_entropy_threshold fly_entropy_top_k fly_window_size rejection_sample_method"
            " synthetic_acceptance_length synthetic_acceptance_rates"
        ),
        "it changes the bytes of the drafter's entries; the tokens of its blocks are"
        " drafter_block_size here": "kv_cache_dtype",
        COMPUTED: "draft_model_config draft_parallel_config target_model_config"
        " target_parallel_config",
    },
    differs={
        "n-grams of other lengths would propose other drafts than repeated pairs of tokens do": (
            "prompt_lookup_max prompt_lookup_min"
        ),
        "nothing would be drafted beyond the drafter's own length": "max_model_len",
        "each request would take further tokens of a step, for its drafts": "parallel_drafting",
        "a step would verify fewer drafts than it has": "enable_adaptive_verification",
        "the method is not simulated": "suffix_decoding_max_cached_requests"
        " suffix_decoding_max_spec_factor suffix_decoding_max_tree_depth"
        " suffix_decoding_min_token_prob use_heterogeneous_vocab",
    },
)

LORA: Final = fields_of(
    "LoRAConfig",
    simulated="max_loras",
    no_influence={
        "it says how adapters are computed; the name and the path of one are in the ids": (
            "enable_mixed_moe_lora_format enable_moe_shared_loras fully_sharded_loras lora_dtype"
            " max_cpu_loras max_lora_cls_labels max_lora_rank specialize_active_lora"
            " target_modules"
        ),
    },
    differs={
        "a request with an image would get an adapter, which is in its ids": "default_mm_loras",
        "the encoder's output of an image would be kept for each adapter": (
            "enable_tower_connector_lora"
        ),
    },
)

TRANSFER: Final = fields_of(
    "KVTransferConfig",
    simulated="kv_load_failure_policy",
    renamed={"kv_connector": "connector"},
    no_influence={
        "it says where servers find one another, and where bytes wait": (
            "enable_permute_local_kv engine_id kv_buffer_device kv_port"
        ),
    },
    differs={
        "its kv_lease_duration is kv_lease_steps here; other keys are of connectors that are not"
        " simulated": "kv_connector_extra_config",
        "another connector decides itself what is loaded": "kv_connector_module_path",
        "a server would only save, or only load: 'store' does both, 'nixl' has one of each": (
            "kv_role"
        ),
    },
)

EVENTS: Final = fields_of(
    "KVEventsConfig",
    no_influence={
        "events report blocks, and change none": "buffer_steps enable_kv_cache_events endpoint hwm"
        " max_queue_size publisher replay_endpoint topic",
    },
)

ENCODERS: Final = fields_of(
    "ECTransferConfig",
    no_influence={
        "it says where servers find one another, and where bytes wait": (
            "ec_buffer_device ec_buffer_size ec_ip ec_port engine_id"
        ),
        COMPUTED: "mm_encoder_output_widths",
    },
    differs={
        "the encoder's outputs would come from another server, and a request would wait for them": (
            "ec_connector ec_connector_extra_config ec_connector_module_path ec_role"
        ),
    },
)

STATES: Final = fields_of(
    "MambaConfig",
    no_influence={
        "it says how states are computed and rounded": "backend enable_stochastic_rounding"
        " ssu_algorithm stochastic_rounding_philox_rounds",
    },
)

WEIGHTS: Final = (
    *fields_of(
        "OffloadConfig",
        no_influence={OF_WEIGHTS: "offload_backend prefetch uva"},
        flagless="prefetch uva",
    ),
    *fields_of("UVAOffloadConfig", no_influence={OF_WEIGHTS: "cpu_offload_gb cpu_offload_params"}),
    *fields_of(
        "PrefetchOffloadConfig",
        no_influence={
            OF_WEIGHTS: "offload_group_size offload_num_in_group offload_params"
            " offload_prefetch_step",
        },
    ),
)

PARALLEL: Final = fields_of(
    "ParallelConfig",
    no_influence={
        "ranks hold parts of the same blocks, whose number is num_gpu_blocks_override": (
            "tensor_parallel_size"
        ),
        "it says where ranks run, and how they reach one another": (
            "all2all_backend assigned_physical_gpu_ids cpu_distributed_timeout_seconds"
            " dcp_comm_backend dcp_q_replicate disable_custom_all_reduce"
            " disable_nccl_for_dp_synchronization distributed_executor_backend"
            " distributed_timeout_seconds dp_sync_interval enable_shm_tensor_arena master_addr"
            " master_port max_parallel_loading_workers nnodes node_rank numa_bind numa_bind_cpus"
            " numa_bind_nodes placement_group rank ray_runtime_env ray_workers_use_nsight"
            " world_size"
        ),
        "it says how a step is computed, not what is in it": (
            "dbo_decode_token_threshold dbo_prefill_token_threshold elastic_ep_max_dp_size"
            " enable_batch_sharded_sampling enable_dbo enable_elastic_ep enable_ep_weight_filter"
            " enable_eplb enable_expert_parallel enable_hc_sp eplb_config"
            " expert_placement_strategy ubatch_size"
        ),
        OF_MODEL: "is_moe_model",
    },
    differs={
        "as many steps as stages would be in flight": "pipeline_parallel_size",
        "each rank would have a cache of its own, and a balancer would pick a request's rank": (
            "data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb"
            " data_parallel_index data_parallel_master_ip data_parallel_master_port"
            " data_parallel_rank data_parallel_rank_local data_parallel_rpc_port"
            " data_parallel_size data_parallel_size_local"
        ),
        "a block would have as many times the tokens as ranks share it": (
            "cp_kv_cache_interleave_size dcp_kv_cache_interleave_size"
            " decode_context_parallel_size prefill_context_parallel_size"
        ),
        "ranks that fail would be replaced, with what they had cached": (
            "enable_fault_tolerance fault_tolerance_config"
        ),
        "a worker of another class is not simulated": "worker_cls worker_extension_cls",
    },
    flagless="assigned_physical_gpu_ids is_moe_model placement_group rank world_size"
    " data_parallel_index data_parallel_master_ip data_parallel_master_port",
)

MODEL: Final = fields_of(
    "ModelConfig",
    simulated="max_model_len",
    no_influence={
        "it says which model is loaded, and how; a scenario's [model] describes its layers": (
            "allow_deprecated_quantization code_revision config_format dtype hf_config"
            " hf_config_path hf_overrides hf_text_config hf_token is_submodel_config model"
            " model_class_overrides model_impl model_weights multimodal_config quantization"
            " quantization_config revision spec_target_max_model_len trust_remote_code"
            " word_embeddings_untied_by_checkpoint"
        ),
        "it says how a text becomes tokens, which a scenario names": (
            "renderer_num_workers skip_tokenizer_init tokenizer tokenizer_mode tokenizer_revision"
        ),
        "it says how images become tokens, whose number a scenario names": (
            "allowed_local_media_path allowed_media_domains interleave_mm_strings"
            " io_processor_plugin language_model_only limit_mm_per_prompt media_io_kwargs"
            " mm_device_do_normalize mm_encoder_attn_backend mm_encoder_attn_dtype"
            " mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin"
            " mm_encoder_fp8_scale_save_path mm_encoder_tp_mode mm_hasher_algorithm"
            " mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type"
            " mm_processor_device mm_processor_kwargs mm_shm_cache_max_object_size_mb"
            " mm_tensor_ipc skip_mm_profiling video_pruning_method video_pruning_rate"
        ),
        "it says which tokens are sampled, or what is told about them; a scenario names them": (
            "generation_config logits_processors logprobs_mode max_logprobs"
            " override_generation_config return_sampling_mask seed use_fp64_gumbel"
        ),
        "it says how a step is computed, not what is in it": (
            "disable_cascade_attn enable_cumem_allocator enable_trace_replay enforce_eager"
        ),
        "a server that sleeps empties its cache, which a step slot-erase does here": (
            "enable_nccl_comm_suspend enable_sleep_mode sleep_mode_backend"
            " sleep_mode_offload_cudagraph sleep_preserve_parameter_names"
        ),
        "it names the server": "served_model_name",
    },
    differs={
        "max_model_len would be at most the window, and no layer would have one": (
            "disable_sliding_window"
        ),
        "embeddings of a prompt would be in the ids of its blocks": (
            "enable_mm_embeds enable_prompt_embeds"
        ),
        "a model that generates nothing is not simulated": (
            "convert mm_encoder_only pooler_config runner"
        ),
    },
    flagless="hf_config hf_text_config is_submodel_config model_weights multimodal_config"
    " quantization_config spec_target_max_model_len word_embeddings_untied_by_checkpoint",
)

FIELDS: Final[tuple[Field, ...]] = (
    *CACHE,
    *SCHEDULER,
    *_below("--speculative-config", SPECULATIVE),
    *LORA,
    *_below("--kv-transfer-config", TRANSFER),
    *_below("--kv-events-config", EVENTS),
    *_below("--ec-transfer-config", ENCODERS),
    *_below("--mamba-config", STATES),
    *WEIGHTS,
    *PARALLEL,
    *MODEL,
)
