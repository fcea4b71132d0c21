"""The releases and patches of llama-server that are known, each as a value of rules.

A release is one entry of `WHEELS`, with what landed in it in `landed`; a proposal is one of
`PROPOSED`. What was merged is a patch too: it can be laid over older releases, and taken back.
"""

from functools import partial
from typing import Final

from cachesim.engines.llamacpp.landed import LANDED, OLDEST
from cachesim.engines.llamacpp.merged import History, Merged
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.engines.release import Package, Patch, Release, laying
from cachesim.units import Count

WHEELS: Final = (
    ("b8672", "2026.4.8672.1", "2026-04-09", ""),
    ("b8929", "2026.4.8929", "2026-04-27", ""),
    ("b9093", "2026.5.9093", "2026-05-10", "b9094"),
    ("b9294", "2026.5.9294", "2026-05-24", ""),
    ("b9538", "2026.6.9538", "2026-06-07", "b9509"),
    ("b9713", "2026.6.9713", "2026-06-19", ""),
    ("b9873", "2026.7.9873", "2026-07-06", ""),
    ("b10068", "2026.7.10068", "2026-07-20", ""),
    ("b10229", "2026.8.10229", "2026-08-03", ""),
    ("b10566", "2026.8.10566", "2026-08-22", ""),
    ("b10809", "2026.9.10809", "2026-09-06", ""),
    ("b11063", "2026.9.11063", "2026-09-21", ""),
    ("b11549", "2026.10.11549", "2026-10-10", "b11434"),
)
"""Each release, oldest first: its wheel, the day it came out, the build whose code was read."""

ALL: Final = tuple(name for name, *_ in WHEELS)
HISTORY: Final = History(OLDEST, LANDED, ALL)


def _release(name: str, version: str, date: str, upstream: str) -> Release[ServerRules]:
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


RELEASES: Final = tuple(_release(*each) for each in WHEELS)


def _since(first: str, last: str = "") -> tuple[str, ...]:
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


PROPOSED: Final[tuple[Patch[ServerRules], ...]] = (
    Patch(
        name="24035",
        pull=24035,
        about="checkpoints know where they end; none beyond the common prefix is used or kept",
        fits=_since("b9538"),
        lay=laying(reuse={"exact_search": "pos_end", "erasure": "pos_end"}),
    ),
    Patch(
        name="24035-lcp",
        pull=24035,
        about="the later form of 24035: the longest checkpoint inside the common prefix is used",
        fits=_since("b9538"),
        lay=laying(
            cache={"best_by_reuse": True},
            reuse={"exact_search": "longest", "erasure": "prefix"},
            checkpoints={"eviction": "densest", "split_at_prefix": True, "exact_pos_min": True},
        ),
    ),
    Patch(
        name="24143",
        pull=24143,
        about="a conversation loaded from the prompt cache stays in it",
        fits=ALL,
        lay=laying(cache={"load_consumes": False}),
    ),
    Patch(
        name="24797",
        pull=24797,
        about="declined: a hybrid starts where its attention does; checkpoints are cut, not erased",
        fits=("b9713",),
        lay=laying(
            reuse={"erasure": "trimmed"},
            memory={"hybrid_starts_with_attention": True, "impossible_rollback_passes": True},
        ),
    ),
    Patch(
        name="24891",
        pull=24891,
        about="only checkpoints beyond the whole prompt are erased; a refused cut is a warning",
        fits=_since("b9538"),
        lay=laying(reuse={"erasure": "prompt", "seq_rm_failure": "warn"}),
    ),
    Patch(
        name="25592",
        pull=25592,
        about="a recurrent state is restored only at its exact position inside the common prefix",
        fits=_since("b9538"),
        lay=laying(
            reuse={"exact_search": "inside", "erasure": "diverged"},
            checkpoints={
                "spacing_waived_near_end": True,
                "eviction": "closest",
                "exact_pos_min": True,
            },
        ),
    ),
    Patch(
        name="22384",
        pull=22384,
        about="recurrent checkpoints are accepted by where they end, and made from 4 tokens on",
        fits=_since("b8672", "b9093"),
        lay=laying(
            reuse={"exact_search": "pos_max"}, checkpoints={"exact_minimum_prompt": Count(4)}
        ),
    ),
    Patch(
        name="20428",
        pull=20428,
        about="recurrent checkpoints for prompts of any length; a refused cut goes back to one",
        fits=_since("b8672", "b9093"),
        lay=laying(
            reuse={"seq_rm_failure": "checkpoint"},
            checkpoints={"exact_minimum_prompt": Count(0), "exact_spaced": False},
        ),
    ),
    Patch(
        name="26893",
        pull=26893,
        about="idle slots are parked after completions only; nothing else looks parked prompts up",
        fits=ALL,
        lay=laying(selection={"idle_saves_any_task": False}),
    ),
    Patch(
        name="22673-early",
        pull=22673,
        about="22673 before its merge: saving a state while a rollback is pending ends the process",
        fits=("b9294",),
        lay=laying(memory={"saves_rolled_back": False}),
    ),
    Patch(
        name="27866",
        pull=27866,
        about="with --spec-type ngram-cache each request begins with no n-grams",
        fits=_since("b9294"),
        lay=laying(slots={"ngrams_outlive": False}),
    ),
    Patch(
        name="erase-equal",
        about="a checkpoint whose last token is exactly at the next position is erased too",
        fits=ALL,
        lay=laying(reuse={"erasure": "equal"}),
        cures="a checkpoint stays whose last token is not the prompt's, and is restored",
    ),
    Patch(
        name="search-read-again",
        about="as 24411, and none is restored that ends after a last token to be reprocessed",
        fits=ALL,
        lay=laying(reuse={"search_limit": "read-again"}),
        cures="a window's checkpoint is one key short where the last token is reprocessed",
    ),
    Patch(
        name="resume-behind",
        about="a window's checkpoint is resumed after its last token: none erodes by a key a trip",
        fits=ALL,
        lay=laying(reuse={"resumes_behind": True}),
        cures="a window loses a key at each trip through the prompt cache",
    ),
)
"""Numbered patches are pull requests at ggml-org/llama.cpp; names are our own."""

PATCHES: Final[tuple[Patch[ServerRules], ...]] = (
    *PROPOSED,
    *(_merged(each) for each in HISTORY.merged if each.title),
)
"""Proposals first, then what was merged, in the order in which it landed."""
