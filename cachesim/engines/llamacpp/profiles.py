"""The releases and patches of llama-server that are known, each as a value of rules.

A release is one entry of `RELEASES`, with what landed in it in `landed`; a proposal is one of
`PROPOSED`. What was merged is a patch too: it can be laid over older releases, and taken back.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from cachesim.engines.llamacpp.landed import HISTORY
from cachesim.engines.llamacpp.merged import Merged
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.engines.release import Package, Patch, Release
from cachesim.units import Count


def _release(name: str, version: str, date: str, *, upstream: str = "") -> Release[ServerRules]:
    """A release whose wheel came out on a day; `upstream` is the build whose code was read."""
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


RELEASES: Final[tuple[Release[ServerRules], ...]] = (
    _release("b8672", "2026.4.8672.1", "2026-04-09"),
    _release("b8929", "2026.4.8929", "2026-04-27"),
    _release("b9093", "2026.5.9093", "2026-05-10", upstream="b9094"),
    _release("b9294", "2026.5.9294", "2026-05-24"),
    _release("b9538", "2026.6.9538", "2026-06-07", upstream="b9509"),
    _release("b9713", "2026.6.9713", "2026-06-19"),
    _release("b9873", "2026.7.9873", "2026-07-06"),
    _release("b10068", "2026.7.10068", "2026-07-20"),
    _release("b10229", "2026.8.10229", "2026-08-03"),
    _release("b10566", "2026.8.10566", "2026-08-22"),
    _release("b10809", "2026.9.10809", "2026-09-06"),
    _release("b11063", "2026.9.11063", "2026-09-21"),
    _release("b11549", "2026.10.11549", "2026-10-10", upstream="b11434"),
)
"""The releases, oldest first."""

ALL: Final = tuple(each.name for each in RELEASES)


def _since(first: str, last: str = "") -> tuple[str, ...]:
    """The releases from one on, up to another where one is named."""
    end = ALL.index(last) + 1 if last else len(ALL)
    return ALL[ALL.index(first) : end]


def _merged(merged: Merged) -> Patch[ServerRules]:
    """A merged change as a patch: forward over older releases, back from younger ones."""
    return Patch(
        name=merged.title,
        pull=merged.pull,
        perhaps=merged.perhaps,
        about=merged.about,
        fits=HISTORY.older(merged),
        lay=merged.laid,
        landed=merged.landed,
        back=partial(HISTORY.undone, merged),
        cures=merged.cures,
    )


def _reuse(**fields: Any) -> Callable[[ServerRules], ServerRules]:
    return lambda rules: replace(rules, reuse=replace(rules.reuse, **fields))


def _keep_loaded(rules: ServerRules) -> ServerRules:
    return replace(rules, cache=replace(rules.cache, load_consumes=False))


def _ngrams_anew(rules: ServerRules) -> ServerRules:
    return replace(rules, slots=replace(rules.slots, ngrams_outlive=False))


def _no_save_of_a_rollback(rules: ServerRules) -> ServerRules:
    return replace(rules, memory=replace(rules.memory, saves_rolled_back=False))


def _attention_speaks_for_both(rules: ServerRules) -> ServerRules:
    return replace(
        rules,
        reuse=replace(rules.reuse, erasure="trimmed"),
        memory=replace(
            rules.memory, hybrid_starts_with_attention=True, impossible_rollback_passes=True
        ),
    )


def _completions_only(rules: ServerRules) -> ServerRules:
    return replace(rules, selection=replace(rules.selection, idle_saves_any_task=False))


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


PROPOSED: Final[tuple[Patch[ServerRules], ...]] = (
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
        name="24797",
        pull=24797,
        about="declined: a hybrid starts where its attention does; checkpoints are cut, not erased",
        fits=("b9713",),
        lay=_attention_speaks_for_both,
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
        fits=_since("b8672", "b9093"),
        lay=_short_prompts,
    ),
    Patch(
        name="20428",
        pull=20428,
        about="recurrent checkpoints for prompts of any length; a refused cut goes back to one",
        fits=_since("b8672", "b9093"),
        lay=_no_minimum,
    ),
    Patch(
        name="26893",
        pull=26893,
        about="idle slots are parked after completions only; nothing else looks parked prompts up",
        fits=ALL,
        lay=_completions_only,
    ),
    Patch(
        name="22673-early",
        pull=22673,
        about="22673 before its merge: saving a state while a rollback is pending ends the process",
        fits=("b9294",),
        lay=_no_save_of_a_rollback,
    ),
    Patch(
        name="27866",
        pull=27866,
        about="with --spec-type ngram-cache each request begins with no n-grams",
        fits=_since("b9294"),
        lay=_ngrams_anew,
    ),
    Patch(
        name="erase-equal",
        about="a checkpoint whose last token is exactly at the next position is erased too",
        fits=ALL,
        lay=_reuse(erasure="equal"),
        cures="a checkpoint stays whose last token is not the prompt's, and is restored",
    ),
    Patch(
        name="search-read-again",
        about="as 24411, and none is restored that ends after a last token to be reprocessed",
        fits=ALL,
        lay=_reuse(search_limit="read-again"),
        cures="a window's checkpoint is one key short where the last token is reprocessed",
    ),
    Patch(
        name="resume-behind",
        about="a window's checkpoint is resumed after its last token: none erodes by a key a trip",
        fits=ALL,
        lay=_reuse(resumes_behind=True),
        cures="a window loses a key at each trip through the prompt cache",
    ),
)
"""Numbered patches are pull requests at ggml-org/llama.cpp; names are our own."""

PATCHES: Final[tuple[Patch[ServerRules], ...]] = (
    *PROPOSED,
    *(_merged(each) for each in HISTORY.merged if each.title),
)
"""Proposals first, then what was merged, in the order in which it landed."""
