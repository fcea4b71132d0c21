"""What was merged into llama-server from release to release, and the rules that came of it.

Entries were found by playing random workloads on the wheels before and after, and confirmed by the
pull request where it is known. What no request turned on stands where it was first looked at.
"""

from dataclasses import replace
from typing import Final

from cachesim.engines.llamacpp.memory import rules as memory
from cachesim.engines.llamacpp.merged import Merged
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

OLDEST: Final = ServerRules(
    memory=replace(
        memory.B9094, checks_positions=False, middle_cut_passes=False, sequence_header=0
    ),
    requests=RequestRules(
        empty_prefill_opens=True,
        counts_are_checked=False,
        embeddings_reuse=True,
        rank_is_last=False,
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
        shift_asks_new_prompts=True,
        reserve_aborts=False,
        empty_batches_abort=True,
    ),
)
"""Before the oldest wheel that names its build. What landed in that one was read in the reports and
their fixes, and no wheel played it: taken back from b8672, it shows the report and no release."""

LANDED: Final[tuple[Merged, ...]] = (
    Merged(
        pull=5420,
        about="a last token to be reprocessed is taken back before the memory is cut",
        landed="b8672",
        sets={"reuse.last_token_after_cut": False},
    ),
    Merged(
        pull=12161,
        about="a chunk that is reused moves alone; what follows it keeps its positions",
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
        sets={"loop.shift_asks_new_prompts": False},
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
        about="a prompt that only adds tokens is tested too, for a state one token deeper",
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
        about="a state one token deeper is asked for only where the prompt brings nothing new",
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
        about="a new checkpoint evicts older ones too close; near the end none needs a distance",
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
        pull=26320,
        about="a draft that is replayed after a restore counts no token of the target as accepted",
        landed="b10566",
        sets={"slots.replay_counts_correction": False},
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
        pull=28302,
        about="checkpoints are thinned only where the list is full; one replaces its equal",
        landed="b11063",
        sets={"checkpoints.eviction": "thinned", "checkpoints.supersede_equal": True},
    ),
    Merged(
        name="25913",
        pull=26004,
        about="slot files carry the checkpoints",
        landed="b11549",
        sets={"slots.file_holds_checkpoints": True},
    ),
    Merged(
        name="rank-in-pieces",
        about="a prompt to be ranked may be processed in pieces; one to be embedded reuses nothing",
        landed="b11549",
        sets={"requests.rank_is_last": True, "requests.embeddings_reuse": False},
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
                if field != "ext_bytes"  # seen in b10809
            },
        },
    ),
)
