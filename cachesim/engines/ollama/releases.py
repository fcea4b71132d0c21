"""Releases of Ollama's MLX runner, and what differs between its servers, as patches."""

from typing import Final

from cachesim.engines.family import Patch, Release, laying
from cachesim.engines.mlx_lm.releases import patches_below, serving
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.ollama.rules import RunnerRules

BENEATH: Final = "0.32.2"
"""The release of mlx-lm whose caches it uses."""

NAMES: Final = ("0.32.5", "0.33.0")


RELEASES: Final = (
    Release(
        name="0.32.5",
        about="appends overwrite kept keys (ollama#16860)",
        rules=serving(BENEATH, prefix_cache=RunnerRules(lazy=True)),
        upstream="v0.32.5",
    ),
    Release(
        name="0.33.0",
        about="what an append overwrites is copied (144893850)",
        rules=serving(BENEATH, prefix_cache=RunnerRules()),
        upstream="v0.33.0",
    ),
)

OWN: Final[tuple[Patch[MlxRules], ...]] = (
    Patch(
        name="drafter",
        server=True,
        about="a model with a drafter, which reads one token ahead",
        fits=("0.33.0",),
        lay=laying(server={"prefix_cache": RunnerRules(lookahead=1)}),
    ),
)

PATCHES: Final = (*OWN, *patches_below(BENEATH, NAMES))
"""Its own, and those of mlx-lm's caches below it."""
