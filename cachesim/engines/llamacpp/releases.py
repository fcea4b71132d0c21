"""The releases and patches of llama-server, as data.

Changes of `MERGED` were found by random workloads on the wheels before and after, and confirmed by
the pull request if it is known. A change that no request showed is listed at the release where it
was first noticed.
"""

from dataclasses import replace
from typing import Final

from cachesim.engines.family import Package, Patch, Release, laying
from cachesim.engines.history import History, Merged
from cachesim.engines.llamacpp.memory import rules as memory
from cachesim.engines.llamacpp.rules import (
    CheckpointRules,
    LoopRules,
    PromptCacheRules,
    RequestRules,
    ReuseRules,
    SelectionRules,
    ServerRules,
    SlotRules,
)
from cachesim.units import Count

WHEELS: Final = (
    ("b8672", "2026.4.8672.1", "2026-04-09", ""),
    ("b8929", "2026.4.8929", "2026-04-27", ""),
    ("b9093", "2026.5.9093", "2026-05-10", "b9094"),
    ("b9294", "2026.5.9294", "2026-05-24", ""),
    ("b9538", "2026.6.9538", "2026-06-07", "b9509"),
    ("b9713", "2026.6.9713", "2026-06-19", ""),
    ("b9873", "2026.7.9873", "2026-07-06", ""),
    ("b10068", "2026.7.10068", "2026-07-20", ""),
    ("b10229", "2026.8.10229", "2026-08-03", ""),
    ("b10566", "2026.8.10566", "2026-08-22", ""),
    ("b10809", "2026.9.10809", "2026-09-06", ""),
    ("b11063", "2026.9.11063", "2026-09-21", ""),
    ("b11549", "2026.10.11549", "2026-10-10", "b11434"),
)
"""Each release, oldest first: its wheel, its date, the build whose code was read."""

ALL: Final = tuple(name for name, *_ in WHEELS)


def _since(first: str, last: str = "") -> tuple[str, ...]:
    end = ALL.index(last) + 1 if last else len(ALL)
    return ALL[ALL.index(first) : end]


OLDEST: Final = ServerRules(
    memory=replace(
        memory.B9094, checks_positions=False, middle_cut_passes=False, sequence_header=0
    ),
    requests=RequestRules(
        empty_prefill_opens=True,
        counts_are_checked=False,
        embeddings_reuse=True,
        rank_is_last=False,
        at_models_max="ends-busy",
    ),
    selection=SelectionRules(
        pinned_slot_uses_cache=False, idle_saves_any_task=True, idle_save_needs_unified=True
    ),
    cache=PromptCacheRules(save_makes_room=False, limits_keep_one=True, load_consumes=True),
    reuse=ReuseRules(
        depth_test_skips_extensions=True,
        thold_spares_one="never",
        last_token_after_cut=True,
        chunk_moves_the_rest=True,
        swa_full_hides_window=False,
        start_passes=False,
        search_limit="none",
        exact_search="threshold",
        erasure="beyond",
        seq_rm_failure="assert",
        cut_between_images="abort",
        failed_restore_resets=True,
    ),
    checkpoints=CheckpointRules(
        placement="every",
        minimum_prompt=Count(64),
        exact_minimum_prompt=Count(64),
        spacing=Count(64),
        before_the_end=False,
        exact_gets_some=False,
        exact_spaced=True,
        cuts_heed_spacing=False,
        spacing_waived_near_end=False,
        spacing_waived_for_last_user=False,
        eviction="oldest",
        supersede_equal=False,
    ),
    slots=SlotRules(
        clear_drops_checkpoints=False,
        shift_drops_checkpoints=False,
        discard_is_clamped=False,
        file_holds_checkpoints=False,
        restore_drops_checkpoints=False,
        cleared_after_bad_restore=False,
        mtp_is_f16=False,
        companion_is_saved=False,
        drafter_is_saved=False,
        replay_counts_correction=True,
        ngrams_outlive=True,
        processed_is_reset=False,
    ),
    loop=LoopRules(
        process_failure_is_fatal=False,
        refused_cut_aborts=False,
        shift_checks_new_prompts=True,
        reserve_aborts=False,
        empty_batches_abort=True,
    ),
)
"""The state before the oldest wheel with a build number. The changes of that wheel come from
reports and their fixes, and no wheel confirms them: reverted on b8672, they show a report, not a
release."""

