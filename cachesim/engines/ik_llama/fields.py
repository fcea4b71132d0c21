"""Every field of `gpt_params` of ik_llama.cpp 8337e4cd3, and what becomes of it here.

No package carries this server: the fields are those of `common/common.h` at that commit.
"""

from typing import Final

from cachesim.engines.fields import Field, fields_of

FLAGS: Final = {
    "allow_kw_delay": "--allowlist-keyword-delay",
    "allow_kws": "--allowlist-keyword",
    "allow_pieces": "--allowlist-pieces",
    "allow_rules": "--allowlist-unicode-rule",
    "antiprompt": "--reverse-prompt",
    "api_keys": "--api-key",
    "attention_type": "--attention",
    "attn_max_batch": "--attention-max-batch",
    "ban_phrases": "--banned-string-file",
    "banned_n": "--banned-n",
    "batch_warmup": "--warmup-batch",
    "cache_ram_mib": "--cache-ram",
    "cache_ram_n_min": "--cache-ram-n-min",
    "cache_ram_similarity": "--cache-ram-similarity",
    "cache_type_k": "--cache-type-k",
    "cache_type_v": "--cache-type-v",
    "chat_template": "--chat-template",
    "check_tensors": "--check-tensors",
    "cont_batching": "--cont-batching",
    "control_vector_layer_end": "--control-vector-layer-range",
    "control_vector_layer_start": "--control-vector-layer-range",
    "control_vectors": "--control-vector",
    "ctx_checkpoint_eviction": "--ctx-checkpoints-eviction",
    "ctx_checkpoints_interval": "--ctx-checkpoints-interval",
    "ctx_checkpoints_n": "--ctx-checkpoints",
    "ctx_checkpoints_tolerance": "--ctx-checkpoints-tolerance",
    "ctx_shift": "--context-shift",
    "cuda_params": "--cuda-params",
    "default_template_kwargs": "--chat-template-kwargs",
    "defer_experts": "--defer-experts",
    "defrag_thold": "--defrag-thold",
    "devices": "--device",
    "dry_run": "--dry-run",
    "dsa": "--dsa",
    "dsa_top_k": "--dsa-top-k",
    "dump_kv_cache": "--dump-kv-cache",
    "embd_normalize": "--embd-normalize",
    "embedding": "--embedding",
    "enable_chat_template": "--in-prefix-bos",
    "enable_reasoning": "--reasoning",
    "endpoint_metrics": "--metrics",
    "endpoint_slots": "--no-slots",
    "escape": "--escape",
    "extra_output_type": "--mtp-requantize-output-tensor",
    "fit": "--fit",
    "fit_margin": "--fit-margin",
    "fit_margin_array": "--gpu-fit-margin",
    "flash_attn": "--no-flash-attn",
    "force_pure_content_parser": "--skip-chat-parsing",
    "fused_delta_net": "--fused-delta-net",
    "fused_idx_topk": "--fused-indexer-topk",
    "fused_mmad": "--no-fused-mul-multiadd",
    "fused_moe_up_gate": "--no-fused-moe",
    "fused_up_gate": "--no-fused-up-gate",
    "graph_attn_precision": "--graph-attn-precision",
    "graph_reuse": "--graph-reuse",
    "grouped_expert_routing": "--grouped-expert-routing",
    "grp_attn_n": "--grp-attn-n",
    "grp_attn_w": "--grp-attn-w",
    "has_mtp": "-mtp",
    "hf_file": "--hf-file",
    "hf_repo": "--hf-repo",
    "hf_token": "--hf-token",
    "hostname": "--host",
    "ignore_eos": "--ignore-eos",
    "image_max_tokens": "--image-max-tokens",
    "image_min_tokens": "--image-min-tokens",
    "indexer_cache_type_k": "--indexer-cache-type-k",
    "input_prefix": "--in-prefix",
    "input_prefix_bos": "--in-prefix-bos",
    "input_suffix": "--in-suffix",
    "k_cache_hadamard": "--k-cache-hadamard",
    "kv_overrides": "--override-kv",
    "log_json": "--log-format",
    "logdir": "--logdir",
    "logits_all": "--perplexity",
    "lookup_cache_dynamic": "--lookup-cache-dynamic",
    "lookup_cache_static": "--lookup-cache-static",
    "lora_adapters": "--lora",
    "lora_init_without_apply": "--lora-init-without-apply",
    "main_gpu": "--main-gpu",
    "max_extra_alloc_MiB": "--max-extra-alloc",
    "max_gpu": "--max-gpu",
    "merge_qkv": "--merge-qkv",
    "merge_up_gate_exps": "--merge-up-gate-experts",
    "min_experts": "--smart-expert-reduction",
    "minilog": "--minilog",
    "mla_attn": "--mla-use",
    "mmproj.path": "--mmproj",
    "mmproj.url": "--mmproj-url",
    "mmproj_use_gpu": "--no-mmproj-offload",
    "model": "--model",
    "model_alias": "--alias",
    "model_url": "--model-url",
    "mtmd_kq_type": "--mtmd-kq-type",
    "n_batch": "--batch-size",
    "n_ctx": "--ctx-size",
    "n_gpu_layers": "--gpu-layers",
    "n_k_first": "--cache-type-k-first",
    "n_k_last": "--cache-type-k-last",
    "n_keep": "--keep",
    "n_parallel": "--parallel",
    "n_predict": "--predict",
    "n_threads": "--threads",
    "n_threads_batch": "--threads-batch",
    "n_threads_http": "--threads-http",
    "n_threads_mtmd": "--threads-mtmd",
    "n_ubatch": "--ubatch-size",
    "n_v_first": "--cache-type-v-first",
    "n_v_last": "--cache-type-v-last",
    "ncmoe": "--cpu-moe",
    "no_kv_offload": "--no-kv-offload",
    "no_mmproj": "--no-mmproj",
    "numa": "--numa",
    "offload_policy": "--offload-policy",
    "only_active_exps": "--no-offload-only-active-experts",
    "p_split": "--p-split",
    "parallel_tool_calls": "--parallel-tool-calls",
    "pooling_type": "--pooling",
    "port": "--port",
    "prefetch_experts": "--prefetch-experts",
    "prefetch_experts_threads": "--prefetch-experts-threads",
    "prefill_assistant": "--no-prefill-assistant",
    "public_path": "--path",
    "reasoning_budget": "--reasoning-budget",
    "reasoning_budget_message": "--reasoning-budget-message",
    "reasoning_format": "--reasoning-format",
    "reduce_type": "--split-mode-f16",
    "repack_tensors": "--run-time-repack",
    "rope_cache": "--rope-cache",
    "rope_freq_base": "--rope-freq-base",
    "rope_freq_scale": "--rope-freq-scale",
    "rope_scaling_type": "--rope-scaling",
    "rpc_servers": "--rpc",
    "scheduler_async": "--scheduler-async",
    "seed": "--seed",
    "send_done": "--send-done",
    "slot_prompt_similarity": "--slot-prompt-similarity",
    "slot_save_path": "--slot-save-path",
    "sparams.adaptive_decay": "--adaptive-decay",
    "sparams.adaptive_target": "--adaptive-target",
    "sparams.adaptive_updt_w_cur": "--adaptive-updt-w-cur",
    "sparams.cfg_negative_prompt": "--cfg-negative-prompt",
    "sparams.cfg_scale": "--cfg-scale",
    "sparams.dry_allowed_length": "--dry-allowed-length",
    "sparams.dry_base": "--dry-base",
    "sparams.dry_multiplier": "--dry-multiplier",
    "sparams.dry_penalty_last_n": "--dry-penalty-last-n",
    "sparams.dry_sequence_breakers": "--dry-sequence-breaker",
    "sparams.dynatemp_exponent": "--dynatemp-exp",
    "sparams.dynatemp_range": "--dynatemp-range",
    "sparams.grammar": "--grammar",
    "sparams.min_p": "--min-p",
    "sparams.mirostat": "--mirostat",
    "sparams.mirostat_eta": "--mirostat-lr",
    "sparams.mirostat_tau": "--mirostat-ent",
    "sparams.n_prev": "--repeat-last-n",
    "sparams.penalize_nl": "--penalize-nl",
    "sparams.penalty_freq": "--frequency-penalty",
    "sparams.penalty_last_n": "--repeat-last-n",
    "sparams.penalty_present": "--presence-penalty",
    "sparams.penalty_repeat": "--repeat-penalty",
    "sparams.samplers_sequence": "--samplers",
    "sparams.seed": "--seed",
    "sparams.temp": "--temp",
    "sparams.tfs_z": "--tfs",
    "sparams.top_k": "--top-k",
    "sparams.top_n_sigma": "--top-n-sigma",
    "sparams.top_p": "--top-p",
    "sparams.typical_p": "--typical",
    "sparams.xtc_probability": "--xtc-probability",
    "sparams.xtc_threshold": "--xtc-threshold",
    "special": "--special",
    "speculative.autotune": "--spec-autotune",
    "speculative.cache_type_k": "--cache-type-k-draft",
    "speculative.cache_type_v": "--cache-type-v-draft",
    "speculative.devices": "--device-draft",
    "speculative.model": "--model-draft",
    "speculative.n_ctx": "--ctx-size-draft",
    "speculative.n_gpu_layers": "--gpu-layers-draft",
    "speculative.n_max": "--draft-max",
    "speculative.n_min": "--draft-min",
    "speculative.n_threads": "--threads-draft",
    "speculative.n_threads_batch": "--threads-batch-draft",
    "speculative.ngram_min_hits": "--spec-ngram-min-hits",
    "speculative.ngram_size_m": "--spec-ngram-size-m",
    "speculative.ngram_size_n": "--spec-ngram-size-n",
    "speculative.p_min": "--draft-p-min",
    "speculative.params": "--draft-params",
    "speculative.replacements": "--spec-replace",
    "speculative.spec_ckpt_mode": "--recurrent-ckpt-mode",
    "speculative.stages": "--spec-stage",
    "speculative.suffix_corpus": "--suffix-corpus",
    "speculative.suffix_max_depth": "--suffix-max-depth",
    "speculative.suffix_min_match_len": "--suffix-pattern-len",
    "speculative.type": "--spec-type",
    "split_mode": "--split-mode",
    "split_mode_graph_scheduling": "--split-mode-graph-scheduling",
    "sql_save_file": "--sql-save-file",
    "sqlite_zstd_ext_file": "--sqlite-zstd-ext-file",
    "ssl_file_cert": "--ssl-cert-file",
    "ssl_file_key": "--ssl-key-file",
    "swa_compress": "--swa-compress",
    "system_prompt": "--system-prompt-file",
    "tensor_buft_overrides": "--override-tensor",
    "tensor_split": "--tensor-split",
    "think_tokens": "--reasoning-tokens",
    "thresh_experts": "--smart-expert-reduction",
    "timeout_read": "--timeout",
    "timeout_write": "--timeout",
    "type_k_first": "--cache-type-k-first",
    "type_k_last": "--cache-type-k-last",
    "type_v_first": "--cache-type-v-first",
    "type_v_last": "--cache-type-v-last",
    "use_jinja": "--jinja",
    "use_mlock": "--mlock",
    "use_mmap": "--no-mmap",
    "use_peg": "--peg",
    "use_thp": "--transparent-huge-pages",
    "v_cache_hadamard": "--v-cache-hadamard",
    "validate_quants": "--validate-quants",
    "verbose_prompt": "--verbose-prompt",
    "verbosity": "--verbose",
    "warmup": "--no-warmup",
    "webui": "--webui",
    "webui_mcp_proxy": "--webui-mcp-proxy",
    "worst_graph_tokens": "--worst-graph-tokens",
    "yarn_attn_factor": "--yarn-attn-factor",
    "yarn_beta_fast": "--yarn-beta-fast",
    "yarn_beta_slow": "--yarn-beta-slow",
    "yarn_ext_factor": "--yarn-ext-factor",
    "yarn_orig_ctx": "--yarn-orig-ctx",
}
"""Its flag, of a field that a flag of the server sets."""

