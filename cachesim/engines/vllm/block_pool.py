"""The pool of blocks that all groups share.

A block is its number. Block 0 is the null block: a placeholder in block tables, never allocated or
freed. Free blocks are in a queue; the allocation of a block from its head removes the block's ids,
which is the only eviction.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from cachesim.engines.vllm.rules import PoolRules
from cachesim.errors import UpstreamAbort

GroupKind: TypeAlias = Literal["full", "window", "chunked", "ring", "mamba"]
StateMode: TypeAlias = Literal["align", "all", "none"]

FINE: frozenset[GroupKind] = frozenset({"full", "mamba"})
"""Groups that support lookups at hash boundaries inside a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """Layers that share one block table."""

    kind: GroupKind
    block: int
    window: int = 0  # tokens that a token attends to, itself included; of `full`, in some layers
    chunk: int = 0  # attention_chunk_size, likewise
    mode: StateMode = "align"
    speculative_blocks: int = 0
    checkpoint_alignment: int = 0  # of states exported inside a prefill chunk; 0: none are
    eagle: bool = False  # marked as a drafter's group
    layers: tuple[int, ...] = ()  # layers of the model

    @property
    def shape(self) -> tuple[object, ...]:
        """The fields that equal specs share; `eagle` is not among them."""
        memory = (self.mode, self.speculative_blocks, self.checkpoint_alignment)
        return (self.kind, self.block, self.window, self.chunk, *memory)


