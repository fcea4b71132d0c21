"""The configuration objects that the real scheduler asks; runs in the worker."""

from typing import Any

Json = Any
Real = Any  # whatever the release makes of it


class Settings:
    """A configuration object; what nobody set is None."""

    def __init__(self, **values: Real) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


ALONE = Settings(
    decode_context_parallel_size=1,
    prefill_context_parallel_size=1,
    pipeline_parallel_size=1,
    data_parallel_size=1,
    data_parallel_rank=0,
    data_parallel_index=0,
    tensor_parallel_size=1,
)
"""One worker."""


def settings_of(config: Json) -> Settings:
    """What `VllmConfig` would say of a workload's configuration."""
    groups, drafts = config["groups"], config.get("drafts", 0)
    eagle, budget = bool(config.get("eagle")), config.get("budget", 8192)
    batches = 2 if config.get("overlaps") else 1
    states = [group for group in groups if group["kind"] == "mamba"]
    block = (states or groups)[0]["block"]
    seqs = config.get("max_seqs", 16)
    return Settings(
        model_config=Settings(
            max_model_len=config.get("max_len", 1 << 16),
            runner_type="generate",
            is_hybrid=bool(states),
        ),
        cache_config=Settings(
            num_gpu_blocks=config["blocks"],
            enable_prefix_caching=config.get("caching", True),
            block_size=block,
            mamba_block_size=block,
            user_specified_block_size=True,
            mamba_cache_mode=states[0].get("mode", "align") if states else "none",
            prefix_caching_hash_algo="sha256",
            prefix_match_unit=config.get("hash_block"),
            hash_block_size=config.get("hash_block"),
            prefix_cache_retention_interval=config.get("retention"),
        ),
        scheduler_config=Settings(
            max_num_seqs=seqs,
            max_num_running_reqs=seqs,
            max_num_batched_tokens=budget,
            policy=config.get("policy", "fcfs"),
            async_scheduling=batches > 1,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=0,
            long_prefill_token_threshold_adaptive=0,
            max_num_partial_prefills=1,
            max_num_encoder_input_tokens=budget,
            encoder_cache_size=budget,
            watermark=0.0,
            prefill_schedule_interval=1,
            scheduler_reserve_full_isl=config.get("reserve_full", True),
        ),
        parallel_config=ALONE,
        observability_config=Settings(kv_cache_metrics_sample=0.01),
        kv_transfer_config=_transfer() if config.get("store") else None,
        ec_manager_config=Settings(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=Settings(enabled=False),
        speculative_config=_speculation(drafts, eagle=eagle) if eagle or drafts else None,
        num_speculative_tokens=drafts,
        num_lookahead_tokens=drafts if eagle else 0,
        num_prefill_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
        max_in_flight_tokens=batches * budget + drafts,
        max_concurrent_batches=batches,
        use_v2_model_runner=False,
    )


def _transfer() -> Settings:
    return Settings(
        kv_connector="Store",
        kv_role="kv_both",
        is_kv_consumer=True,
        is_kv_producer=True,
        kv_load_failure_policy="recompute",
    )


def _speculation(drafts: int, *, eagle: bool) -> Settings:
    return Settings(
        use_eagle=lambda: eagle,
        use_eagle_block_drop=lambda: eagle,
        needs_eagle_block_drop=lambda: eagle,
        uses_draft_model=lambda: False,
        uses_extract_hidden_states=lambda: False,
        use_ngram_gpu=lambda: False,
        use_dflash=lambda: False,
        use_dspark=lambda: False,
        use_multi_module_mtp=lambda: False,
        num_speculative_tokens=drafts,
        max_num_new_slots_for_drafting=0,
        method="eagle" if eagle else "ngram",
    )
