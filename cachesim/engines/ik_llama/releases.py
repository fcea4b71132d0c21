"""ik_llama.cpp's releases and patches, as data."""

from typing import Final

from cachesim.engines.family import Patch, Release, laying
from cachesim.engines.history import History, Merged
from cachesim.engines.ik_llama.rules import Rules
from cachesim.units import Count

COMMITS: Final = (
    ("d2da6da05", "2026-05-26", "the base of #1889"),
    ("8337e4cd3", "2026-08-15", "August 2026"),
)
"""Each release, oldest first: the project has commits and no tags."""

ALL: Final = tuple(name for name, *_ in COMMITS)

OLDEST: Final = Rules(restores_recurrent=False, stop_flag_stays=True)
"""The state before the oldest release."""

MERGED: Final[tuple[Merged, ...]] = (
    Merged(
        pull=1669,
        about="rejected drafts are taken out of recurrent states; before, only out of the cells",
        landed="d2da6da05",
        sets={"restores_recurrent": True},
    ),
    Merged(
        pull=1673,
        about="a decode starts without an earlier client's stop flag; before, a late one ended it",
        landed="d2da6da05",
        sets={"stop_flag_stays": False},
    ),
    Merged(
        pull=2105,
        about="a floor for prompt cache loads; tolerant match only; last-token rule first",
        landed="8337e4cd3",
        sets={"ram_floor": True, "tolerant_only": True, "minus_one_first": True},
    ),
    Merged(
        name="rewound-by-pos-max",
        about="a checkpoint is used that ends before the next position; before, that begins there",
        landed="8337e4cd3",
        sets={"rewind": "pos_max below"},
    ),
    Merged(
        name="restore-moves-interval",
        about="the interval of checkpoints is counted from the one that was restored",
        landed="8337e4cd3",
        sets={"restore_moves_interval": True},
    ),
    Merged(
        name="restore-checked",
        about="after a restore the memory must end where the checkpoint does",
        landed="8337e4cd3",
        sets={"restore_is_checked": True},
    ),
    Merged(
        name="interval-of-positions",
        about="the interval of checkpoints is one of positions, from -1 on; before, of tokens",
        landed="8337e4cd3",
        sets={"interval_starts_at": -1, "interval_counts_tokens": False},
    ),
    Merged(
        name="companion-trimmed-with-it",
        about="the draft context is trimmed only if the main one was; before, always",
        landed="8337e4cd3",
        sets={"trims_companion_always": False},
    ),
    Merged(
        name="pending-row-kept",
        about="the draft context keeps the row of the token that is not yet decoded",
        landed="8337e4cd3",
        sets={"purge_keeps_pending_row": True, "commit_keeps_pending_row": True},
    ),
    Merged(
        name="warmup-failure-ends-drafts",
        about="no drafts after a prompt of which the draft context refused a part",
        landed="8337e4cd3",
        sets={"warmup_failure_ends_drafts": True},
    ),
)

PROPOSED: Final[tuple[Patch[Rules], ...]] = (
    Patch(
        pull=1889,
        about="if the draft context refuses a trim, only it is emptied; the prefix stays",
        fits=ALL,
        lay=laying(companion_reset="companion only"),
    ),
    Patch(
        pull=1888,
        about="a checkpoint may also be used when pos_max <= pos_next; checkpoints from 4 tokens",
        fits=("d2da6da05",),
        lay=laying(rewind="pos_min below or pos_max reaches", minimum=Count(4)),
    ),
    Patch(
        pull=1877,
        about="prompt cache entries that cannot be rewound are skipped; lists are cloned",
        fits=("d2da6da05",),
        lay=laying(
            ram_floor=True,
            ram_rewindable_only=True,
            ram_ties_to_longer_prefix=True,
            ram_reuse_n_min=True,
            clones_token_lists=True,
            keeps_earliest=True,
        ),
    ),
    Patch(
        pull=1854,
        about="--cache-ram-n-min is a minimum common prefix everywhere; lists are cloned",
        fits=("d2da6da05",),
        lay=laying(n_min_is_a_prefix=True, clones_token_lists=True),
    ),
    Patch(
        pull=1689,
        about="recurrent and hybrid models apply no checkpoint and keep the whole prefix",
        fits=("d2da6da05",),
        lay=laying(skips_recurrent=True),
    ),
    Patch(
        name="released-refusals",
        about="a slot that refuses a prompt is released; before, it prefilled the prompt from 0",
        fits=ALL,
        lay=laying(releases_refused=True),
        cures="a refused prompt is prefilled, and the checkpoints of the one before stay",
    ),
    Patch(
        pull=1754,
        about="defect as reported: a draft accepted whole leaves the state after its first token",
        fits=("d2da6da05",),
        lay=laying(restores_when_accepted=False),
    ),
    Patch(
        pull=2358,
        about="tokens of a draft are counted one by one; before, a reply ended short of n_predict",
        fits=ALL,
        lay=laying(counts_whole_drafts=False),
        cures="a reply with drafts has fewer tokens than n_predict, and the slot keeps the others",
    ),
    Patch(
        pull=2459,
        about="a context shift shortens the token list of requests without cache_prompt too",
        fits=ALL,
        lay=laying(shift_always_drops_tokens=True),
    ),
)
"""Numbered patches are pull requests at ikawrakow/ik_llama.cpp."""

HISTORY: Final = History(OLDEST, ALL, MERGED, PROPOSED)
RELEASES: Final = tuple(
    Release(name=name, about=about, rules=HISTORY.rules(name), date=date)
    for name, date, about in COMMITS
)