FIELDS: Final[tuple[Field, ...]] = fields_of(
    "gpt_params",
    renamed={
        "cache_ram_mib": "cache_ram",
        "cache_ram_n_min": "cache_ram_n_min",
        "cache_ram_similarity": "cache_ram_similarity",
        "chat_template": "chat_template",
        "ctx_checkpoint_eviction": "ctx_checkpoints_eviction",
        "ctx_checkpoints_interval": "ctx_checkpoints_interval",
        "ctx_checkpoints_n": "ctx_checkpoints",
        "ctx_checkpoints_tolerance": "ctx_checkpoints_tolerance",
        "ctx_shift": "context_shift",
        "has_mtp": "companion",
        "n_batch": "batch_size",
        "n_ctx": "ctx_size",
        "n_parallel": "parallel",
        "n_ubatch": "ubatch_size",
        "slot_prompt_similarity": "slot_prompt_similarity",
        "speculative.n_max": "draft_max",
        "speculative.n_min": "draft_min",
        "speculative.p_min": "draft_p_min",
        "speculative.spec_ckpt_mode": "recurrent_ckpt_mode",
        "swa_compress": "companion_window",
        "think_tokens": "reasoning_tokens",
    },
    no_influence={
        "it is about threads, devices and kernels: numbers change, not what is kept": """
            attn_max_batch batch_warmup check_tensors cuda_params defer_experts defrag_thold devices
            extra_output_type fit fit_margin fit_margin_array flash_attn fused_delta_net
            fused_idx_topk fused_mmad fused_moe_up_gate fused_up_gate graph_attn_precision
            graph_reuse grouped_expert_routing main_gpu max_extra_alloc_MiB max_gpu merge_qkv
            merge_up_gate_exps mla_attn mmproj_use_gpu mtmd_kq_type n_gpu_layers n_threads
            n_threads_batch n_threads_mtmd ncmoe no_kv_offload numa offload_policy only_active_exps
            prefetch_experts prefetch_experts_threads reduce_type repack_tensors rope_cache
            rpc_servers scheduler_async speculative.devices speculative.n_gpu_layers
            speculative.n_threads speculative.n_threads_batch split_mode split_mode_graph_scheduling
            tensor_buft_overrides tensor_split use_mlock use_mmap use_thp validate_quants warmup
            worst_graph_tokens
        """,
        "its numbers are rounded: they change, not what is kept": """
            cache_type_k cache_type_v indexer_cache_type_k k_cache_hadamard n_k_first n_k_last
            n_v_first n_v_last speculative.cache_type_k speculative.cache_type_v type_k_first
            type_k_last type_v_first type_v_last v_cache_hadamard
        """,
        "the model of the scenario stands in its place": """
            hf_file hf_repo hf_token kv_overrides mmproj.path mmproj.url model model_alias model_url
            no_mmproj
        """,
        "it changes what is computed, for all requests alike": """
            control_vector_layer_end control_vector_layer_start control_vectors embd_normalize
            lora_adapters lora_init_without_apply min_experts rope_freq_base rope_freq_scale
            rope_scaling_type thresh_experts yarn_attn_factor yarn_beta_fast yarn_beta_slow
            yarn_ext_factor yarn_orig_ctx
        """,
        "it decides which tokens are sampled; a scenario names them": """
            allow_kw_delay allow_kws allow_pieces allow_rules antiprompt ignore_eos
            lookup_cache_dynamic lookup_cache_static p_split parallel_tool_calls reasoning_budget
            reasoning_budget_message seed sparams.adaptive_decay sparams.adaptive_target
            sparams.adaptive_updt_w_cur sparams.cfg_negative_prompt sparams.cfg_scale
            sparams.dry_allowed_length sparams.dry_base sparams.dry_multiplier
            sparams.dry_penalty_last_n sparams.dry_sequence_breakers sparams.dynatemp_exponent
            sparams.dynatemp_range sparams.grammar sparams.min_p sparams.mirostat
            sparams.mirostat_eta sparams.mirostat_tau sparams.n_prev sparams.penalize_nl
            sparams.penalty_freq sparams.penalty_last_n sparams.penalty_present
            sparams.penalty_repeat sparams.samplers_sequence sparams.seed sparams.temp sparams.tfs_z
            sparams.top_k sparams.top_n_sigma sparams.top_p sparams.typical_p
            sparams.xtc_probability sparams.xtc_threshold special speculative.lookup_cache_dynamic
            speculative.lookup_cache_static speculative.p_split
        """,
        "it is about clients and logs": """
            api_keys dry_run dump_kv_cache endpoint_metrics endpoint_props endpoint_slots escape
            force_pure_content_parser hostname log_json logdir minilog n_threads_http port
            public_path reasoning_format send_done sql_save_file sqlite_zstd_ext_file ssl_file_cert
            ssl_file_key timeout_read timeout_write usage use_peg verbose_prompt verbosity webui
            webui_mcp_proxy
        """,
        "it names the folder of slot files, which is there": """
            slot_save_path
        """,
        "it is about the embeddings of media; a scenario names how many tokens one has": """
            image_max_tokens image_min_tokens
        """,
        "the program sets it, not a flag": """
            cb_eval cb_eval_user_data do_checkpoint logits_all
        """,
        "other programs than the server read it": """
            chunk_separator chunk_size compute_ppl context_files conversation cvector_dimre_method
            cvector_negative_file cvector_outfile cvector_positive_file display_prompt embd_out
            embd_sep hellaswag hellaswag_tasks i_chunk i_pos image in_files infill interactive
            interactive_first is_pp_shared kl_divergence logits_file lora_outfile multiline_input
            multiple_choice multiple_choice_tasks n_chunks n_junk n_out_freq n_pca_batch
            n_pca_iterations n_pl n_pp n_print n_save_freq n_sequences n_tg nrep out_file
            out_file_draft output_tensor_name path_prompt_cache ppl_output_type ppl_stride
            process_output prompt prompt_cache_all prompt_cache_ro prompt_file prompt_is_binary
            simple_io spm_infill sweep_bench sweep_bench_output_jsonl sweep_memory sweep_stride
            use_color winogrande winogrande_tasks
        """,
    },
    differs={
        "the template gets other arguments, and a conversation other tokens": """
            default_template_kwargs enable_chat_template enable_reasoning input_prefix
            input_prefix_bos input_suffix prefill_assistant system_prompt use_jinja
        """,
        "a request names these: n_predict, n_keep": """
            n_keep n_predict
        """,
        "a prompt is read in one piece, and nothing of it is kept": """
            attention_type embedding pooling_type
        """,
        "requests that wait are not prefilled beside others that decode": """
            cont_batching
        """,
        "a reply takes tokens back where a phrase is banned": """
            ban_phrases ban_phrases_bias banned_n can_ban_phrases n_buffer
        """,
        "self-extend divides the positions of a slot": """
            grp_attn_n grp_attn_w
        """,
        "sparse attention keeps keys of an indexer too": """
            dsa dsa_top_k
        """,
        "drafts come from another kind of drafter": """
            speculative.autotune speculative.dflash_cross_ctx speculative.model
            speculative.mtp_heads speculative.n_ctx speculative.ngram_min_hits
            speculative.ngram_size_m speculative.ngram_size_n speculative.params
            speculative.replacements speculative.stages speculative.suffix_corpus
            speculative.suffix_max_depth speculative.suffix_min_match_len speculative.type
        """,
    },
    flags=FLAGS,
    flagless="*",
)
