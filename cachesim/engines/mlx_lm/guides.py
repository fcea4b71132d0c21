"""Draws of a guided search for mlx-lm's server and for those built on it."""

from typing import Any, Final

from cachesim.engines.guide import Guide, Images
from cachesim.engines.mlx_lm import rules
from cachesim.engines.mlx_lm.options import MlxOptions

FLAGS: Final[dict[str, tuple[Any, ...]]] = {
    "prompt_cache_bytes": (0, 2_000, 8_000, 30_000, 100_000),
    "kv_bits": (4, 8),
    "draft_model": ("self",),
}
"""Small limits in bytes; and flags with which no request is batched."""


def guide(own: rules.ServerRules, flags: MlxOptions) -> Guide:
    """The guide of a server with these rules and flags."""
    fields: tuple[dict[str, Any], ...] = ({"seed": 0}, {"tools": ("a tool",)})
    if isinstance(own.memory, rules.WholeRules):
        fields = ({"stream": True}, {"stream": True}, {"seed": 0})
    return Guide(
        sizes=_sizes(own),
        images=_images(own, flags),
        fields=fields,
        stop_words="stop_words",
        templates=("strip-reasoning",),
        flags=FLAGS,
    )


def _sizes(own: rules.ServerRules) -> tuple[int, ...]:
    found: set[int] = set()
    if own.snapshots is not None:
        found |= {own.snapshots.interval}
    if own.memory is not None:
        found |= {own.memory.least}
    if isinstance(own.grid, rules.SessionRules):
        found |= {own.grid.before_end}
    elif own.grid is not None:
        context = own.grid.max_kv_size if isinstance(own.grid, rules.DiskRules) else None
        found |= {own.grid.interval, own.grid.before_end, context or 0}
    return tuple(sorted(each for each in found if each > 1))


def _images(own: rules.ServerRules, flags: MlxOptions) -> Images:
    if isinstance(own.memory, rules.WholeRules):
        return "all"
    others = (own.snapshots, own.grid, own.memory, flags.draft_model)
    reads = own.reads_images and all(each is None for each in others)
    return "some" if reads or isinstance(own.memory, rules.MllmRules) else "none"
