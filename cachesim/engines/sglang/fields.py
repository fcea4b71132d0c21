"""Every field of `ServerArgs` of SGLang 0.5.23, and what becomes of it here."""

from typing import Final

from cachesim.engines.fields import Field, fields_of

_SIMULATED: Final = """
    abort_on_priority_when_disabled chunked_prefill_size context_length dcp_size
    default_priority_value disable_overlap_schedule disable_priority_preemption
    enable_hierarchical_cache enable_mixed_chunk enable_priority_scheduling
    enable_streaming_session hicache_ratio hicache_size hicache_storage_backend
    hicache_storage_prefetch_policy hicache_storage_prefetch_retry_max_attempts
    hicache_storage_prefetch_retry_poll_interval hicache_write_policy mamba_max_states_per_path
    mamba_radix_cache_strategy mamba_track_interval max_loras_per_batch max_mamba_cache_size
    max_prefill_tokens max_running_requests max_total_tokens page_size prefill_max_requests
    priority_scheduling_preemption_threshold radix_eviction_policy random_seed reasoning_parser
    retraction_policy schedule_conservativeness schedule_low_priority_values_first schedule_policy
    speculative_algorithm speculative_eagle_topk speculative_num_draft_tokens
    speculative_num_steps strip_thinking_cache swa_full_tokens_ratio
"""

_KERNELS: Final = """
    bf16_gemm_backend decode_attention_backend disable_chunked_prefix_cache
    disable_cuda_graph disable_cuda_graph_padding disable_decode_cuda_graph
    disable_flashinfer_autotune disable_prefill_cuda_graph dsa_decode_backend
    dsa_paged_mqa_logits_backend dsa_prefill_backend dsa_topk_backend dsa_triton_union
    dsv4_attn_backend
    dsv4_prefill_backend enable_amd_monokernel enable_cudagraph_gc
    enable_deepseek_v4_fp4_indexer enable_dsa_fused_indexer enable_fp32_lm_head
    enable_fused_qk_norm_rope enable_lean_attention enable_nvidia_megakernel
    enable_profile_cuda_graph enable_single_batch_overlap enable_tf32_matmul
    enable_torch_compile enable_torch_compile_debug_mode enable_two_batch_overlap
    flashinfer_autotune_skip_ops flashinfer_mla_disable_ragged fp4_gemm_runner_backend
    fp8_gemm_runner_backend linear_attn_backend linear_attn_decode_backend
    linear_attn_prefill_backend linear_attn_verify_backend mamba_backend
    prefill_attention_backend prefill_kv_cache_dequant_dtype speculative_attention_mode
    speculative_draft_attention_backend speculative_dsa_topk_backend
    speculative_moe_a2a_backend speculative_moe_runner_backend tbo_token_distribution_threshold
    torch_compile_max_bs triton_attention_num_kv_splits triton_attention_reduce_in_fp32
    triton_attention_split_tile_size cuda_graph_backend_decode cuda_graph_backend_prefill
    cuda_graph_bs_decode cuda_graph_bs_prefill cuda_graph_config cuda_graph_max_bs_decode
    cuda_graph_max_bs_prefill cuda_graph_max_seq_len_prefill cuda_graph_prefill_max_context
    debug_cuda_graph
"""

