"""The releases and patches of llama-server that are known, each as a value of rules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

from cachesim.engines.llamacpp.memory import rules as memory
from cachesim.engines.llamacpp.rules import (
    CheckpointRules,
    PromptCacheRules,
    RequestRules,
    ReuseRules,
    SelectionRules,
    ServerRules,
    SlotRules,
)
from cachesim.engines.profile import Profile
from cachesim.errors import ProfileError
from cachesim.units import Count

B9093: Final = ServerRules(
    memory=memory.B9094,
    requests=RequestRules(empty_prefill_opens=True),
    selection=SelectionRules(pinned_slot_uses_cache=False, idle_save_needs_unified=True),
    cache=PromptCacheRules(save_makes_room=False, limits_keep_one=True, load_consumes=True),
    reuse=ReuseRules(
        depth_test_skips_extensions=True,
        thold_spares_one_token=False,
        search_limit="none",
        exact_search="threshold",
        erasure="beyond",
        seq_rm_failure="clear",
        failed_restore_resets=True,
    ),
    checkpoints=CheckpointRules(
        placement="every",
        minimum_prompt=Count(64),
        exact_minimum_prompt=Count(64),
        spacing=Count(64),
        exact_spaced=True,
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
        companion_is_saved=False,
        drafter_is_saved=False,
        process_failure_is_fatal=False,
        refused_cut_aborts=False,
        empty_batches_abort=True,
        processed_is_reset=False,
    ),
)
"""May 2026; the cache rules are those of b9094."""

B9538: Final = replace(
    B9093,
    memory=memory.B9509,
    requests=RequestRules(empty_prefill_opens=False),
    reuse=replace(
        B9093.reuse,
        depth_test_skips_extensions=False,
        thold_spares_one_token=True,
        seq_rm_failure="abort",
        failed_restore_resets=False,
    ),
    checkpoints=replace(
        B9093.checkpoints,
        placement="last-user",
        minimum_prompt=Count(0),
        exact_minimum_prompt=Count(0),
        spacing=None,
    ),
    slots=replace(
        B9093.slots,
        companion_is_saved=True,
        refused_cut_aborts=True,
    ),
)
"""June 2026; the cache rules are those of b9509."""

B11549: Final = replace(
    B9538,
    memory=memory.B11434,
    selection=SelectionRules(pinned_slot_uses_cache=True, idle_save_needs_unified=False),
    cache=PromptCacheRules(save_makes_room=True, limits_keep_one=False, load_consumes=True),
    reuse=replace(B9538.reuse, search_limit="beyond"),
    checkpoints=replace(
        B9538.checkpoints,
        placement="user-starts",
        spacing_waived_near_end=True,
        spacing_waived_for_last_user=True,
        eviction="thinned",
        supersede_equal=True,
    ),
    slots=replace(
        B9538.slots,
        clear_drops_checkpoints=True,
        shift_drops_checkpoints=True,
        discard_is_clamped=True,
        file_holds_checkpoints=True,
        restore_drops_checkpoints=True,
        cleared_after_bad_restore=True,
        drafter_is_saved=True,
        process_failure_is_fatal=True,
        empty_batches_abort=False,
        processed_is_reset=True,
    ),
)
"""October 2026; the cache rules are those of b11434."""

RELEASES: Final[Mapping[str, ServerRules]] = {"b9093": B9093, "b9538": B9538, "b11549": B11549}

ALL: Final = tuple(RELEASES)
SINCE_JUNE: Final = ("b9538", "b11549")

HAD_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "checkpoint_every_nt": ("b9093",),
    "checkpoint_min_step": SINCE_JUNE,
    "kv_unified_per_slot": ("b11549",),
    "spec_type": SINCE_JUNE,
    "spec_draft_n_max": SINCE_JUNE,
    "spec_draft_n_min": SINCE_JUNE,
    "model_draft": SINCE_JUNE,
}
"""Options that only some releases have."""

DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "b9093": {},
    "b9538": {"checkpoint_min_step": 256},
    "b11549": {"checkpoint_min_step": 8192},
}
"""Defaults in which the releases differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A proposed or foreign change, laid over a release."""

    about: str
    fits: tuple[str, ...]
    lay: Callable[[ServerRules], ServerRules]


def _reuse(**fields: Any) -> Callable[[ServerRules], ServerRules]:  # noqa: ANN401 - rule fields
    return lambda rules: replace(rules, reuse=replace(rules.reuse, **fields))


def _keep_loaded(rules: ServerRules) -> ServerRules:
    return replace(rules, cache=replace(rules.cache, load_consumes=False))


def _longest_prefix(rules: ServerRules) -> ServerRules:
    return replace(
        rules,
        cache=replace(rules.cache, best_by_reuse=True),
        reuse=replace(rules.reuse, exact_search="longest", erasure="prefix"),
        checkpoints=replace(
            rules.checkpoints, eviction="densest", split_at_prefix=True, exact_pos_min=True
        ),
    )


def _exact_position(rules: ServerRules) -> ServerRules:
    return replace(
        rules,
        reuse=replace(rules.reuse, exact_search="inside", erasure="diverged"),
        checkpoints=replace(
            rules.checkpoints,
            spacing_waived_near_end=True,
            eviction="closest",
            exact_pos_min=True,
        ),
    )


def _short_prompts(rules: ServerRules) -> ServerRules:
    return replace(
        rules,
        reuse=replace(rules.reuse, exact_search="pos_max"),
        checkpoints=replace(rules.checkpoints, exact_minimum_prompt=Count(4)),
    )


def _no_minimum(rules: ServerRules) -> ServerRules:
    return replace(
        rules,
        reuse=replace(rules.reuse, seq_rm_failure="checkpoint"),
        checkpoints=replace(rules.checkpoints, exact_minimum_prompt=Count(0), exact_spaced=False),
    )


PATCHES: Final[Mapping[str, Patch]] = {
    "24035": Patch(
        about="checkpoints know where they end; none beyond the common prefix is used or kept",
        fits=SINCE_JUNE,
        lay=_reuse(exact_search="pos_end", erasure="pos_end"),
    ),
    "24035-lcp": Patch(
        about="the later form of 24035: the longest checkpoint inside the common prefix is used",
        fits=SINCE_JUNE,
        lay=_longest_prefix,
    ),
    "24143": Patch(
        about="a conversation loaded from the prompt cache stays in it",
        fits=ALL,
        lay=_keep_loaded,
    ),
    "24411": Patch(
        about="a checkpoint that ends beyond the next position is not restored",
        fits=("b9093", "b9538"),
        lay=_reuse(search_limit="beyond"),
    ),
    "24891": Patch(
        about="only checkpoints beyond the whole prompt are erased; a refused cut is a warning",
        fits=SINCE_JUNE,
        lay=_reuse(erasure="prompt", seq_rm_failure="warn"),
    ),
    "25592": Patch(
        about="a recurrent state is restored only at its exact position inside the common prefix",
        fits=SINCE_JUNE,
        lay=_exact_position,
    ),
    "22384": Patch(
        about="recurrent checkpoints are accepted by where they end, and made from 4 tokens on",
        fits=("b9093",),
        lay=_short_prompts,
    ),
    "20428": Patch(
        about="recurrent checkpoints for prompts of any length; a refused cut goes back to one",
        fits=("b9093",),
        lay=_no_minimum,
    ),
    "erase-equal": Patch(
        about="a checkpoint whose last token lies exactly at the next position is erased too",
        fits=ALL,
        lay=_reuse(erasure="equal"),
    ),
    "search-read-again": Patch(
        about="as 24411, and none is restored that ends behind a last token to be read again",
        fits=ALL,
        lay=_reuse(search_limit="read-again"),
    ),
}
"""Patches by the number of their pull request at ggml-org/llama.cpp; names are our own."""


def rules_of(profile: Profile) -> ServerRules:
    """The rules of a release with its patches laid over it, in order."""
    rules = RELEASES.get(profile.release)
    if rules is None:
        msg = f"there is no llama.cpp release {profile.release!r}; there are {', '.join(RELEASES)}"
        raise ProfileError(msg)
    for name in profile.patches:
        patch = PATCHES.get(name)
        if patch is None:
            near = get_close_matches(name, PATCHES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(PATCHES)}"
            msg = f"there is no llama.cpp patch {name!r}; {hint}"
            raise ProfileError(msg)
        if profile.release not in patch.fits:
            msg = (
                f"patch {name!r} does not fit llama.cpp@{profile.release}; "
                f"it fits {', '.join(patch.fits)}"
            )
            raise ProfileError(msg)
        rules = patch.lay(rules)
    return rules
