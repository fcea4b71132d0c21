"""vLLM's releases and patches, as data."""

from typing import Final

from cachesim.engines.family import Patch, laying, tagged
from cachesim.engines.history import History
from cachesim.engines.vllm.releases.merged import MERGED
from cachesim.engines.vllm.rules import (
    LookupRules,
    OffloadRules,
    PoolRules,
    RetentionRules,
    Rules,
    RunnerRules,
    SchedulerRules,
    StateRules,
)

TAGS: Final = (
    ("0.19.1", "2026-04-18", "states at chunk ends, no junction"),
    ("0.20.2", "2026-05-08", "the look-ahead block is dropped once"),
    ("0.21.0", "2026-05-15", "as 0.20.2"),
    ("0.22.1", "2026-06-04", "ids up to where every group can end"),
    ("0.23.0", "2026-06-15", "retention of windows, by environment"),
    ("0.24.0", "2026-06-29", "junction (#37898), retention of states too"),
    ("0.25.1", "2026-07-13", "single tokens beside drafts are padded"),
    ("0.26.0", "2026-07-25", "partial hits"),
    ("0.27.1", "2026-08-11", "a store is notified of whole blocks"),
    ("0.28.0", "2026-08-25", "align mode for every model"),
    ("0.29.0", "2026-09-09", "sparse retention, without drafts beside states"),
    ("0.30.0", "2026-09-22", "sparse retention by default"),
    ("0.31.0", "2026-10-03", "a first chunk of one token is a prefill"),
    ("0.32.0", "2026-10-17", "prompts of whole blocks stop one block lower"),
    ("0.33.0", "2026-11-01", "ids cover the token after a block for drafters"),
)
"""Each release, oldest first: its date, its changes."""

ALL: Final = tuple(name for name, *_ in TAGS)


def _since(first: str, last: str = "") -> tuple[str, ...]:
    begin = ALL.index(first) if first else 0
    return ALL[begin : ALL.index(last) + 1 if last else len(ALL)]


OLDEST: Final = Rules(
    runner=RunnerRules(
        ring_regions="last-page",
        plain_path_reads_first=True,
        plain_step_reads_first=True,
        first_token_reads_block=True,
        padded_tail_decodes=False,
        peels_decodes=False,
        model_runner_v1="always",
        drafts_in_all_mode=False,
        takes_states_singly=False,
    ),
    pool=PoolRules(
        unhashed_first="never",
        reserves_null_block=False,
    ),
    lookup=LookupRules(
        eagle_drop="each-round",
        eagle_marks=False,
        marks="none",
        eagle_margin="none",
        margin_bound="hit-limit",
        lookahead_hashes=False,
        groups_in_layer_order=False,
        partial_hits=False,
        window_end_before_drop=True,
        adapter_path=False,
        mixed_blocks=False,
        coarse_beside_windows=False,
        fine_beside_states=False,
        coarse_ids_by_size=True,
        all_mode_blocks="not-larger",
        refuses_idle_unit=False,
        truncates_all=False,
        reports_junction=False,
    ),
    retention=RetentionRules(
        interval=False,
        thins_states=False,
        accepts_idle_zero=False,
        window_mask="none",
        keeps_junction=False,
        keeps_below_junction=False,
        boundaries="prompt-end",
        floors_to_scheduler_block=False,
        caches_eagle_block=False,
        on_hit_alignment=False,
    ),
    state=StateRules(
        keeps_surplus=False,
        usual_mode="all",
        frees_behind_speculation=True,
        tail="none",
        keeps_known_tail=False,
        attention_tail_below_end=False,
        exact_need=False,
        keeps_empty_first_chunk=False,
        exporting=(),
        retires_all=False,
    ),
    scheduler=SchedulerRules(
        chunk_split="plain",
        prompt_stop="floor",
        encoder_before_split=True,
        encoder_stops_ahead=True,
        encoder_counts_places=False,
        encoder_waits_for_tokens=False,
        encoder_frees_with_output=False,
        skips_unencoded=False,
        counts_running_adapters=False,
        skips_into_own_queue=True,
        larger_devices=False,
        small_gb10=False,
        accepts_small_budgets=False,
        threshold_spares_the_only_one=False,
        prefill_interval_of_one_rank=False,
        accepts_short_budgets=True,
        lookahead_for_new=False,
        padding="never",
        caches_after_drafts=False,
        frees_settled=False,
        returns_cut_tokens=False,
        steps_back_by_place=False,
        goes_on_without_itself=False,
        store_hit="agreed",
        store_frees="known-tokens",
        splits_after_store=False,
        holds_before_taking=False,
        overlaps_ngrams=False,
        frees_behind_steps=False,
        spares_unsettled=False,
        cap_counts_batches=False,
        window_admission_cap=False,
    ),
    offload=OffloadRules(
        recency="touched",
        offers_again=False,
        needs_whole_chunks=False,
        aligns_all_mode=True,
    ),
    modes=("align", "all", "none"),
    has_compressed=False,
)
"""The rules of 0.19.1."""

