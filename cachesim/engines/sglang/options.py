"""The flags of `sglang.launch_server` that decide what is cached, under upstream's names."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, get_args

from cachesim.engines.device import DEVICES, device_option
from cachesim.engines.option import listed, option
from cachesim.engines.sglang.build import Kind, Sizes
from cachesim.engines.sglang.pools import (
    MOST_PRIORITY,
    HostShape,
    PrefetchPolicy,
    StorageShape,
    WritePolicy,
    host_size,
)
from cachesim.engines.sglang.request import Drafts
from cachesim.engines.sglang.rules import Rules
from cachesim.errors import OptionError
from cachesim.model.spec import ModelSpec

LONGEST: Final = 4096
"""Default `context_length`."""

STATES_PER_RUNNING: Final = 3
"""`MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO`."""

STRATEGIES: Final = ("auto", "no_buffer", "extra_buffer")


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangOptions:
    """Flags of the server; the defaults are upstream's, the pools are a toy's."""

    page_size: int = option(
        "--page-size",
        "tokens in a page: keys are compared page by page",
        default=1,
        low=1,
        high=4096,
        unit="tokens",
        tried=(1, 4, 16, 32),
    )
    dcp_size: int = option(
        "--dcp-size",
        "ranks that share the keys of a decode; the tree's pages are longer by this factor",
        default=1,
        low=1,
        high=64,
        since="0.5.22",
    )
    max_total_tokens: int = option(
        "--max-total-tokens",
        "number of token slots",
        default=16384,
        low=2,
        unit="tokens",
        tried=(16384, 400),
    )
    context_length: int = option(
        "--context-length", "maximum tokens of a request", default=LONGEST, low=2, unit="tokens"
    )
    device: str = device_option("chunked_prefill_size", "cpu")
    chunked_prefill_size: int = option(
        "--chunked-prefill-size",
        "maximum tokens per prefill chunk, by `device` where it is left out; -1: prompts are not "
        "split",
        default=8192,
        low=-1,
        unit="tokens",
        tried=(8192, 64, 32),
    )
    max_prefill_tokens: int = option(
        "--max-prefill-tokens",
        "prompt tokens that are prefilled together",
        default=16384,
        low=1,
        unit="tokens",
    )
    prefill_max_requests: int | None = option(
        "--prefill-max-requests",
        "maximum requests of a prefill; no limit if left out",
        default=None,
        kind="whole number",
        may_be_silent=True,
        low=1,
        high=4096,
        rare=True,
    )
    schedule_conservativeness: float = option(
        "--schedule-conservativeness",
        "share of the tokens that running requests may still generate for which room is kept, as a "
        "factor of 0.7",
        default=1.0,
        low=0.0,
        high=1000.0,
        rare=True,
    )
    max_running_requests: int = option(
        "--max-running-requests",
        "maximum requests that run at once",
        default=8,
        low=1,
        high=4096,
        unit="requests",
        tried=(8, 1, 2),
    )
    enable_mixed_chunk: bool = option(
        "--enable-mixed-chunk",
        "decoding requests continue beside every chunk of a prompt",
        default=False,
    )
    disable_overlap_schedule: bool = option(
        "--disable-overlap-schedule",
        "take each batch's tokens before the next is formed; states with `no_buffer` imply it",
        default=False,
        rare=True,
    )
    lora: str = option(
        "--lora-paths",
        "the files of adapters that requests may bring, their names with commas between them",
        default="",
        may_be_silent=True,
        rare=True,
    )
    max_loras_per_batch: int = option(
        "--max-loras-per-batch",
        "adapters that run at once; requests without one count as one",
        default=8,
        low=1,
        high=4096,
        needs="lora",
        rare=True,
    )
    schedule_policy: str = option(
        "--schedule-policy",
        "which waiting request is served first",
        default="fcfs",
        choices=(
            "fcfs",
            "lpm",
            "dfs-weight",
            "lof",
            "random",
            "routing-key",
            "hrrn",
            "shortest-prefill-first",
        ),
        arrived={"hrrn": "0.5.22", "shortest-prefill-first": "0.5.22"},
        rare=True,
    )
    random_seed: int = option(
        "--random-seed",
        "seed of the policy `random`, which a server draws at each start",
        default=0,
        low=0,
        high=(1 << 32) - 1,
        rare=True,
    )
    enable_priority_scheduling: bool = option(
        "--enable-priority-scheduling",
        "requests of higher priority are served first, and preempt those that run",
        default=False,
        rare=True,
    )
    schedule_low_priority_values_first: bool = option(
        "--schedule-low-priority-values-first",
        "smaller numbers are the higher priority",
        default=False,
        needs="enable_priority_scheduling",
        rare=True,
    )
    priority_scheduling_preemption_threshold: int = option(
        "--priority-scheduling-preemption-threshold",
        "a request preempts where the priorities differ by more than this",
        default=10,
        low=-(1 << 31),
        high=1 << 31,
        needs="enable_priority_scheduling",
        rare=True,
    )
    disable_priority_preemption: bool = option(
        "--disable-priority-preemption",
        "running requests stay, whatever waits",
        default=False,
        since="0.5.22",
        needs="enable_priority_scheduling",
        rare=True,
    )
    default_priority_value: int | None = option(
        "--default-priority-value",
        "priority of requests without one, which are served last if this is left out",
        default=None,
        kind="whole number",
        may_be_silent=True,
        low=-(1 << 31),
        high=1 << 31,
        since="0.5.22",
        needs="enable_priority_scheduling",
        rare=True,
    )
    abort_on_priority_when_disabled: bool = option(
        "--abort-on-priority-when-disabled",
        "requests with a priority are refused without `enable_priority_scheduling`",
        default=False,
        rare=True,
    )
    retraction_policy: str = option(
        "--retraction-policy",
        "which request starts over when memory runs out: of few generated tokens, or low priority",
        default="length",
        choices=("length", "priority"),
        since="0.5.22",
        rare=True,
    )
    radix_eviction_policy: str = option(
        "--radix-eviction-policy",
        "which leaf is evicted first when memory is short",
        default="lru",
        choices=("lru", "lfu", "slru", "priority"),
        arrived={"slru": "0.5.22", "priority": "0.5.22"},
        tried=("lru", "lfu"),
    )
    swa_full_tokens_ratio: float = option(
        "--swa-full-tokens-ratio",
        "window slots for each slot of full attention",
        default=0.8,
        low=0.01,
        high=1.0,
    )
    max_mamba_cache_size: int = option(
        "--max-mamba-cache-size",
        "slots for recurrent states",
        default=64,
        low=4,
        high=1 << 20,
        unit="states",
        tried=(64, 16),
    )
    mamba_scheduler_strategy: str = option(
        "--mamba-scheduler-strategy",
        "where recurrent states are saved: at chunk ends, or on a grid in two extra slots",
        default="auto",
        choices=STRATEGIES,
        until="0.5.9",
        tried=STRATEGIES,
    )
    mamba_radix_cache_strategy: str = option(
        "--mamba-radix-cache-strategy",
        "where recurrent states are saved: at chunk ends, or on a grid in two extra slots",
        default="auto",
        choices=STRATEGIES,
        since="0.5.22",
        tried=STRATEGIES,
    )
    mamba_track_interval: int = option(
        "--mamba-track-interval",
        "generated tokens between two saved states, with `extra_buffer`",
        default=256,
        low=1,
        high=1 << 20,
        unit="tokens",
        tried=(256, 64),
    )
    mamba_max_states_per_path: int = option(
        "--mamba-max-states-per-path",
        "states on one path; -1: no limit",
        default=-1,
        low=-1,
        high=1 << 20,
        unit="states",
        since="0.5.22",
        tried=(-1, 2),
    )
    speculative_algorithm: str = option(
        "--speculative-algorithm",
        "with EAGLE the tree's keys are pairs of tokens, and decodes reserve slots for drafts",
        default="none",
        choices=("none", "EAGLE"),
        tried=("none", "EAGLE"),
    )
    speculative_num_steps: int = option(
        "--speculative-num-steps",
        "drafts one after another in a step, which are those that a request brings",
        default=3,
        low=1,
        high=1024,
        needs="speculative_algorithm",
        rare=True,
    )
    speculative_eagle_topk: int = option(
        "--speculative-eagle-topk",
        "branches of drafts, for each of which slots are reserved",
        default=1,
        low=1,
        high=1024,
        needs="speculative_algorithm",
        rare=True,
    )
    speculative_num_draft_tokens: int = option(
        "--speculative-num-draft-tokens",
        "tokens verified in a step; with one branch it is one more than the steps",
        default=4,
        low=1,
        high=4096,
        unit="tokens",
        needs="speculative_algorithm",
        rare=True,
    )

    strip_thinking_cache: bool = option(
        "--strip-thinking-cache",
        "of a reply with reasoning (`require_reasoning`) nothing is kept: not its answer either",
        default=False,
        since="0.5.22",
        rare=True,
    )
    reasoning_parser: str = option(
        "--reasoning-parser",
        "parser of the model's reasoning: with one, requests are chats whose replies reason, "
        "unless they say `require_reasoning = false`",
        default="none",
        kind="text",
        rare=True,
    )
    strict_mem_check_during_idle: bool = option(
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE",
        "a pool whose counts do not add up when idle ends the server (upstream's default); off "
        "here, so that you see what follows",
        default=False,
    )
    enable_hierarchical_cache: bool = option(
        "--enable-hierarchical-cache",
        "a second tier in the host's memory (HiCache)",
        default=False,
        tried=(False, True, True, True),
    )
    hicache_ratio: float = option(
        "--hicache-ratio",
        "slots on the host for each slot on the device",
        default=2.0,
        low=0.01,
        high=1000.0,
        tried=(2.0, 1.0),
    )
    hicache_size: int = option(
        "--hicache-size",
        "the host's pools in GB, split like the device's; 0: by the ratio",
        default=0,
        high=4096,
        unit="GB",
        needs="enable_hierarchical_cache",
    )
    hicache_write_policy: WritePolicy = option(
        "--hicache-write-policy",
        "what is copied to the host: what is used, what is used twice, or what the device evicts",
        default="write_through",
        choices=get_args(WritePolicy),
        tried=("write_through", "write_back", "write_through_selective"),
    )
    hicache_copy_steps: int = option(
        "",
        "steps of the scheduler until a copy to the host is done; what it copies is locked so long",
        default=0,
        low=0,
        high=1000,
        unit="steps",
        needs="enable_hierarchical_cache",
    )

    hicache_storage_backend: str = option(
        "--hicache-storage-backend",
        "a third tier below the host: its pages are kept in files",
        default="none",
        choices=("none", "file"),
    )
    sparse_indexer: bool = option(
        "",
        "whether the last attention layer stands for the keys of a sparse indexer, as of DeepSeek"
        " V3.2 and GLM-5",
        default=False,
        needs="hicache_storage_backend",
    )
    hicache_storage_prefetch_policy: PrefetchPolicy = option(
        "--hicache-storage-prefetch-policy",
        "whether a request waits until everything the storage has of it has arrived",
        default="best_effort",
        choices=get_args(PrefetchPolicy),
        later={"0.5.22": "timeout"},
    )
    prefetch_threshold: int = option(
        "--hicache-storage-backend-extra-config",
        "fewest tokens worth a prefetch: that the tree lacks and the storage has (in the JSON of "
        "this flag)",
        default=256,
        low=1,
        unit="tokens",
    )
    hicache_storage_prefetch_retry_poll_interval: int = option(
        "--hicache-storage-prefetch-retry-poll-interval",
        "passes of the scheduler until a request that missed asks the storage again; 0: never",
        default=8,
        high=1 << 20,
        unit="passes",
        since="0.5.22",
    )
    enable_streaming_session: bool = option(
        "--enable-streaming-session",
        "sessions may stream: a turn leaves its slots to the next one, and not to the tree",
        default=False,
        since="0.5.22",
    )
    hicache_storage_prefetch_retry_max_attempts: int = option(
        "--hicache-storage-prefetch-retry-max-attempts",
        "how often a waiting request asks the storage again",
        default=8,
        low=0,
        high=1 << 20,
        since="0.5.22",
    )

    @property
    def tree_page(self) -> int:
        """The page of the allocator and the tree, "widened" by the ranks of a decode."""
        return self.page_size * self.dcp_size

    def check(self, rules: Rules, *, states: bool) -> None:
        """Refuse options that do not fit together."""
        if self.hicache_storage_backend != "none" and not self.enable_hierarchical_cache:
            raise OptionError(
                "option 'hicache_storage_backend' needs a host before the storage: write "
                "enable_hierarchical_cache = true"
            )
        if self.enable_priority_scheduling and self.schedule_policy not in {"fcfs", "lof"}:
            raise OptionError(
                f"option 'schedule_policy' is {self.schedule_policy!r}: with "
                "enable_priority_scheduling it must be 'fcfs' or 'lof'"
            )
        if self.retraction_policy == "priority" and not self.enable_priority_scheduling:
            raise OptionError(
                "option 'retraction_policy' is 'priority': it requires enable_priority_scheduling; "
                "write enable_priority_scheduling = true"
            )
        page = self.tree_page
        if self.max_total_tokens < page:
            raise OptionError(
                f"option 'max_total_tokens' is {self.max_total_tokens}: write at least a page, "
                f"{page}"
            )
        chunk = self.chunked_prefill_size
        if chunk > 0 and chunk % page:
            raise OptionError(
                f"option 'chunked_prefill_size' is {chunk}: it must be a multiple of the page, "
                f"{page}; -1 cuts no prompt"
            )
        if states and page > 1 and not self.extra_buffer(rules):
            raise OptionError(
                f"option 'page_size' is {page}: with states and `no_buffer` it must be 1; "
                "write 1, or choose `extra_buffer`"
            )
        if (
            states
            and self.drafts
            and not self.extra_buffer(rules)
            and rules.scheduler.drafts_need_buffer
        ):
            raise OptionError(
                f"option 'speculative_algorithm' is {self.speculative_algorithm}: with states and "
                "`no_buffer` this release turns its radix cache off; choose `extra_buffer`"
            )
        page = self.page_size
        grid = max(64, page)
        if states and self.extra_buffer(rules) and self.mamba_track_interval % grid:
            raise OptionError(
                f"option 'mamba_track_interval' is {self.mamba_track_interval}; it must be a "
                f"multiple of {grid}"
            )
        if states and grid % page:
            msg = f"option 'page_size' is {page}: with states it must divide 64, or be a multiple"
            raise OptionError(msg)

    @property
    def drafts(self) -> Drafts | None:
        """The sizes of speculative decoding. Follows `_handle_eagle_family`."""
        if self.speculative_algorithm == "none":
            return None
        steps, topk = self.speculative_num_steps, self.speculative_eagle_topk
        tokens = steps + 1 if topk == 1 else self.speculative_num_draft_tokens
        return Drafts(steps=steps, topk=topk, tokens=tokens)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The files of adapters."""
        return listed(self.lora)

    @property
    def preempts(self) -> bool:
        """True where a waiting request may preempt running ones."""
        return self.enable_priority_scheduling and not self.disable_priority_preemption

    def priority_of(self, given: int | None) -> int:
        """The priority of a request. Follows `_set_or_validate_priority`."""
        if not self.enable_priority_scheduling:
            return given or 0
        if given is None:
            given = self.default_priority_value
        if given is None:
            return MOST_PRIORITY if self.schedule_low_priority_values_first else -MOST_PRIORITY - 1
        return given

    def host(self, rules: Rules, kind: Kind, sizes: Sizes, spec: ModelSpec) -> HostShape | None:
        """The second tier, or None. Follows `build_hybrid_mamba_stack` and its like."""
        if not self.enable_hierarchical_cache:
            return None
        if kind != "full" and not rules.scheduler.host_takes_all_models:
            raise OptionError(
                "option 'enable_hierarchical_cache' is true: this release has it for models of "
                "full attention only (HiRadixCache supports MHA and MLA); leave it out"
            )
        ratio = self.host_ratio(kind, sizes, spec)
        tokens = host_size(sizes.tokens, ratio, self.tree_page)
        if tokens <= sizes.tokens and not rules.scheduler.host_may_be_smaller:
            raise OptionError(
                f"the host would hold {tokens} tokens and the device {sizes.tokens}: this release "
                "asserts that it holds more; write a hicache_ratio of 1 or more"
            )
        states = host_size(sizes.states, ratio, 1)
        if rules.tree.states_for_every_chunk and self.chunked_prefill_size > 0:
            states = max(states, 2 * -(-tokens // self.chunked_prefill_size))
        return HostShape(
            tokens=tokens,
            window_tokens=host_size(sizes.window_tokens, ratio, self.tree_page)
            if rules.tree.host_has_windows
            else 0,
            states=states,
            policy=self.hicache_write_policy,
            lag=self.hicache_copy_steps,
            storage=None
            if self.hicache_storage_backend == "none"
            else StorageShape(
                policy=self.hicache_storage_prefetch_policy,
                threshold=self.prefetch_threshold,
                interval=self.hicache_storage_prefetch_retry_poll_interval,
                attempts=self.hicache_storage_prefetch_retry_max_attempts,
            ),
        )

    def host_ratio(self, kind: Kind, sizes: Sizes, spec: ModelSpec) -> float:
        """A size in GB is split like the device's pools, so that all grow by one ratio."""
        if not self.hicache_size:
            return self.hicache_ratio
        token = window = state = 0
        for layer in range(len(spec.layers)):
            cell = spec.key_bytes(layer) + spec.value_bytes(layer)
            is_window = spec.kind(layer) == "window" and "window" in kind
            token, window = token + cell * (not is_window), window + cell * is_window
            state += spec.conv_bytes(layer) + spec.state_bytes(layer)
        device = token * sizes.tokens + window * sizes.window_tokens
        device += state * sizes.states if "mamba" in kind else 0
        return self.hicache_size * 1e9 / max(device, 1)

    def running(self, rules: Rules, *, tokens: int, states: bool) -> int:
        """The number of requests that run at once. Follows `resolve_max_num_reqs`."""
        most = self.max_running_requests
        if rules.scheduler.two_tokens_per_running:
            most = min(most, tokens // 2)
        if states:
            most = min(most, self.max_mamba_cache_size // self._states_per_running(rules))
        if most <= 0:
            needed = self._states_per_running(rules)
            raise OptionError(
                f"option 'max_mamba_cache_size' is {self.max_mamba_cache_size}: the state cache is "
                f"too small to serve any requests, as a running one takes {needed}; write {needed} "
                "or more"
            )
        return most

    def _states_per_running(self, rules: Rules) -> int:
        """Follows `_calculate_mamba_ratio`."""
        return STATES_PER_RUNNING + (self.track_slots(rules) if self.extra_buffer(rules) else 0)

    def track_slots(self, rules: Rules) -> int:
        """Slots in which a running request tracks its states (`get_mamba_tracking_slots`)."""
        if rules.scheduler.drafts_track_in_one_slot:
            return 2 if self.drafts is None else 1
        return 1 if self.disable_overlap_schedule else 2

    def overlaps(self, rules: Rules, *, states: bool) -> bool:
        """True where a batch is formed before the results of the one before are processed.

        In 0.5.9 a server with drafts, or with `no_buffer`, turns its schedule off; later ones ask
        for the flag beside `no_buffer`.
        """
        if self.disable_overlap_schedule or (states and not self.extra_buffer(rules)):
            return False
        return self.drafts is None or rules.scheduler.drafts_overlap

    def mixes(self, rules: Rules) -> bool:
        """True where decoding requests join a prefill."""
        if not self.enable_mixed_chunk or self.chunked_prefill_size <= 0:
            return False
        return self.speculative_algorithm == "none" or rules.scheduler.drafts_may_mix

    def extra_buffer(self, rules: Rules) -> bool:
        """True where states are tracked in slots of their own; the release resolves `auto`."""
        given = {self.mamba_scheduler_strategy, self.mamba_radix_cache_strategy} - {"auto"}
        if given:
            return "extra_buffer" in given
        wanted = not self.disable_overlap_schedule or self.page_size > 1
        return wanted and rules.scheduler.auto_is_extra_buffer


def by_device(
    rules: Rules, options: SglangOptions, given: Collection[str], scale: int
) -> dict[str, int]:
    """The flag that is left to the server, by its machine. Follows `handle_gpu_memory_settings`.

    `--cuda-graph-max-bs` pads batches only, and `--mem-fraction-static` sizes the pools, which
    `max_total_tokens` names here.
    """
    if "chunked_prefill_size" in given:
        return {}
    gib = DEVICES[options.device].gib
    middle = 4096 if rules.scheduler.longer_chunks_from_20_gib else 2048
    tiers = ((20, 2048), (35, middle), (60, 4096), (160, 8192))
    size = next((size for below, size in tiers if gib < below), 16384)
    page = options.tree_page if scale > 1 else 1
    return {"chunked_prefill_size": max(size // scale // page * page, page)}
