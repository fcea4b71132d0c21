"""Rules of vLLM's cache manager, scheduler and runner at a release, as data.

One field per difference, named after what it does; its docstring names the change that made it
where the change is known. The logic never asks for a release: it asks for a rule. The defaults are
those of the newest release.
"""

from dataclasses import dataclass, replace
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
WindowMask: TypeAlias = Literal["none", "without-drafter", "with-drafter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """The free queue and the map from ids to blocks."""

    unhashed_first: UnhashedFirst = "always"
    """0.24: freed blocks without an id go to the head of the queue; in 0.23 those out of the
    window, and those of windows and chunks when a request ends; before, all to the tail."""

    appends_uncached: bool = False
    """0.27: without prefix caching freed blocks go to the tail; before and since, to the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRules:
    """Hits of groups, and the prefix on which they agree."""

    eagle_drop: EagleDrop = "once"
    """#33270, #32802 (0.20): the look-ahead block is dropped once for each candidate length;
    before, in every round of the fixed point, until nothing was left."""

    eagle_marks: bool = True
    """0.20: only groups that carry the drafter's mark drop a block; before, all did."""

    marks: Marks = "drafter"
    """0.33: the groups with layers of the drafter carry its mark; in 0.31 and 0.32 with those of an
    MTP head alone; before, none. A model without marks has all groups marked."""

    eagle_margin: EagleMargin = "not-recurrent"
    """Extra blocks matched by a marked group before its drop: none until 0.19; then one block,
    recurrent groups too, which drop nothing and so were granted a block more than attention
    (#40860, #43559); since 0.28 recurrent groups look no further."""

    margin_bound: MarginBound = "hashes"
    """0.32: the look-ahead may reach to the last whole block; before, to the last token but one."""

    lookahead_hashes: bool = True
    """0.33: with EAGLE and MTP an id covers the token after its block too, so no block is dropped;
    beside a connector, or with `disable_lookahead_block_hashes`, one is."""

    partial_hits: bool = True
    """0.26: a recurrent group with larger blocks than the hash unit is hit at any hash boundary
    where its tail was registered, if every other group can be looked up that finely."""

    window_end_before_drop: bool = False
    """Until 0.19 a window's run had to end on the alignment before the look-ahead block was
    dropped; since #39450 after it."""

    mixed_blocks: bool = True
    """0.20: groups may have blocks of different sizes, for ids have a unit of their own."""

    coarse_beside_windows: bool = True
    """0.28: beside window groups with larger blocks than the hash unit no hit is partial; before,
    the engine core ends at the first look-up."""

    all_mode_blocks: StateBlocks = "equal"
    """States that are kept at every block have blocks as large as attention's since 0.28; until
    0.27 smaller ones too. Otherwise ids are counted in more tokens than a block has, and the engine
    core ends at its start."""

    forgives_missing_state: bool = False
    """#47491: where the recurrent group finds no state, attention's hit stands all the same, and
    the layers go on from whatever the new block holds (#43090)."""

    window_one_short: bool = False
    """Our own defect: a window's hit needs one block less."""

    refuses_idle_unit: bool = True
    """0.32: a `prefix_match_unit` that a single group would ignore is refused; before, ignored."""

    truncates_all: bool = True
    """0.29: every kind of full-attention groups is cut to the hit, not only the first."""

    reports_junction: bool = True
    """#37898 (0.24): a lookup says how far the longest single group went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """Which blocks of windows and states keep an id."""

    interval: bool = True
    """0.23: `prefix_cache_retention_interval` (an environment variable until 0.28)."""

    thins_states: bool = True
    """0.24: an interval is for states too; in 0.23 for windows alone, and a model without windows
    does not start with one."""

    takes_idle_zero: bool = True
    """0.29: an interval of 0 goes with any model; before, one that thins nothing is refused."""

    window_mask: WindowMask = "with-drafter"
    """0.22: window blocks that no hit can end behind get no id; since 0.23 those that a drafter
    drops are counted too."""

    keeps_junction: bool = True
    """#47782 (0.28): the mask keeps the junction too."""

    keeps_below_junction: bool = True
    """0.33: and, for the drafter's groups, one block below it."""

    boundaries: Boundaries = "eagle-exact"
    """0.30: with a drafter the positions kept are those at which a resend and an extension resume;
    before, one position, the end of the prompt."""

    floors_to_scheduler_block: bool = True
    """0.22: blocks get their id up to the last position that every group can end at."""

    caches_eagle_block: bool = True
    """0.23: a drafter's groups get one further, which a hit there looks at and drops."""

    on_hit_alignment: bool = True
    """0.29: masks are laid on the grid of hits, which partial hits make finer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRules:
    """Recurrent groups."""

    same_step_guard: bool = True
    """#29387: a hit on a state registered in this step waits for the next one."""

    keeps_surplus: bool = True
    """0.23: a table may be longer than a step needs, after one whose drafts were rejected; before,
    the engine core ended."""

    frees_behind_speculation: bool = False
    """Until 0.24 states are freed as if the speculative blocks had not been computed."""

    tail: Tail = "checkpoint"
    """The prompt's tail that is registered at a hash boundary: none until 0.26; the last one in
    the prompt; in 0.30 one unit below it in groups with the drafter's mark, in 0.31 in all beside
    a drafter; since 0.32 below the last token."""

    keeps_known_tail: bool = True
    """0.33: a tail that a hit or an earlier step has registered is not registered again, which
    would have its siblings wait for a step."""

    attention_tail_below_end: bool = True
    """0.32: attention too registers a tail that leaves the last token to compute."""

    exact_need: bool = True
    """0.32: a state's admission counts no more blocks than are missing; before, always one."""

    counts_loaded_state: bool = False
    """Our own fix: a block is counted for the state that a store brings, beside that of the state
    that is computed next; without it taking them may find none and end the engine core."""

    keeps_empty_first_chunk: bool = True
    """0.28: a request whose first chunk needs no new block counts as allocated all the same."""

    retires_all: bool = True
    """0.30: all states before the skipped range's end are freed, whatever null lies between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRules:
    """The loop of one step."""

    chunk_split: ChunkSplit = "stops"
    """Stops of a recurrent model's prefill: the last boundary; since #37898 (0.24) also
    the uncached common prefix; since 0.28 a list of stops."""

    prompt_stop: PromptStop = "below-the-end"
    """0.32: a prompt that is a whole number of blocks stops one block lower."""

    takes_small_budgets: bool = True
    """0.27: a step may take fewer tokens than a state's block holds; before, a server with such a
    `max_num_batched_tokens` does not start."""

    lookahead_for_new: bool = True
    """0.23: a new request reserves the drafter's look-ahead slots too."""

    padding: Padding = "resumed"
    """0.28: a request that has one token to compute is padded with draft slots beside running
    ones; since 0.30 also one that resumes."""

    caches_after_drafts: bool = True
    """0.33: with drafts, blocks get their ids again when the outputs arrive."""

    frees_settled: bool = True
    """0.28: blocks out of the window are freed by the tokens that have come back; before, by all
    that were scheduled, those in flight among them."""

    returns_cut_tokens: bool = True
    """0.33: tokens past the stop of a verified draft are given back."""

    withdraws_unwritten: bool = False
    """#43569 (open): who is preempted or aborted takes back the ids of blocks that were published
    and will not be written; before, they stay, and are hit (#57580)."""

    steps_back_by_place: bool = True
    """0.28: under priorities the pass over the running requests steps back when its victim stood
    before it; before, when the victim had a chunk already, so that one may be passed over."""

    goes_on_without_itself: bool = True
    """0.33: under priorities a request that preempts itself does not end the pass."""

    stops_at_interval: bool = False
    """#54076 (open): chunks end at every multiple of the retention interval."""

    store_hit: StoreHit = "whole-blocks"
    """The hit that an external store is asked to extend: what all groups agree on, until 0.24;
    then, with states, what the longest group has (#44243), though the store may bring nothing
    (#46453); in 0.27 what attention has, unless a state reaches further or the store brings
    nothing; since 0.28 what they agree on. Since 0.27 it is asked from whole blocks on, and a
    longer load takes the rest away."""

    store_frees: StoreFrees = "computed"
    """0.20: what is out of the window is freed before a finished request is handed to a store by
    what was computed; before, by the tokens that are known."""

    pins_tails: bool = False
    """0.27 and 0.28: beside a store the block that a prompt's last state was moved to is held until
    its request ends, for the store to read it; 0.29 hands over all states and holds none for it."""

    splits_after_store: bool = True
    """0.23: a state may come from a store; before, the engine core ends."""

    holds_before_taking: bool = True
    """#44409 (0.24): every group holds its hit before any group takes new blocks."""

    overlaps_ngrams: bool = True
    """0.33: asynchronous scheduling goes together with n-grams; before, a server with both does not
    start."""

    cap_counts_batches: bool = True
    """0.26: that cap counts the tokens of every batch that may be in flight; before, of one."""

    window_admission_cap: bool = True
    """#39734 (0.20): a window group reserves no more than window and one step need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerRules:
    """Reads and writes of states in the model runner."""

    plain_path_reads_first: bool = False
    """#39273, #40875, until 0.31: gated-delta layers of a request without drafts read the first
    speculative state, although the step before may have accepted drafts and left the running one
    further on."""

    plain_step_reads_first: bool = False
    """Until 0.31, in Model Runner V1, so do all recurrent layers in a step in which no request has
    drafts: what was accepted is handed to them only where one has."""

    first_token_reads_block: bool = False
    """#51562, until 0.30: gated-delta layers took a first chunk of one token, in a step without
    drafts or padded with them, for a decode: it begins from what another request left in its
    block. Without it a padded one is a prefill, which no refused draft can be taken from."""

    padded_tail_decodes: bool = True
    """0.30: the last token of a prompt that is padded with drafts runs as a decode; before, Mamba
    layers ran it as a prefill, which no refused draft can be taken from."""

    peels_decodes: bool = True
    """0.23: gated-delta layers run the decodes of a step with prefills apart; before, all its rows
    went through the prefill kernel, which begins a prompt from nothing."""

    reads_first_behind_prefill: bool = False
    """In Model Runner V2 (0.29 on) a prefill chunk as long as drafts make a decode is sorted before
    requests without drafts, whose Mamba layers then take them for prefills: they read the first
    speculative state (not the gated-delta layers). Off: V2's drafters always propose all drafts,
    n-grams too, so that only a grammar or the step's tokens leave a request without any."""

    short_resume_decodes: bool = True
    """In Model Runner V1, in a step with drafts, Mamba layers take a resumed chunk of at most 1 +
    drafts sampled tokens for a decode: its running state is the one after its first token."""

    model_runner_v1: V1Use = "never"
    """Models with states on Model Runner V1: all until 0.28; in 0.29 those with n-grams; in 0.30
    and 0.31 those with `mamba_cache_mode` all too; since 0.32 none. V2 hands layers in mode all no
    block of the last step, so that 0.29 ends at the first decode with EAGLE or MTP."""

    drafts_in_all_mode: bool = True
    """#41233 (0.22): states of `all` mode go together with drafts; before, the engine core ended
    at its start (#39809)."""

    skips_aborted: bool = False
    """Our own defect, after what #56525 says of its failure: the chunk of a request that is aborted
    before its step has run never runs. The engine core hands a step over as soon as it is
    scheduled and takes nothing back, so in every release such a chunk runs."""

    seeds_in_smallest_block: bool = False
    """#55600 (0.29 to 0.31, in Model Runner V2): the entry of a hit's state is computed in the
    smallest block size of all groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of a release."""

    runner: RunnerRules = RunnerRules()

    pool: PoolRules = PoolRules()
    lookup: LookupRules = LookupRules()
    retention: RetentionRules = RetentionRules()
    state: StateRules = StateRules()
    scheduler: SchedulerRules = SchedulerRules()
    modes: tuple[str, ...] = ("align", "none")
    """0.32 removed `all`."""


RULES_0330 = Rules()

RULES_0320 = replace(
    RULES_0330,
    lookup=replace(RULES_0330.lookup, lookahead_hashes=False, marks="mtp"),
    retention=replace(RULES_0330.retention, keeps_below_junction=False),
    state=replace(RULES_0330.state, keeps_known_tail=False),
    scheduler=replace(
        RULES_0330.scheduler,
        overlaps_ngrams=False,
        caches_after_drafts=False,
        returns_cut_tokens=False,
        goes_on_without_itself=False,
    ),
)

RULES_0310 = replace(
    RULES_0320,
    lookup=replace(RULES_0320.lookup, margin_bound="hit-limit", refuses_idle_unit=False),
    state=replace(
        RULES_0320.state, tail="prompt-drafter", attention_tail_below_end=False, exact_need=False
    ),
    scheduler=replace(RULES_0320.scheduler, prompt_stop="floor"),
    runner=replace(
        RULES_0320.runner,
        plain_path_reads_first=True,
        plain_step_reads_first=True,
        model_runner_v1="n-grams-and-all",
        seeds_in_smallest_block=True,
    ),
    modes=("align", "all", "none"),
)

RULES_0300 = replace(
    RULES_0310,
    lookup=replace(RULES_0310.lookup, marks="none"),
    state=replace(RULES_0310.state, tail="prompt-eagle"),
    runner=replace(RULES_0310.runner, first_token_reads_block=True),
)

RULES_0290 = replace(
    RULES_0300,
    retention=replace(RULES_0300.retention, boundaries="prompt-end"),
    state=replace(RULES_0300.state, tail="prompt", retires_all=False),
    scheduler=replace(RULES_0300.scheduler, padding="beside-running"),
    runner=replace(RULES_0300.runner, model_runner_v1="n-grams", padded_tail_decodes=False),
)

RULES_0280 = replace(
    RULES_0290,
    lookup=replace(RULES_0290.lookup, truncates_all=False),
    retention=replace(RULES_0290.retention, on_hit_alignment=False, takes_idle_zero=False),
    scheduler=replace(RULES_0290.scheduler, pins_tails=True),
    runner=replace(RULES_0290.runner, model_runner_v1="always", seeds_in_smallest_block=False),
)

RULES_0271 = replace(
    RULES_0280,
    pool=replace(RULES_0280.pool, appends_uncached=True),
    lookup=replace(RULES_0280.lookup, all_mode_blocks="not-larger", coarse_beside_windows=False),
    scheduler=replace(RULES_0280.scheduler, steps_back_by_place=False, store_hit="attention"),
)

RULES_0260 = replace(
    RULES_0271,
    pool=RULES_0280.pool,
    state=replace(RULES_0271.state, keeps_empty_first_chunk=False),
    scheduler=replace(
        RULES_0271.scheduler,
        chunk_split="early-stops",
        store_hit="longest-group",
        pins_tails=False,
        takes_small_budgets=False,
    ),
)

RULES_0251 = replace(
    RULES_0260,
    lookup=replace(RULES_0260.lookup, eagle_margin="every-group", partial_hits=False),
    retention=replace(RULES_0260.retention, keeps_junction=False),
    state=replace(RULES_0260.state, tail="none", frees_behind_speculation=True),
    scheduler=replace(
        RULES_0260.scheduler,
        chunk_split="uncached-prefix",
        frees_settled=False,
        cap_counts_batches=False,
    ),
)

RULES_0240 = replace(RULES_0251, scheduler=replace(RULES_0251.scheduler, padding="never"))

RULES_0230 = replace(
    RULES_0240,
    pool=PoolRules(unhashed_first="windows"),
    lookup=replace(RULES_0240.lookup, reports_junction=False),
    retention=replace(RULES_0240.retention, thins_states=False),
    scheduler=replace(
        RULES_0240.scheduler, chunk_split="plain", store_hit="agreed", holds_before_taking=False
    ),
)

RULES_0221 = replace(
    RULES_0230,
    pool=PoolRules(unhashed_first="never"),
    retention=replace(
        RULES_0230.retention,
        interval=False,
        window_mask="without-drafter",
        caches_eagle_block=False,
    ),
    state=replace(RULES_0230.state, keeps_surplus=False),
    runner=replace(RULES_0230.runner, peels_decodes=False),
    scheduler=replace(RULES_0230.scheduler, splits_after_store=False, lookahead_for_new=False),
)

RULES_0202 = replace(
    RULES_0221,
    retention=replace(RULES_0221.retention, window_mask="none", floors_to_scheduler_block=False),
    runner=replace(RULES_0221.runner, drafts_in_all_mode=False),
)
"""0.21 has the same."""

RULES_0191 = replace(
    RULES_0202,
    lookup=replace(
        RULES_0202.lookup,
        eagle_drop="each-round",
        eagle_marks=False,
        eagle_margin="none",
        window_end_before_drop=True,
        mixed_blocks=False,
    ),
    scheduler=replace(RULES_0202.scheduler, store_frees="known-tokens", window_admission_cap=False),
)
