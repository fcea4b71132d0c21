"""Releases of oMLX, and what differs between its servers, as patches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from cachesim.engines.family import Patch, Release
from cachesim.engines.mlx_lm.releases import patches_below, serving
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.omlx.rules import BlockRules
from cachesim.typed import of_kind

BENEATH: Final = "0.31.3"
"""The release of mlx-lm whose caches it uses."""

NAMES: Final = ("2026-09",)


def _blocks(**changes: Any) -> Callable[[MlxRules], MlxRules]:
    """A patch of the positions at which states are kept."""

    def lay(rules: MlxRules) -> MlxRules:
        blocks = replace(of_kind(BlockRules, rules.server.prefix_cache), **changes)
        return replace(rules, server=replace(rules.server, prefix_cache=blocks))

    return lay


SEPTEMBER: Final = BlockRules(interval=2048, fewest_arrays=2)

RELEASES: Final = (
    Release(
        name="2026-09",
        about="September 2026: blocks of 2,048, and no state of one array",
        rules=serving(BENEATH, prefix_cache=SEPTEMBER),
        upstream="main of September 2026",
    ),
)

OWN: Final[tuple[Patch[MlxRules], ...]] = (
    Patch(
        name="2762",
        server=True,
        pull=2762,
        about="a state of one array is stored",
        fits=NAMES,
        lay=_blocks(fewest_arrays=1),
    ),
    Patch(
        name="blocks-4096",
        server=True,
        about="blocks of 4,096, as on 64 GB and more",
        fits=NAMES,
        lay=_blocks(interval=4096),
    ),
    Patch(
        name="no-boundaries",
        server=True,
        about="no states at the ends of blocks, as in omlx#3699",
        fits=NAMES,
        lay=_blocks(captures=False),
    ),
)

PATCHES: Final = (*OWN, *patches_below(BENEATH, NAMES))
"""Its own, and those of mlx-lm's caches below it."""
