"""Differences of llama-server's releases and patches, as data: one frozen value each.

Each field is one difference, named after its effect and commented with the change that made it. The
logic reads these fields, never the release.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.units import Count

SeqRmFailure: TypeAlias = Literal["clear", "checkpoint", "warn", "abort", "assert"]
"""Effect of a failed `seq_rm`: full reprocessing, a checkpoint, a warning, or an abort; `assert`
ends the process because the slot to clear is busy."""

ExactSearch: TypeAlias = Literal["threshold", "pos_end", "pos_max", "inside", "longest"]
"""Acceptance test for a checkpoint of an exact state (recurrent, hybrid)."""

CutBetweenImages: TypeAlias = Literal["abort", "error", "cut"]
"""A cut of a slot between two images: end of the process, failed request, or cut."""

SearchLimit: TypeAlias = Literal["none", "beyond", "read-again"]
"""Upper limit of a checkpoint's end: the position to resume at, before or after it was lowered."""

Erasure: TypeAlias = Literal[
    "beyond", "equal", "pos_end", "diverged", "prefix", "prompt", "trimmed"
]
"""Checkpoints that a new prompt erases; `trimmed` erases none, and lowers their numbers."""

SparesOne: TypeAlias = Literal["never", "always", "when-nothing-new"]
"""Acceptance of a state one token earlier than needed, so that a last token can be computed."""

Eviction: TypeAlias = Literal["oldest", "thinned-always", "thinned", "closest", "densest"]
"""Checkpoints to drop for a new one; `thinned-always` does not wait for a full list."""

Placement: TypeAlias = Literal["every", "last-user", "user-starts"]
"""Permitted places of checkpoints before the end of a prompt."""

AtLimit: TypeAlias = Literal["ends-busy", "promises", "takes-loaded", "waits"]
"""A request for one model too many: a router ends the least recently used child, busy or not; or
queues the request for an idle one, which it may promise twice; or for an idle one, be it loaded for
a request that has not reached it; or for one that no request waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRules:
    """Rules of the HTTP side."""

    empty_prefill_opens: bool  # an empty assistant message at the end opens the reply
    rank_is_last: bool  # a prompt to rank may be decoded in pieces
    embeddings_reuse: bool  # a prompt to embed reuses tokens where it may be decoded in pieces
    counts_are_checked: bool  # an n_predict below -1 is refused; else it generates one token
    at_models_max: AtLimit  # #26572, #29217


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRules:
    """Rules of slot selection and of the swap with the prompt cache."""

    pinned_slot_uses_cache: bool
    idle_saves_any_task: bool  # #26893: tasks other than completions are saved too
    idle_save_needs_unified: bool  # until b9601: idle slots are saved only under a unified cache


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheRules:
    """Rules of the prompt cache in host memory (`--cache-ram`)."""

    save_makes_room: bool  # #25070: refuse too large an entry, drop the oldest before appending
    limits_keep_one: bool  # the limits never empty the list
    load_consumes: bool  # loading removes the entry from the list; #24143 keeps it
    best_by_reuse: bool = False  # #24035, later form: a short slot prompt cannot block an entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseRules:
    """Rules of the reuse of a slot's tokens for a prompt."""

    depth_test_skips_extensions: bool  # the guard is `n_past < slot size`, not `<=`
    thold_spares_one: SparesOne  # #23280: one less; #24110: only if the prompt has no new tokens
    last_token_after_cut: bool  # #5420: the last token's old cell stays when it is recomputed
    chunk_moves_the_rest: bool  # #12161: before, everything after a moved chunk moves with it
    swa_full_hides_window: bool  # #22288: with --swa-full the depth test ignores the window
    start_passes: bool  # #21510: a checkpoint from position 0 passes the depth test
    search_limit: SearchLimit  # #24411
    exact_search: ExactSearch  # #24035, #25592, #22384
    erasure: Erasure  # #20671; #24035, #25592, #24891, #24797
    seq_rm_failure: SeqRmFailure  # #18391, #20428, #24891
    cut_between_images: CutBetweenImages  # of adjoining images, in `keep_first`
    failed_restore_resets: bool  # a blob that does not load: full reprocessing, or an abort
    resumes_behind: bool = False  # a window's checkpoint includes its last token


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRules:
    """Rules of the places and the number of checkpoints."""

    placement: Placement  # #22929, #24176
    minimum_prompt: Count  # a prompt shorter than this gets none
    exact_minimum_prompt: Count  # #22384, #20428: the same for exact states
    spacing: Count | None  # fixed distance; None: `checkpoint_min_step`
    before_the_end: bool  # #19408: created before the end of a prompt, not after it is decoded
    exact_gets_some: bool  # #16382: exact states have checkpoints, not only windows
    exact_spaced: bool  # #20428: False: no distance for exact states
    cuts_heed_spacing: bool  # #25420: no batch ends at a user message too close for a checkpoint
    spacing_waived_near_end: bool  # #25592 for the end of the prompt
    spacing_waived_for_last_user: bool  # #24176
    eviction: Eviction  # #25472, #28302; #25592; #24035
    supersede_equal: bool  # an older checkpoint with the same number of tokens is dropped
    split_at_prefix: bool = False  # #24035, later form: cut and save at the common prefix
    exact_pos_min: bool = False  # #25592, #24035: pos_min is recorded as pos_max


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRules:
    """Rules of clearing, shifts, slot files and companions."""

    clear_drops_checkpoints: bool  # clearing a slot empties its list
    shift_drops_checkpoints: bool  # a context shift empties the list
    discard_is_clamped: bool  # #24786: n_discard stays below the remaining tokens
    file_holds_checkpoints: bool  # #26004: slot files save checkpoints, and restore them
    restore_drops_checkpoints: bool  # a slot restored from a file keeps no older checkpoints
    cleared_after_bad_restore: bool  # a file that does not fit clears the slot
    mtp_is_f16: bool  # an MTP head's keys and values are f16, whatever the flags
    companion_is_saved: bool  # checkpoints and cache entries hold the companion's state
    drafter_is_saved: bool  # checkpoints hold the drafter's data beside its memory
    replay_counts_correction: (
        bool  # #26320: replayed after a restore, the target's own token counts
    )
    ngrams_outlive: bool  # #27866: a slot's n-grams include those of its earlier requests
    processed_is_reset: bool  # a release resets a slot's number of processed tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRules:
    """Rules of failures, and of aborts of the process."""

    process_failure_is_fatal: bool  # a failing companion: errors for all slots, not a dropped pass
    refused_cut_aborts: bool  # a cut that the memory refuses, outside the commit, ends the process
    shift_checks_new_prompts: bool  # #16818: a slot counts as full before its prompt is started
    reserve_aborts: bool  # a largest graph that does not fit its outputs aborts at the start
    empty_batches_abort: bool  # four passes with nothing to decode abort the process (#20277)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRules:
    """All rules of a release."""

    memory: MemoryRules
    requests: RequestRules
    selection: SelectionRules
    cache: PromptCacheRules
    reuse: ReuseRules
    checkpoints: CheckpointRules
    slots: SlotRules
    loop: LoopRules
