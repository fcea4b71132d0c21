"""A tree with its pools, for one kind of model at one release."""

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from cachesim.engines.sglang.hi_radix import HiRadixCache
from cachesim.engines.sglang.pools import StatePool, Storage, TokenPool, WindowPool
from cachesim.engines.sglang.radix import MambaRadixCache, RadixCache, SWARadixCache
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.tree import Shape, Tree
from cachesim.engines.sglang.unified import UnifiedRadixCache

Kind: TypeAlias = Literal["full", "window", "mamba", "window-mamba"]

CHUNK: Final = 64
"""`FLA_CHUNK_SIZE`: tokens of a linear-attention kernel's chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of slots."""

    tokens: int
    window_tokens: int = 0
    states: int = 0


def grid_of(page: int) -> int:
    """The grid of saved states: a multiple of the kernel's chunk and of the page."""
    return math.lcm(max(CHUNK, page), page)


def make_tree(
    kind: Kind, shape: Shape, sizes: Sizes, rules: Rules, storage: Storage | None
) -> Tree:
    """The tree for a kind of model; it may be given a storage that outlived an earlier tree."""
    pool: TokenPool = TokenPool(sizes.tokens, shape.page)
    if kind in {"window", "window-mamba"}:
        pool = WindowPool(sizes.tokens, sizes.window_tokens, shape.page)
    states = StatePool(sizes.states) if kind in {"mamba", "window-mamba"} else None
    return _class_of(kind, shape, rules)(shape, rules, pool, states, storage)


def _class_of(kind: Kind, shape: Shape, rules: Rules) -> type[Tree]:
    """The class of the tree: the unified one, or in older releases one per kind of model."""
    if rules.tree.trees == "unified":
        return UnifiedRadixCache
    if shape.host is not None:
        return HiRadixCache
    return {"window": SWARadixCache, "mamba": MambaRadixCache}.get(kind, RadixCache)