_EXPERTS: Final = """
    deepep_config deepep_dispatcher_output_dtype deepep_mode deepep_v2_mode
    disable_flashinfer_cutlass_moe_fp4_allgather disable_shared_experts_fusion
    elastic_ep_backend elastic_ep_initial_size elastic_ep_scale_timeout
    enable_elastic_expert_backup enable_eplb enable_fused_moe_sum_all_reduce
    enable_paged_experts enable_w4a4_mxfp4_megamoe enable_waterfill
    enforce_shared_experts_fusion ep_dispatch_algorithm ep_join_mode ep_join_rank_offset
    ep_num_redundant_experts ep_size eplb_algorithm
    eplb_min_rebalancing_utilization_threshold eplb_rebalance_layers_per_chunk
    eplb_rebalance_num_iterations expert_balancedness_report_mode
    expert_distribution_recorder_buffer_size expert_distribution_recorder_mode
    flashinfer_a2a_dispatch_type flashinfer_mxfp4_moe_precision fuseep_mode
    init_expert_location kt_cpuinfer kt_max_deferred_experts_per_token kt_method
    kt_num_gpu_experts kt_threadpool_count kt_weight_path max_ep_size moe_a2a_backend
    moe_dense_tp_size moe_dp_size moe_runner_backend mooncake_ib_device
    paged_experts_num_resident speculative_enable_w4a4_mxfp4_megamoe
"""

_RANKS: Final = """
    attn_cp_size boundary_reduction cp_strategy dcp_comm_backend dcp_replicate_q_proj
    disable_aiter_allreduce_fusion_in_decode disable_aiter_allreduce_fusion_in_prefill
    disable_attn_tp_gather disable_custom_all_reduce dist_init_addr dist_timeout dwdp_size
    enable_aiter_allreduce_fusion enable_attn_tp_input_scattered enable_cp_decode_attn_tp
    enable_cp_tp_group_sharing enable_dense_mlp_attn_tp
    enable_dp_attention_local_control_broadcast enable_dp_lm_head enable_dsa_cache_layer_split
    enable_flashinfer_allreduce_fusion enable_layernorm_sp enable_megamoe_for_layernorm_sp
    enable_mscclpp enable_nccl_nvls enable_p2p_check enable_prefill_cp
    enable_quant_communications enable_scattered_sconv enable_shared_experts_attn_tp
    enable_symm_mem enable_torch_symm_mem enable_tp_lm_head_all_to_all
    enforce_disable_flashinfer_allreduce_fusion flashinfer_allreduce_fusion_backend
    gated_launch_port nccl_port nnodes node_rank pre_warm_nccl
    shared_experts_tp_size speculative_boundary_reduction tp_size
"""

_WEIGHTS: Final = """
    checkpoint_engine_wait_weights_before_ready cpu_offload_gb custom_weight_loader
    decrypted_config_file decrypted_draft_config_file delete_ckpt_after_loading download_dir
    enable_draft_weights_cpu_backup enable_memory_saver enable_weights_cpu_backup
    engine_info_bootstrap_port json_model_override_args load_format model_checksum
    model_config_parser model_impl model_loader_extra_config model_path modelexpress_config
    modelopt_checkpoint_restore_path modelopt_checkpoint_save_path modelopt_export_path
    modelopt_quant offload_group_size offload_mode offload_num_in_group offload_prefetch_step
    ple_offload_backend ple_offload_dir ple_offload_embedding quantization
    quantization_param_path quantize_and_serve
    remote_instance_weight_loader_backend remote_instance_weight_loader_seed_instance_ip
    remote_instance_weight_loader_seed_instance_service_port
    remote_instance_weight_loader_send_weights_group_ports
    remote_instance_weight_loader_start_seed_via_transfer_engine revision rl_on_policy_target
    rl_quant_profile speculative_draft_load_format speculative_draft_model_path
    speculative_draft_model_quantization speculative_draft_model_revision
    startup_weight_load_mode trust_remote_code weight_cache_mode weight_cache_socket
    weight_cache_timeout weight_loader_disable_mmap weight_loader_drop_cache_after_load
    weight_loader_prefetch_checkpoints weight_loader_prefetch_num_threads weight_version dtype
"""