PROPOSED: Final[tuple[Patch[Rules], ...]] = (
    Patch(
        name="32802",
        pull=32802,
        about="the look-ahead block is dropped once, not in every round",
        fits=("0.19.1",),
        lay=laying(
            lookup={
                "eagle_drop": "once",
                "eagle_margin": "not-recurrent",
                "margin_bound": "hit-limit",
            }
        ),
    ),
    Patch(
        name="51571",
        pull=51599,
        about="defect as reported: accepted counts move with their rows, and are read at old ones",
        fits=("0.27.1", "0.28.0"),
        lay=laying(runner={"counts_move_twice": True}),
    ),
    Patch(
        name="46281",
        pull=46281,
        about="recurrent groups look no further than attention with a drafter",
        fits=("0.24.0",),
        lay=laying(lookup={"eagle_margin": "not-recurrent"}),
        cures="with a drafter a recurrent group is granted a block more than it has",
    ),
    Patch(
        name="57278",
        pull=57278,
        about="in mode all a block is a multiple of the kernel's chunk of Mamba-2",
        fits=_since("", "0.31.0"),
        lay=laying(state={"blocks_of_whole_chunks": True}),
        cures="in mode all a block's state is taken from the end of a chunk that is not its own",
    ),
    Patch(
        name="prefills-lead",
        about="a prefill chunk of 1 + drafts tokens is sorted before requests without drafts",
        fits=_since("0.29.0"),
        lay=laying(runner={"reads_first_behind_prefill": True}),
    ),
    Patch(
        name="resumed-prefills",
        about="a resumed chunk is a prefill, however short",
        fits=_since("", "0.31.0"),
        lay=laying(runner={"short_resume_decodes": False}),
        cures="Mamba layers take a short resumed chunk for a decode: its first state is the "
        "running one",
    ),
    Patch(
        name="padded-first",
        about="the padded first token of a prompt is a decode that begins without a state",
        fits=_since("0.31.0"),
        lay=laying(runner={"padded_first_decodes": True}),
        cures="a prompt of one token is padded with drafts: its state includes refused ones",
    ),
    Patch(
        name="cuts-at-states",
        about="a chunk that begins inside a states' block stops at the block's end",
        fits=_since("0.28.0"),
        lay=laying(
            scheduler={"cuts_in_smallest_block": False, "passes_boundary_if_exporting": False}
        ),
        cures="a chunk passes the end of a states' block, whose id then stands for an older state",
    ),
    Patch(
        name="43569",
        pull=43569,
        about="who is preempted or aborted takes back the ids of blocks that will not be written",
        fits=ALL,
        lay=laying(scheduler={"withdraws_unwritten": True}),
        cures="a state is hit that was withdrawn from its step and never written",
    ),
    Patch(
        name="54076",
        pull=54076,
        about="prefill chunks end on the retention grid, so that a state per interval exists",
        fits=_since("0.28.0"),
        lay=laying(scheduler={"stops_at_interval": True}),
    ),
    Patch(
        name="47491",
        pull=47491,
        about="a missing state leaves attention's hit as it is (the defect of #43090)",
        fits=ALL,
        lay=laying(lookup={"forgives_missing_state": True}),
    ),
    Patch(
        name="no-29387",
        about="defect put back: a state registered in this step can be hit in this step",
        fits=ALL,
        lay=laying(state={"same_step_guard": False}),
        pull=29387,
    ),
    Patch(
        name="no-55601",
        about="defect put back: the entry of a hit's state is computed in the smallest block size",
        fits=_since("", "0.28.0"),
        lay=laying(runner={"seeds_in_smallest_block": True}),
        pull=55600,
    ),
    Patch(
        name="unhashed-last",
        about="blocks without an id go to the tail of the queue, as until 0.22",
        fits=_since("0.24.0"),
        lay=laying(pool={"unhashed_first": "never"}),
    ),
    Patch(
        name="counts-loaded-state",
        about="a block is counted for the state that a store brings, not only for the next one",
        fits=_since("0.24.0"),
        lay=laying(state={"counts_loaded_state": True}),
    ),
    Patch(
        name="53084",
        about="defect as reported: a store saves the null block where no state is kept",
        fits=("0.27.1", "0.28.0"),
        lay=laying(state={"stores_null_block": True}),
        pull=53084,
    ),
    Patch(
        name="44243-agreed",
        about="with a store too, the hit is what all groups agree on (as since 0.28)",
        fits=("0.24.0",),
        lay=laying(scheduler={"store_hit": "whole-blocks"}),
        cures="with a store, attention's hit is taken where no state is (#48195)",
    ),
    Patch(
        name="skips-aborted",
        about="a chunk never runs whose request is aborted in time (as #56525 tells its failure)",
        fits=ALL,
        lay=laying(runner={"skips_aborted": True}),
    ),
    Patch(
        name="window-one-short",
        about="a hit needs one window block less (off by one, the classic of this arithmetic)",
        fits=ALL,
        lay=laying(lookup={"window_one_short": True}),
    ),
)
"""Named after the pull request or issue, or by cachesim."""

HISTORY: Final = History(OLDEST, ALL, MERGED, PROPOSED)
RELEASES: Final = tuple(
    tagged(name, date, HISTORY.rules(name), about, "vllm") for name, date, about in TAGS
)
