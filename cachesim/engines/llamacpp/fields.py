"""Every field of `common_params` of llama.cpp b11549, and what becomes of it here."""

from typing import Final

from cachesim.engines.fields import Field, fields_of

FLAGS: Final = {
    "antiprompt": "--reverse-prompt",
    "api_keys": "--api-key",
    "api_prefix": "--api-prefix",
    "attention_type": "--attention",
    "cache_idle_slots": "--cache-idle-slots",
    "cache_prompt": "--cache-prompt",
    "cache_ram_mib": "--cache-ram",
    "cache_type_k": "--cache-type-k",
    "cache_type_v": "--cache-type-v",
    "chat_template": "--chat-template",
    "check_tensors": "--check-tensors",
    "checkpoint_min_step": "--checkpoint-min-step",
    "cont_batching": "--cont-batching",
    "control_vector_layer_end": "--control-vector-layer-range",
    "control_vector_layer_start": "--control-vector-layer-range",
    "cors_credentials": "--no-cors-credentials",
    "cors_headers": "--cors-headers",
    "cors_methods": "--cors-methods",
    "cors_origins": "--cors-origins",
    "cpuparams.cpumask": "--cpu-mask",
    "cpuparams.n_threads": "--threads",
    "cpuparams.poll": "--poll",
    "cpuparams.priority": "--prio",
    "cpuparams.strict_cpu": "--cpu-strict",
    "cpuparams_batch.cpumask": "--cpu-mask-batch",
    "cpuparams_batch.n_threads": "--threads-batch",
    "cpuparams_batch.poll": "--poll-batch",
    "cpuparams_batch.priority": "--prio-batch",
    "cpuparams_batch.strict_cpu": "--cpu-strict-batch",
    "ctx_shift": "--context-shift",
    "default_template_kwargs": "--chat-template-kwargs",
    "embd_normalize": "--embd-normalize",
    "embedding": "--embeddings",
    "enable_reasoning": "--reasoning",
    "endpoint_metrics": "--metrics",
    "endpoint_props": "--props",
    "endpoint_slots": "--slots",
    "escape": "--escape",
    "fit_params": "--fit",
    "fit_params_min_ctx": "--fit-ctx",
    "fit_params_target": "--fit-target",
    "flash_attn_type": "--flash-attn",
    "force_pure_content_parser": "--skip-chat-parsing",
    "hf_token": "--hf-token",
    "hostnames": "--host",
    "image_max_tokens": "--image-max-tokens",
    "image_min_tokens": "--image-min-tokens",
    "kv_unified": "--kv-unified",
    "kv_unified_per_slot": "--kv-unified-per-slot",
    "lazy_mode": "--lazy-mode",
    "load_mode": "--load-mode",
    "log_json": "--log-jsonl",
    "lora_adapters": "--lora",
    "lora_init_without_apply": "--lora-init-without-apply",
    "main_gpu": "--main-gpu",
    "mcp_servers_config": "--mcp-servers-config",
    "mcp_servers_json": "--mcp-servers-json",
    "media_path": "--media-path",
    "mmproj.path": "--mmproj",
    "mmproj.url": "--mmproj-url",
    "mmproj_device": "--mmproj-device",
    "mmproj_use_gpu": "--mmproj-offload",
    "model.docker_repo": "--docker-repo",
    "model.hf_file": "--hf-file",
    "model.hf_repo": "--hf-repo",
    "model.path": "--model",
    "model.url": "--model-url",
    "model_alias": "--alias",
    "model_tags": "--tags",
    "models_autoload": "--models-autoload",
    "models_dir": "--models-dir",
    "models_max": "--models-max",
    "models_preset": "--models-preset",
    "moe_cache_size": "--moe-cache-mib",
    "mtmd_batch_max_tokens": "--mtmd-batch-max-tokens",
    "n_batch": "--batch-size",
    "n_cache_reuse": "--cache-reuse",
    "n_ctx": "--ctx-size",
    "n_ctx_checkpoints": "--ctx-checkpoints",
    "n_gpu_layers": "--n-gpu-layers",
    "n_keep": "--keep",
    "n_parallel": "--parallel",
    "n_predict": "--n-predict",
    "n_threads_http": "--threads-http",
    "n_ubatch": "--ubatch-size",
    "no_extra_bufts": "--no-repack",
    "no_host": "--no-host",
    "no_kv_offload": "--no-kv-offload",
    "no_mmproj": "--no-mmproj",
    "no_op_offload": "--no-op-offload",
    "no_perf": "--no-perf",
    "numa": "--numa",
    "offline": "--offline",
    "path_prompts_log_dir": "--log-prompts-dir",
    "pooling_type": "--pooling",
    "port": "--port",
    "prefill_assistant": "--prefill-assistant",
    "preserve_reasoning_specified": "--reasoning-preserve",
    "public_path": "--path",
    "reasoning_format": "--reasoning-format",
    "reuse_port": "--reuse-port",
    "rope_freq_base": "--rope-freq-base",
    "rope_freq_scale": "--rope-freq-scale",
    "rope_scaling_type": "--rope-scaling",
    "sampling.adaptive_decay": "--adaptive-decay",
    "sampling.adaptive_target": "--adaptive-target",
    "sampling.backend_sampling": "--backend-sampling",
    "sampling.dry_allowed_length": "--dry-allowed-length",
    "sampling.dry_base": "--dry-base",
    "sampling.dry_multiplier": "--dry-multiplier",
    "sampling.dry_penalty_last_n": "--dry-penalty-last-n",
    "sampling.dynatemp_exponent": "--dynatemp-exp",
    "sampling.dynatemp_range": "--dynatemp-range",
    "sampling.grammar.grammar": "--grammar",
    "sampling.ignore_eos": "--ignore-eos",
    "sampling.logit_bias": "--logit-bias",
    "sampling.min_p": "--min-p",
    "sampling.mirostat": "--mirostat",
    "sampling.mirostat_eta": "--mirostat-lr",
    "sampling.mirostat_tau": "--mirostat-ent",
    "sampling.penalty_freq": "--frequency-penalty",
    "sampling.penalty_last_n": "--repeat-last-n",
    "sampling.penalty_present": "--presence-penalty",
    "sampling.penalty_repeat": "--repeat-penalty",
    "sampling.reasoning_budget_message": "--reasoning-budget-message",
    "sampling.reasoning_budget_tokens": "--reasoning-budget",
    "sampling.samplers": "--samplers",
    "sampling.seed": "--seed",
    "sampling.temp": "--temp",
    "sampling.top_k": "--top-k",
    "sampling.top_p": "--top-p",
    "sampling.typ_p": "--typical",
    "sampling.xtc_probability": "--xtc-probability",
    "sampling.xtc_threshold": "--xtc-threshold",
    "server_tools": "--tools",
    "server_tools_runtime": "--tools-runtime",
    "sleep_idle_seconds": "--sleep-idle-seconds",
    "slot_prompt_similarity": "--slot-prompt-similarity",
    "slot_save_path": "--slot-save-path",
    "special": "--special",
    "speculative.draft.backend_sampling": "--spec-draft-backend-sampling",
    "speculative.draft.cache_type_k": "--spec-draft-type-k",
    "speculative.draft.cache_type_v": "--spec-draft-type-v",
    "speculative.draft.cpuparams.cpumask": "--spec-draft-cpu-mask",
    "speculative.draft.cpuparams.n_threads": "--spec-draft-threads",
    "speculative.draft.cpuparams.poll": "--spec-draft-poll",
    "speculative.draft.cpuparams.priority": "--spec-draft-prio",
    "speculative.draft.cpuparams.strict_cpu": "--spec-draft-cpu-strict",
    "speculative.draft.cpuparams_batch.cpumask": "--spec-draft-cpu-mask-batch",
    "speculative.draft.cpuparams_batch.n_threads": "--spec-draft-threads-batch",
    "speculative.draft.cpuparams_batch.poll": "--spec-draft-poll-batch",
    "speculative.draft.cpuparams_batch.priority": "--spec-draft-prio-batch",
    "speculative.draft.cpuparams_batch.strict_cpu": "--spec-draft-cpu-strict-batch",
    "speculative.draft.devices": "--spec-draft-device",
    "speculative.draft.mparams.hf_repo": "--spec-draft-hf",
    "speculative.draft.mparams.path": "--spec-draft-model",
    "speculative.draft.n_gpu_layers": "--spec-draft-ngl",
    "speculative.draft.n_max": "--spec-draft-n-max",
    "speculative.draft.n_min": "--spec-draft-n-min",
    "speculative.draft.p_min": "--spec-draft-p-min",
    "speculative.draft.p_split": "--spec-draft-p-split",
    "speculative.draft.tensor_buft_overrides": "--spec-draft-override-tensor",
    "speculative.ngram_cache.lookup_cache_dynamic": "--lookup-cache-dynamic",
    "speculative.ngram_cache.lookup_cache_static": "--lookup-cache-static",
    "speculative.ngram_map_k.min_hits": "--spec-ngram-map-k-min-hits",
    "speculative.ngram_map_k.size_m": "--spec-ngram-map-k-size-m",
    "speculative.ngram_map_k.size_n": "--spec-ngram-map-k-size-n",
    "speculative.ngram_map_k4v.min_hits": "--spec-ngram-map-k4v-min-hits",
    "speculative.ngram_map_k4v.size_m": "--spec-ngram-map-k4v-size-m",
    "speculative.ngram_map_k4v.size_n": "--spec-ngram-map-k4v-size-n",
    "speculative.ngram_mod.n_match": "--spec-ngram-mod-n-match",
    "speculative.ngram_mod.n_max": "--spec-ngram-mod-n-max",
    "speculative.ngram_mod.n_min": "--spec-ngram-mod-n-min",
    "speculative.ngram_simple.min_hits": "--spec-ngram-simple-min-hits",
    "speculative.ngram_simple.size_m": "--spec-ngram-simple-size-m",
    "speculative.ngram_simple.size_n": "--spec-ngram-simple-size-n",
    "speculative.synth_len": "--spec-synth-len",
    "speculative.synth_rates": "--spec-synth-rates",
    "speculative.types": "--spec-type",
    "split_mode": "--split-mode",
    "sse_ping_interval": "--sse-ping-interval",
    "ssl_file_cert": "--ssl-cert-file",
    "ssl_file_key": "--ssl-key-file",
    "swa_full": "--swa-full",
    "tensor_buft_overrides": "--override-tensor",
    "tensor_split": "--tensor-split",
    "timeout_read": "--timeout",
    "ui": "--ui",
    "ui_config_json": "--ui-config",
    "ui_mcp_proxy": "--ui-mcp-proxy",
    "use_jinja": "--jinja",
    "verbosity": "--verbosity",
    "video_ffmpeg_bin_dir": "--video-ffmpeg-dir",
    "video_fps": "--video-fps",
    "video_timestamp_interval_ms": "--video-timestamp-interval",
    "warmup": "--warmup",
    "yarn_attn_factor": "--yarn-attn-factor",
    "yarn_beta_fast": "--yarn-beta-fast",
    "yarn_beta_slow": "--yarn-beta-slow",
    "yarn_ext_factor": "--yarn-ext-factor",
    "yarn_orig_ctx": "--yarn-orig-ctx",
}
"""Its flag, of a field that a flag of `llama-server` sets."""

