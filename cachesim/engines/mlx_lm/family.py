"""`Family` value of mlx-lm's server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cachesim.engines.family import (
    Family,
    Package,
    Patch,
    Release,
    laying,
    switching,
)
from cachesim.engines.mlx_lm.families import (
    FAMILIES,
    ModelFamily,
    RecurrentRules,
    family_of,
)
from cachesim.engines.mlx_lm.options import FIELDS, MlxOptions
from cachesim.engines.mlx_lm.rules import (
    UNLISTED,
    CacheRules,
    DiskRules,
    GridRules,
    MemoryRules,
    MllmRules,
    RapidRules,
    ServerRules,
    SessionRules,
    SnapshotRules,
    StoreRules,
    WholeRules,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxRules:
    """All rules of one profile."""

    caches: CacheRules
    store: StoreRules
    server: ServerRules
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changes of patches to the layers of a model class."""

    def recurrent(self, family: ModelFamily, release: str) -> RecurrentRules:
        """Padding rules of a model class at a release, with patches."""
        return replace(family.rules_at(release, ALL), **self.classes.get(family.name, {}))


_C_0_30_7: Final = CacheRules(
    state_form="sliced",
    counts_bytes=False,
    bytes_skip_missing_slots=False,
    list_state_by_member=False,
    lengths_beside_left_padding=False,
    chunk_front_counts_valid_rows=False,
    filter_accepts_empty=False,
    filter_keeps_lengths=False,
    filter_keeps_left_padding=False,
    arrays_extend="raises",
    arrays_merge_of_empties="raises",
    batch_extend="raises",
    merge_of_empties=False,
    batch_size_method=False,
    rotating_merge="by-index",
    rotating_extract="from-the-end",
    rotated_is_restored=False,
    saves_empty_arrays=False,
)
_C_0_30_5: Final = replace(_C_0_30_7, window_masks_one_column=False)
_C_0_30_4: Final = replace(_C_0_30_5, restores_padding_fields=False)
_C_0_30_2: Final = replace(
    _C_0_30_4,
    merge_skips_empty=False,
    rotating_merge="by-offset",
    rotating_extract="uncut",
    batches_recurrent=False,
    batch_size_method=True,
    chunked_is_kv=True,
)
_C_AFTER_906: Final = replace(_C_0_30_7, counts_bytes=True, list_state_by_member=True)
_C_0_31_1: Final = replace(_C_AFTER_906, bytes_skip_missing_slots=True)
_C_0_31_2: Final = replace(
    _C_0_31_1,
    filter_accepts_empty=True,
    filter_keeps_lengths=True,
    arrays_extend="skipped",
    arrays_merge_of_empties="unpadded",
    batch_extend="other-side",
    extend_promotes=True,
    merge_of_empties=True,
    batch_size_method=True,
    rotating_merge="last-rows",
    rotating_extract="clamped",
)
_C_0_31_3: Final = replace(
    _C_0_31_2,
    filter_keeps_left_padding=True,
    saves_empty_arrays=True,
    arrays_extend="zeros",
    arrays_merge_of_empties="zero-padded",
    batch_extend="own-side",
)
_C_0_32_2: Final = CacheRules()

_G0: Final = StoreRules(
    consumes=True,
    longer_beside_shorter=False,
    prunes="never",
    same_key="counts",
    queues=("all",),
    limits_bytes=False,
    empty_query_is_exact=True,
    forgives_lost_keys=False,
    keeps_one_beyond_bytes=True,
)
_G1: Final = replace(_G0, limits_bytes=True)
_G2: Final = replace(
    _G1,
    consumes=False,
    longer_beside_shorter=True,
    prunes="all",
    same_key="keeps-old",
    queues=("ordinary", "checkpoint"),
)
_G3: Final = StoreRules(
    prunes="all-but-nearest", empty_query_is_exact=True, passes_empty_queues=False
)
_G4: Final = StoreRules()

