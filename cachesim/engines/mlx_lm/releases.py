"""mlx-lm's releases and patches, as data."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from cachesim.engines.family import Package, Patch, Release, laying
from cachesim.engines.history import History, Merged
from cachesim.engines.mlx_lm.families import FAMILIES
from cachesim.engines.mlx_lm.rules import (
    CacheRules,
    MlxRules,
    ServerRules,
    SnapshotRules,
    StoreRules,
)

REPOSITORY: Final = "ml-explore/mlx-lm"

NAMES: Final = (
    "0.29.1",
    "0.30.0",
    "0.30.2",
    "0.30.4",
    "0.30.5",
    "0.30.6",
    "0.30.7",
    "after-906",
    "0.31.0",
    "0.31.1",
    "0.31.1-main",
    "after-1019",
    "0.31.2",
    "0.31.3",
    "0.32.0",
    "0.32.1",
    "0.32.2",
)
"""The releases, oldest first, and the states of upstream's main branch below proposals."""

SEGMENTED: Final = NAMES[NAMES.index("0.31.2") :]

OLDEST: Final = MlxRules(
    caches=CacheRules(
        state_form="sliced",
        counts_bytes=False,
        bytes_skip_missing_slots=False,
        list_state_by_member=False,
        restores_padding_fields=False,
        lengths_beside_left_padding=False,
        window_masks_one_column=False,
        chunk_front_counts_valid_rows=False,
        filter_accepts_empty=False,
        filter_keeps_lengths=False,
        filter_keeps_left_padding=False,
        arrays_extend="raises",
        arrays_merge_of_empties="raises",
        batch_extend="raises",
        merge_skips_empty=False,
        merge_of_empties=False,
        rotating_merge="by-offset",
        rotating_extract="uncut",
        batches_recurrent=False,
        chunked_is_kv=True,
        rotated_is_restored=False,
        saves_empty_arrays=False,
    ),
    store=StoreRules(
        consumes=True,
        cuts_to_common_prefix=False,
        leaves_one_token=False,
        longer_beside_shorter=False,
        prunes="never",
        same_key="counts",
        queues=("all",),
        limits_bytes=False,
        keeps_one_beyond_bytes=True,
        empty_query_is_exact=True,
        forgives_lost_keys=False,
    ),
    server=ServerRules(
        reports_cached=False,
        fresh_by_length=True,
        lengths_leave_last=False,
        forgets_stopped=False,
        batches_by="all loaded",
    ),
    classes={name: family.rules for name, family in FAMILIES.items()},
)
"""The state before the oldest release, in 2025."""

