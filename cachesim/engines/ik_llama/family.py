"""The `Family` of ik_llama.cpp's server."""

from typing import Final

from cachesim.engines.family import Family, Patch, Release, laying, switching
from cachesim.engines.ik_llama.options import FIELDS, Options
from cachesim.engines.ik_llama.rules import LATER, SEED_ERA, Rules
from cachesim.units import Count

RELEASES: Final[tuple[Release[Rules], ...]] = (
    Release(name="d2da6da05", about="the base of #1889", rules=SEED_ERA, date="2026-05-26"),
    Release(name="8337e4cd3", about="August 2026", rules=LATER, date="2026-08-15"),
)
"""The releases, oldest first: the project has commits and no tags."""

ALL: Final = tuple(each.name for each in RELEASES)


PATCHES: Final[tuple[Patch[Rules], ...]] = (
    Patch(
        pull=1889,
        about="a companion whose trim fails is emptied alone; the primary keeps its prefix",
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
        pull=2105,
        about="a floor for prompt cache loads; tolerant match only; last-token rule first",
        fits=("d2da6da05",),
        lay=laying(ram_floor=True, tolerant_only=True, minus_one_first=True),
        landed="8337e4cd3",
    ),
    Patch(
        pull=1669,
        about="rejected drafts are taken out of recurrent states; before, only out of the cells",
        fits=(),
        **switching("d2da6da05", restores_recurrent=True),
    ),
    Patch(
        pull=1673,
        about="a decode starts without an earlier client's stop flag; before, a late one ended it",
        fits=(),
        **switching("d2da6da05", stop_flag_stays=False),
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
"""Pull requests at ikawrakow/ik_llama.cpp."""


FAMILY: Final[Family[Rules, Options]] = Family(
    name="ik_llama.cpp",
    about="llama.cpp's fork: tolerant matching, checkpoints during generation, MTP drafts",
    repository="ikawrakow/ik_llama.cpp",
    vocabulary="ik",
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    configuration=f"{__package__}.fields",
    engine=f"{__package__}.server:IkLlama",
    releases=RELEASES,
    patches=PATCHES,
    options=Options,
    fields=FIELDS,
    kin=("llama.cpp",),
    loads={
        **dict.fromkeys(("dense", "recall-dense"), ""),
        **dict.fromkeys(("swa", "recall-swa"), "with six layers"),
        **dict.fromkeys(
            ("hybrid-delta", "hybrid-mtp", "recall-hybrid-delta", "recall-hybrid-mtp"),
            "with states of 64 or 128",
        ),
    },
)
