"""Releases of LM Studio's mlx-engine, and what differs between its servers, as patches."""

from typing import Final

from cachesim.engines.family import Patch, Release, laying
from cachesim.engines.lm_studio.rules import DiskRules, SessionRules
from cachesim.engines.mlx_lm.releases import patches_below, serving
from cachesim.engines.mlx_lm.rules import MlxRules

BENEATH: Final = "0.31.3"
"""The release of mlx-lm whose caches it uses."""

NAMES: Final = ("before-352", "after-352")

RELEASES: Final = (
    Release(
        name="before-352",
        about="until July 2026: a state after each reply",
        rules=serving(
            BENEATH,
            prefix_cache=SessionRules(before_end=0, counts_by_offset=False, asks_again=False),
        ),
        upstream="main before #352",
    ),
    Release(
        name="after-352",
        about="since July 2026: one prompt in memory, and chunks on disk; one request at once",
        rules=serving(BENEATH, prefix_cache=DiskRules()),
        upstream="main after #352",
    ),
)

OWN: Final[tuple[Patch[MlxRules], ...]] = (
    Patch(
        name="one-request",
        server=True,
        about="the kit for one request saves a state before a prompt's end, too",
        fits=NAMES,
        lay=laying(server={"prefix_cache": SessionRules()}),
    ),
    Patch(
        name="context-4096",
        server=True,
        about="what is on disk is limited to the bytes of a context of 4,096",
        fits=("after-352",),
        lay=laying(server={"prefix_cache": DiskRules(max_kv_size=4096)}),
    ),
)

PATCHES: Final = (*OWN, *patches_below(BENEATH, NAMES))
"""Its own, and those of mlx-lm's caches below it."""
