"""The flags of `vllm serve` that affect the cache, under upstream's names."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, get_args

from cachesim.engines.device import DEVICES, device_option
from cachesim.engines.option import listed, option
from cachesim.engines.vllm.block_pool import GroupSpec, Sizes, StateMode, cdiv, kv_cache_groups
from cachesim.engines.vllm.groups import (
    COMPRESSED_BLOCK,
    COMPRESSED_WINDOW,
    check_drafter,
    check_groups,
    compressed_groups,
    promoted,
)
from cachesim.engines.vllm.options.offloading import OffloadOptions
from cachesim.engines.vllm.request import Limits
from cachesim.engines.vllm.rules import Rules
from cachesim.errors import OptionError
from cachesim.model.spec import ModelSpec

DENSE: Final = -1
"""`prefix_cache_retention_interval` is None: every block and every state keeps its id."""

UNSET: Final = -2
"""`prefix_cache_retention_interval` unset in 0.29 (#55760): dense for a hybrid with a drafter."""

LONGEST: Final = 4096
"""Default of `max_model_len` with a large pool."""

BATCHED: Final = 8192
MAX_NUM_SEQS: Final = 1024
"""Defaults on an H100; `EngineArgs` lowers `max_num_seqs` to `max_num_batched_tokens`."""

MOST_BLOCKS: Final = 1 << 22
MOST: Final = 1 << 20
DEFAULT_BLOCK: Final = 16
CPU_BLOCK: Final = 128
MOST_ADAPTERS: Final = 1 << 10
RING: Final = 8
"""Rows of a ring without drafts (`CompressorStateCache`)."""

FLASHINFER_ALIGNMENT: Final = 64
"""Tokens of a chunk of FlashInfer's gated-delta kernel, between which it emits states."""

LATE: Final = frozenset({"store-async", "nixl"})
"""Connectors whose loads arrive in later steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions(OffloadOptions):
    """Options of a server, with upstream's defaults on an H100, except for a small pool."""

    device: str = device_option("max_num_batched_tokens and max_num_seqs; a `cpu` block_size, too")

    block_size: int = option(
        "--block-size",
        "tokens in a block of attention",
        default=DEFAULT_BLOCK,
        low=1,
        high=MOST,
        unit="tokens",
        tried=(16, 8, 4),
    )
    mamba_block_size: int = option(
        "--mamba-block-size",
        "tokens that one saved state stands for; 0: as many as a block of attention holds, which"
        " the mode `align` makes it in every model that attends",
        default=0,
        high=MOST,
        unit="tokens",
        tried=(0, 32),
    )
    mamba_chunk_size: int = option(
        "",
        "tokens of a chunk of Mamba-2's kernel, whose ends mode `all` takes states from, a number"
        " of the model: 256 in Granite 4; 0: one that divides a block",
        default=0,
        high=MOST,
        unit="tokens",
    )
    window_block_size: int = option(
        "",
        "tokens in a block of window layers, where a page of theirs holds fewer than one of"
        " attention's, as in Gemma 4; 0: as many",
        default=0,
        high=MOST,
        unit="tokens",
        since="0.20.2",
    )
    rings: bool = option(
        "",
        "whether layers with chunks keep the open chunk's rows in a ring of 8 per request,"
        " uncached, as compressors of DeepSeek-V4.1, the only model that --swa-bounded-replay"
        " changes, with it off",
        default=False,
        since="0.31.0",
    )
    drafter_block_size: int = option(
        "",
        "tokens in a block of the drafter's own layer, where a model of its own attends in others;"
        " 0: as in the target's",
        default=0,
        high=MOST,
        unit="tokens",
        since="0.20.2",
    )
    lora: str = option(
        "--enable-lora",
        "the files of adapters that requests may bring, their names with commas between them",
        default="",
        may_be_silent=True,
    )
    max_loras: int = option(
        "--max-loras",
        "adapters that run at once; a request of another one waits, and later ones may pass it",
        default=1,
        low=1,
        high=MOST_ADAPTERS,
        unit="adapters",
        needs="lora",
    )
    prefix_match_unit: int = option(
        "--prefix-match-unit",
        "tokens per block id; 0: the greatest common divisor of the groups' blocks",
        default=0,
        high=MOST,
        unit="tokens",
        since="0.26.0",
    )
    disable_hybrid_kv_cache_manager: bool = option(
        "--disable-hybrid-kv-cache-manager",
        "whether layers with windows or chunks keep every block, in one group with full attention",
        default=False,
        tried=(False, True),
    )
    num_gpu_blocks_override: int = option(
        "--num-gpu-blocks-override",
        "number of blocks in the pool, including the null block",
        default=1024,
        low=2,
        high=MOST_BLOCKS,
        unit="blocks",
        tried=(1024, 40),
    )
    max_model_len: int = option(
        "--max-model-len",
        "maximum tokens of a request; -1: what the pool can hold of one; 0: that, at most 4096",
        default=0,
        low=-1,
        high=MOST_BLOCKS,
        unit="tokens",
    )
    max_num_batched_tokens: int = option(
        "--max-num-batched-tokens",
        "maximum tokens per step; by `device` where it is left out",
        default=BATCHED,
        low=1,
        high=MOST,
        unit="tokens",
        tried=(8192, 64, 32),
    )
    max_num_scheduled_tokens: int = option(
        "--max-num-scheduled-tokens",
        "maximum tokens that a step schedules; 0: max_num_batched_tokens. Until 0.27 a field of "
        "the configuration without a flag, which some drafters lower",
        default=0,
        high=MOST,
        unit="tokens",
    )
    max_num_seqs: int = option(
        "--max-num-seqs",
        "maximum requests that run at once; by `device` where it is left out",
        default=MAX_NUM_SEQS,
        low=1,
        high=MOST,
        unit="requests",
        tried=(MAX_NUM_SEQS, 1),
    )
    max_num_active_seqs: int = option(
        "--max-num-active-seqs",
        "maximum requests that run at once, where the runner has room for max_num_seqs; 0: those",
        default=0,
        high=MOST,
        unit="requests",
        since="0.31.0",
        tried=(0, 1),
    )
    long_prefill_token_threshold: int = option(
        "--long-prefill-token-threshold",
        "maximum tokens of a request per step, beside others; 0: all that the step has room for."
        " Until 0.30 also of a request that is alone",
        default=0,
        high=MOST,
        unit="tokens",
        tried=(0, 16, 8),
    )
    long_prefill_token_threshold_adaptive: bool = option(
        "--long-prefill-token-threshold-adaptive",
        "whether a request's share of max_num_batched_tokens is its threshold, where that is more",
        default=False,
        since="0.31.0",
        needs="long_prefill_token_threshold",
    )
    prefill_schedule_interval: int = option(
        "--prefill-schedule-interval",
        "steps between two that have prefills, while others generate and no request queues up;"
        " until 0.32 without effect on a server without data-parallel ranks",
        default=1,
        low=1,
        high=1000,
        unit="steps",
        since="0.24.0",
        tried=(1, 3),
    )
    watermark: float = option(
        "--watermark",
        "share of the pool's blocks that a request leaves free when it is admitted beside others",
        default=0.0,
        low=0.0,
        high=0.99,
        since="0.24.0",
        tried=(0.0, 0.25),
    )
    enable_prefix_caching: bool = option(
        "--enable-prefix-caching", "whether prefixes are cached", default=True
    )
    mamba_cache_mode: StateMode = option(
        "--mamba-cache-mode",
        "where states are kept: at the ends of prefill chunks (align), or at every block (all); "
        "with none the server chooses, if it caches prefixes",
        default="none",
        choices=get_args(StateMode),
    )
    enable_mamba_shared_prefix_checkpoint: bool = option(
        "--enable-mamba-shared-prefix-checkpoint",
        "whether a prefill also ends, and leaves a state, at the junction: where attention still"
        " matches the prompt and no state does. Only beside EAGLE or MTP, and with a"
        " prefix_match_unit that is smaller than a state's block",
        default=False,
        since="0.30.0",
        until_then=("0.30.0", "--enable-mamba-fine-grained-prefix-cache"),
        tried=(False, True),
    )
    gdn_prefill_backend: str = option(
        "--gdn-prefill-backend",
        "the kernel of gated-delta layers' prefills, which in FlashInfer's case exports a state"
        " inside a chunk; a start picks FlashInfer's on Hopper and Blackwell, else Triton's",
        default="flashinfer",
        choices=("flashinfer", "triton"),
    )
    prefix_cache_retention_interval: int = option(
        "--prefix-cache-retention-interval",
        "which states and window blocks are kept besides those at the prompt's end and at "
        "junctions: one per this many tokens; 0: no others; -1: all; -2: as -1 for drafters "
        "beside states, else as 0",
        default=DENSE,
        low=UNSET,
        high=MOST,
        unit="tokens",
        since="0.23.0",
        later={"0.29.0": UNSET, "0.30.0": 0},
        tried=(0, DENSE),
    )
    scheduler_reserve_full_isl: bool = option(
        "--scheduler-reserve-full-isl",
        "whether a request is admitted only when its whole prompt fits",
        default=True,
    )
    scheduling_policy: str = option(
        "--scheduling-policy",
        "which request is served first: the one that came first, or the one with the smaller "
        "priority number",
        default="fcfs",
        choices=("fcfs", "priority"),
        tried=("fcfs", "priority"),
    )
    async_scheduling: bool = option(
        "--async-scheduling",
        "whether a step is scheduled before the output of the previous one; until 0.32 never "
        "beside n-grams, with which a real server that is told to does not start",
        default=True,
        tried=(False, True),
    )
    speculative_method: str = option(
        "--speculative-config.method",
        "what proposes draft tokens",
        default="none",
        choices=("none", "ngram", "eagle", "mtp"),
        tried=("none", "ngram", "eagle"),
    )
    num_speculative_tokens: int = option(
        "--speculative-config.num-speculative-tokens",
        "number of tokens proposed per step, if there is a method",
        default=2,
        low=1,
        high=64,
        unit="tokens",
    )
    num_speculative_tokens_per_batch_size: str = option(
        "--speculative-config.num-speculative-tokens-per-batch-size",
        "numbers of tokens proposed by the number of requests in a step, at most"
        " num_speculative_tokens: ranges as upstream writes them, as [[1, 4, 3], [5, 16, 1]] for 3"
        " in steps of 1 to 4 requests and 1 in larger ones",
        default="",
        since="0.24.0",
        needs="speculative_method",
    )
    disable_lookahead_block_hashes: bool = option(
        "--speculative-config.disable-lookahead-block-hashes",
        "whether ids of blocks leave out the token after the block, which EAGLE and MTP heads read;"
        " a hit's last block is then dropped for them",
        default=False,
        since="0.33.0",
        tried=(False, True),
    )
    disable_eagle_block_drop: bool = option(
        "--speculative-config.disable-eagle-block-drop",
        "whether a hit keeps the last block, whose last entry EAGLE and MTP heads computed from the"
        " token after it, and ids leave that token out",
        default=False,
        since="0.30.0",
        tried=(False, True),
    )
    eagle_groups: str = option(
        "",
        "the groups that carry the drafter's mark: all, or that of the drafter's own layers; auto: "
        "those that the release marks by itself",
        default="auto",
        choices=("auto", "all", "full", "window"),
        since="0.20.2",
    )
    connector: str = option(
        "--kv-transfer-config",
        "an external store of blocks; `store-async` loads them in later steps, `store-attention` "
        "promises every group and brings attention; `nixl` reads them from a server with the same "
        "options that prefills each request",
        default="none",
        choices=("none", "store", "store-async", "store-attention", "nixl"),
        arrived={"store-async": "0.33.0", "nixl": "0.33.0"},
        beside={"nixl": ("rings", "0.31.0")},
        tried=("none", "store"),
    )
    load_steps: int = option(
        "",
        "steps after which a load of `store-async` or `nixl` has arrived",
        default=1,
        low=1,
        high=1000,
        unit="steps",
        since="0.33.0",
        needs="connector",
    )
    kv_lease_steps: int = option(
        "--kv-transfer-config.kv-connector-extra-config.kv-lease-duration",
        "steps for which the prefill server of `nixl` holds blocks that nobody reads; 0: until "
        "they are read, as heartbeats renew its lease",
        default=0,
        low=0,
        high=1000,
        unit="steps",
        since="0.33.0",
        needs="connector",
    )
    kv_load_failure_policy: str = option(
        "--kv-transfer-config.kv-load-failure-policy",
        "what happens to a request whose load fails: it ends with an error, or computes the rest",
        default="fail",
        choices=("fail", "recompute"),
        since="0.33.0",
        needs="connector",
    )

    @property
    def adapters(self) -> tuple[str, ...]:
        """The files of adapters."""
        return listed(self.lora)

    @property
    def has_connector(self) -> bool:
        """True if blocks are stored outside of the pool (`kv_transfer_config`)."""
        return self.connector != "none" or self.offloads

    @property
    def loads_late(self) -> bool:
        """True if loads arrive in later steps."""
        return self.connector in LATE or self.offloads

    @property
    def use_eagle(self) -> bool:
        """True if a drafter reads the target's hidden states."""
        return self.speculative_method in {"eagle", "mtp"}

    @property
    def drafts(self) -> int:
        """Number of draft tokens per step."""
        return 0 if self.speculative_method == "none" else self.num_speculative_tokens

    @property
    def drafts_by_size(self) -> tuple[int, ...]:
        """Drafts in steps of one request, of two and so on; the last number holds for all larger.

        Follows `build_dynamic_sd_schedule_lookup`.
        """
        counts: list[int] = []
        for first, last, drafts in self._ranges() if self.drafts else ():
            counts += counts[-1:] * (first - 1 - len(counts))
            counts += [min(drafts, self.drafts)] * (last - len(counts))
        return tuple(counts)

    def _ranges(self) -> list[tuple[int, int, int]]:
        """The ranges of `num_speculative_tokens_per_batch_size`, sorted and checked."""
        text = self.num_speculative_tokens_per_batch_size
        if not text:
            return []
        try:
            ranges = sorted((int(a), int(b), int(c)) for a, b, c in json.loads(text))
        except (ValueError, TypeError, RecursionError):
            ranges = []
        ends = [0, *(last for _, last, _ in ranges)]
        pairs = zip(ends, ranges, strict=False)
        fit = all(end < first <= last and drafts >= 0 for end, (first, last, drafts) in pairs)
        if not fit or not ranges or ranges[0][0] != 1 or ends[-1] > MOST:
            raise OptionError(
                f"option 'num_speculative_tokens_per_batch_size' is {text[:60]!r}; write ranges "
                "that begin at 1 and do not overlap, as [[1, 4, 3], [5, 16, 1]]"
            )
        return ranges

    @property
    def retention(self) -> int | None:
        """The retention interval, or None for dense."""
        interval = self.prefix_cache_retention_interval
        return None if interval == DENSE else max(interval, 0)

    def hash_lookahead(self, rules: Rules) -> int:
        """Tokens after a block that its id covers. Follows `num_hash_lookahead_tokens`."""
        legacy = self.disable_lookahead_block_hashes or self.has_connector
        legacy |= self.disable_eagle_block_drop
        used = self.use_eagle and self.enable_prefix_caching and not legacy
        return int(used and rules.lookup.lookahead_hashes)

    def runs_on_v1(self, rules: Rules) -> bool:
        """True if a model with states runs on Model Runner V1. Follows `use_v2_model_runner`."""
        use = rules.runner.model_runner_v1
        some = self.speculative_method == "ngram" and use != "never"
        everywhere = self.state_mode(rules) == "all" and use == "n-grams-and-all"
        return use == "always" or some or everywhere

    def state_mode(self, rules: Rules) -> StateMode:
        """The mode of state-space models; others fall back from `all` to `align`.

        Follows `MambaModelConfig`.
        """
        if not self.enable_prefix_caching:
            return "none"
        return rules.state.usual_mode if self.mamba_cache_mode == "none" else self.mamba_cache_mode

    def drops_eagle_block(self, rules: Rules) -> bool:
        """True if a drafter drops a hit's last block, as ids do not cover the next token."""
        drops = self.use_eagle and not self.disable_eagle_block_drop
        return drops and not self.hash_lookahead(rules)

    def overlaps(self, rules: Rules) -> bool:
        """True if a step is scheduled before the output of the previous one is known."""
        supported = self.speculative_method != "ngram" or rules.scheduler.overlaps_ngrams
        return self.async_scheduling and supported

    def limits(self, rules: Rules) -> Limits:
        """The scheduler's limits of a step."""
        return Limits(
            budget=self.max_num_scheduled_tokens or self.max_num_batched_tokens,
            batched=self.max_num_batched_tokens,
            # as `EngineArgs`
            max_seqs=min(
                self.max_num_active_seqs or MOST, self.max_num_seqs, self.max_num_batched_tokens
            ),
            max_model_len=self.max_model_len,
            reserve_full=self.scheduler_reserve_full_isl,
            drafts=self.drafts,
            drafts_by_size=self.drafts_by_size,
            lookahead=self.drafts if self.use_eagle else 0,
            use_eagle=self.drops_eagle_block(rules),
            by_priority=self.scheduling_policy == "priority",
            overlaps=self.overlaps(rules),
            recomputes=self.kv_load_failure_policy == "recompute",
            loras=self.max_loras if self.adapters else 0,
            threshold=self.long_prefill_token_threshold,
            adaptive=self.long_prefill_token_threshold_adaptive,
            watermark=self.watermark,
            prefill_interval=self.prefill_schedule_interval
            if rules.scheduler.prefill_interval_of_one_rank
            else 1,
        )

    def groups(self, spec: ModelSpec, rules: Rules) -> tuple[GroupSpec, ...]:
        """The groups of the layers of a model and of its drafter, in layer order."""
        if self.rings and not spec.chunked:
            msg = "option 'rings' is for models with chunks: write `chunked`, or leave it out"
            raise OptionError(msg)
        if spec.compressed:
            return self._compressed(spec, rules)
        layers = [self._layer(spec, kind, rules) for kind in spec.layers]
        if rules.state.blocks_of_whole_chunks and self.state_mode(rules) == "all":
            size = self.mamba_chunk_size or 1
            layers = [replace(layer, block=cdiv(layer.block, size) * size) for layer in layers]
        attention = sorted(
            (layer for layer in layers if layer.kind != "mamba"),
            key=lambda layer: layer.kind != "full",
        )
        drafter = len(layers)
        if self.use_eagle and attention:  # with the target's heads
            block = self.drafter_block_size or attention[0].block
            layers.append(replace(attention[0], block=block))
            check_drafter(self, layers, rules)
        groups = promoted(layers) if self.disable_hybrid_kv_cache_manager else ()
        groups = groups or kv_cache_groups(layers)
        check_groups(self, groups, rules)
        self._check_offloading(groups, rules)
        marked = self._marked(rules)
        marked = "all" if marked and len(layers) == drafter else marked
        return tuple(
            replace(
                group,
                eagle=marked in {"all", group.kind}
                or (marked == "drafter" and drafter in group.layers),
                layers=tuple(layer for layer in group.layers if layer != drafter),
            )
            for group in groups
        )

    def _layer(self, spec: ModelSpec, kind: str, rules: Rules) -> GroupSpec:
        if kind == "attention":
            return GroupSpec(kind="full", block=self.block_size)
        if kind == "window" and spec.chunked:
            return self._chunks(spec)
        if kind == "window":
            block = self.window_block_size or self.block_size
            return GroupSpec(kind="window", block=block, window=spec.window)
        mode = self.state_mode(rules)  # of recurrent layers
        if mode == "all" and {"delta", "conv"} & set(spec.layers):
            mode = "align"
        block = self.mamba_block_size or self.block_size
        if mode == "align" and {"attention", "window"} & set(spec.layers):
            block = self.block_size  # follows `_align_hybrid_block_size`
        if mode == "none":  # one running state, in one block for the whole sequence
            block = cdiv(self._longest, self.block_size) * self.block_size
        exporting = kind in rules.state.exporting and mode == "align"
        return GroupSpec(
            kind="mamba",
            block=block,
            mode=mode,
            speculative_blocks=self.drafts,
            checkpoint_alignment=self._checkpoint_alignment(spec, kind, block) if exporting else 0,
        )

    def _checkpoint_alignment(self, spec: ModelSpec, kind: str, block: int) -> int:
        """Tokens in which positions of exported states are counted, from a chunk's start on.

        Follows `get_kv_cache_spec` of `MambaMixer2` and of `QwenGatedDeltaNetAttention`, which only
        exports if all recurrent layers do by its grid (`get_mamba_prefill_checkpoint_grid`).
        """
        if kind == "ssm":
            return 1
        if self.gdn_prefill_backend != "flashinfer" or {"ssm", "conv"} & set(spec.layers):
            return 0
        unit = self.prefix_match_unit
        return math.lcm(unit, FLASHINFER_ALIGNMENT) if unit else block

    def _check_offloading(self, groups: Sequence[GroupSpec], rules: Rules) -> None:
        sizes = Sizes.of(
            groups, self.prefix_match_unit or None, by_size=rules.lookup.coarse_ids_by_size
        )
        others = {
            "connector": self.connector != "none",
            "speculative_method": self.drafts > 0,
            "layers of DeepSeek V4": any(group.block == COMPRESSED_BLOCK for group in groups),
            "rings": self.rings,
        }
        beside = next((name for name, used in others.items() if used), "")
        self.check_offloading(groups, beside, sizes.hash_block, self.retention)

    def _compressed(self, spec: ModelSpec, rules: Rules) -> tuple[GroupSpec, ...]:
        """The groups of DeepSeek V4, whose sizes are its classes' own."""
        block = COMPRESSED_BLOCK if self.block_size == DEFAULT_BLOCK else self.block_size
        wanted = {
            "window": (spec.window, COMPRESSED_WINDOW),
            "block_size": (block, COMPRESSED_BLOCK),
            "window_block_size": (self.window_block_size, 0),
            "mamba_block_size": (self.mamba_block_size, 0),
            "drafter_block_size": (self.drafter_block_size, 0),
            "connector": (self.connector, "none"),
            "eagle_groups": (self.eagle_groups, "auto"),
            "disable_hybrid_kv_cache_manager": (self.disable_hybrid_kv_cache_manager, False),
        }
        for name, (given, only) in wanted.items():
            if given != only:
                msg = f"{name!r} is {given}; layers of DeepSeek V4 have {only}: write {only}"
                raise OptionError(msg)
        if not rules.has_compressed:
            raise OptionError("this release has no layers of DeepSeek V4: name a later one")
        if self.speculative_method == "eagle":
            raise OptionError("DeepSeek V4 drafts with its own head: write mtp")
        marks = self.use_eagle and not self.disable_eagle_block_drop
        groups = compressed_groups(spec, rules, drafts=marks)
        check_groups(self, groups, rules)
        self._check_offloading(groups, rules)
        return groups

    def check(self, rules: Rules) -> None:
        """Refuse incompatible options."""
        budget, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if budget < seqs != MAX_NUM_SEQS:
            raise OptionError(
                f"option 'max_num_batched_tokens' is {budget}; vLLM does not start with fewer "
                f"than max_num_seqs, which is {seqs}"
            )
        ahead = self.drafts if self.use_eagle else 0
        if budget <= ahead and not rules.scheduler.accepts_short_budgets:
            raise OptionError(
                f"option 'max_num_batched_tokens' is {budget}; this release does not start unless "
                f"it is more than the {ahead} tokens of a draft"
            )
        if self.adapters and self.drafts:
            most = budget // (1 + self.drafts)
            if min(seqs, budget) > most:
                raise OptionError(
                    f"option 'max_num_seqs' is {seqs}; with adapters and a drafter vLLM does not "
                    f"start unless a step has room for all of their drafts: write {most} or less, "
                    "or a larger max_num_batched_tokens"
                )
        if self.max_num_scheduled_tokens > budget:
            raise OptionError(
                f"option 'max_num_scheduled_tokens' is {self.max_num_scheduled_tokens}; a step has "
                f"room for max_num_batched_tokens, which is {budget}"
            )
        if self.max_num_active_seqs > min(seqs, budget):
            raise OptionError(
                f"option 'max_num_active_seqs' is {self.max_num_active_seqs}; it is at most "
                f"max_num_seqs, which is {min(seqs, budget)}"
            )
        threshold = self.long_prefill_token_threshold
        pads = not self.drafts_by_size
        if pads and 0 < threshold <= self.drafts and rules.scheduler.padding != "never":
            raise OptionError(
                f"option 'long_prefill_token_threshold' is {threshold}; a request with one token "
                f"to compute is padded to {1 + self.drafts}, and the engine core ends where a "
                f"threshold cuts that: write {1 + self.drafts} or more"
            )
        if self.connector == "nixl" and self.drafts:
            raise OptionError(
                "connector 'nixl' is not simulated beside speculative_method: leave one of them out"
            )
        if self.mamba_cache_mode not in rules.modes:
            known = ", ".join(rules.modes)
            msg = f"this release has no mamba_cache_mode {self.mamba_cache_mode!r}; it has {known}"
            raise OptionError(msg)

    def fitted(self, groups: Sequence[GroupSpec], rules: Rules) -> "VllmOptions":
        """Options with the longest `max_model_len` that fits the pool, as by `auto`.

        A given one is refused where upstream refuses to start. Trap: its check counts a state less
        than a request of `align` holds at most, and before #47272 the null block as free.
        """
        low, high = 0, self._longest
        while low < high:
            middle = (low + high + 1) // 2
            if self._blocks(groups, rules, middle) < self.num_gpu_blocks_override:
                low = middle
            else:
                high = middle - 1
        longest = low
        aligned = sum(group.kind == "mamba" and group.mode == "align" for group in groups)
        counted = self._blocks(groups, rules, self.max_model_len) - aligned
        room = self.num_gpu_blocks_override - rules.pool.reserves_null_block
        if longest > 1 and self.max_model_len > longest and counted > room:
            raise OptionError(
                f"the pool of {self.num_gpu_blocks_override} blocks holds no request of "
                f"max_model_len = {self.max_model_len} tokens: write {longest} or less, "
                "or more num_gpu_blocks_override"
            )
        if longest < 2:
            raise OptionError(
                f"option 'num_gpu_blocks_override' is {self.num_gpu_blocks_override}: "
                "this model needs more blocks for a single request"
            )
        interval = self.prefix_cache_retention_interval
        hybrid = len({group.kind == "mamba" for group in groups}) > 1
        if interval == UNSET and hybrid and self.use_eagle:
            interval = DENSE
        return replace(
            self,
            max_model_len=max(self.max_model_len, 0) or longest,
            prefix_cache_retention_interval=interval,
        )

    @property
    def _longest(self) -> int:
        """The bound of `max_model_len` before the pool is known."""
        return MOST_BLOCKS if self.max_model_len < 0 else self.max_model_len or LONGEST

    def _blocks(self, groups: Sequence[GroupSpec], rules: Rules, tokens: int) -> int:
        """Maximum blocks that a request holds at once."""
        count = 0
        for group in groups:
            most = 1 if group.kind == "ring" else cdiv(tokens, group.block)
            if group.kind == "window" and rules.scheduler.window_admission_cap:
                in_flight = group.window - 1 + self.max_num_batched_tokens
                most = min(most, cdiv(min(in_flight, tokens), group.block) + 1)
            if group.kind == "chunked" and rules.scheduler.window_admission_cap:
                most = min(most, cdiv(group.chunk + self.max_num_batched_tokens, group.block))
            if group.kind == "mamba" and group.mode != "all":
                most = min(most, 1) + (2 if group.mode == "align" else 0)
                most += group.checkpoint_alignment > 0 and tokens > group.block
            count += most + group.speculative_blocks
        return count

    def _chunks(self, spec: ModelSpec) -> GroupSpec:
        """Chunked local attention; the refusals are assertions upstream."""
        if self.use_eagle:
            raise OptionError(
                "chunked attention is not simulated beside a drafter, with which the server turns "
                "its hybrid manager off: write speculative_method none"
            )
        if self.rings:
            if self.block_size % spec.window or spec.window > RING or self.drafts:
                raise OptionError(
                    f"option 'rings' is for chunks of at most {RING} tokens that divide block_size,"
                    " without a drafter: leave it out"
                )
            return GroupSpec(kind="ring", block=RING, chunk=spec.window)
        if self.mamba_block_size not in {0, self.block_size}:
            msg = "beside chunked attention all blocks are equal: leave mamba_block_size out"
            raise OptionError(msg)
        if spec.window % self.block_size:
            raise OptionError(
                f"option 'block_size' is {self.block_size}; chunks of {spec.window} tokens "
                "must be whole blocks (upstream asserts it)"
            )
        return GroupSpec(kind="chunked", block=self.block_size, chunk=spec.window)

    def _marked(self, rules: Rules) -> str:
        """The groups marked as the drafter's: all, those of a kind, or the one with its layer."""
        if not self.use_eagle or self.disable_eagle_block_drop:
            return ""
        if self.eagle_groups != "auto":
            return self.eagle_groups
        marks = rules.lookup.marks
        own = marks == "drafter" or (marks == "mtp" and self.speculative_method == "mtp")
        return "drafter" if own else "all"


def batch_defaults(device: str, rules: Rules) -> tuple[int, int]:
    """`max_num_batched_tokens` and `max_num_seqs` of an OpenAI server.

    Follows `get_batch_defaults`, of one device (`world_size` 1).
    """
    gib = DEVICES[device].gib
    if device == "cpu":
        return 2048, 128
    if gib >= 160 and rules.scheduler.larger_devices:
        return 16384, 1024
    small = device == "a100" or (device == "gb10" and rules.scheduler.small_gb10)
    return (BATCHED, MAX_NUM_SEQS) if gib >= 70 and not small else (2048, 256)


def by_device(
    rules: Rules, options: VllmOptions, given: Collection[str], scale: int
) -> dict[str, int]:
    """The flags that are left to the server, by its machine.

    Follows `_set_default_max_num_seqs_and_batched_tokens_args`, and a CPU's
    `check_and_update_config`.
    """
    chosen: dict[str, int] = {}
    tokens, seqs = batch_defaults(options.device, rules)
    seqs = options.max_num_seqs if "max_num_seqs" in given else seqs
    if "max_num_batched_tokens" in given:
        tokens = options.max_num_batched_tokens
    else:
        most = options.max_model_len if options.max_model_len > 0 else LONGEST
        tokens = chosen["max_num_batched_tokens"] = min(max(tokens // scale, 1), seqs * most)
    if "max_num_seqs" not in given:
        chosen["max_num_seqs"] = min(seqs, tokens)
    if options.device == "cpu" and "block_size" not in given:
        chosen["block_size"] = CPU_BLOCK
    return chosen