MERGED: Final[tuple[Merged, ...]] = (
    Merged(
        pull=138,
        about="a stored prompt that diverges from the new one is trimmed to what they share",
        landed="0.29.1",
        sets={"store.cuts_to_common_prefix": True},
    ),
    Merged(
        pull=183,
        about="a stored prompt is trimmed so that at least one token is left to feed",
        landed="0.29.1",
        sets={"store.leaves_one_token": True},
    ),
    Merged(
        pull=738,
        about="a row leaves a ring at its own length, and a padded prefill receives its lengths",
        landed="0.30.4",
        sets={
            "caches.rotating_merge": "by-index",
            "caches.rotating_extract": "from-the-end",
            "server.lengths_leave_last": True,
        },
    ),
    Merged(
        pull=690,
        about="recurrent caches have a batch form (#740, #743 and #769 went with it)",
        landed="0.30.4",
        sets={
            "caches.batches_recurrent": True,
            "caches.batch_size_method": False,
            "caches.chunked_is_kv": False,
            "server.fresh_by_length": False,
            "classes.qwen3_next.advances": True,
            "classes.granitemoehybrid.advances": True,
            "classes.mamba2.advances": True,
            "classes.nemotron_h.advances": True,
            "classes.falcon_h1.advances": True,
            "classes.plamo2.advances": True,
            "classes.lfm2.advances": True,
        },
    ),
    Merged(
        pull=755,
        about="rows without keys can be merged with rows that have keys",
        landed="0.30.4",
        sets={"caches.merge_skips_empty": True},
    ),
    Merged(
        pull=743,
        about="the caches of the loaded model decide what is batched; before, of all that were",
        landed="0.30.4",
        sets={"server.batches_by": "loaded"},
    ),
    Merged(
        pull=807,
        about="a restored recurrent cache has its fields for padding",
        landed="0.30.5",
        since="0.30.4",
        sets={"caches.restores_padding_fields": True},
    ),
    Merged(
        pull=741,
        about="a request that a stop word ended is stored, and leaves its batch",
        landed="0.30.6",
        sets={"server.forgets_stopped": True},
    ),
    Merged(
        pull=842,
        about="fresh recurrent caches are merged without a padding of zeros",
        landed="0.30.6",
        sets={
            "classes.qwen3_next.merges_slots_as_padding": False,
            "classes.granitemoehybrid.merges_slots_as_padding": False,
            "classes.mamba2.merges_slots_as_padding": False,
            "classes.nemotron_h.merges_slots_as_padding": False,
            "classes.falcon_h1.merges_slots_as_padding": False,
            "classes.plamo2.merges_slots_as_padding": False,
            "classes.jamba.merges_slots_as_padding": False,
        },
    ),
    Merged(
        name="842-loads",
        pull=842,
        about="the model that a request asks for is loaded before it is batched or not",
        landed="0.30.6",
        sets={"server.batches_by": "asked"},
    ),
    Merged(
        pull=843,
        about="a cache that keeps everything masks one column too where a window is asked for",
        landed="0.30.6",
        sets={"caches.window_masks_one_column": True},
    ),
    Merged(
        pull=906,
        about="caches count their bytes, and the store has a limit of bytes",
        landed="after-906",
        sets={"caches.counts_bytes": True, "store.limits_bytes": True},
    ),
    Merged(
        pull=886,
        about="the state of a CacheList separates its members, and can be restored",
        landed="after-906",
        sets={"caches.list_state_by_member": True},
    ),
    Merged(
        pull=849,
        about="a reply says how many tokens were cached",
        landed="after-906",
        sets={"server.reports_cached": True},
    ),
    Merged(
        pull=918,
        about="a recurrent slot without a state counts 0 bytes",
        landed="0.31.0",
        sets={"caches.bytes_skip_missing_slots": True},
    ),
    Merged(
        pull=911,
        about="one checkpoint of each chat prompt; a fetch leaves the entry in the store",
        landed="0.31.0",
        sets={
            "store.consumes": False,
            "store.longer_beside_shorter": True,
            "store.prunes": "all",
            "store.same_key": "keeps-old",
            "store.queues": ("ordinary", "checkpoint"),
            "server.checkpoint": True,
            "server.binds_late": True,
        },
    ),
    Merged(
        pull=976,
        about="each checkpoint of a batch holds its own row's state; before, the last row's",
        landed="0.31.1",
        since="0.31.0",
        sets={"server.binds_late": False},
    ),
    Merged(
        pull=992,
        about="the states of the chunked scan are in float32",
        landed="0.31.1-main",
        sets={
            "classes.granitemoehybrid.float32_state": True,
            "classes.mamba2.float32_state": True,
            "classes.nemotron_h.float32_state": True,
            "classes.falcon_h1.float32_state": True,
            "classes.plamo2.float32_state": True,
        },
    ),
    Merged(
        pull=997,
        about="the states of the delta rule are in float32",
        landed="0.31.1-main",
        sets={"classes.qwen3_next.float32_state": True, "classes.qwen3_5.float32_state": True},
    ),
    Merged(
        pull=1019,
        about="entries have types with queues of their own; a second one replaces the first",
        landed="after-1019",
        sets={
            "store.prunes": "all-but-nearest",
            "store.same_key": "replaces",
            "store.queues": ("assistant", "user", "system"),
            "store.keeps_one_beyond_bytes": False,
            "store.forgives_lost_keys": True,
            "store.passes_empty_queues": False,
        },
    ),
    Merged(
        pull=1024,
        about="the layers of Qwen 3.5 advance their cache by the computed columns",
        landed="after-1019",
        sets={"classes.qwen3_5.advances": True},
    ),
    Merged(
        pull=1072,
        about="prompts are prefilled in right-padded segments, key and state together",
        landed="0.31.2",
        sets={
            "caches.filter_accepts_empty": True,
            "caches.filter_keeps_lengths": True,
            "caches.arrays_extend": "skipped",
            "caches.arrays_merge_of_empties": "unpadded",
            "caches.batch_extend": "other-side",
            "caches.extend_promotes": True,
            "caches.merge_of_empties": True,
            "caches.batch_size_method": True,
            "caches.rotating_merge": "last-rows",
            "caches.rotating_extract": "clamped",
            "store.passes_empty_queues": True,
            "server.segments": True,
            "server.checkpoint": False,
            "server.stop_words_end_generation": True,
            "server.notices_leaving": True,
            "classes.qwen3_5.conv_at_lengths": True,
        },
    ),
    Merged(
        pull=1078,
        about="an insertion removes all prefix entries; an empty query is no exact match",
        landed="0.31.2",
        since="after-1019",
        sets={"store.prunes": "all", "store.empty_query_is_exact": False},
    ),
    Merged(
        pull=1109,
        about="caches that cannot be trimmed are refused with a draft model",
        landed="0.31.2",
        sets={"server.drafts_are_guarded": True},
    ),
    Merged(
        name="one-for-none",
        about="a request for 0 tokens gets one; before, the default of 128",
        landed="0.31.2",
        sets={"server.no_tokens": "one"},
    ),
    Merged(
        name="untold-marks",
        about="a reply is without its end mark and thinking marks, in its counts too",
        landed="0.31.2",
        sets={"server.tells_marks": False},
    ),
    Merged(
        pull=1177,
        about="recurrent batches keep the left padding of their rows, which gives them a size",
        landed="0.31.3",
        since="0.31.2",
        sets={
            "caches.filter_keeps_left_padding": True,
            "caches.arrays_merge_of_empties": "zero-padded",
        },
    ),
    Merged(
        pull=1169,
        about="a recurrent batch grows by a row without a state",
        landed="0.31.3",
        since="0.31.2",
        sets={"caches.arrays_extend": "zeros"},
    ),
    Merged(
        pull=1141,
        about="an empty side of a joined batch has its own number of rows",
        landed="0.31.3",
        since="0.31.2",
        sets={"caches.batch_extend": "own-side"},
    ),
    Merged(
        name="saved-empty-arrays",
        about="the array runtime saves an array without elements",
        landed="0.31.3",
        sets={"caches.saves_empty_arrays": True},
    ),
    Merged(
        name="told-marks",
        about="a reply has its end mark and thinking marks, in its counts too",
        landed="0.31.3",
        since="0.31.2",
        sets={"server.tells_marks": True},
    ),
    Merged(
        name="whole-states",
        about="the state of a cache is whole, with scalars and flags; before, arrays and texts",
        landed="0.32.0",
        sets={"caches.state_form": "whole", "caches.rotated_is_restored": True},
    ),
    Merged(
        name="padding-and-lengths",
        about="a recurrent mask combines left padding and lengths",
        landed="0.32.0",
        sets={"caches.lengths_beside_left_padding": True},
    ),
    Merged(
        pull=1673,
        about="dropping the front of a chunk counts valid rows; before, allocated ones",
        landed="0.32.0",
        sets={"caches.chunk_front_counts_valid_rows": True},
    ),
    Merged(
        pull=1491,
        about="an empty side no longer makes the joined batch one of float32",
        landed="0.32.0",
        since="0.31.2",
        sets={"caches.extend_promotes": False},
    ),
    Merged(
        name="refused-empty-prompts",
        about="an empty prompt is refused; before, an IndexError came",
        landed="0.32.0",
        sets={"server.refuses_empty_prompts": True},
    ),
    Merged(
        name="refused-when-dead",
        about="a request after the death of the generation thread fails; before, it hangs",
        landed="0.32.0",
        sets={"server.when_dead": "refused"},
    ),
    Merged(
        name="death-for-none",
        about="a request for 0 tokens ends the generation thread",
        landed="0.32.0",
        sets={"server.no_tokens": "dies"},
    ),
    Merged(
        pull=1699,
        about="layers of Gemma 3n share keys in batches, at the times of their columns (and #1806)",
        landed="0.32.0",
        sets={"classes.gemma3n.shares_in_batches": True, "classes.gemma3n.shares_in_time": True},
    ),
    Merged(
        name="refused-none",
        about="a request for 0 tokens is refused",
        landed="0.32.1",
        sets={"server.no_tokens": "refused"},
    ),
    Merged(
        name="loaded-not-asked",
        about="the model loaded at the arrival decides if a request is batched",
        landed="0.32.1",
        since="0.30.6",
        sets={"server.batches_by": "loaded"},
    ),
    Merged(
        name="reads-images",
        about="prompts may have images, one request after the other",
        landed="0.32.1",
        sets={"server.reads_images": True},
    ),
    Merged(
        pull=1908,
        about="the chunked scan of Granite 4 receives the lengths: no rest of a batch is lost",
        cures="the chunked scan of a padded batch loses the rest of a row",
        landed="0.32.1",
        since="0.31.2",
        sets={"classes.granitemoehybrid.scan_at_lengths": True},
    ),
    Merged(
        name="masked-decay",
        about="padding no longer decays the state of earlier tokens in the chunked scan",
        landed="0.32.2",
        sets={
            "classes.granitemoehybrid.padding_decays": False,
            "classes.mamba2.padding_decays": False,
            "classes.nemotron_h.padding_decays": False,
            "classes.falcon_h1.padding_decays": False,
            "classes.plamo2.padding_decays": False,
        },
    ),
)


