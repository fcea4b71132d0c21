"""The flags of `vllm serve` that affect the cache, under upstream's names."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, get_args

from cachesim.engines.device import DEVICES, device_option
from cachesim.engines.option import listed, option
from cachesim.engines.vllm.block_pool import GroupSpec, Sizes, StateMode, cdiv, kv_cache_groups
from cachesim.engines.vllm.offload_options import OffloadOptions
from cachesim.engines.vllm.request import Limits
from cachesim.engines.vllm.rules import Rules
from cachesim.errors import OptionError
from cachesim.model.spec import COMPRESSOR_WINDOW, ModelSpec

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

COMPRESSED_BLOCK: Final = 256
"""Tokens in a block of DeepSeek V4's keys, the only size that its backends take."""

COMPRESSED_WINDOW: Final = 128

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
        "beside n-grams",
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
    disable_lookahead_block_hashes: bool = option(
        "--speculative-config.disable-lookahead-block-hashes",
        "whether ids of blocks leave out the token after the block, which EAGLE and MTP heads read;"
        " a hit's last block is then dropped for them",
        default=False,
        since="0.33.0",
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
    def retention(self) -> int | None:
        """The retention interval, or None for dense."""
        interval = self.prefix_cache_retention_interval
        return None if interval == DENSE else max(interval, 0)

    def hash_lookahead(self, rules: Rules) -> int:
        """Tokens after a block that its id covers. Follows `num_hash_lookahead_tokens`."""
        legacy = self.disable_lookahead_block_hashes or self.has_connector
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
        return self.use_eagle and not self.hash_lookahead(rules)

    def overlaps(self, rules: Rules) -> bool:
        """True if a step is scheduled before the output of the previous one is known."""
        supported = self.speculative_method != "ngram" or rules.scheduler.overlaps_ngrams
        return self.async_scheduling and supported

    def limits(self, rules: Rules) -> Limits:
        """The scheduler's limits of a step."""
        return Limits(
            budget=self.max_num_scheduled_tokens or self.max_num_batched_tokens,
            batched=self.max_num_batched_tokens,
            max_seqs=min(self.max_num_seqs, self.max_num_batched_tokens),  # as `EngineArgs`
            max_model_len=self.max_model_len,
            reserve_full=self.scheduler_reserve_full_isl,
            drafts=self.drafts,
            lookahead=self.drafts if self.use_eagle else 0,
            use_eagle=self.drops_eagle_block(rules),
            by_priority=self.scheduling_policy == "priority",
            overlaps=self.overlaps(rules),
            recomputes=self.kv_load_failure_policy == "recompute",
            loras=self.max_loras if self.adapters else 0,
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
            layers = [replace(each, block=cdiv(each.block, size) * size) for each in layers]
        attention = sorted(
            (each for each in layers if each.kind != "mamba"), key=lambda each: each.kind != "full"
        )
        drafter = len(layers)
        if self.use_eagle and attention:  # with the target's heads
            block = self.drafter_block_size or attention[0].block
            layers.append(replace(attention[0], block=block))
            self._check_drafter(layers, rules)
        groups = kv_cache_groups(layers)
        self._check_groups(groups, rules)
        marked = self._marked(rules) if len(layers) > drafter else "all" if self.use_eagle else ""
        return tuple(
            replace(
                each,
                eagle=marked in {"all", each.kind}
                or (marked == "drafter" and drafter in each.layers),
                layers=tuple(layer for layer in each.layers if layer != drafter),
            )
            for each in groups
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

    def _check_groups(self, groups: Sequence[GroupSpec], rules: Rules) -> None:
        everywhere = any(group.mode == "all" for group in groups)
        if everywhere and self.drafts and not rules.runner.drafts_in_all_mode:
            raise OptionError(
                "this release ends at its start with a drafter and mamba_cache_mode 'all' "
                "(vllm-project/vllm#39809): write align"
            )
        self._check_retention(groups, rules)
        self._check_offloading(groups, rules)
        self._check_states(groups, rules)
        self._check_windows(groups, rules)
        unit, block = self.prefix_match_unit, groups[0].block
        if unit and any(each.block % unit for each in groups):
            sizes = " and ".join(map(str, sorted({each.block for each in groups})))
            raise OptionError(
                f"option 'prefix_match_unit' is {unit}; it must divide the blocks of {sizes} tokens"
            )
        used = self.enable_prefix_caching or self.has_connector
        single = len(groups) == 1 and unit not in {0, block} and used
        if single and rules.lookup.refuses_idle_unit:
            raise OptionError(
                f"option 'prefix_match_unit' is {unit}; with a single group hits are multiples of "
                f"its blocks of {block} tokens: leave it out, or write {block}"
            )

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
        }
        for name, (given, only) in wanted.items():
            if given != only:
                msg = f"{name!r} is {given}; layers of DeepSeek V4 have {only}: write {only}"
                raise OptionError(msg)
        if not rules.has_compressed:
            raise OptionError("this release has no layers of DeepSeek V4: name a later one")
        if self.speculative_method == "eagle":
            raise OptionError("DeepSeek V4 drafts with its own head: write mtp")
        groups = compressed_groups(spec, rules, drafts=self.use_eagle)
        self._check_groups(groups, rules)
        return groups

    def _check_windows(self, groups: Sequence[GroupSpec], rules: Rules) -> None:
        """Follows `unify_kv_cache_spec_page_size`: the smaller pages hold a multiple of tokens."""
        size, kinds = self.window_block_size, {each.kind for each in groups}
        if not size:
            return
        if not {"full", "window"} <= kinds:
            raise OptionError(
                f"option 'window_block_size' is {size}; it is for models with full attention and "
                "windows: leave it out"
            )
        modes = {each.mode for each in groups if each.kind == "mamba"}
        fine = modes == {"align"} and rules.lookup.fine_beside_states
        if modes and self.enable_prefix_caching and not fine:
            but = " but in mode 'align'" if rules.lookup.fine_beside_states else ""
            raise OptionError(
                f"option 'window_block_size' is {size}; beside states this release does not start "
                f"with it{but}: leave it out"
            )
        if max(size, self.block_size) % min(size, self.block_size):
            raise OptionError(
                f"option 'window_block_size' is {size}; it and block_size, which is "
                f"{self.block_size}, must divide one another"
            )

    def _check_drafter(self, layers: Sequence[GroupSpec], rules: Rules) -> None:
        """Follows `get_kv_cache_groups`: layers that attend alike are one group; in other models
        the blocks of smaller pages are a multiple of the largest page's.
        """
        size, kinds = self.drafter_block_size, {each.kind for each in layers}
        blocks = sorted({each.block for each in layers if each.kind != "mamba"})
        aligned = [each.block for each in layers if each.kind == "mamba" and each.mode == "align"]
        why = ""
        if len(kinds) == 1 < len(blocks):
            why = "where all layers attend alike, the drafter's is in their group, of equal blocks"
        elif any(each % blocks[0] for each in blocks):
            why = f"of the blocks of {' and '.join(map(str, blocks))} tokens the smallest must "
            why += "divide the others"
        elif blocks[0] < max(aligned, default=0) and not rules.lookup.fine_beside_states:
            why = "beside states in larger blocks this release does not start with it"
        if size and why:
            raise OptionError(f"option 'drafter_block_size' is {size}; {why}: leave it out")

    def _check_states(self, groups: Sequence[GroupSpec], rules: Rules) -> None:
        aligned = [each.block for each in groups if each.kind == "mamba" and each.mode == "align"]
        states = max(aligned, default=0)
        if self.max_num_batched_tokens < states and not rules.scheduler.accepts_small_budgets:
            raise OptionError(
                f"option 'max_num_batched_tokens' is {self.max_num_batched_tokens}; with states in "
                f"blocks of {states} tokens this release takes {states} or more"
            )
        kept = [each.block for each in groups if each.kind == "mamba" and each.mode == "all"]
        others = [each.block for each in groups if each.kind != "mamba"]
        if kept and others and kept[0] != others[0] and not rules.lookup.mixed_blocks:
            raise OptionError(
                f"option 'mamba_block_size' is {kept[0]}; in this release all groups have blocks "
                f"of one size: leave it out, or write {others[0]}"
            )
        equal = rules.lookup.all_mode_blocks == "equal"
        if kept and others and (kept[0] > min(others) or (equal and kept[0] != others[0])):
            limit = "" if equal else "at most "
            raise OptionError(
                f"option 'mamba_block_size' is {kept[0]}; with mamba_cache_mode 'all' this release "
                f"ends at its start unless states' blocks are {limit}as large as attention's of "
                f"{others[0]} tokens: leave it out"
            )

    def _check_retention(self, groups: Sequence[GroupSpec], rules: Rules) -> None:
        """Follows `_validate_prefix_cache_retention_interval`."""
        interval = self.retention
        if interval is None or not rules.retention.interval:
            return
        thinned = ("window", "mamba") if rules.retention.thins_states else ("window",)
        if not any(group.kind in thinned for group in groups):
            if interval or not rules.retention.accepts_idle_zero:
                raise OptionError(
                    f"option 'prefix_cache_retention_interval' is {interval}; this release refuses "
                    f"it for a model without groups that it thins ({', '.join(thinned)}): leave it "
                    "out"
                )
            return
        block = Sizes.of(groups).scheduler_block
        if interval % block:
            raise OptionError(
                f"option 'prefix_cache_retention_interval' is {interval}; it must be a multiple of "
                f"{block} tokens, in which all groups' blocks end"
            )

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
        aligned = sum(each.kind == "mamba" and each.mode == "align" for each in groups)
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
        hybrid = len({each.kind == "mamba" for each in groups}) > 1
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
                "chunked attention cannot be combined with a drafter: write speculative_method none"
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
        if not self.use_eagle:
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


def compressed_groups(spec: ModelSpec, rules: Rules, *, drafts: bool) -> tuple[GroupSpec, ...]:
    """The groups of DeepSeek V4 Flash, with the layers that stand for theirs.

    every layer        a window of 128                            in two groups, half and half
    of ratio 4 or 128  keys of so many tokens; of 4 an indexer's  in one
    of ratio 4         states of two compressors                  in one, with a window of 8
    of ratio 128       states of a compressor                     in one, with a window of 128

    No layer stands for the last: a hit ends where no group of 128 tokens is open. Pro's first layer
    is one of those, and its last two groups are in the other order. Follows the specs of
    `deepseek_v4`, and `_get_packed_kv_cache_groups`.
    """
    windows, states = spec.window_layers[::2], spec.window_layers[1::2]
    halves = tuple(
        GroupSpec(
            kind="window",
            block=64,
            window=COMPRESSED_WINDOW,
            eagle=drafts and half == 1,  # of the MTP head, the 44th layer
            layers=windows[half::2],
        )
        for half in range(2)
    )
    keys = GroupSpec(kind="full", block=COMPRESSED_BLOCK, layers=spec.attention_layers)
    first = (*halves, keys) if rules.lookup.groups_in_layer_order else (keys, *halves)
    return (
        *first,
        GroupSpec(kind="window", block=4, window=COMPRESSOR_WINDOW, layers=states),
        GroupSpec(kind="window", block=8, window=COMPRESSED_WINDOW),
    )
