"""The releases and patches of llama-server that are known, each as a value of rules.

A release is one entry of `RELEASES`, a patch one of `PATCHES`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from cachesim.engines.family import Package, Patch, Release
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

RELEASES: Final[tuple[Release[ServerRules], ...]] = (
    Release(
        name="b9093",
        about="May 2026; has the cache rules of b9094",
        rules=B9093,
        date="2026-05",
        upstream="b9094",
        aliases=("b9094",),
        package=Package(name="xllamacpp", version="2026.5.9093"),
    ),
    Release(
        name="b9538",
        about="June 2026; has the cache rules of b9509",
        rules=B9538,
        date="2026-06",
        upstream="b9509",
        aliases=("b9509",),
        package=Package(name="xllamacpp", version="2026.6.9538"),
    ),
    Release(
        name="b11549",
        about="October 2026; has the cache rules of b11434",
        rules=B11549,
        date="2026-10",
        upstream="b11434",
        aliases=("b11434",),
        package=Package(name="xllamacpp", version="2026.10.11549"),
    ),
)
"""The releases, oldest first."""

ALL: Final = tuple(each.name for each in RELEASES)


def _since(first: str, last: str = "") -> tuple[str, ...]:
    """The releases from one on, up to another where one is named."""
    end = ALL.index(last) + 1 if last else len(ALL)
    return ALL[ALL.index(first) : end]


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


PATCHES: Final[tuple[Patch[ServerRules], ...]] = (
    Patch(
        name="24035",
        pull=24035,
        about="checkpoints know where they end; none beyond the common prefix is used or kept",
        fits=_since("b9538"),
        lay=_reuse(exact_search="pos_end", erasure="pos_end"),
    ),
    Patch(
        name="24035-lcp",
        pull=24035,
        about="the later form of 24035: the longest checkpoint inside the common prefix is used",
        fits=_since("b9538"),
        lay=_longest_prefix,
    ),
    Patch(
        name="24143",
        pull=24143,
        about="a conversation loaded from the prompt cache stays in it",
        fits=ALL,
        lay=_keep_loaded,
    ),
    Patch(
        name="24411",
        pull=24411,
        about="a checkpoint that ends beyond the next position is not restored",
        fits=_since("b9093", "b9538"),
        lay=_reuse(search_limit="beyond"),
    ),
    Patch(
        name="24891",
        pull=24891,
        about="only checkpoints beyond the whole prompt are erased; a refused cut is a warning",
        fits=_since("b9538"),
        lay=_reuse(erasure="prompt", seq_rm_failure="warn"),
    ),
    Patch(
        name="25592",
        pull=25592,
        about="a recurrent state is restored only at its exact position inside the common prefix",
        fits=_since("b9538"),
        lay=_exact_position,
    ),
    Patch(
        name="22384",
        pull=22384,
        about="recurrent checkpoints are accepted by where they end, and made from 4 tokens on",
        fits=_since("b9093", "b9093"),
        lay=_short_prompts,
    ),
    Patch(
        name="20428",
        pull=20428,
        about="recurrent checkpoints for prompts of any length; a refused cut goes back to one",
        fits=_since("b9093", "b9093"),
        lay=_no_minimum,
    ),
    Patch(
        name="erase-equal",
        about="a checkpoint whose last token lies exactly at the next position is erased too",
        fits=ALL,
        lay=_reuse(erasure="equal"),
    ),
    Patch(
        name="search-read-again",
        about="as 24411, and none is restored that ends behind a last token to be read again",
        fits=ALL,
        lay=_reuse(search_limit="read-again"),
    ),
)
"""Numbered patches are pull requests at ggml-org/llama.cpp; names are our own."""