def _snapshots(*fixes: str) -> Callable[[MlxRules], MlxRules]:
    """#923 with fixes of #929, which are cumulative changes to its snapshots."""

    def lay(rules: MlxRules) -> MlxRules:
        taken = replace(rules.server.snapshots or SnapshotRules(), **dict.fromkeys(fixes, True))
        laid: MlxRules = laying(
            caches={"bytes_skip_missing_slots": True}, server={"snapshots": taken}
        )(rules)
        return laid

    return lay


_FIXES_929: Final = (
    "always_the_last_boundary",
    "boundary_after_every_message",
    "trims_each_layer_it_can",
)
_AT_LAST_USER: Final = {"checkpoint_at_last_user": True}

PROPOSED: Final[tuple[Patch[MlxRules], ...]] = (
    Patch(pull=923, about="snapshots at message boundaries", fits=("after-906",), lay=_snapshots()),
    Patch(
        pull=929,
        about="#923 with all three fixes of #929",
        fits=("after-906",),
        lay=_snapshots(*_FIXES_929),
    ),
    Patch(
        name="929.1",
        pull=929,
        about="#923 with the first fix: always a snapshot at the last boundary",
        fits=("after-906",),
        lay=_snapshots(_FIXES_929[0]),
    ),
    Patch(
        name="929.2",
        pull=929,
        about="#923 with the second fix: a boundary after every message",
        fits=("after-906",),
        lay=_snapshots(_FIXES_929[1]),
    ),
    Patch(
        name="929.3",
        pull=929,
        about="#923 with the third fix: every layer that can be trimmed is",
        fits=("after-906",),
        lay=_snapshots(_FIXES_929[2]),
    ),
    Patch(
        pull=999,
        about="rotating caches unroll when they are trimmed",
        fits=("0.31.1-main",),
        lay=laying(
            caches={"rotating_unrolls_on_trim": True},
            store={"checks_trimmed": True, "prunes": "within-size"},
        ),
    ),
    Patch(
        name="1006.1",
        pull=1006,
        about="checkpoint before the last user message, first commit",
        fits=("0.31.1-main",),
        lay=laying(server=_AT_LAST_USER),
    ),
    Patch(
        name="1006.2",
        pull=1006,
        about="#1006's second commit: tails of prompts are padded",
        fits=("0.31.1-main",),
        lay=laying(server=_AT_LAST_USER | {"tails": "padded"}),
    ),
    Patch(
        pull=1006,
        about="#1006 as merged: each request has its checkpoint at its own distance",
        fits=("0.31.1-main",),
        lay=laying(
            server=_AT_LAST_USER | {"tails": "padded", "checkpoint_only_at_own_distance": True}
        ),
    ),
    Patch(
        pull=1186,
        about="an untrimmed hybrid cache is reused from the common prefix on",
        fits=SEGMENTED,
        lay=laying(store={"reuses_untrimmed": True}),
    ),
    Patch(
        pull=1253,
        about="a trim resets the recurrent state",
        fits=SEGMENTED,
        lay=laying(caches={"arrays_trim_resets": True}),
    ),
    Patch(
        pull=1254,
        about="a trim resets the recurrent state",
        fits=SEGMENTED,
        lay=laying(caches={"arrays_trim_resets": True}),
    ),
    Patch(
        pull=1667,
        about="states that cannot be trimmed are stored at the end of every prefill chunk",
        fits=SEGMENTED,
        lay=laying(server={"segments_end_with_chunks": True}),
    ),
    Patch(
        name="chunk-front",
        about="a chunk whose front was dropped is not trimmed",
        fits=NAMES,
        lay=laying(caches={"chunks_always_trim": False}),
    ),
    Patch(
        name="draft-key",
        about="with a draft model, a stored key ends where its state does",
        fits=NAMES,
        lay=laying(server={"key_is_what_was_fed": True}),
        cures="with a draft model, a stored key is longer than its state",
    ),
    Patch(
        name="ring-mask",
        about="the mask on a wrapped ring counts its rows: no padded row loses a token",
        fits=NAMES,
        lay=laying(caches={"ring_mask_counts_rows": True}),
        cures="the mask on a wrapped ring hides a token of a padded row",
    ),
)
"""Numbered patches are pull requests at ml-explore/mlx-lm; a dot numbers one of its commits."""