SEEN_BEFORE: Final = {
    "ext_bytes", "short_ubatch", "rollback_split", "refuses_decreasing", "rollback_layers",
    "single_use_rollback", "refuses_foreign_ids", "counts_positions",
}  # fmt: skip
"""Memory rules of b11549 that libllama shows in builds before it."""

MERGED: Final[tuple[Merged, ...]] = (
    Merged(
        pull=5420,
        about="a last token to be reprocessed is taken back before the memory is cut",
        landed="b8672",
        sets={"reuse.last_token_after_cut": False},
    ),
    Merged(
        pull=12161,
        about="only the chunk that is reused moves; later tokens keep their positions",
        landed="b8672",
        sets={"reuse.chunk_moves_the_rest": False},
    ),
    Merged(
        pull=14177,
        about="a batch whose positions do not continue its sequences is refused",
        landed="b8672",
        sets={"memory.checks_positions": True},
    ),
    Merged(
        pull=16382,
        about="checkpoints for recurrent and hybrid models, not for windows only",
        landed="b8672",
        sets={"checkpoints.exact_gets_some": True},
    ),
    Merged(
        pull=17009,
        about="a cut that ends before a recurrent state's position leaves it as it is",
        landed="b8672",
        sets={"memory.middle_cut_passes": True},
    ),
    Merged(
        pull=19408,
        about="checkpoints within a prompt and before its end; until then one, when it was done",
        landed="b8672",
        sets={"checkpoints.before_the_end": True},
    ),
    Merged(
        pull=16983,
        about="only a slot that generates is asked whether its context is full (after #16818)",
        landed="b8672",
        sets={"loop.shift_checks_new_prompts": False},
    ),
    Merged(
        pull=18391,
        about="a busy slot may be cleared: a refused cut no longer ends the process",
        landed="b8672",
        sets={"reuse.seq_rm_failure": "clear"},
    ),
    Merged(
        pull=21510,
        about="a checkpoint from position 0 passes the depth test",
        landed="b8929",
        sets={"reuse.start_passes": True},
    ),
    Merged(
        pull=22288,
        about="with --swa-full the server assumes no window",
        landed="b8929",
        sets={"reuse.swa_full_hides_window": True},
    ),
    Merged(
        name="sequence-header",
        about="a saved sequence begins with a header of 8 bytes",
        landed="b9093",
        sets={"memory.sequence_header": 8},
    ),
    Merged(
        pull=22673,
        about="recurrent states roll back by a few tokens; MTP heads draft",
        landed="b9294",
        sets={
            "memory.rollback_layers": frozenset({"delta"}),
            "memory.rollback_split": "sequence",
            "memory.probe": "after-probe",
            "slots.companion_is_saved": True,
        },
    ),
    Merged(
        pull=23280,
        about="a prompt that only adds tokens is tested too, for a state one token earlier",
        landed="b9294",
        sets={"reuse.depth_test_skips_extensions": False, "reuse.thold_spares_one": "always"},
    ),
    Merged(
        name="refusals-abort",
        perhaps=(22838,),
        about="what a memory refuses to cut or to load ends the process",
        landed="b9294",
        sets={
            "reuse.seq_rm_failure": "abort",
            "reuse.failed_restore_resets": False,
            "loop.refused_cut_aborts": True,
        },
    ),
    Merged(
        pull=23089,
        about="the template continues an assistant message: an empty one at the end opens no reply",
        landed="b9294",
        sets={"requests.empty_prefill_opens": False},
    ),
    Merged(
        pull=22929,
        about="one checkpoint where the last user message begins; for prompts of any length",
        landed="b9538",
        sets={
            "checkpoints.placement": "last-user",
            "checkpoints.minimum_prompt": Count(0),
            "checkpoints.exact_minimum_prompt": Count(0),
            "checkpoints.spacing": None,
        },
    ),
    Merged(
        name="outputs-reserved",
        about="a graph's outputs are reserved: too small a batch ends the process at start",
        landed="b9538",
        sets={"loop.reserve_aborts": True},
    ),
    Merged(
        name="mtp-f16",
        about="an MTP head keeps keys and values as f16; before, in the target's types",
        landed="b9538",
        sets={"slots.mtp_is_f16": True},
    ),
    Merged(
        pull=23981,
        about="a saved window holds the cells that it still shows",
        landed="b9538",
        sets={"memory.saves_unmasked_window": True},
    ),
    Merged(
        pull=24110,
        about="a state one token earlier is required only where the prompt adds no token",
        landed="b9538",
        sets={"reuse.thold_spares_one": "when-nothing-new"},
    ),
    Merged(
        name="counts-checked",
        about="fields of a request are checked against their bounds",
        landed="b9713",
        sets={"requests.counts_are_checked": True},
    ),
    Merged(
        pull=24190,
        about="idle slots are saved without a unified cache too, and keep what they hold",
        landed="b9713",
        sets={"selection.idle_save_needs_unified": False},
    ),
    Merged(
        pull=24411,
        about="a checkpoint that ends beyond the next position is not restored",
        cures="a window's checkpoint is restored that ends beyond the next position",
        landed="b9713",
        sets={"reuse.search_limit": "beyond"},
    ),
    Merged(
        pull=24176,
        about="checkpoints where every user message begins, whatever their distance for the last",
        landed="b9873",
        sets={
            "checkpoints.placement": "user-starts",
            "checkpoints.spacing_waived_for_last_user": True,
        },
    ),
    Merged(
        pull=24755,
        about="a request that names its slot searches the prompt cache too",
        landed="b9873",
        sets={"selection.pinned_slot_uses_cache": True},
    ),
    Merged(
        pull=24786,
        about="a context shift leaves at least one token of what it may drop",
        landed="b9873",
        sets={"slots.discard_is_clamped": True},
    ),
    Merged(
        name="empty-batches-turn",
        perhaps=(24843,),
        about=(
            "a busy slot with nothing to decode loops forever; before, four turns ended the process"
        ),
        landed="b9873",
        sets={"loop.empty_batches_abort": False},
    ),
    Merged(
        name="cut-between-images-fails",
        about="a cut of a slot between two images fails the request; before, it ends the process",
        landed="b9873",
        sets={"reuse.cut_between_images": "error"},
    ),
    Merged(
        name="short-ubatch-keeps",
        about="a short ubatch leaves the older states as they are (was: copies undefined data)",
        landed="b9873",
        sets={"memory.short_ubatch": "kept"},
    ),
    Merged(
        pull=25070,
        about="the prompt cache never exceeds its limit: room is made first, a large entry refused",
        landed="b10068",
        sets={"cache.save_makes_room": True, "cache.limits_keep_one": False},
    ),
    Merged(
        pull=25420,
        about="a batch ends only at user messages that may get a checkpoint",
        landed="b10068",
        sets={"checkpoints.cuts_heed_spacing": True},
    ),
    Merged(
        pull=25472,
        about="a new checkpoint evicts ones too close; near the end it needs no distance",
        landed="b10068",
        sets={
            "checkpoints.eviction": "thinned-always",
            "checkpoints.spacing_waived_near_end": True,
        },
    ),
    Merged(
        pull=25649,
        about="clearing, shifting or restoring a slot empties its list of checkpoints",
        cures="checkpoints outlive what cleared, shifted or restored their slot",
        landed="b10068",
        sets={
            "slots.clear_drops_checkpoints": True,
            "slots.shift_drops_checkpoints": True,
            "slots.restore_drops_checkpoints": True,
        },
    ),
    Merged(
        pull=25278,
        about="the last tokens of a sequence stay in one ubatch, where states are kept for them",
        landed="b10068",
        sets={"memory.rollback_split": "keep-tail"},
    ),
    Merged(
        pull=25449,
        about="a batch in which a sequence's positions decrease is refused",
        landed="b10068",
        sets={"memory.refuses_decreasing": True},
    ),
    Merged(
        pull=26320,
        about="a draft that is replayed after a restore counts no token of the target as accepted",
        landed="b10566",
        sets={"slots.replay_counts_correction": False},
    ),
    Merged(
        pull=26572,
        about="a router lets requests wait for a model to be idle",
        landed="b10566",
        sets={"requests.at_models_max": "promises"},
    ),
    Merged(
        name="processed-reset",
        about="a slot forgets at its release how many tokens it processed",
        landed="b10566",
        sets={"slots.processed_is_reset": True},
    ),
    Merged(
        name="wider-positions",
        about="a saved cell of a model with several position sections has 12 bytes more, not 8",
        landed="b10809",
        sets={"memory.ext_bytes": memory.B11434.ext_bytes},
    ),
    Merged(
        name="convolutions-roll-back",
        about="LFM2's convolutions keep states for a rollback; a second rollback is refused",
        landed="b10809",
        sets={
            "memory.rollback_layers": memory.B11434.rollback_layers,
            "memory.single_use_rollback": True,
            "memory.refuses_foreign_ids": True,
        },
    ),
    Merged(
        name="positions-once",
        about="a sequence that is copied twice counts each position once",
        landed="b10809",
        sets={"memory.counts_positions": False},
    ),
    Merged(
        pull=28302,
        about="checkpoints are thinned only where the list is full; one replaces its equal",
        landed="b11063",
        sets={"checkpoints.eviction": "thinned", "checkpoints.supersede_equal": True},
    ),
    Merged(
        pull=28539,
        about="a router ends an idle model for each request that waits",
        landed="b11063",
        sets={"requests.at_models_max": "takes-loaded"},
    ),
    Merged(
        name="25913",
        pull=26004,
        about="slot files carry the checkpoints",
        landed="b11549",
        sets={"slots.file_holds_checkpoints": True},
    ),
    Merged(
        pull=29217,
        about="a router ends no model that its first request has not reached",
        landed="b11549",
        sets={"requests.at_models_max": "waits"},
    ),
    Merged(
        name="cut-between-images",
        about="a slot can be cut between two images that adjoin",
        landed="b11549",
        sets={"reuse.cut_between_images": "cut"},
    ),
    Merged(
        name="rank-in-pieces",
        about="a prompt to be ranked may be processed in pieces; one to be embedded reuses nothing",
        landed="b11549",
        sets={"requests.rank_is_last": True, "requests.embeddings_reuse": False},
    ),
    Merged(
        name="shared-state-stays",
        about="a state that several sequences share is not rolled back",
        landed="b11549",
        sets={"memory.rolls_back_shared": False},
    ),
    Merged(
        name="unseen-before-b11549",
        perhaps=(24843, 26221),
        about="rules that no random workload exercised, taken from b11549",
        landed="b11549",
        sets={
            "slots.cleared_after_bad_restore": True,
            "slots.drafter_is_saved": True,
            "loop.process_failure_is_fatal": True,
            **{
                f"memory.{field}": getattr(memory.B11434, field)
                for field in memory.differing(memory.B9509, memory.B11434)
                if field not in SEEN_BEFORE
            },
        },
    ),
)