_LOGS: Final = """
    bucket_e2e_request_latency bucket_inter_token_latency bucket_time_to_first_token
    crash_dump_folder debug_tensor_dump_input_file debug_tensor_dump_layers
    debug_tensor_dump_output_folder decode_log_interval enable_cache_report
    enable_forward_pass_metrics enable_layerwise_nvtx_marker enable_metrics
    enable_metrics_for_all_schedulers enable_mfu_metrics enable_request_time_stats_logging
    enable_trace export_metrics_to_file export_metrics_to_file_dir extra_metric_labels
    forward_hooks forward_pass_metrics_ipc_name forward_pass_metrics_worker_id
    gc_warning_threshold_secs generation_tokens_buckets kv_canary kv_canary_real_data
    kv_canary_sweep_interval kv_events_config load_publish_endpoint
    load_snapshot_publish_interval log_level log_level_http log_requests log_requests_format
    log_requests_level log_requests_target msprobe_dump_config otlp_service_name
    otlp_traces_endpoint prefill_delayer_forward_passes_buckets
    prefill_delayer_wait_seconds_buckets prompt_tokens_buckets show_time_cost
    smg_http_sidecar_port spec_trace_dir stat_loggers tokenizer_metrics_allowed_custom_labels
    tokenizer_metrics_custom_labels_header trace_modules uvicorn_access_log_exclude_prefixes
"""

_HTTP: Final = """
    admin_api_key api_key asr_max_buffer_seconds asr_max_concurrent_sessions batch_notify_size
    detokenizer_worker_num disable_tokenizer_batch_decode dynamic_batch_tokenizer_batch_size
    dynamic_batch_tokenizer_batch_timeout enable_dynamic_batch_tokenizer enable_http2
    enable_http_worker_reuseport enable_response_store enable_ssl_refresh
    enable_tokenizer_batch_encode fastapi_root_path file_storage_path grpc_mode grpc_port
    grpc_response_timeout_secs grpc_worker_threads host http2_initial_connection_window_size
    http2_max_concurrent_streams incremental_streaming_output port return_input_ids
    return_output_ids served_model_name sidecar sidecar_args skip_tokenizer_init smg_grpc_mode
    ssl_ca_certs ssl_certfile ssl_keyfile ssl_keyfile_password stream_interval
    stream_response_default_include_usage tokenizer_backend tokenizer_mode tokenizer_worker_num
    tool_server
"""

_PROCESSES: Final = """
    base_gpu_id custom_sigquit_handler device gc_threshold gpu_id_step numa_node
    sleep_on_idle soft_watchdog_timeout use_ray watchdog_timeout
"""

_SAMPLING: Final = """
    aux_hidden_state_capture constrained_json_disable_any_whitespace
    constrained_json_max_whitespace_cnt constrained_json_whitespace_pattern
    disable_outlines_disk_cache enable_custom_logit_processor
    enable_return_aux_hidden_states enable_return_hidden_states enable_return_indexer_topk
    enable_return_routed_experts enable_strict_thinking enable_watermark grammar_backend
    mlx_enable_sampling preferred_sampling_params return_aux_hidden_state_layer_ids
    return_hidden_states_mode sampling_backend sampling_defaults sampling_mask_max_tokens
    speculative_accept_threshold_acc speculative_accept_threshold_single
    speculative_domino_candidate_pool_size speculative_token_map
    speculative_use_block_verification speculative_use_rejection_sampling tool_call_parser
    watermark_config watermark_context_window watermark_default_enabled watermark_enforce_all
    watermark_key watermark_key_b watermark_max_probability watermark_mixing_probability
"""

_MEDIA: Final = """
    allowed_media_domains disable_fast_image_processor enable_adaptive_dispatch_to_encoder
    enable_broadcast_mm_inputs_process enable_mm_global_cache enable_multimodal
    enable_precise_embedding_interpolation enable_prefix_mm_cache encoder_bootstrap_port
    encoder_register_urls encoder_transfer_backend encoder_urls image_processor_backend
    language_model_only language_only limit_mm_data_per_request media_url_max_file_size_mb
    mm_attention_backend mm_enable_dp_encoder mm_feature_transport mm_global_cache_backend
    mm_io_worker_num mm_preprocess_cache_size_mb mm_process_config mm_processor_worker_num
    trust_mm_content_hashes
"""

