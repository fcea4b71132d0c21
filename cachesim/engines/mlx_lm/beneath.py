"""What a server takes from the release of mlx-lm that it is built on: rules, and patches of it."""

from dataclasses import replace
from typing import Any

from cachesim.engines.family import Patch
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.rules import MlxRules


def serving(release: str, **own: Any) -> MlxRules:
    """The rules of a release with those of another server's prefix cache."""
    rules = FAMILY.release(release).rules
    return replace(rules, server=replace(rules.server, **own))


def patches_below(release: str, names: tuple[str, ...]) -> tuple[Patch[MlxRules], ...]:
    """mlx-lm's patches of a release, as patches of the named ones that are built on it."""
    merged = FAMILY.names()[: FAMILY.names().index(release) + 1]
    return tuple(
        replace(
            each,
            fits=names if release in each.fits else (),
            landed=names[0] if each.landed in merged else "",
            back=each.back if each.landed in merged else None,
        )
        for each in FAMILY.patches
        if release in each.fits or each.landed in merged
    )
