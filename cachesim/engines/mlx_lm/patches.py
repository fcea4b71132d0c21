"""What each patch of mlx-lm changes in the rules of a release: one entry of `PATCHES` each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cachesim.engines.mlx_lm.families import FAMILIES
from cachesim.engines.mlx_lm.profiles import ALL, BEFORE_738, BEFORE_741, SEGMENTED, MlxRules
from cachesim.engines.mlx_lm.server.rules import SnapshotRules
from cachesim.engines.release import Patch, laying, switching


def _snapshots(*fixes: str) -> Callable[[MlxRules], MlxRules]:
    """#923 with fixes of #929, which are changes to its snapshots, and add up."""

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
        name="138",
        pull=138,
        about="a stored prompt that diverges from the new one is trimmed to what they share",
        fits=(),
        **switching(ALL[0], store={"cuts_to_common_prefix": True}),
    ),
    Patch(
        name="183",
        pull=183,
        about="a stored prompt is trimmed so that at least one token is left to feed",
        fits=(),
        **switching(ALL[0], store={"leaves_one_token": True}),
    ),
    Patch(
        name="738",
        pull=738,
        about="a row leaves a ring at its own length, and a padded prefill is told its lengths",
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
        name="690",
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
        name="755",
        pull=755,
        about="rows without keys are merged with rows that have some",
        fits=BEFORE_738,
        **switching("0.30.4", caches={"merge_skips_empty": True}),
    ),
    Patch(
        name="741",
        pull=741,
        about="a request that a stop word ended is stored, and leaves its batch",
        fits=BEFORE_741,
        **switching("0.30.6", server={"forgets_stopped": True}),
    ),
    Patch(
        name="842",
        pull=842,
        about="fresh recurrent caches are merged without a padding of zeros",
        fits=BEFORE_741,
        **switching(
            "0.30.6", classes={name: {"merges_slots_as_padding": False} for name in _MAMBAS}
        ),
    ),
    Patch(
        name="843",
        pull=843,
        about="a cache that keeps everything masks one column too where a window is asked for",
        fits=BEFORE_741,
        **switching("0.30.6", caches={"window_masks_one_column": True}),
    ),
    Patch(
        name="807",
        pull=807,
        about="a restored recurrent cache has its fields for padding",
        fits=("0.30.4",),
        **switching("0.30.5", caches={"restores_padding_fields": True}),
    ),
    Patch(
        name="923",
        pull=923,
        about="snapshots at message boundaries",
        fits=("after-906",),
        lay=_snapshots(),
    ),
    Patch(
        name="929",
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
        name="999",
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
        name="1006",
        pull=1006,
        about="the same, last commit: a checkpoint at each request's own distance",
        fits=("0.31.1-main",),
        lay=laying(
            server=_AT_LAST_USER | {"tails": "padded", "checkpoint_only_at_own_distance": True}
        ),
    ),
    Patch(
        name="1186",
        pull=1186,
        about="an untrimmed hybrid cache is reused from the common prefix on",
        fits=SEGMENTED,
        lay=laying(store={"reuses_untrimmed": True}),
    ),
    Patch(
        name="1253",
        pull=1253,
        about="a trim resets the recurrent state",
        fits=SEGMENTED,
        lay=laying(caches={"arrays_trim_resets": True}),
    ),
    Patch(
        name="1254",
        pull=1254,
        about="a trim resets the recurrent state",
        fits=SEGMENTED,
        lay=laying(caches={"arrays_trim_resets": True}),
    ),
    Patch(
        name="1908",
        pull=1908,
        about="the chunked scan of Granite 4 is told the lengths: no rest of a batch is lost",
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
)
"""Numbered patches are pull requests at ml-explore/mlx-lm, with a dot one of several commits."""