_NO_INFLUENCE: Final = {
    "it chooses kernels: numbers change, not what is kept": _KERNELS,
    "it places experts, whose weights are not cached": _EXPERTS,
    "each rank keeps its share of the same tree; pools are given in tokens": _RANKS,
    "it loads or stores weights; the scenario names the model": _WEIGHTS,
    "it logs, counts or checks": _LOGS,
    "it is about clients, tokens arrive as they are": _HTTP,
    "it is about processes and devices": _PROCESSES,
    "it decides which tokens are sampled; a scenario names them": _SAMPLING,
    "it is about the embeddings of media, of which the tree has ids": _MEDIA,
    "the prompt is given as it is after the template": (
        "chat_template completion_template default_chat_template_kwargs hf_chat_template_name "
        "tokenizer_path trust_request_chat_template"
    ),
    "its prompt is no prefix of others": "skip_server_warmup warmups",
    "it is about the order of bytes, or how they are copied": (
        "enable_page_major_kv_layout hicache_io_backend hicache_mem_layout"
    ),
    "it rounds states: their numbers change, not which are kept": (
        "enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds"
    ),
    "nothing reads it in this release": "num_continuous_decode_steps",
    "it is set by the program, not by users": (
        "_radix_eviction_policy_explicitly_set _speculative_draft_quantization_explicitly_set "
        "_swa_full_tokens_ratio_explicitly_set uses_mamba_radix_cache"
    ),
    "adapters are given by their files; only their ids are part of a key": (
        "experts_shared_outer_loras lora_backend lora_eviction_policy lora_strict_loading "
        "lora_target_modules lora_use_virtual_experts max_lora_chunk_size max_lora_rank"
    ),
    "it is the drafter's own attention": (
        "speculative_draft_sink_size speculative_draft_window_size"
    ),
}

_DISAGGREGATION: Final = """
    disaggregation_bootstrap_port disaggregation_decode_allocation_policy
    disaggregation_decode_enable_offload_kvcache disaggregation_decode_enable_radix_cache
    disaggregation_decode_extra_slots disaggregation_decode_host_receive_threshold
    disaggregation_decode_polling_interval disaggregation_decode_retraction_backup
    disaggregation_enable_kv_checksum disaggregation_ib_device disaggregation_mode
    disaggregation_transfer_backend enable_pd_role_switch num_reserved_decode_tokens
    optimistic_prefill_attempts
"""

_DRAFTERS: Final = """
    decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints decoupled_spec_rank
    decoupled_spec_role enable_multi_layer_eagle speculative_adaptive speculative_adaptive_config
    speculative_dflash_block_size speculative_dspark_align_verify_tokens_to_graph_tier
    speculative_dspark_block_size speculative_dspark_confidence_sts_path
    speculative_dspark_sps_table_path speculative_ngram_capacity
    speculative_ngram_external_corpus_max_tokens speculative_ngram_external_corpus_path
    speculative_ngram_external_sam_budget speculative_ngram_match_type
    speculative_ngram_max_bfs_breadth speculative_ngram_max_trie_depth
    speculative_ngram_min_bfs_breadth uno_lora_path
"""

_DELAYS: Final = """
    enable_prefill_delayer min_free_slots_delay prefill_decode_interval
    prefill_decode_interval_min_bs prefill_delayer_max_delay_ms prefill_delayer_max_delay_passes
    prefill_delayer_queue_min_ratio prefill_delayer_token_usage_low_watermark
    scheduler_recv_interval
"""

