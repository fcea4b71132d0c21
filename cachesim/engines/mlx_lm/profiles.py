"""Which rules each release and patch of mlx-lm stands for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cachesim.engines.mlx_lm.families import ModelFamily, RecurrentRules
from cachesim.engines.mlx_lm.rules import CacheRules, StoreRules
from cachesim.engines.mlx_lm.server.rules import (
    SERVER_PATCHES,
    SERVER_RELEASES,
    ServerRules,
    patched,
)
from cachesim.engines.profile import Profile
from cachesim.errors import ProfileError

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

CACHE_RELEASES: Final[Mapping[str, CacheRules]] = {
    "0.30.7": _C_0_30_7,
    "after-906": _C_AFTER_906,
    "0.31.0": _C_0_31_1,
    "0.31.1": _C_0_31_1,
    "0.31.1-main": _C_0_31_1,
    "after-1019": _C_0_31_1,
    "0.31.2": _C_0_31_2,
    "0.31.3": _C_0_31_3,
    "0.32.2": CacheRules(),
}
"""The layer caches of each release."""

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

STORE_RELEASES: Final[Mapping[str, StoreRules]] = {
    "0.30.7": _G0,
    "after-906": _G1,
    "0.31.0": _G2,
    "0.31.1": _G2,
    "0.31.1-main": _G2,
    "after-1019": _G3,
    "0.31.2": StoreRules(),
    "0.31.3": StoreRules(),
    "0.32.2": StoreRules(),
}
"""The store of each release."""

ON_923: Final = ("923", "929", "929.1", "929.2", "929.3")
"""#929 stands on #923, so each of its mends brings that along."""

CACHE_PATCHES: Final[Mapping[str, Mapping[str, Any]]] = {
    **{patch: {"bytes_skip_missing_slots": True} for patch in ON_923},
    "999": {"rotating_unrolls_on_trim": True},
    "ring-mask": {"ring_mask_counts_rows": True},
    "1253": {"arrays_trim_resets": True},
    "1254": {"arrays_trim_resets": True},
}
STORE_PATCHES: Final[Mapping[str, Mapping[str, Any]]] = {
    "999": {"checks_trimmed": True, "prunes": "within-size"},
    "1186": {"reuses_untrimmed": True},
}


FAMILY_PATCHES: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "1908": {"granitemoehybrid": {"scan_at_lengths": True}},
}
"""What a change does to the layers of a model class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxRules:
    """All rules of one profile."""

    caches: CacheRules
    store: StoreRules
    server: ServerRules


def recurrent_rules_of(profile: Profile, family: ModelFamily) -> RecurrentRules:
    """What a model class does with padding at a release, with the patches laid over it."""
    rules = family.rules_at(profile.release, tuple(CACHE_RELEASES))
    for patch in profile.patches:
        rules = replace(rules, **FAMILY_PATCHES.get(patch, {}).get(family.name, {}))
    return rules


def rules_of(profile: Profile) -> MlxRules:
    """The release's rules with the patches laid over them, in order."""
    if profile.release not in CACHE_RELEASES:
        known = ", ".join(CACHE_RELEASES)
        msg = f"there is no mlx-lm release {profile.release!r}; there are {known}"
        raise ProfileError(msg)
    caches = CACHE_RELEASES[profile.release]
    store = STORE_RELEASES[profile.release]
    server = SERVER_RELEASES[profile.release]
    for patch in profile.patches:
        tables = (CACHE_PATCHES, STORE_PATCHES, SERVER_PATCHES, FAMILY_PATCHES)
        if not any(patch in table for table in tables):
            known = ", ".join(sorted({name for table in tables for name in table}))
            msg = f"there is no patch {patch!r} of mlx-lm; there are {known}"
            raise ProfileError(msg)
        caches = replace(caches, **CACHE_PATCHES.get(patch, {}))
        store = replace(store, **STORE_PATCHES.get(patch, {}))
        server = patched(server, patch)
    return MlxRules(caches=caches, store=store, server=server)
