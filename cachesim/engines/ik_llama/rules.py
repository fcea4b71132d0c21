"""Differences of ik_llama.cpp's releases and proposals, as one frozen value."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from cachesim.units import Count

CompanionReset: TypeAlias = Literal["everything", "companion only"]
Rewind: TypeAlias = Literal["pos_min below", "pos_max below", "pos_min below or pos_max reaches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of a release: one field per difference, with its pull request."""

    # slot choice and prompt cache
    ram_floor: bool = False  # #2105: entries kept by less than --cache-ram-similarity are skipped
    ram_rewindable_only: bool = False  # #1877: entries that could not be rewound are skipped
    ram_ties_to_longer_prefix: bool = False  # #1877
    ram_reuse_n_min: bool = False  # #1877: the option --cache-ram-reuse-n-min exists
    clones_token_lists: bool = False  # #1854, #1877: a lookup no longer empties the lists it scans
    n_min_is_a_prefix: bool = False  # #1854: --cache-ram-n-min is a minimum common prefix

    # prompt preparation
    tolerant_only: bool = False  # #2105: no exact match beside the tolerant one
    minus_one_first: bool = False  # #2105: the last-token rule runs before checkpoints are applied

    # refusals
    releases_refused: bool = False  # a slot that refuses a prompt too long is released

    # context shift
    shift_always_drops_tokens: bool = False  # #2459: without cache_prompt too

    # checkpoints
    rewind: Rewind = "pos_min below"  # #1888, later release: the condition to use a checkpoint
    skips_recurrent: bool = False  # #1689: recurrent and hybrid models apply no checkpoint at all
    minimum: Count = Count(64)  # #1888: 4 for recurrent and hybrid models
    restore_moves_interval: bool = False  # later release: a restore sets checkpoint_pos
    restore_is_checked: bool = False  # later release: pos_max must be the checkpoint's afterwards
    interval_starts_at: int = 0  # later release: -1
    interval_counts_tokens: bool = True  # later release compares positions instead
    keeps_earliest: bool = False  # #1877: with a cap above 1 the second oldest is evicted

    # speculation
    restores_recurrent: bool = True  # #1669: rejected drafts are also removed from recurrent states

    counts_whole_drafts: bool = True  # #2358: the tokens of a draft are counted as they are sent

    restores_when_accepted: bool = True  # #1754: a draft accepted as a whole advances the state

    # disconnects
    stop_flag_stays: bool = False  # #1673: a stop flag that is set too late ends the next decode

    # companion
    companion_reset: CompanionReset = "everything"  # #1889
    trims_companion_always: bool = True  # later release: only after a trim of the primary
    purge_keeps_pending_row: bool = False  # later release: the row at M stays beside a follow-up
    commit_keeps_pending_row: bool = False  # later release: commit begins at M + 1
    warmup_failure_ends_drafts: bool = False  # later release: no drafts after a refused prompt part