_DIFFERS: Final = {
    "it decides how much fits into the pools; name max_total_tokens and max_mamba_cache_size": (
        "hicache_host_memory_fraction kv_cache_dtype mamba_full_memory_ratio mamba_ssm_dtype "
        "mem_fraction_static qsa_indexer_dtype speculative_draft_kv_cache_dtype"
    ),
    "fewer requests run at once; name max_running_requests": "pp_max_micro_batch_size",
    "prefill and decode run on two servers, each with a tree of its own": _DISAGGREGATION,
    "drafts come from another kind of drafter, which reserves other slots": _DRAFTERS,
    "waiting requests start later, beside other ones": _DELAYS,
    "nothing is found again: each prompt is prefilled whole": "disable_radix_cache",
    "multi-item scoring turns the tree off": "enable_mis",
    "some attention backends set the page size, or turn the tree off; name page_size": (
        "attention_backend enable_deterministic_inference"
    ),
    "each replica has a tree of its own; `cachesim compare TRACE --replicas` simulates them": (
        "attn_dp_size dp_size enable_dp_attention load_balance_method"
    ),
    "several micro batches are under way at once": (
        "enable_dynamic_chunking pp_async_batch_depth pp_size"
    ),
    "prefill and decode share the device in other batches": (
        "enable_pdmux pdmux_config_path sm_group_num"
    ),
    "an embedding model generates nothing, and some turn the tree off": (
        "encoder_only is_embedding prefill_only_disable_kv_cache"
    ),
    "a diffusion model generates a block at a time": (
        "dllm_algorithm dllm_algorithm_config dllm_fdfo"
    ),
    "windows of DeepSeek V4.1 are computed again at a hit": (
        "enable_decoder_swa_bounded_replay enable_encoder_swa_bounded_replay"
    ),
    "saved states have a pool of their own, of int8": (
        "enable_int8_mamba_checkpoint int8_mamba_ckpt_size"
    ),
    "with `no_buffer` a finished request keeps its state at the last flush of the ring": (
        "enable_linear_replayssm enable_linear_replayssm_spec linear_replayssm_cache_len"
    ),
    "a waiting request starts when its adapter is loaded, or when another one is drained": (
        "enable_lora_overlap_loading lora_drain_wait_threshold"
    ),
    "an adapter that was unloaded for others comes back under a new id, and finds nothing": (
        "max_loaded_loras"
    ),
    "the thresholds of a policy: `slru` protects what is used twice, its default": (
        "radix_eviction_policy_config"
    ),
    "all kinds of layers share the bytes of one pool": "enable_unified_memory",
    "window layers keep everything, in the pool of full attention": "disable_hybrid_swa_memory",
    "pools of DeepSeek V4 have another size": "c128_page_size swa_prefix_tails",
    "what sessions refer to is evicted last": "enable_session_radix_cache",
    "another program keeps the prefixes": (
        "enable_flexkv enable_lmcache enable_linker_mla_dedup enable_unified_cache_external_linker "
        "flexkv_config_file lmcache_config_file radix_cache_backend "
        "unified_cache_external_linker_backend unified_cache_external_linker_config"
    ),
    "the host is a buffer on the way to the storage, and keeps nothing": (
        "hicache_host_memory_mode"
    ),
    "attention is sparse over a host's copy": "enable_hisparse hisparse_config",
    "at-rest pages are divided among the ranks": "enable_kv_cache_sharding",
    "a prompt that is too long is cut instead of refused": "allow_auto_truncate",
    "a request beyond it is refused": "max_queued_requests",
}

FIELDS: Final[tuple[Field, ...]] = fields_of(
    "ServerArgs",
    simulated=_SIMULATED,
    renamed={
        "enable_lora": "lora",
        "hicache_storage_backend_extra_config": "prefetch_threshold",
        "lora_paths": "lora",
    },
    no_influence=_NO_INFLUENCE,
    differs=_DIFFERS,
    flagless="""
        _radix_eviction_policy_explicitly_set _speculative_draft_quantization_explicitly_set
        _swa_full_tokens_ratio_explicitly_set aux_hidden_state_capture custom_sigquit_handler
        enable_cp_tp_group_sharing forward_pass_metrics_ipc_name stat_loggers
        uses_mamba_radix_cache watermark_context_window watermark_default_enabled
        watermark_enforce_all watermark_key watermark_key_b watermark_max_probability
        watermark_mixing_probability
    """,
)
