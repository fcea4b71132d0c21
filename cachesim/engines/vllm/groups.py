"""KV cache groups of layers, and the sizes that follow from all groups together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

GroupKind: TypeAlias = Literal["full", "window", "chunked", "mamba"]
StateMode: TypeAlias = Literal["align", "all", "none"]

FINE: frozenset[GroupKind] = frozenset({"full", "mamba"})
"""Groups that can be looked up at hash boundaries inside a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """Layers that share one block table."""

    kind: GroupKind
    block: int
    window: int = 0  # tokens that a token sees, itself included
    chunk: int = 0  # attention_chunk_size
    mode: StateMode = "align"
    speculative_blocks: int = 0
    eagle: bool = False  # carries the drafter's mark
    layers: tuple[int, ...] = ()  # of the model

    @property
    def shape(self) -> tuple[object, ...]:
        """Fields in which equal specs agree; the drafter's mark is none."""
        return (
            self.kind,
            self.block,
            self.window,
            self.chunk,
            self.mode,
            self.speculative_blocks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Block arithmetic of all groups."""

    scheduler_block: int
    hash_block: int

    @classmethod
    def of(cls, groups: Sequence[GroupSpec], unit: int | None = None) -> "Sizes":
        """Follows `resolve_kv_cache_block_sizes`: hits are multiples of the lcm of the blocks,
        ids are counted in `prefix_match_unit`, else in their gcd. A single group has one size.
        """
        if len(groups) == 1:
            return cls(scheduler_block=groups[0].block, hash_block=groups[0].block)
        blocks = [group.block for group in groups]
        return cls(scheduler_block=math.lcm(*blocks), hash_block=unit or math.gcd(*blocks))


def cdiv(number: int, by: int) -> int:
    """Divide, rounding up."""
    return -(-number // by)


def kv_cache_groups(layers: Sequence[GroupSpec]) -> tuple[GroupSpec, ...]:
    """Groups of as many layers each, made of the spec of every layer.

    layers   s0 s1 a2 s3 s4 a5, a attention, s states   ->   groups (s0 s3) (s1 s4) (a2 a5)

    Follows `_get_kv_cache_groups_uniform_page_size`: a group has as many layers as the spec with
    the fewest, or with the most where that is less than half as many again.
    """
    found: dict[GroupSpec, list[int]] = {}
    for layer, spec in enumerate(layers):
        found.setdefault(spec, []).append(layer)
    counts = [len(each) for each in found.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    return tuple(
        replace(spec, layers=tuple(each[start :: cdiv(len(each), size)]))
        for spec, each in found.items()
        for start in range(cdiv(len(each), size))
    )


def checkpoint_position(
    num_tokens: int, unit: int, *, drop_eagle_block: bool, hash_lookahead: int = 0
) -> int:
    """Position at which a prefill of so many tokens leaves a state that can be hit again.

    Follows `get_mamba_prefill_checkpoint_position`: the last token is left to compute, and those
    that the id covers; a drafter whose block is dropped resumes one unit lower.
    """
    limit = num_tokens if drop_eagle_block else num_tokens - max(1, hash_lookahead)
    position = limit // unit * unit - (unit if drop_eagle_block else 0)
    return max(position, 0)
