"""Rules of SGLang's scheduler and trees at one release, as data.

One field per difference, named after its effect. The logic reads rules, never the release. The
defaults are those of the newest release.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Trees: TypeAlias = Literal["one-per-kind", "unified"]
Evicts: TypeAlias = Literal["whole-demand", "shortfall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRules:
    """The trees."""

    trees: Trees = "unified"
    """0.5.16: one `UnifiedRadixCache` instead of a class for each kind of model."""

    counts_hits: bool = True
    """0.5.22 counts how often a node was walked over; before, `lfu` is `lru`."""

    keeps_prompt_end: bool = True
    """0.5.22: a finished request divides its node where the prompt ends, and prefers that part."""

    uses_path_states: bool = False
    """Until #31643 a match refreshed every state on its path; since then only the one it used."""

    frees_by_a_stale_map: bool = False
    """#27586: a node that has lost its window keeps its entries in the map from tokens to window
    slots; where it is revived, the slots that they name are freed, even if in use again."""

    states_for_every_chunk: bool = False
    """#39436, as proposed: the host has room for a state of every chunk that it has room for."""

    state_copies_go_too: bool = False
    """#33713: a state that the device evicts is evicted from the host as well."""

    copies_inner_states: bool = True
    """#40680: with `write_back` an inner node's state is copied to the host before its eviction."""

    copies_inner_windows: bool = True
    """#29204: the same of its window slots."""

    key_without_reply: bool = False
    """#24380: a finished request leaves its prompt as the key, with the state after its reply."""

    inserts_prompt_only: bool = False
    """#16521: without states too a finished request inserts its prompt; its reply is freed."""

    host_has_windows: bool = True
    """#39541: a host without a pool of windows, where a match still asks for one (#38269); in
    0.5.22 that of DeepSeek-V4.1 with `--enable-encoder-swa-bounded-replay` and a drafter."""

    splits_long_windows: bool = False
    """#31771, as proposed: where a match resumes from windows on the host, only the last window is
    loaded, in whole pages; else the window slots of each node that it touches."""

    tracks_by_chunks: bool = False
    """#34760: states are tracked on the grid of chunks and physical pages, although the pages of
    the tree are longer with `dcp_size`; a state then hangs on a node that ends before it."""

    windows_go_by_tokens: bool = False
    """#34870: a prefill frees windows by tokens, although the tree has pairs, and keeps one window
    and no whole pages; the match after the insertion then refuses the leaf, and the tree's slots
    are freed as duplicates."""

    inserts_gone_windows: bool = False
    """#31486: window slots that were freed count as alive when they are inserted."""

    fetches_last_page: bool = False
    """#27291: the storage is queried for the whole prompt, where no match can end; a window fetched
    for its last page does not fit the page before."""

    keeps_whole_pages: bool = True
    """0.5.23: of the window before a prompt's end whole pages are kept."""

    holds_what_it_inserts: bool = True
    """0.5.23: a request holds the node that it has inserted; before, the one that a match finds
    after it, which ends earlier where the last window is short."""

    copies_late_windows: bool = False
    """Before 0.5.23, `write_back` copies the windows that a node on the host has got since when a
    request is inserted over it; after, when the device gives them up."""

    one_wait_per_request: bool = True
    """0.5.23: a request waits for the storage from its first check, as long as the queried pages
    allow, and queries no more; before, each query has its own time, by the pages found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRules:
    """The scheduler."""

    full_flag_needs_no_chunk: bool = True
    """Mark the batch as full if no row is free and no prompt is partly prefilled; 0.5.9
    inverts the test."""

    rows_bound_admission: bool = True
    """0.5.22: no more requests are admitted than there are free rows."""

    counts_held_rows: bool = True
    """0.5.23: rows that the batch holds already are free for it."""

    filters_before_prefill: bool = True
    """0.5.23: finished requests leave the running batch before anything is admitted."""

    clears_full_flag: bool = True
    """0.5.22: a batch no longer counts as full where no request runs or windows have their own
    slots, nor where the only request of an idle server does not fit."""

    checks_budget_before_each: bool = True
    """0.5.23: the budget is checked before each waiting request, not only after it."""

    returns_unused_state: bool = True
    """0.5.22: a request that was matched and not admitted gives its state slot back."""

    reserves_a_page: bool = True
    """0.5.22: a page per request is reserved on top of its tokens."""

    windows_have_their_budget: bool = True
    """0.5.22: windows are budgeted on their own; before, by the smaller of both pools."""

    window_pages_are_counted: bool = True
    """0.5.22 counts the pages that a prefill takes of both pools; 0.5.9 wants a page more for each
    request, and raises where there is none."""

    ignoring_eos_counts_in_full: bool = True
    """0.5.22: requests that ignore the end of text are counted with all tokens they may make."""

    states_per_request: int = 0
    """0.5.9 makes room for three states per request; 0: for as many as it takes."""

    evicts: Evicts = "shortfall"
    """Amount evicted under pressure: the whole request, or the shortfall."""

    window_steps: int = 128
    """Tokens outside the window after which decode frees them; 0: once per window."""

    groups_prefill_frees: bool = True
    """0.5.22: slots freed by a prefill are freed at its end."""

    polls_every_pass: bool = True
    """0.5.22 polls the host's copies in every pass; before, when a prefill is formed."""

    host_takes_all_models: bool = True
    """0.5.9 has a host tier for models of full attention only (`HiRadixCache`)."""

    host_may_be_smaller: bool = True
    """0.5.9 asserts that the host holds more than the device."""

    longer_chunks_from_20_gib: bool = True
    """0.5.22: devices of 20 to 35 GB prefill 4,096 tokens at once by default; before, 2,048."""

    loads_before_it_fits: bool = False
    """0.5.9 loads back from the host before it checks if the chunk fits."""

    aborts_last: bool = True
    """0.5.22: the last request that runs out of memory is aborted; 0.5.9 raises."""

    aborts_chunks: bool = True
    """0.5.22: a partly prefilled prompt of a client that disconnects ends there; before, it is
    prefilled."""

    mixes_what_fits: bool = True
    """0.5.22: who decodes sits out a prefill that leaves no memory; 0.5.9 may end there."""

    drafts_may_mix: bool = True
    """0.5.9 ignores `enable_mixed_chunk` where there are drafts."""

    auto_is_extra_buffer: bool = True
    """Resolve the state strategy `auto` to `extra_buffer`; 0.5.9 takes `no_buffer`."""

    sessions_keep_keys: bool = True
    """0.5.22: a request of a session has its own extra key, priority and routing key; 0.5.9 drops
    them, so that it matches and leaves tokens without a key."""

    counts_adapters_of_chunks: bool = True
    """0.5.22 counts the adapter of a prompt that is half read among the running ones, and not those
    of requests that have ended; 0.5.9 may form a batch of more adapters than it has room for."""

    counts_host_matches: bool = True
    """0.5.22: the policy `lpm` counts matches on the host, and no prompt's last token."""

    requeues_all_preempted: bool = True
    """0.5.22: a preempted request is always queued again; 0.5.9 drops it if the request that it
    made room for is not admitted, so that it never ends."""

    counts_retracted_tokens: bool = True
    """0.5.22: the tokens that a preemption must free include those of a retracted request; 0.5.9
    counts none until it is matched again."""

    keeps_previous_track: bool = True
    """0.5.22: where the tracked state is beyond the committed tokens, the one before it is used."""

    refreshes_waiting: int = 32
    """0.5.22: passes after which the matches of waiting requests count as used; 0: never."""

    two_tokens_per_running: bool = True
    """0.5.22: `max_running_requests` is at most half of the token slots."""

    keeps_reserve: bool = True
    """0.5.22: decoding requests keep slots for two steps of drafts; 0.5.9 takes those of one step
    and frees the rejected ones (as it does without `SGLANG_ENABLE_SPEC_V2`)."""

    sorts_drafting: bool = True
    """0.5.22: requests with drafts start over in the same order as others; in 0.5.9 the last one of
    the batch does."""

    tracks_whole_runs: bool = True
    """0.5.22; 0.5.9 overlooks that the first token of a run ends at a boundary, whose state is in
    the slot all the same."""

    drops_beyond_the_last: bool = True
    """As #35694 proposes (0.5.22): of a verified run beyond a request's last token, the tree gets
    nothing."""

    leaves_no_later_state: bool = True
    """0.5.23, `no_buffer`: nothing is inserted of a request whose state includes such tokens."""

    strips_reasoning: bool = True
    """0.5.22: what a finished request leaves may end with its prompt (`strip_thinking_cache`)."""

    resets_beside_a_queue: bool = False
    """0.5.9: each pass without a batch resets the ratio of new tokens, not that of an idle server
    alone."""

    drafts_need_buffer: bool = False
    """0.5.9: with drafts and `no_buffer` there is no radix cache."""

    pads_images_apart: bool = True
    """#21899: each image has ids of its own; before, all of a request have those of one hash."""

    reserves_states_for_the_queue: bool = True
    """0.5.22: states for the waiting requests are taken from the pool at once."""

    drafts_track_in_one_slot: bool = False
    """0.5.9: a running request has one tracking slot for states with drafts and else two; later
    one without overlap, and two with it."""

    drafts_overlap: bool = True
    """0.5.22; 0.5.9 turns the overlap schedule off with drafts unless `SGLANG_ENABLE_SPEC_V2`."""

    skips_finishing: bool = True
    """0.5.22: a request that one more token ends is not decoded beside that token's result."""

    switches_slots_ahead: bool = True
    """0.5.22: the slots for states are switched while the step that tracks one is in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerRules:
    """The model runner; each is a defect."""

    offset_of_first: bool = False
    """#31833, #33450: the state tracked for a later request of a prefill batch is read at the
    first one's offset."""

    load_needs_tracking: bool = False
    """#29330: a chunk shorter than the grid starts from a blank state."""

    snapshot_after_next_chunk: bool = False
    """#24221: with overlap the state that is stored for a chunk is that of the next one."""

    shares_states: bool = False
    """A request runs on the tree's own state instead of a copy."""

    host_copy_late: bool = False
    """#39830: the copy to the host is made when it is needed; the slots hold something else by
    then."""

    stores_indexer: bool = True
    """0.5.22, and Mooncake from 0.5.11 at the latest: pages in the storage have the keys of a
    sparse indexer; in 0.5.9 `MooncakeStore` and files have attention's alone (Mooncake#2236)."""

    mixing_drops_tracks: bool = False
    """Before 0.5.23 `mix_with_running` drops the tracking of the prefill's states (`merge_batch`),
    and the tree gets slots that nothing was written to."""

    first_chunk_reads_slot: bool = False
    """0.5.9 clears the slot of a state when it is allocated. A first chunk of a gated delta net
    starts from its content: for a request that matched, was not admitted and matches less the next
    time, the state that its earlier match copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All differences of one release."""

    tree: TreeRules = field(default_factory=TreeRules)
    scheduler: SchedulerRules = field(default_factory=SchedulerRules)
    runner: RunnerRules = field(default_factory=RunnerRules)