HISTORY: Final = History(OLDEST, NAMES, MERGED, PROPOSED)


def _release(
    name: str,
    date: str,
    about: str,
    *,
    runtime: str = "",
    beside: tuple[str, ...] = (),
    upstream: str = "",
) -> Release[MlxRules]:
    """A release, or a state of the main branch; older ones need the older array runtime."""
    needs = (f"mlx[cpu]=={runtime}", *beside)
    return Release(
        name=name,
        about=about,
        rules=HISTORY.rules(name),
        date=date,
        upstream=upstream or f"v{name}",
        package=Package(name="mlx-lm", version=name, beside=needs) if runtime else None,
    )


RELEASES: Final[tuple[Release[MlxRules], ...]] = (
    _release(
        "0.29.1",
        "2025-12-16",
        "as 0.30.0",
        runtime="0.30.6",
        # it names no version of transformers, and knows none after 4: there a chat template
        # gives a list of tokens
        beside=("transformers==4.57.3",),
        upstream="0.29.1, the package: no tag",
    ),
    _release(
        "0.30.0",
        "2025-12-18",
        "as 0.30.2, but that other sampling waits for the batch to end (#635): not simulated",
        runtime="0.30.6",
    ),
    _release(
        "0.30.2",
        "2026-01-06",
        "no checkpoints; recurrent models are served alone",
        runtime="0.30.6",
    ),
    _release(
        "0.30.4",
        "2026-01-19",
        "no checkpoints; every model whose caches can be merged is batched",
        runtime="0.30.6",
    ),
    _release(
        "0.30.5",
        "2026-01-25",
        "no checkpoints; a request ended by a stop word stays in its batch",
        runtime="0.30.6",
    ),
    _release("0.30.6", "2026-02-04", "no checkpoints", runtime="0.30.6"),
    _release("0.30.7", "2026-02-12", "no checkpoints", runtime="0.30.6"),
    _release(
        "after-906",
        "2026-02",
        "main after #906, on which #923 stands",
        upstream="main after #906",
    ),
    _release(
        "0.31.0",
        "2026-03-06",
        "one checkpoint per request (#911)",
    ),
    _release(
        "0.31.1",
        "2026-03-11",
        "one checkpoint per request (#911)",
        runtime="0.30.6",
    ),
    _release(
        "0.31.1-main",
        "2026-03",
        "main after 0.31.1, on which #1006 stands",
        upstream="main after v0.31.1",
    ),
    _release(
        "after-1019",
        "2026-03",
        "main after #1019",
        upstream="main after #1019",
    ),
    _release("0.31.2", "2026-04-06", "segments (#1072)", runtime="0.30.6"),
    _release("0.31.3", "2026-04-22", "segments (#1072)", runtime="0.32.4"),
    _release(
        "0.32.0",
        "2026-08",
        "segments; empty prompts refused",
        runtime="0.32.4",
    ),
    _release(
        "0.32.1",
        "2026-08",
        "segments; empty prompts refused",
        runtime="0.32.4",
    ),
    _release(
        "0.32.2",
        "2026-08",
        "segments; empty prompts refused",
        runtime="0.32.4",
    ),
)


# What a server takes from the release of mlx-lm that it is built on: rules, and patches of it.


def serving(release: str, **own: Any) -> MlxRules:
    """Our own: the rules of a release with those of another server's prefix cache."""
    rules = HISTORY.rules(release)
    return replace(rules, server=replace(rules.server, **own))


def patches_below(release: str, names: tuple[str, ...]) -> tuple[Patch[MlxRules], ...]:
    """Our own: mlx-lm's patches of a release, as patches of the named ones that are built on it."""
    merged = NAMES[: NAMES.index(release) + 1]
    return tuple(
        replace(
            patch,
            fits=names if release in patch.fits else (),
            landed=names[0] if patch.landed in merged else "",
            back=patch.back if patch.landed in merged else None,
            repository=REPOSITORY,
        )
        for patch in HISTORY.patches
        if release in patch.fits or patch.landed in merged
    )