_R0_30_7: Final = ServerRules(reports_cached=False, batches_by="asked")
_R0_30_5: Final = replace(_R0_30_7, forgets_stopped=False, batches_by="loaded")
_R0_30_2: Final = replace(
    _R0_30_5, fresh_by_length=True, lengths_leave_last=False, batches_by="all loaded"
)
_AFTER_906: Final = replace(_R0_30_7, reports_cached=True)
_R0_31_0: Final = replace(_AFTER_906, checkpoint=True, binds_late=True)
_R0_31_1: Final = replace(_R0_31_0, binds_late=False)
_R0_31_3: Final = replace(
    _R0_31_1,
    segments=True,
    checkpoint=False,
    stop_words_end_generation=True,
    notices_leaving=True,
    drafts_are_guarded=True,
    no_tokens="one",
)
_R0_31_2: Final = replace(_R0_31_3, tells_marks=False)
_R0_32_0: Final = replace(
    _R0_31_3, refuses_empty_prompts=True, when_dead="refused", no_tokens="dies"
)
_R0_32_2: Final = replace(_R0_32_0, no_tokens="refused", reads_images=True, batches_by="loaded")


def _release(
    name: str,
    date: str,
    about: str,
    rules: tuple[CacheRules, StoreRules, ServerRules],
    *,
    runtime: str = "",
    beside: tuple[str, ...] = (),
    upstream: str = "",
) -> Release[MlxRules]:
    """A release, or a state of the main branch; older ones need the older array runtime."""
    caches, store, server = rules
    needs = (f"mlx[cpu]=={runtime}", *beside)
    return Release(
        name=name,
        about=about,
        rules=MlxRules(caches=caches, store=store, server=server),
        date=date,
        upstream=upstream or f"v{name}",
        package=Package(name="mlx-lm", version=name, beside=needs) if runtime else None,
    )


RELEASES: Final[tuple[Release[MlxRules], ...]] = (
    _release(
        "0.29.1",
        "2025-12-16",
        "as 0.30.0",
        (_C_0_30_2, _G0, _R0_30_2),
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
        (_C_0_30_2, _G0, _R0_30_2),
        runtime="0.30.6",
    ),
    _release(
        "0.30.2",
        "2026-01-06",
        "no checkpoints; recurrent models are served alone",
        (_C_0_30_2, _G0, _R0_30_2),
        runtime="0.30.6",
    ),
    _release(
        "0.30.4",
        "2026-01-19",
        "no checkpoints; every model whose caches can be merged is batched",
        (_C_0_30_4, _G0, _R0_30_5),
        runtime="0.30.6",
    ),
    _release(
        "0.30.5",
        "2026-01-25",
        "no checkpoints; a request ended by a stop word stays in its batch",
        (_C_0_30_5, _G0, _R0_30_5),
        runtime="0.30.6",
    ),
    _release(
        "0.30.6", "2026-02-04", "no checkpoints", (_C_0_30_7, _G0, _R0_30_7), runtime="0.30.6"
    ),
    _release(
        "0.30.7", "2026-02-12", "no checkpoints", (_C_0_30_7, _G0, _R0_30_7), runtime="0.30.6"
    ),
    _release(
        "after-906",
        "2026-02",
        "main after #906, on which #923 stands",
        (_C_AFTER_906, _G1, _AFTER_906),
        upstream="main after #906",
    ),
    _release(
        "0.31.0", "2026-03-06", "one checkpoint per request (#911)", (_C_0_31_1, _G2, _R0_31_0)
    ),
    _release(
        "0.31.1",
        "2026-03-11",
        "one checkpoint per request (#911)",
        (_C_0_31_1, _G2, _R0_31_1),
        runtime="0.30.6",
    ),
    _release(
        "0.31.1-main",
        "2026-03",
        "main after 0.31.1, on which #1006 stands",
        (_C_0_31_1, _G2, _R0_31_1),
        upstream="main after v0.31.1",
    ),
    _release(
        "after-1019",
        "2026-03",
        "main after #1019",
        (_C_0_31_1, _G3, _R0_31_1),
        upstream="main after #1019",
    ),
    _release(
        "0.31.2", "2026-04-06", "segments (#1072)", (_C_0_31_2, _G4, _R0_31_2), runtime="0.30.6"
    ),
    _release(
        "0.31.3", "2026-04-22", "segments (#1072)", (_C_0_31_3, _G4, _R0_31_3), runtime="0.32.4"
    ),
    _release(
        "0.32.0",
        "2026-08",
        "segments; empty prompts refused",
        (_C_0_32_2, _G4, _R0_32_0),
        runtime="0.32.4",
    ),
    _release(
        "0.32.1",
        "2026-08",
        "segments; empty prompts refused",
        (_C_0_32_2, _G4, _R0_32_2),
        runtime="0.32.4",
    ),
    _release(
        "0.32.2",
        "2026-08",
        "segments; empty prompts refused",
        (_C_0_32_2, _G4, _R0_32_2),
        runtime="0.32.4",
    ),
)
"""The releases, oldest first, and the states of upstream's main branch below proposals."""

