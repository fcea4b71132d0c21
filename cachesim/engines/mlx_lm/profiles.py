"""Which rules each release and patch of mlx-lm stands for.

A release is one entry of `RELEASES`, a patch one of `PATCHES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cachesim.engines.family import Package, Patch, Release
from cachesim.engines.mlx_lm.families import ModelFamily, RecurrentRules
from cachesim.engines.mlx_lm.rules import CacheRules, StoreRules
from cachesim.engines.mlx_lm.server.rules import ServerRules, SnapshotRules


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxRules:
    """All rules of one profile."""

    caches: CacheRules
    store: StoreRules
    server: ServerRules
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What patches do to the layers of a model class."""

    def recurrent(self, family: ModelFamily, release: str) -> RecurrentRules:
        """What a model class does with padding at a release, with the patches laid over it."""
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
    rotating_merge_takes_last_rows=False,
    rotating_extract_clamps_padding=False,
    rotated_is_restored=False,
    saves_empty_arrays=False,
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
    rotating_merge_takes_last_rows=True,
    rotating_extract_clamps_padding=True,
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

_R0_30_7: Final = ServerRules(reports_cached=False)
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
_R0_32_2: Final = replace(_R0_32_0, no_tokens="refused")


def _wheel(version: str, runtime: str) -> Package:
    """A release on the package index; the older ones need the older array runtime."""
    return Package(name="mlx-lm", version=version, beside=(f"mlx[cpu]=={runtime}",))


RELEASES: Final[tuple[Release[MlxRules], ...]] = (
    Release(
        name="0.30.6",
        about="no checkpoints",
        rules=MlxRules(caches=_C_0_30_7, store=_G0, server=_R0_30_7),
        date="2026-02-04",
        upstream="v0.30.6",
        package=_wheel("0.30.6", "0.30.6"),
    ),
    Release(
        name="0.30.7",
        about="no checkpoints",
        rules=MlxRules(caches=_C_0_30_7, store=_G0, server=_R0_30_7),
        date="2026-02-12",
        upstream="v0.30.7",
        package=_wheel("0.30.7", "0.30.6"),
    ),
    Release(
        name="after-906",
        about="main after #906, on which #923 stands",
        rules=MlxRules(caches=_C_AFTER_906, store=_G1, server=_AFTER_906),
        date="2026-02",
        upstream="main after #906",
    ),
    Release(
        name="0.31.0",
        about="one checkpoint per request (#911)",
        rules=MlxRules(caches=_C_0_31_1, store=_G2, server=_R0_31_0),
        date="2026-03-06",
        upstream="v0.31.0",
    ),
    Release(
        name="0.31.1",
        about="one checkpoint per request (#911)",
        rules=MlxRules(caches=_C_0_31_1, store=_G2, server=_R0_31_1),
        date="2026-03-11",
        upstream="v0.31.1",
        package=_wheel("0.31.1", "0.30.6"),
    ),
    Release(
        name="0.31.1-main",
        about="main after 0.31.1, on which #1006 stands",
        rules=MlxRules(caches=_C_0_31_1, store=_G2, server=_R0_31_1),
        date="2026-03",
        upstream="main after v0.31.1",
    ),
    Release(
        name="after-1019",
        about="main after #1019",
        rules=MlxRules(caches=_C_0_31_1, store=_G3, server=_R0_31_1),
        date="2026-03",
        upstream="main after #1019",
    ),
    Release(
        name="0.31.2",
        about="segments (#1072)",
        rules=MlxRules(caches=_C_0_31_2, store=_G4, server=_R0_31_2),
        date="2026-04-06",
        upstream="v0.31.2",
        package=_wheel("0.31.2", "0.30.6"),
    ),
    Release(
        name="0.31.3",
        about="segments (#1072)",
        rules=MlxRules(caches=_C_0_31_3, store=_G4, server=_R0_31_3),
        date="2026-04-22",
        upstream="v0.31.3",
        package=_wheel("0.31.3", "0.32.4"),
    ),
    Release(
        name="0.32.0",
        about="segments; empty prompts refused",
        rules=MlxRules(caches=_C_0_32_2, store=_G4, server=_R0_32_0),
        date="2026-08",
        upstream="v0.32.0",
        package=_wheel("0.32.0", "0.32.4"),
    ),
    Release(
        name="0.32.1",
        about="segments; empty prompts refused",
        rules=MlxRules(caches=_C_0_32_2, store=_G4, server=_R0_32_2),
        date="2026-08",
        upstream="v0.32.1",
        package=_wheel("0.32.1", "0.32.4"),
    ),
    Release(
        name="0.32.2",
        about="segments; empty prompts refused",
        rules=MlxRules(caches=_C_0_32_2, store=_G4, server=_R0_32_2),
        date="2026-08",
        upstream="v0.32.2",
        package=_wheel("0.32.2", "0.32.4"),
    ),
)
"""The releases, oldest first, and states of upstream's main branch that proposals stand on."""

ALL: Final = tuple(each.name for each in RELEASES)
SEGMENTED: Final = ("0.31.2", "0.31.3", "0.32.0", "0.32.1", "0.32.2")


def _lay(
    *,
    caches: Mapping[str, Any] | None = None,
    store: Mapping[str, Any] | None = None,
    server: Mapping[str, Any] | None = None,
    snapshots: Mapping[str, Any] | None = None,
    classes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[MlxRules], MlxRules]:
    """A patch as the fields it sets; #929's fixes are changes to #923's snapshots, and add up."""

    def lay(rules: MlxRules) -> MlxRules:
        serving = replace(rules.server, **(server or {}))
        if snapshots is not None:
            taken = replace(serving.snapshots or SnapshotRules(), **snapshots)
            serving = replace(serving, snapshots=taken)
        return MlxRules(
            caches=replace(rules.caches, **(caches or {})),
            store=replace(rules.store, **(store or {})),
            server=serving,
            classes={**rules.classes, **(classes or {})},
        )

    return lay


