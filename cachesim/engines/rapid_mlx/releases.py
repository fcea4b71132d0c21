"""Releases of Rapid-MLX, and what differs between its servers, as patches."""

from typing import Final

from cachesim.engines.family import Patch, Release, laying
from cachesim.engines.mlx_lm.releases import patches_below, serving
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.rapid_mlx.rules import UNLISTED, RapidRules

BENEATH: Final = "0.31.3"
"""The release of mlx-lm whose caches it uses."""

NAMES: Final = ("0.12.5",)

RELEASES: Final = (
    Release(
        name="0.12.5",
        about="a hybrid that it lists: eight entries that cannot be cut",
        rules=serving(BENEATH, prefix_cache=RapidRules()),
        upstream="v0.12.5",
    ),
)

OWN: Final[tuple[Patch[MlxRules], ...]] = (
    Patch(
        name="unlisted",
        server=True,
        about="every other model: no entry that cannot be cut is stored",
        fits=NAMES,
        lay=laying(server={"prefix_cache": UNLISTED}),
    ),
)

PATCHES: Final = (*OWN, *patches_below(BENEATH, NAMES))
"""Its own, and those of mlx-lm's caches below it."""