ALL: Final = tuple(each.name for each in RELEASES)
BEFORE_738: Final = ("0.29.1", "0.30.0", "0.30.2")
BEFORE_741: Final = (*BEFORE_738, "0.30.4", "0.30.5")
SEGMENTED: Final = ("0.31.2", "0.31.3", "0.32.0", "0.32.1", "0.32.2")


def _snapshots(*fixes: str) -> Callable[[MlxRules], MlxRules]:
    """#923 with fixes of #929, which are cumulative changes to its snapshots."""

    def lay(rules: MlxRules) -> MlxRules:
        taken = replace(rules.server.snapshots or SnapshotRules(), **dict.fromkeys(fixes, True))
        laid: MlxRules = laying(
            caches={"bytes_skip_missing_slots": True}, server={"snapshots": taken}
        )(rules)
        return laid

    return lay


_OMLX: Final = GridRules(interval=2048, fewest_arrays=2, on_disk=True)
_OLLAMA: Final = GridRules(interval=8192, before_end=4, keeps_the_end=True)

_KIT: Final = SessionRules(before_end=0, counts_by_offset=False, asks_again=False)

_FIXES_929: Final = (
    "always_the_last_boundary",
    "boundary_after_every_message",
    "trims_each_layer_it_can",
)
_MAMBAS: Final = tuple(
    name for name, each in FAMILIES.items() if each.rules_at(ALL[0], ALL).merges_slots_as_padding
)
_COUNTING: Final = tuple(
    name
    for name, each in FAMILIES.items()
    if each.rules_at("0.30.4", ALL).advances and not each.rules_at("0.30.2", ALL).advances
)
_AT_LAST_USER: Final = {"checkpoint_at_last_user": True}