_ON_923: Final = {"bytes_skip_missing_slots": True}
_FIXES_929: Final = (
    "always_the_last_boundary",
    "boundary_after_every_message",
    "trims_each_layer_it_can",
)
_AT_LAST_USER: Final = {"checkpoint_at_last_user": True}

PATCHES: Final[tuple[Patch[MlxRules], ...]] = (
    Patch(
        name="138",
        pull=138,
        about="a stored prompt that parts from the new one is cut back to what they share",
        fits=(),
        lay=_lay(store={"cuts_to_common_prefix": True}),
        landed=ALL[0],
        back=_lay(store={"cuts_to_common_prefix": False}),
    ),
    Patch(
        name="183",
        pull=183,
        about="a stored prompt is cut so that at least one token is left to feed",
        fits=(),
        lay=_lay(store={"leaves_one_token": True}),
        landed=ALL[0],
        back=_lay(store={"leaves_one_token": False}),
    ),
    Patch(
        name="755",
        pull=755,
        about="rows without keys are merged with rows that have some",
        fits=(),
        lay=_lay(caches={"merge_skips_empty": True}),
        landed=ALL[0],
        back=_lay(caches={"merge_skips_empty": False}),
    ),
    Patch(
        name="923",
        pull=923,
        about="snapshots at message boundaries",
        fits=("after-906",),
        lay=_lay(caches=_ON_923, snapshots={}),
    ),
    Patch(
        name="929",
        pull=929,
        about="#923 with all three fixes of #929",
        fits=("after-906",),
        lay=_lay(caches=_ON_923, snapshots=dict.fromkeys(_FIXES_929, True)),
    ),
    Patch(
        name="929.1",
        pull=929,
        about="#923 with the first fix: always a snapshot at the last boundary",
        fits=("after-906",),
        lay=_lay(caches=_ON_923, snapshots={_FIXES_929[0]: True}),
    ),
    Patch(
        name="929.2",
        pull=929,
        about="#923 with the second fix: a boundary after every message",
        fits=("after-906",),
        lay=_lay(caches=_ON_923, snapshots={_FIXES_929[1]: True}),
    ),
    Patch(
        name="929.3",
        pull=929,
        about="#923 with the third fix: each layer is trimmed that can be",
        fits=("after-906",),
        lay=_lay(caches=_ON_923, snapshots={_FIXES_929[2]: True}),
    ),
    Patch(
        name="999",
        pull=999,
        about="rotating caches unroll when they are trimmed",
        fits=("0.31.1-main",),
        lay=_lay(
            caches={"rotating_unrolls_on_trim": True},
            store={"checks_trimmed": True, "prunes": "within-size"},
        ),
    ),
    Patch(
        name="1006.1",
        pull=1006,
        about="checkpoint before the last user message, first commit",
        fits=("0.31.1-main",),
        lay=_lay(server=_AT_LAST_USER),
    ),
    Patch(
        name="1006.2",
        pull=1006,
        about="the same, second commit: padded tails",
        fits=("0.31.1-main",),
        lay=_lay(server=_AT_LAST_USER | {"tails": "padded"}),
    ),
    Patch(
        name="1006",
        pull=1006,
        about="the same, last commit: a checkpoint at each request's own distance",
        fits=("0.31.1-main",),
        lay=_lay(
            server=_AT_LAST_USER | {"tails": "padded", "checkpoint_only_at_own_distance": True}
        ),
    ),
    Patch(
        name="1186",
        pull=1186,
        about="an untrimmed hybrid cache is reused from the common prefix on",
        fits=SEGMENTED,
        lay=_lay(store={"reuses_untrimmed": True}),
    ),
    Patch(
        name="1253",
        pull=1253,
        about="a trim resets the recurrent state",
        fits=SEGMENTED,
        lay=_lay(caches={"arrays_trim_resets": True}),
    ),
    Patch(
        name="1254",
        pull=1254,
        about="a trim resets the recurrent state",
        fits=SEGMENTED,
        lay=_lay(caches={"arrays_trim_resets": True}),
    ),
    Patch(
        name="1908",
        pull=1908,
        about="the chunked scan of Granite 4 is told the lengths: no rest of a batch is lost",
        fits=("0.31.2", "0.31.3", "0.32.0"),
        lay=_lay(classes={"granitemoehybrid": {"scan_at_lengths": True}}),
        cures="the chunked scan of a padded batch loses the rest of a row",
        landed="0.32.2",
    ),
    Patch(
        name="chunk-front",
        about="a chunk whose front was dropped is not trimmed",
        fits=ALL,
        lay=_lay(caches={"chunks_always_trim": False}),
    ),
    Patch(
        name="draft-key",
        about="with a draft model, a stored key ends where its state does",
        fits=ALL,
        lay=_lay(server={"key_is_what_was_fed": True}),
        cures="with a draft model, a stored key is longer than its state",
    ),
    Patch(
        name="ring-mask",
        about="the mask on a ring that has turned counts its rows: no padded row loses a token",
        fits=ALL,
        lay=_lay(caches={"ring_mask_counts_rows": True}),
        cures="the mask on a ring that has turned hides a token of a padded row",
    ),
)
"""Numbered patches are pull requests at ml-explore/mlx-lm, with a dot one of several commits."""