def cacheable(groups: Sequence[GroupSpec]) -> list[GroupSpec]:
    """The groups that hits need: all but rings. Follows `prefix_cacheable`."""
    return [group for group in groups if group.kind != "ring"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Block arithmetic of all groups."""

    scheduler_block: int
    hash_block: int

    @classmethod
    def of(
        cls, groups: Sequence[GroupSpec], unit: int | None = None, *, by_size: bool = False
    ) -> "Sizes":
        """Follows `resolve_kv_cache_block_sizes`; `unit`: `prefix_match_unit`."""
        groups = cacheable(groups)
        # With one group nothing has to agree: its block is the grain, and the option has no effect.
        if len(groups) == 1:
            return cls(scheduler_block=groups[0].block, hash_block=groups[0].block)
        blocks = [group.block for group in groups]
        # A hit ends at whole blocks of every group, so at a multiple of all of them.
        lcm = math.lcm(*blocks)
        least = min(blocks) if by_size else 0
        # In mode `all` the kernel writes one state for each block that it passes, none inside a
        # block.
        # So an id covers as much as a hit, whatever the option says; until 0.27 only where their
        # blocks are not the smallest ones.
        if any(group.mode == "all" and group.block != least for group in groups):
            return cls(scheduler_block=lcm, hash_block=lcm)
        # The gcd: each group's block then ends at an id.
        return cls(scheduler_block=lcm, hash_block=unit or math.gcd(*blocks))


def cdiv(number: int, by: int) -> int:
    """Divide, rounding up."""
    return -(-number // by)


def kv_cache_groups(layers: Sequence[GroupSpec]) -> tuple[GroupSpec, ...]:
    """Groups with equal numbers of layers, from the spec of every layer.

    layers   s0 s1 a2 s3 s4 a5, a attention, s states   ->   groups (s0 s3) (s1 s4) (a2 a5)

    Follows `_get_kv_cache_groups_uniform_page_size`: the size of a group is the number of layers of
    the smallest spec, or of the largest if that is below 1.5 times the smallest.
    """
    layers_of: dict[GroupSpec, list[int]] = {}
    for layer, spec in enumerate(layers):
        layers_of.setdefault(spec, []).append(layer)
    # Groups of one size, since all draw equal pages. Where the larger number pads only a few
    # layers, it saves a group.
    counts = [len(alike) for alike in layers_of.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    return tuple(
        replace(spec, layers=tuple(alike[start :: cdiv(len(alike), size)]))
        for spec, alike in layers_of.items()
        for start in range(cdiv(len(alike), size))
    )


NULL: Final = 0


class BlockPool:
    """References, ids and the free queue. Follows `BlockPool` and `FreeKVCacheBlockQueue`.

    A key is the id of a prefix and a group in one number: `id * groups + group`.
    """

    __slots__ = (
        "cached", "enable_caching", "free", "groups", "hash_block", "hash_lookahead", "key",
        "key_tokens", "more_keys", "on_evict", "ref", "rules", "size",
    )  # fmt: skip

    def __init__(
        self,
        size: int,
        *,
        groups: int,
        hash_block: int,
        rules: PoolRules,
        enable_caching: bool = True,
        hash_lookahead: int = 0,
    ) -> None:
        self.size = size
        self.groups = groups
        self.hash_block = hash_block
        self.hash_lookahead = hash_lookahead
        self.rules = rules
        self.enable_caching = enable_caching
        self.ref = [0] * size
        self.key: list[int | None] = [None] * size
        self.key_tokens = [0] * size
        self.more_keys: dict[int, list[int]] = {}
        self.cached: dict[int, int | dict[int, None]] = {}
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, size))
        self.on_evict: Callable[[int, int], None] | None = None

    # -- block map ------------------------------------------------------------------------------

    def block_of(self, key: int) -> int | None:
        """The first block cached under a key."""
        blocks = self.cached.get(key)
        # Trap: two requests that compute the same block keep two blocks under one id; the first one
        # is hit, the other is only memory.
        if blocks is None or type(blocks) is int:
            return blocks
        return next(iter(blocks))  # type: ignore[arg-type]

    def get_cached_block(self, number: int, group_ids: Sequence[int]) -> list[int] | None:
        """The blocks of a prefix, one per group, or None if a group misses."""
        blocks = []
        for group in group_ids:
            block = self.block_of(number * self.groups + group)
            if block is None:
                return None
            blocks.append(block)
        return blocks

    def holds(self, key: int, block: int) -> bool:
        """True if a block is cached under the key."""
        blocks = self.cached.get(key)
        return blocks == block if type(blocks) is int else blocks is not None and block in blocks  # type: ignore[operator]

    def insert(self, key: int, block: int, num_tokens: int) -> None:
        """Cache a block under a key, in addition to its other keys."""
        if self.key[block] == key or self.holds(key, block):
            return
        # A second id, of a partial block: the prompt's tail at a hash boundary inside it.
        if self.key[block] is None:
            self.key[block] = key
            self.key_tokens[block] = num_tokens
        else:
            self.more_keys.setdefault(block, []).append(key)
        blocks = self.cached.get(key)
        # One block is by far the usual case, and an int is smaller than a dict.
        if blocks is None:
            self.cached[key] = block
        elif type(blocks) is int:
            self.cached[key] = {blocks: None, block: None}
        else:
            blocks[block] = None  # type: ignore[index]

    def remove_keys(self, block: int) -> list[int]:
        """Remove and return all keys of a block."""
        key = self.key[block]
        keys = [] if key is None else [key]
        if self.more_keys:
            keys += self.more_keys.pop(block, ())
        for removed in keys:
            blocks = self.cached.get(removed)
            if type(blocks) is int:
                if blocks == block:
                    del self.cached[removed]
            elif blocks is not None:
                blocks.pop(block, None)  # type: ignore[union-attr]
                if not blocks:
                    del self.cached[removed]
        self.key[block] = None
        return keys

    def move_keys(self, source: int, target: int) -> None:
        """Move a block's keys to a copy of it; the owner continues to write the block."""
        # The owner overwrites its block with the next token's state: its ids stay with the old
        # content.
        tokens = self.key_tokens[source]
        for key in self.remove_keys(source):
            self.insert(key, target, tokens)

    def cache_full_blocks(
        self,
        hashes: Sequence[int],
        blocks: Sequence[int],
        span: range,
        *,
        block_size: int,
        group: int,
        mask: Sequence[bool] | None,
    ) -> list[int]:
        """Set the ids of a range of a table's blocks, except null and masked ones.

        `hashes` are in the group's own block size. Returns the blocks with a new id.
        """
        groups, keys, cached = self.groups, self.key, self.cached
        done = []
        start = span.start
        for i in span:
            block = blocks[i]
            # Null: a window has left it, or no state was saved there. Masked: no hit can end at it,
            # and without an id the block is taken again before any cached one.
            if block == NULL or (mask is not None and not mask[i - start]):
                continue
            key = hashes[i] * groups + group
            if keys[block] is None and key not in cached:  # the common case, inlined
                keys[block] = key
                self.key_tokens[block] = (i + 1) * block_size
                cached[key] = block
            else:
                if keys[block] is not None:
                    self.remove_keys(block)  # a partial block that is full now
                self.insert(key, block, (i + 1) * block_size)
            done.append(block)
        return done

    def cache_partial_block(
        self, hashes: Sequence[int], block: int, tokens: int, group: int, *, replaces: bool = False
    ) -> bool:
        """Cache a partial block under the id of a hash boundary; False for the null block.

        `replaces`: with other content, the block loses its ids.
        """
        if block == NULL:
            return False
        # The id may need tokens after the boundary (a drafter's look-ahead), which are not known
        # yet.
        if tokens // self.hash_block > len(hashes):
            where = "BlockPool._get_partial_block_hash"
            raise UpstreamAbort(where, "num_hash_blocks <= len(request.block_hashes)")
        if replaces:
            self.remove_keys(block)
        key = hashes[tokens // self.hash_block - 1] * self.groups + group
        # Further tokens are written into the same block: its id of fewer tokens is no longer true.
        already = self.key[block] == key or self.holds(key, block)
        if not already and self.key[block] is not None and self.key_tokens[block] < tokens:
            self.remove_keys(block)
        self.insert(key, block, tokens)
        return True

    # -- allocation ------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Number of free blocks, cached ones included."""
        return len(self.free)

    def get_new_blocks(self, count: int) -> list[int]:
        """Allocate blocks from the head of the queue; cached ones are evicted."""
        free, key, ref = self.free, self.key, self.ref
        if count > len(free):
            where, why = "get_new_blocks", f"Cannot get {count} free blocks from the pool"
            raise UpstreamAbort(where, why)
        taken = []
        for _ in range(count):
            # The only eviction there is: a free block keeps its id, and can be hit, until it is
            # taken.
            block = free.popitem(last=False)[0]
            if key[block] is not None:
                self.evict(block)
            ref[block] = 1
            taken.append(block)
        return taken

    def evict(self, block: int) -> None:
        """Remove a block's ids, and call `on_evict`."""
        key = self.key[block]
        if key is not None:
            if self.cached.get(key) == block and block not in self.more_keys:  # the common case
                del self.cached[key]
                self.key[block] = None
            else:
                self.remove_keys(block)
            if self.on_evict is not None:
                self.on_evict(block, key)

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a reference to blocks; a free one leaves the queue."""
        ref, free = self.ref, self.free
        for block in blocks:
            if block != NULL:
                # Free and cached: taken out of the middle of the queue, so a hit renews its turn.
                if ref[block] == 0:
                    del free[block]
                ref[block] += 1

    def free_blocks(self, ordered: Iterable[int], *, of_window: bool = False) -> None:
        """Release a reference to each block; the first block is evicted first."""
        ref, free, key = self.ref, self.free, self.key
        rule = self.rules.unhashed_first
        plain = self.rules.appends_uncached and not self.enable_caching
        # Until 0.22 a block without an id waits as long as a cached one, and small pools evict
        # cached blocks although empty ones are free.
        if plain or rule == "never" or (rule == "windows" and not of_window):
            for block in ordered:
                if block != NULL:
                    ref[block] -= 1
                    if ref[block] == 0:
                        free[block] = None
            return
        # Blocks without an id help no later request: to the head, so that they are taken before any
        # cached one.
        first = []
        for block in ordered:
            if block == NULL:
                continue
            ref[block] -= 1
            if ref[block] == 0:
                if key[block] is None or not self.enable_caching:
                    first.append(block)
                else:
                    free[block] = None
        # Each is put before the last one, so in reverse they keep their order.
        for block in reversed(first):
            free[block] = None
            free.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Remove all ids; False while any block is in use."""
        # A running request would lose ids that it counts on; upstream refuses, too.
        if len(self.free) != self.size - 1:
            return False
        self.cached.clear()
        self.more_keys.clear()
        self.key = [None] * self.size
        return True