PATCHES: Final[tuple[Patch[MlxRules], ...]] = (
    Patch(
        pull=138,
        about="a stored prompt that diverges from the new one is trimmed to what they share",
        fits=(),
        **switching(ALL[0], store={"cuts_to_common_prefix": True}),
    ),
    Patch(
        pull=183,
        about="a stored prompt is trimmed so that at least one token is left to feed",
        fits=(),
        **switching(ALL[0], store={"leaves_one_token": True}),
    ),
    Patch(
        pull=738,
        about="a row leaves a ring at its own length, and a padded prefill receives its lengths",
        fits=BEFORE_738,
        lay=laying(
            caches={"rotating_merge": "by-index", "rotating_extract": "from-the-end"},
            server={"lengths_leave_last": True},
        ),
        landed="0.30.4",
        back=laying(
            caches={"rotating_merge": "by-offset", "rotating_extract": "uncut"},
            server={"lengths_leave_last": False},
        ),
    ),
    Patch(
        pull=690,
        about="recurrent caches have a batch form (#740, #743 and #769 went with it)",
        fits=BEFORE_738,
        **switching(
            "0.30.4",
            caches={"batches_recurrent": True, "batch_size_method": False, "chunked_is_kv": False},
            server={"fresh_by_length": False},
            classes={name: {"advances": True} for name in _COUNTING},
        ),
    ),
    Patch(
        pull=755,
        about="rows without keys are merged with rows that have some",
        fits=BEFORE_738,
        **switching("0.30.4", caches={"merge_skips_empty": True}),
    ),
    Patch(
        pull=741,
        about="a request that a stop word ended is stored, and leaves its batch",
        fits=BEFORE_741,
        **switching("0.30.6", server={"forgets_stopped": True}),
    ),
    Patch(
        pull=842,
        about="fresh recurrent caches are merged without a padding of zeros",
        fits=BEFORE_741,
        **switching(
            "0.30.6", classes={name: {"merges_slots_as_padding": False} for name in _MAMBAS}
        ),
    ),
    Patch(
        pull=843,
        about="a cache that keeps everything masks one column too where a window is asked for",
        fits=BEFORE_741,
        **switching("0.30.6", caches={"window_masks_one_column": True}),
    ),
    Patch(
        pull=807,
        about="a restored recurrent cache has its fields for padding",
        fits=("0.30.4",),
        **switching("0.30.5", caches={"restores_padding_fields": True}),
    ),
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
        about="the same, second commit: padded tails",
        fits=("0.31.1-main",),
        lay=laying(server=_AT_LAST_USER | {"tails": "padded"}),
    ),
    Patch(
        pull=1006,
        about="the same, last commit: a checkpoint at each request's own distance",
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
        pull=1908,
        about="the chunked scan of Granite 4 receives the lengths: no rest of a batch is lost",
        fits=("0.31.2", "0.31.3", "0.32.0"),
        lay=laying(classes={"granitemoehybrid": {"scan_at_lengths": True}}),
        cures="the chunked scan of a padded batch loses the rest of a row",
        landed="0.32.2",
    ),
    Patch(
        name="chunk-front",
        about="a chunk whose front was dropped is not trimmed",
        fits=ALL,
        lay=laying(caches={"chunks_always_trim": False}),
    ),
    Patch(
        name="draft-key",
        about="with a draft model, a stored key ends where its state does",
        fits=ALL,
        lay=laying(server={"key_is_what_was_fed": True}),
        cures="with a draft model, a stored key is longer than its state",
    ),
    Patch(
        name="ring-mask",
        about="the mask on a wrapped ring counts its rows: no padded row loses a token",
        fits=ALL,
        lay=laying(caches={"ring_mask_counts_rows": True}),
        cures="the mask on a wrapped ring hides a token of a padded row",
    ),
    Patch(
        name="omlx",
        server=True,
        about="oMLX's prefix cache, read in its source: blocks of 2,048, one request at once",
        fits=("0.31.3",),
        lay=laying(server={"grid": _OMLX}),
    ),
    Patch(
        name="omlx-2762",
        server=True,
        about="the same, where a state of one array is stored (jundot/omlx#2762)",
        fits=("0.31.3",),
        lay=laying(server={"grid": replace(_OMLX, fewest_arrays=1)}),
    ),
    Patch(
        name="omlx-4096",
        server=True,
        about="the same on 64 GB and more: blocks of 4,096",
        fits=("0.31.3",),
        lay=laying(server={"grid": replace(_OMLX, interval=4096)}),
    ),
    Patch(
        name="omlx-no-boundaries",
        server=True,
        about="that, without states at the ends of blocks (omlx#3699)",
        fits=("0.31.3",),
        lay=laying(server={"grid": replace(_OMLX, interval=4096, captures=False)}),
    ),
    Patch(
        name="vllm-mlx",
        server=True,
        about="vllm-mlx 0.6.0's scheduler and prefix cache, one request at once",
        fits=("0.31.3",),
        lay=laying(server={"memory": MemoryRules()}),
    ),
    Patch(
        name="vllm-mlx-mllm",
        server=True,
        about="its other scheduler, of a model that reads images: only prompts of text are kept",
        fits=("0.31.3",),
        lay=laying(server={"memory": MllmRules()}),
    ),
    Patch(
        name="vllm-mlx-718",
        server=True,
        about="the same of vllm-mlx 0.5.0, whose keys have one token for all images (#718)",
        fits=("0.31.3",),
        lay=laying(server={"memory": MllmRules(reads_media=True, keeps_logits=False)}),
    ),
    Patch(
        name="vllm-mlx-order",
        server=True,
        about="vllm-mlx-mllm with its fork's keys: images in the prompt's order (Rapid-MLX#22)",
        fits=("0.31.3",),
        lay=laying(server={"memory": MllmRules(sorts_images=False)}),
    ),
    Patch(
        name="vllm-mlx-whole",
        server=True,
        about="vllm-mlx 0.6.0's default engine, of a model that reads images: whole prompts alone",
        fits=("0.31.3",),
        lay=laying(server={"memory": WholeRules()}),
    ),
    Patch(
        name="rapid-mlx",
        server=True,
        about="Rapid-MLX 0.12.5's scheduler and prefix cache for hybrids that it lists, the same",
        fits=("0.31.3",),
        lay=laying(server={"memory": RapidRules()}),
    ),
    Patch(
        name="rapid-mlx-unlisted",
        server=True,
        about="the same for every other model: no entry that cannot be cut is stored",
        fits=("0.31.3",),
        lay=laying(server={"memory": UNLISTED}),
    ),
    Patch(
        name="ollama",
        server=True,
        about="the prefix cache of Ollama's MLX runner with a drafter, read in its source",
        fits=("0.32.2",),
        lay=laying(server={"grid": replace(_OLLAMA, lookahead=1)}),
    ),
    Patch(
        name="ollama-no-drafter",
        server=True,
        about="the same without a drafter",
        fits=("0.32.2",),
        lay=laying(server={"grid": _OLLAMA}),
    ),
    Patch(
        name="ollama-lazy",
        server=True,
        about="until 0.32.6: appends overwrite kept keys (ollama#16860)",
        fits=("0.32.2",),
        lay=laying(server={"grid": replace(_OLLAMA, lazy=True)}),
    ),
    Patch(
        name="mlx-engine",
        server=True,
        about="LM Studio's mlx-engine, read in its source: a state before a prompt's end",
        fits=("0.31.3",),
        lay=laying(server={"grid": SessionRules()}),
    ),
    Patch(
        name="mlx-engine-batched",
        server=True,
        about="its kit for several requests: no such state",
        fits=("0.31.3",),
        lay=laying(server={"grid": _KIT}),
    ),
    Patch(
        name="mlx-engine-disk",
        server=True,
        about="that kit since #352, July 2026, one request at once: chunks on disk",
        fits=("0.31.3",),
        lay=laying(server={"grid": DiskRules()}),
    ),
    Patch(
        name="mlx-engine-disk-4096",
        server=True,
        about="the same, limited to the bytes of a context of 4,096",
        fits=("0.31.3",),
        lay=laying(server={"grid": DiskRules(max_kv_size=4096)}),
    ),
)
"""Numbered patches are pull requests at ml-explore/mlx-lm; a dot numbers one of its commits."""

FAMILY: Final[Family[MlxRules, MlxOptions]] = Family(
    name="mlx-lm",
    about="mlx_lm.server: prompt trie, cache classes per layer, batches",
    repository="ml-explore/mlx-lm",
    serves_models=lambda rules: rules.server.grid is None and rules.server.memory is None,
    takes_images=True,
    vocabulary="mlx lru arrays batch rotating chunked deep granite gemma trim metal",
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    configuration=f"{__package__}.fields",
    engine=f"{__package__}.server.engine:MlxLm",
    releases=RELEASES,
    patches=PATCHES,
    options=MlxOptions,
    fields=FIELDS,
    has_slots=False,
    renders_chats=True,
    check_model=family_of,
    plays_chunks=True,
    records_provenance="provenance",
    reply_cost=(7e-4, 6e-8),
    program="mlx_lm.server",
    swept={"prompt_cache_size": (1, 2, 5, 10, 20, 50, 100)},
)