FIELDS: Final[tuple[Field, ...]] = fields_of(
    "common_params",
    renamed={
        "cache_idle_slots": "cache_idle_slots",
        "cache_prompt": "cache_prompt",
        "cache_ram_mib": "cache_ram",
        "cache_type_k": "cache_type_k",
        "cache_type_v": "cache_type_v",
        "chat_template": "chat_template",
        "checkpoint_min_step": "checkpoint_min_step",
        "cont_batching": "cont_batching",
        "ctx_shift": "context_shift",
        "embedding": "embedding",
        "kv_unified": "kv_unified",
        "kv_unified_per_slot": "kv_unified_per_slot",
        "lora_adapters": "lora",
        "models_max": "models_max",
        "n_batch": "batch_size",
        "n_cache_reuse": "cache_reuse",
        "n_ctx": "ctx_size",
        "n_ctx_checkpoints": "ctx_checkpoints",
        "n_keep": "keep",
        "n_parallel": "parallel",
        "n_predict": "predict",
        "n_ubatch": "ubatch_size",
        "pooling_type": "pooling",
        "sampling.ignore_eos": "ignore_eos",
        "sleep_idle_seconds": "sleep_idle_seconds",
        "slot_prompt_similarity": "slot_prompt_similarity",
        "speculative.draft.mparams.path": "model_draft",
        "speculative.draft.n_max": "spec_draft_n_max",
        "speculative.draft.n_min": "spec_draft_n_min",
        "speculative.types": "spec_type",
        "swa_full": "swa_full",
    },
    no_influence={
        "it is about threads, devices and where weights are: numbers change, not what is kept": """
            check_tensors cpuparams.cpumask cpuparams.mask_valid cpuparams.n_threads cpuparams.poll
            cpuparams.priority cpuparams.strict_cpu cpuparams_batch.cpumask
            cpuparams_batch.mask_valid cpuparams_batch.n_threads cpuparams_batch.poll
            cpuparams_batch.priority cpuparams_batch.strict_cpu flash_attn_type lazy_mode load_mode
            main_gpu mmproj_device mmproj_use_gpu moe_cache_size n_gpu_layers no_extra_bufts no_host
            no_kv_offload no_op_offload numa speculative.draft.cpuparams.cpumask
            speculative.draft.cpuparams.mask_valid speculative.draft.cpuparams.n_threads
            speculative.draft.cpuparams.poll speculative.draft.cpuparams.priority
            speculative.draft.cpuparams.strict_cpu speculative.draft.cpuparams_batch.cpumask
            speculative.draft.cpuparams_batch.mask_valid speculative.draft.cpuparams_batch.n_threads
            speculative.draft.cpuparams_batch.poll speculative.draft.cpuparams_batch.priority
            speculative.draft.cpuparams_batch.strict_cpu speculative.draft.devices
            speculative.draft.n_gpu_layers speculative.draft.tensor_buft_overrides split_mode
            tensor_buft_overrides tensor_split warmup
        """,
        "the models of the scenario stand in its place": """
            hf_token mmproj.docker_repo mmproj.hf_file mmproj.hf_repo mmproj.path mmproj.url
            model.docker_repo model.hf_file model.hf_repo model.path model.url model_alias
            model_tags models_dir models_preset models_preset_hf no_mmproj offline
            speculative.draft.mparams.docker_repo speculative.draft.mparams.hf_file
            speculative.draft.mparams.hf_repo speculative.draft.mparams.url
        """,
        "it changes what is computed, for all requests alike": """
            control_vector_layer_end control_vector_layer_start embd_normalize rope_freq_base
            rope_freq_scale rope_scaling_type yarn_attn_factor yarn_beta_fast yarn_beta_slow
            yarn_ext_factor yarn_orig_ctx
        """,
        "it decides which tokens are sampled; a scenario names them": """
            antiprompt sampling.adaptive_decay sampling.adaptive_target sampling.backend_sampling
            sampling.dry_allowed_length sampling.dry_base sampling.dry_multiplier
            sampling.dry_penalty_last_n sampling.dynatemp_exponent sampling.dynatemp_range
            sampling.generation_prompt sampling.grammar.grammar sampling.grammar.type
            sampling.logit_bias sampling.logit_bias_eog sampling.min_keep sampling.min_p
            sampling.mirostat sampling.mirostat_eta sampling.mirostat_tau sampling.n_prev
            sampling.n_probs sampling.no_perf sampling.penalty_freq sampling.penalty_last_n
            sampling.penalty_present sampling.penalty_repeat sampling.reasoning_budget_end
            sampling.reasoning_budget_forced sampling.reasoning_budget_message
            sampling.reasoning_budget_start sampling.reasoning_budget_tokens
            sampling.reasoning_control sampling.samplers sampling.seed sampling.temp
            sampling.timing_per_token sampling.top_k sampling.top_p sampling.typ_p
            sampling.user_sampling_config sampling.xtc_probability sampling.xtc_threshold special
            speculative.draft.backend_sampling speculative.draft.cache_type_k
            speculative.draft.cache_type_v speculative.draft.p_min speculative.draft.p_split
            speculative.draft.probabilistic speculative.ngram_cache.lookup_cache_dynamic
            speculative.ngram_cache.lookup_cache_static speculative.synth_len
            speculative.synth_rates
        """,
        "it is about clients and logs": """
            api_keys api_prefix cors_credentials cors_headers cors_methods cors_origins
            cors_origins_explicit endpoint_metrics endpoint_props endpoint_slots escape
            force_pure_content_parser hostnames log_json mcp_servers_config mcp_servers_json
            media_path n_threads_http no_perf path_prompts_log_dir port public_path reasoning_format
            reuse_port server_tools server_tools_runtime sse_ping_interval ssl_file_cert
            ssl_file_key timeout_read timeout_write ui ui_config_json ui_mcp_proxy verbose_prompt
            verbosity
        """,
        "it names the folder of slot files, which is there": """
            slot_save_path
        """,
        "it is about the embeddings of media; a scenario names how many tokens one has": """
            image_max_tokens image_min_tokens video_ffmpeg_bin_dir video_fps
            video_timestamp_interval_ms
        """,
        "the program sets it, not a flag": """
            fit_params_print load_mtp n_outputs_max n_outputs_max_per_seq no_alloc
        """,
        "other programs than llama-server read it: no flag of the server sets it": """
            activation_statistics check chunk_separator chunk_size cls_sep compute_ppl context_files
            diffusion.add_gumbel_noise diffusion.alg_temp diffusion.algorithm diffusion.block_length
            diffusion.cfg_scale diffusion.eps diffusion.steps diffusion.visual_mode display_prompt
            embd_out embd_sep grp_attn_n grp_attn_w hellaswag hellaswag_tasks i_chunk i_pos image
            imat_dat in_files input_prefix input_prefix_bos input_suffix interactive is_gen_docs
            is_pp_shared is_tg_separate kl_divergence logits_file logits_output_dir multiline_input
            multiple_choice multiple_choice_tasks n_chunks n_junk n_out_freq n_pca_batch
            n_pca_iterations n_pl n_pp n_print n_save_freq n_sequences n_tg out_file parse_special
            path_prompt_cache ppl_output_type ppl_stride process_output prompt prompt_cache_all
            prompt_cache_ro prompt_file save_logits server_base show_statistics show_timings
            simple_io single_turn system_prompt tensor_filter tokenize_ids tokenize_no_bos
            tokenize_show_count tokenize_stdin tts_lang tts_speaker_file usage use_color winogrande
            winogrande_tasks
        """,
    },
    differs={
        "a context that is not named shrinks to what fits into memory; name ctx_size": """
            fit_params fit_params_min_ctx fit_params_target
        """,
        "the template gets other arguments, and a conversation other tokens": """
            default_template_kwargs enable_chat_template enable_reasoning prefill_assistant
            preserve_reasoning_specified use_jinja
        """,
        "attention looks ahead, and a prompt is read in one piece": """
            attention_type
        """,
        "adapters start with a strength of 0, until somebody sets another": """
            lora_init_without_apply
        """,
        "images are prefilled in batches of another size": """
            mtmd_batch_max_tokens
        """,
        "a model that is not loaded is refused instead of being loaded": """
            models_autoload
        """,
        "n-gram maps draft other tokens; of them a crash after a shift is simulated alone": """
            speculative.ngram_map_k.min_hits speculative.ngram_map_k.size_m
            speculative.ngram_map_k.size_n speculative.ngram_map_k4v.min_hits
            speculative.ngram_map_k4v.size_m speculative.ngram_map_k4v.size_n
            speculative.ngram_mod.n_match speculative.ngram_mod.n_max speculative.ngram_mod.n_min
            speculative.ngram_simple.min_hits speculative.ngram_simple.size_m
            speculative.ngram_simple.size_n
        """,
    },
    flags=FLAGS,
    flagless="*",
)
