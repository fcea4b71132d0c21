"""What differs between releases and proposals of ik_llama.cpp, as one frozen value."""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from cachesim.engines.profile import Profile
from cachesim.errors import ProfileError
from cachesim.units import Count

CompanionReset: TypeAlias = Literal["everything", "companion only"]
Rewind: TypeAlias = Literal["pos_min below", "pos_max below", "pos_min below or pos_max reaches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One field per difference; the PR that made it stands behind the field."""

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

    # context shift
    shift_always_drops_tokens: bool = False  # #2459: without cache_prompt too

    # checkpoints
    rewind: Rewind = "pos_min below"  # #1888, and the later release: which checkpoint may be used
    skips_recurrent: bool = False  # #1689: recurrent and hybrid models apply no checkpoint at all
    minimum: Count = Count(64)  # #1888: 4 for recurrent and hybrid models
    restore_moves_interval: bool = False  # later release: a restore sets checkpoint_pos
    restore_is_checked: bool = False  # later release: pos_max must be the checkpoint's afterwards
    interval_starts_at: int = 0  # later release: -1
    interval_counts_tokens: bool = True  # later release compares positions instead
    eviction: Literal["fifo", "variance"] = "fifo"  # #2020
    keeps_earliest: bool = False  # #1877: with a cap above 1 the second oldest is evicted

    # companion
    companion_reset: CompanionReset = "everything"  # #1889
    trims_companion_always: bool = True  # later release: only after the primary agreed
    commit_keeps_pending_row: bool = False  # later release: commit begins at M + 1
    swa_compress: bool = False  # later release: rolling window caches (#2253)


SEED_ERA: Final = Rules()

LATER: Final = Rules(
    ram_floor=True,
    tolerant_only=True,
    minus_one_first=True,
    rewind="pos_max below",
    restore_moves_interval=True,
    restore_is_checked=True,
    interval_starts_at=-1,
    interval_counts_tokens=False,
    eviction="variance",
    trims_companion_always=False,
    commit_keeps_pending_row=True,
    swa_compress=True,
)

RELEASES: Final[dict[str, Rules]] = {"d2da6da05": SEED_ERA, "8337e4cd3": LATER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A proposal: the fields it replaces, and what it is about."""

    about: str
    upstream: str
    fields: dict[str, Any]
    releases: tuple[str, ...] = ("d2da6da05", "8337e4cd3")


PATCHES: Final[dict[str, Patch]] = {
    "1889": Patch(
        about="a companion whose trim fails is emptied alone; the primary keeps its prefix",
        upstream="ikawrakow/ik_llama.cpp#1889",
        fields={"companion_reset": "companion only"},
    ),
    "1888": Patch(
        about="a checkpoint may also be used when pos_max <= pos_next; checkpoints from 4 tokens",
        upstream="ikawrakow/ik_llama.cpp#1888",
        fields={"rewind": "pos_min below or pos_max reaches", "minimum": Count(4)},
        releases=("d2da6da05",),
    ),
    "1877": Patch(
        about="prompt cache entries that cannot be rewound are skipped; lists are cloned",
        upstream="ikawrakow/ik_llama.cpp#1877",
        fields={
            "ram_floor": True,
            "ram_rewindable_only": True,
            "ram_ties_to_longer_prefix": True,
            "ram_reuse_n_min": True,
            "clones_token_lists": True,
            "keeps_earliest": True,
        },
        releases=("d2da6da05",),
    ),
    "1854": Patch(
        about="--cache-ram-n-min is a minimum common prefix everywhere; lists are cloned",
        upstream="ikawrakow/ik_llama.cpp#1854",
        fields={"n_min_is_a_prefix": True, "clones_token_lists": True},
        releases=("d2da6da05",),
    ),
    "1689": Patch(
        about="recurrent and hybrid models apply no checkpoint and keep the whole prefix",
        upstream="ikawrakow/ik_llama.cpp#1689",
        fields={"skips_recurrent": True},
        releases=("d2da6da05",),
    ),
    "2105": Patch(
        about="a floor for prompt cache loads; tolerant match only; last-token rule first",
        upstream="ikawrakow/ik_llama.cpp#2105",
        fields={"ram_floor": True, "tolerant_only": True, "minus_one_first": True},
        releases=("d2da6da05",),
    ),
    "2459": Patch(
        about="a context shift shortens the token list of requests without cache_prompt too",
        upstream="ikawrakow/ik_llama.cpp#2459",
        fields={"shift_always_drops_tokens": True},
    ),
}


def rules_of(profile: Profile) -> Rules:
    """The rules of a release with its patches laid over it, in order."""
    if profile.release not in RELEASES:
        msg = (
            f"ik_llama.cpp has no release {profile.release!r} here; there are {', '.join(RELEASES)}"
        )
        raise ProfileError(msg)
    rules = RELEASES[profile.release]
    for name in profile.patches:
        patch = PATCHES.get(name)
        if patch is None:
            msg = f"ik_llama.cpp has no patch {name!r} here; there are {', '.join(PATCHES)}"
            raise ProfileError(msg)
        if profile.release not in patch.releases:
            msg = (
                f"patch {name} does not fit {profile.release}; it fits {', '.join(patch.releases)}"
            )
            raise ProfileError(msg)
        rules = replace(rules, **patch.fields)
    return rules
