"""Rules of vLLM's cache manager, scheduler and runner at a release, as data.

One field per difference, named after its effect; its docstring names the upstream change, if known.
The logic reads rules, never the release. The defaults are the newest release's.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

EagleDrop: TypeAlias = Literal["each-round", "once"]
EagleMargin: TypeAlias = Literal["none", "every-group", "not-recurrent"]
MarginBound: TypeAlias = Literal["hit-limit", "hashes"]
Boundaries: TypeAlias = Literal["prompt-end", "eagle-exact"]
ChunkSplit: TypeAlias = Literal["plain", "uncached-prefix", "early-stops", "stops"]
PromptStop: TypeAlias = Literal["floor", "below-the-end"]
V1Use: TypeAlias = Literal["never", "n-grams", "n-grams-and-all", "always"]
Padding: TypeAlias = Literal["never", "beside-running", "resumed"]
StoreHit: TypeAlias = Literal["agreed", "longest-group", "attention", "whole-blocks"]
StoreFrees: TypeAlias = Literal["known-tokens", "computed"]
Tail: TypeAlias = Literal["none", "prompt", "prompt-eagle", "prompt-drafter", "checkpoint"]
StateBlocks: TypeAlias = Literal["equal", "not-larger"]
UnhashedFirst: TypeAlias = Literal["never", "windows", "always"]
Marks: TypeAlias = Literal["none", "mtp", "drafter"]
Recency: TypeAlias = Literal["touched", "request", "position"]
WindowMask: TypeAlias = Literal["none", "without-drafter", "with-drafter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """Rules of the free queue and the block map."""

    unhashed_first: UnhashedFirst = "always"
    """0.24: freed blocks without an id go to the head of the queue; in 0.23 only blocks before a
    window, and those of windows when a request ends; before, all go to the tail."""

    appends_uncached: bool = False
    """0.27 only: without prefix caching, freed blocks go to the tail instead of the head."""

    reserves_null_block: bool = True
    """0.29 (#47272): the check at the start counts the null block as taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRules:
    """Rules of hits and of their common length."""

    eagle_drop: EagleDrop = "once"
    """0.20 (#33270, #32802): the look-ahead block is dropped once for each candidate length;
    before, in every round of the fixed point, until no block was left."""

    eagle_marks: bool = True
    """0.20: only groups marked as the drafter's drop a block; before, all did."""

    marks: Marks = "drafter"
    """0.33: groups with layers of the drafter are marked; in 0.31 and 0.32 only with those of an
    MTP head; before, none. A model without marks has all groups marked."""

    eagle_margin: EagleMargin = "not-recurrent"
    """Extra blocks that a marked group matches before its drop: none in 0.19; one until 0.25, also
    in recurrent groups, which drop nothing and so granted a block more than attention (#40860,
    #43559); since 0.26 none in recurrent groups."""

    margin_bound: MarginBound = "hashes"
    """0.32: the extra block may end at the last hashed token; before, at the last token but one."""

    lookahead_hashes: bool = True
    """0.33: with EAGLE and MTP an id also covers the token after its block, so no block is dropped;
    with a connector, or `disable_lookahead_block_hashes`, one is."""

    groups_in_layer_order: bool = True
    """0.29: the groups of DeepSeek V4 come in the order of its layers; before, that of its keys
    first, then those of windows."""

    partial_hits: bool = True
    """0.26: a recurrent group with larger blocks than the hash unit can hit at any hash boundary
    with a cached tail, if every other group supports lookups that fine."""

    window_end_before_drop: bool = False
    """Until 0.19 a window's run had to end on the alignment before the look-ahead block was
    dropped; since #39450, after."""

    adapter_path: bool = True
    """0.31: an id covers the name and the path of a request's adapter; before, the name alone, so
    that an adapter reloaded from another path hits the blocks of the old one (#42125)."""

    mixed_blocks: bool = True
    """0.20: groups may have different block sizes, as ids have a unit of their own."""

    coarse_beside_windows: bool = True
    """0.28: no partial hits beside window groups with larger blocks than the hash unit; before, the
    engine core ends at the first lookup."""

    fine_beside_states: bool = True
    """0.28: in mode `align` ids are as fine as the smallest block; before, they covered the largest
    one beside states, and the engine core ended at its start where windows had smaller blocks."""

    coarse_ids_by_size: bool = False
    """Until 0.27: states of mode `all` make ids as coarse as hits only if their blocks are not the
    smallest ones; since 0.28 always."""

    all_mode_blocks: StateBlocks = "equal"
    """States in mode `all` have blocks of attention's size since 0.28; until 0.27 smaller ones were
    possible. Otherwise an id covers more tokens than a block has, and the engine core ends at its
    start."""

    forgives_missing_state: bool = False
    """#47491: without a state in the recurrent group, attention's hit is kept, and recurrent layers
    resume from the new block's content (#43090)."""

    window_one_short: bool = False
    """Injected defect: a window's hit needs one block less."""

    refuses_idle_unit: bool = True
    """0.32: refuse a `prefix_match_unit` that a single group ignores."""

    truncates_all: bool = True
    """0.29: cut the hits of all full-attention specs to the common length, not only the first."""

    reports_junction: bool = True
    """#37898 (0.24): report the length of the longest single group's hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """Rules of the ids of windows and states."""

    interval: bool = True
    """0.23: `prefix_cache_retention_interval` (an environment variable until 0.28)."""

    thins_states: bool = True
    """0.24: an interval also applies to states; in 0.23 only to windows, and a model without
    windows does not start with one."""

    accepts_idle_zero: bool = True
    """0.29: any model accepts an interval of 0; before, only models with groups that it thins."""

    window_mask: WindowMask = "with-drafter"
    """0.22: window blocks at which no hit can end get no id; since 0.23 the mask counts the block
    that a drafter drops."""

    keeps_junction: bool = True
    """#47782 (0.26): keep the junction."""

    keeps_below_junction: bool = True
    """0.33: in the drafter's groups, also keep one block below the junction."""

    boundaries: Boundaries = "eagle-exact"
    """0.30: with a drafter, keep the resume positions of a repeated and of an extended prompt;
    before, one position, the end of the prompt."""

    floors_to_scheduler_block: bool = True
    """0.22: cache blocks up to the last position at which every group can end."""

    caches_eagle_block: bool = True
    """0.23: cache one block more in a drafter's groups, which a hit matches and drops."""

    on_hit_alignment: bool = True
    """0.29: align masks as hits, which may be partial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRules:
    """Rules of recurrent groups."""

    same_step_guard: bool = True
    """#29387: a hit on a state cached in the same step waits for the next step."""

    keeps_surplus: bool = True
    """0.23: a table may exceed the need of a step, after rejected drafts; before, an abort."""

    usual_mode: Literal["align", "all"] = "align"
    """0.28: servers that cache prefixes keep states in mode align unless `all` is given; before,
    those of state-space models keep them in mode `all`."""

    frees_behind_speculation: bool = False
    """Until 0.25 the speculative blocks are not counted as computed when states are freed."""

    blocks_of_whole_chunks: bool = False
    """#57278: in mode `all` a block is a multiple of the kernel's chunk of Mamba-2, too."""

    tail: Tail = "checkpoint"
    """The prompt's tail that is cached at a hash boundary: none until 0.25; the last one in the
    prompt in 0.26 to 0.29; one unit lower in groups marked as the drafter's in 0.30, in all groups
    beside a drafter in 0.31; below the last token since 0.32."""

    keeps_known_tail: bool = True
    """0.33: a tail that a hit or an earlier step cached is not cached again; before, other requests
    wait a step for it."""

    attention_tail_below_end: bool = True
    """0.32: attention's tail also leaves the last token to compute."""

    exact_need: bool = True
    """0.31: the admission of a state counts only missing blocks; before, always the maximum."""

    counts_loaded_state: bool = False
    """Proposed fix: count a block for the state that a store loads, beside that of the next state;
    without it the allocation can exceed the free blocks and end the engine core."""

    stores_null_block: bool = False
    """#53084: a store saves the null block's content where align mode keeps no state of a boundary
    (`MooncakeStoreConnector` until 0.28, by its own copy of the table)."""

    keeps_empty_first_chunk: bool = True
    """0.27: a request whose first chunk needs no new block counts as allocated."""

    exporting: tuple[str, ...] = ("ssm", "delta")
    """Layers that export a state inside a prefill chunk (`num_prefill_checkpoint_blocks`): Mamba-2
    since 0.32, gated-delta layers on FlashInfer's kernel since 0.33."""

    retires_all: bool = True
    """0.30: free all states before the end of the skipped range, null entries or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRules:
    """Rules of a scheduler step."""

    chunk_split: ChunkSplit = "stops"
    """Ends of the prefill chunks of a recurrent model: the last boundary; in 0.24 and 0.25 also the
    uncached common prefix (#37898); since 0.26 a list of stops."""

    cuts_in_smallest_block: bool = True
    """Prefills are cut in the smallest block of all groups, so that a chunk may pass the end of a
    state's larger block: in every release, see `vllm-state-of-half-a-block`."""

    passes_boundary_if_exporting: bool = True
    """0.32: a chunk that begins inside a block and exports a state does not stop at the block's
    end: see `vllm-state-passed-by-an-export`."""

    keeps_junction_of_last: bool = False
    """0.24 and 0.25: the coordinator holds the uncached common prefix of its last lookup, at which
    a request that skips the lookup is cut, too."""

    prompt_stop: PromptStop = "below-the-end"
    """0.32: the prefill of a prompt of whole blocks stops one block lower."""

    encoder_before_split: bool = False
    """Until 0.27: a chunk shortened by the encoder is cut to whole blocks (#51603)."""

    encoder_stops_ahead: bool = False
    """Until 0.32: before an image without room a chunk ends a drafter's look-ahead early."""

    encoder_counts_places: bool = True
    """0.29: an image that occurs twice in a prompt is needed until its last place."""

    encoder_waits_for_tokens: bool = True
    """0.24: an image is needed until no token that is not known yet can be taken back, and until
    0.32 until a drafter's look-ahead is behind it."""

    encoder_frees_with_output: bool = True
    """0.20: an image is given up with the output of the step that computes it; before, when that
    step is scheduled."""

    skips_unencoded: bool = True
    """0.33: a waiting request whose next image the encoder has no room for lets later ones pass;
    before, none of them is scheduled in that step."""

    counts_running_adapters: bool = True
    """0.33: the adapters of all running requests count against `max_loras`; before, those of the
    requests that have a chunk in the step."""

    skips_into_own_queue: bool = False
    """Until 0.30: a request that a step passes over waits in a queue of its own, which comes
    before preempted ones; since 0.31 it keeps its place, unless it holds blocks."""

    larger_devices: bool = True
    """0.28: devices of 160 GB and more have defaults of their own; before, those of 70 GB."""

    small_gb10: bool = True
    """0.33: a GB10 has the defaults of devices below 70 GB."""

    accepts_small_budgets: bool = True
    """0.27: a step may have fewer tokens than a state's block; before, a server with such a
    `max_num_batched_tokens` or `long_prefill_token_threshold` does not start."""

    threshold_spares_the_only_one: bool = True
    """0.31: `long_prefill_token_threshold` does not cut the chunks of a request that is alone;
    before, it cut those, too."""

    prefill_interval_of_one_rank: bool = True
    """0.33: `prefill_schedule_interval` holds on a server without data-parallel ranks; before, it
    had no effect there."""

    accepts_short_budgets: bool = False
    """Until 0.32: a step may have as few tokens as a drafter looks ahead; since 0.33 a server with
    such a `max_num_batched_tokens` does not start."""

    lookahead_for_new: bool = True
    """0.23: a new request also reserves the drafter's look-ahead slots."""

    padding: Padding = "resumed"
    """0.25: a request with one token to compute is padded with draft slots beside running requests;
    since 0.30 also a request that resumes."""

    caches_after_drafts: bool = True
    """0.33: with drafts, cache blocks again when the outputs arrive."""

    frees_settled: bool = True
    """0.26: tokens with outputs decide which blocks are out of the window; before, all tokens."""

    returns_cut_tokens: bool = True
    """0.33: tokens after the stop of a verified draft no longer count as computed."""

    withdraws_unwritten: bool = False
    """#43569 (open): a preempted or aborted request removes the ids of its unwritten blocks;
    without it they stay, and are hit (#57580)."""

    steps_back_by_place: bool = True
    """0.28: under priorities the loop over running requests steps back if its victim came before
    the current request; before, if the victim had a chunk in this step, so that a request may be
    skipped."""

    goes_on_without_itself: bool = True
    """0.33: under priorities, the loop continues after a request that preempts itself."""

    stops_at_interval: bool = False
    """#54076 (open): chunks end at every multiple of the retention interval."""

    store_hit: StoreHit = "whole-blocks"
    """The hit that an external store extends: the common one until 0.23; with states, the longest
    group's in 0.24 to 0.26 (#44243), though the store may load nothing (#46453), and attention's in
    0.27, unless a state's is longer or the store loads nothing; the common one since 0.28. Since
    0.27 the store is queried from whole blocks on, and a longer load replaces the rest."""

    store_frees: StoreFrees = "computed"
    """0.20: before a finished request is passed to a store, its computed tokens decide which blocks
    are out of the window; before, its known tokens."""

    pins_tails: bool = False
    """0.27 and 0.28: with a store, the block with a prompt's moved last state stays referenced
    until its request ends, for the store to read; 0.29 passes all states and references none of
    them."""

    splits_after_store: bool = True
    """0.23: a store may load states; before, the engine core ends."""

    holds_before_taking: bool = True
    """#44409 (0.24): reference every group's hit before any group allocates blocks."""

    overlaps_ngrams: bool = True
    """0.33: asynchronous scheduling is on beside n-grams; before, it is off unless a flag asks for
    it, with which the server does not start."""

    frees_behind_steps: bool = True
    """0.24: beside a store, blocks that a step in flight may write to are freed with its output."""

    spares_unsettled: bool = True
    """0.30: a request whose blocks would be freed only with the output of a step in flight is not
    preempted; before, it was, for blocks that the step did not get."""

    cap_counts_batches: bool = True
    """0.26: `window_admission_cap` counts the tokens of all batches in flight; before, of one."""

    window_admission_cap: bool = True
    """#39734 (0.20): a window group reserves at most the blocks of its window and one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerRules:
    """Rules of the states that the model runner reads and writes."""

    ring_regions: Literal["last-page", "whole-row"] = "whole-row"
    """#57661, as registered by `NixlConnector`: a region at the rings' address is as long as the
    last attention layer's page there, or as a block of all layers (0.33)."""

    plain_path_reads_first: bool = False
    """#39273, #40875, until 0.31: gated-delta layers of a request without drafts read the first
    speculative state, although the previous step may have accepted drafts."""

    plain_step_reads_first: bool = False
    """Until 0.31, in Model Runner V1: in a step without any drafts all recurrent layers read the
    first speculative state, as the accepted counts are passed only with drafts."""

    first_token_reads_block: bool = False
    """#51562, until 0.30: gated-delta layers run a first chunk of one token, in a step without
    drafts or padded with them, as a decode: it starts from the content that another request left in
    its block. Otherwise a padded one is a prefill, whose state includes refused drafts."""

    padded_tail_decodes: bool = True
    """0.30: the last token of a prompt, if padded with drafts, runs as a decode; before, Mamba
    layers ran it as a prefill, whose state includes refused drafts."""

    padded_first_decodes: bool = False
    """The first token of a prompt, if padded with drafts, is a decode that begins without a state:
    in no release, see `vllm-one-token-prompt-padded`."""

    peels_decodes: bool = True
    """0.23: gated-delta layers run the decodes of a step separately from its prefills; before, all
    rows used the prefill kernel, which starts a prompt from zeros."""

    reads_first_behind_prefill: bool = False
    """In Model Runner V2 (since 0.29) a prefill chunk as long as a decode with drafts is sorted
    before requests without drafts, which Mamba layers, not gated-delta layers, then run as
    prefills: they read the first speculative state. Off: V2's drafters always propose all drafts,
    n-grams too, so that only a grammar or the token budget leaves a request without any."""

    short_resume_decodes: bool = True
    """In Model Runner V1, in a step with drafts, Mamba layers run a resumed chunk of at most 1 +
    drafts sampled tokens as a decode: its running state is the one after its first token."""

    model_runner_v1: V1Use = "never"
    """Models with states on Model Runner V1: all until 0.28; in 0.29 those with n-grams; in 0.30
    and 0.31 also those with `mamba_cache_mode` all; none since 0.32. V2 passes no block of the last
    step to layers in mode all, so that 0.29 ends at the first decode with EAGLE or MTP."""

    counts_move_twice: bool = False
    """#51571: with overlapping steps V1 reads a request's count of accepted tokens at its row of
    the step before; where the copy from the device is there before rows move, it has moved too."""

    drafts_in_all_mode: bool = True
    """#41233 (0.22): mode `all` supports drafts; before, the start failed (#39809)."""

    takes_states_singly: bool = True
    """0.31: in mode `all` each block's state of Mamba-2 is taken by an index of its own, a negative
    one from the last state on; before, those of a prefill were one slice."""

    skips_aborted: bool = False
    """Injected defect, after the description of #56525: the chunk of a request that is aborted
    before its step runs is skipped. The engine core submits a step as soon as it is scheduled and
    never withdraws a chunk, so in every release such a chunk runs."""

    seeds_in_smallest_block: bool = False
    """#55600 (0.29 to 0.31, in Model Runner V2): the entry of a hit's state is computed in the
    smallest block size of all groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadRules:
    """Rules of chunks on the host."""

    recency: Recency = "position"
    """0.33: until a request is done, its chunks have one rank together, by position; in 0.31 and
    0.32 each has the rank of its store. Before, a look-up, a store and the end of a copy decide."""

    offers_again: bool = True
    """0.33: a request that is looked up offers its chunks from the first on; before, from the
    first that it had not offered, so that a preempted one stores nothing twice."""

    needs_whole_chunks: bool = True
    """0.33: a chunk with a null block that a hit can need is not stored; before, a part of its
    slot kept what it held."""

    aligns_all_mode: bool = False
    """Until 0.31 a load of states in mode `all` ended at whole chunks, too, not only in `align`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of a release."""

    runner: RunnerRules = RunnerRules()

    pool: PoolRules = PoolRules()
    lookup: LookupRules = LookupRules()
    retention: RetentionRules = RetentionRules()
    state: StateRules = StateRules()
    scheduler: SchedulerRules = SchedulerRules()
    offload: OffloadRules = OffloadRules()
    modes: tuple[str, ...] = ("align", "none")
    """0.32 removed `all`."""
    has_compressed: bool = True
    """0.20: has the layers of DeepSeek V4."""
