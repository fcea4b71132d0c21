"""Releases of Ollama's MLX runner, and what differs between its servers, as patches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from cachesim.engines.family import Patch, Release
from cachesim.engines.mlx_lm.releases import patches_below, serving
from cachesim.engines.mlx_lm.rules import GridRules, MlxRules
from cachesim.typed import there_is

BENEATH: Final = "0.32.2"
"""The release of mlx-lm whose caches it uses."""

NAMES: Final = ("0.32.5", "0.33.0")


def _grid(**changes: Any) -> Callable[[MlxRules], MlxRules]:
    """A patch of the positions at which states are kept."""

    def lay(rules: MlxRules) -> MlxRules:
        grid = replace(there_is(rules.server.grid), **changes)
        return replace(rules, server=replace(rules.server, grid=grid))

    return lay


GRID: Final = GridRules(interval=8192, before_end=4, keeps_the_end=True)

RELEASES: Final = (
    Release(
        name="0.32.5",
        about="appends overwrite kept keys (ollama#16860)",
        rules=serving(BENEATH, grid=replace(GRID, lazy=True)),
        upstream="v0.32.5",
    ),
    Release(
        name="0.33.0",
        about="what an append overwrites is copied (144893850)",
        rules=serving(BENEATH, grid=GRID),
        upstream="v0.33.0",
    ),
)

OWN: Final[tuple[Patch[MlxRules], ...]] = (
    Patch(
        name="drafter",
        server=True,
        about="a model with a drafter, which reads one token ahead",
        fits=("0.33.0",),
        lay=_grid(lookahead=1),
    ),
)

PATCHES: Final = (*OWN, *patches_below(BENEATH, NAMES))
"""Its own, and those of mlx-lm's caches below it."""