PROPOSED: Final[tuple[Patch[ServerRules], ...]] = (
    Patch(
        pull=24035,
        about="checkpoints know where they end; those past the common prefix are dropped",
        fits=_since("b9538"),
        lay=laying(reuse={"exact_search": "pos_end", "erasure": "pos_end"}),
    ),
    Patch(
        name="24035-lcp",
        pull=24035,
        about="the later form of 24035: the longest checkpoint inside the common prefix is used",
        fits=_since("b9538"),
        lay=laying(
            cache={"best_by_reuse": True},
            reuse={"exact_search": "longest", "erasure": "prefix"},
            checkpoints={"eviction": "densest", "split_at_prefix": True, "exact_pos_min": True},
        ),
    ),
    Patch(
        pull=24143,
        about="a conversation loaded from the prompt cache stays in it",
        fits=ALL,
        lay=laying(cache={"load_consumes": False}),
    ),
    Patch(
        pull=24797,
        about="declined: a hybrid starts where its attention does; checkpoints are cut, not erased",
        fits=("b9713",),
        lay=laying(
            reuse={"erasure": "trimmed"},
            memory={"hybrid_starts_with_attention": True, "impossible_rollback_passes": True},
        ),
    ),
    Patch(
        pull=24891,
        about="only checkpoints beyond the whole prompt are erased; a refused cut is a warning",
        fits=_since("b9538"),
        lay=laying(reuse={"erasure": "prompt", "seq_rm_failure": "warn"}),
    ),
    Patch(
        pull=25592,
        about="a recurrent state is restored only at its exact position inside the common prefix",
        fits=_since("b9538"),
        lay=laying(
            reuse={"exact_search": "inside", "erasure": "diverged"},
            checkpoints={
                "spacing_waived_near_end": True,
                "eviction": "closest",
                "exact_pos_min": True,
            },
        ),
    ),
    Patch(
        pull=22384,
        about="recurrent checkpoints are accepted by where they end, and made from 4 tokens on",
        fits=_since("b8672", "b9093"),
        lay=laying(
            reuse={"exact_search": "pos_max"}, checkpoints={"exact_minimum_prompt": Count(4)}
        ),
    ),
    Patch(
        pull=20428,
        about="recurrent checkpoints for prompts of any length; a refused cut goes back to one",
        fits=_since("b8672", "b9093"),
        lay=laying(
            reuse={"seq_rm_failure": "checkpoint"},
            checkpoints={"exact_minimum_prompt": Count(0), "exact_spaced": False},
        ),
    ),
    Patch(
        pull=26893,
        about="idle slots are saved after completions only; nothing else searches the prompt cache",
        fits=ALL,
        lay=laying(selection={"idle_saves_any_task": False}),
    ),
    Patch(
        pull=28873,
        about="a checkpoint has nothing of a plain cache, as a draft's: cutting it is enough",
        fits=("b11549",),
        lay=laying(memory={"saves_plain_partially": False}),
    ),
    Patch(
        name="22673-early",
        pull=22673,
        about="22673 before its merge: saving a state while a rollback is pending ends the process",
        fits=("b9294",),
        lay=laying(memory={"saves_rolled_back": False}),
    ),
    Patch(
        pull=27866,
        about="with --spec-type ngram-cache each request begins with no n-grams",
        fits=_since("b9294"),
        lay=laying(slots={"ngrams_outlive": False}),
    ),
    Patch(
        name="erase-equal",
        about="a checkpoint whose last token is exactly at the next position is erased too",
        fits=ALL,
        lay=laying(reuse={"erasure": "equal"}),
        cures="a checkpoint stays whose last token is not the prompt's, and is restored",
    ),
    Patch(
        name="search-read-again",
        about="24411, and checkpoints past the token that must be reprocessed are skipped",
        fits=ALL,
        lay=laying(reuse={"search_limit": "read-again"}),
        cures="a window's checkpoint is one key short where the last token is reprocessed",
    ),
    Patch(
        name="resume-behind",
        about="SWA is resumed after a checkpoint's last token: no save and restore loses a key",
        fits=ALL,
        lay=laying(reuse={"resumes_behind": True}),
        cures="a window loses a key at each trip through the prompt cache",
    ),
    Patch(
        name="dry-run-restores",
        about="a dry run that finds room for a batch puts back every cell that it emptied",
        fits=ALL,
        lay=laying(memory={"dry_run_restores": True}),
        cures="a prompt that shares a batch loses the keys before its own tokens",
    ),
)
"""Numbered patches are pull requests at ggml-org/llama.cpp; other names are cachesim's."""


HISTORY: Final = History(OLDEST, ALL, MERGED, PROPOSED)


def _release(name: str, version: str, date: str, upstream: str) -> Release[ServerRules]:
    same = f"; has the cache rules of {upstream}" if upstream else ""
    return Release(
        name=name,
        about=f"wheel of {date}{same}",
        rules=HISTORY.rules(name),
        date=date,
        upstream=upstream,
        aliases=(upstream,) if upstream else (),
        package=Package(name="xllamacpp", version=version),
    )


RELEASES: Final = tuple(_release(*wheel) for wheel in WHEELS)
