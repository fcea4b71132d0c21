"""The paged cache: one allocator per kind of layer over a pool of sectors.

A sector is as large as the least common multiple of the allocators' blocks:

    layers      full, window, window, window
    sector      | full block | full block | full block |       or | one block of three windows |

Full attention shares its blocks, windows have rings:

    page        keys and values of `page_size` tokens of one layer
    block       a page for each layer of one kind
    hash        8 bytes of BLAKE2b over the hash of the block before it and the block's tokens
    sectors     | 2             | 3             | 4             |   0 and 1 are never given away
    blocks      | 4   5   (full)| 3   (window)  |     free      |   numbered through the memory
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, lcm
from typing import Final

from cachesim.engines.events import Event
from cachesim.engines.transformers import vocabulary
from cachesim.engines.transformers.requests import RequestState, Status
from cachesim.units import Count

RESERVED: Final = 2
"""Sectors at the beginning, for padding."""


class RegularTrees:
    """Free blocks by sector; sectors are taken in the order of their first free block."""

    def __init__(self, per_tree: int) -> None:
        self.per_tree = per_tree
        self.trees: dict[int, list[int]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add_tree(self, root: int) -> None:
        """Add a sector, all of whose blocks are free; the lowest is taken first."""
        size = self.per_tree
        self.trees[root] = list(range((root + 1) * size - 1, root * size - 1, -1))
        self._length += size

    def add_leaves(self, leaves: Iterable[int]) -> None:
        """Free blocks; of a sector, the block freed last is taken first."""
        for leaf in leaves:
            self.trees.setdefault(leaf // self.per_tree, []).append(leaf)
            self._length += 1

    def pop_leaves(self, count: int) -> list[int]:
        """Take blocks: whole sectors first to last, of the last one its newest. As upstream, a
        sector that is taken whole comes from its oldest block on.
        """
        self._length -= count
        leaves: list[int] = []
        for root, tree in list(self.trees.items()):
            if not count:
                break
            if len(tree) <= count:
                del self.trees[root]
                taken = tree
            else:
                self.trees[root], taken = tree[:-count], tree[-count:]
            leaves.extend(taken)
            count -= len(taken)
        return leaves

    def delete_full_trees(self) -> list[int]:
        """Free the sectors without a block in use."""
        full = [root for root, tree in self.trees.items() if len(tree) == self.per_tree]
        for root in full:
            del self.trees[root]
        self._length -= len(full) * self.per_tree
        return full


class CachePool:
    """Free sectors, and the free blocks of each allocator."""

    def __init__(self, num_sectors: int, blocks_per_sector: Sequence[int]) -> None:
        self.num_sectors = num_sectors
        self.free_sectors = list(range(RESERVED, RESERVED + num_sectors))
        self.free = [RegularTrees(blocks) for blocks in blocks_per_sector]

    def allocate_sector(self, index: int) -> None:
        """Assign the last free sector to an allocator."""
        self.free[index].add_tree(self.free_sectors.pop())

    def try_to_free_sectors(self) -> None:
        """Take back the sectors without a block in use."""
        for free in self.free:
            self.free_sectors.extend(free.delete_full_trees())


Emit = Callable[[Event], None]


def compute_block_hash(parent: int | None, tokens: Sequence[int]) -> int:
    """The hash of a block. Follows `compute_block_hash`."""
    digest = hashlib.blake2b(digest_size=8)
    if parent is not None:
        digest.update(parent.to_bytes(8, "little"))
    try:
        packed = array("i", tokens)
    except OverflowError:  # tokens of a trace are numbered beyond 32 bits
        packed = array("q", tokens)
    digest.update(packed.tobytes())
    return int.from_bytes(digest.digest(), "little")


@dataclass(slots=True)
class BlockLedger:
    """References and hashes of blocks (`BlockLedger`).

    A block without an entry is free, or belongs to one request.
    """

    shared: dict[int, int] = field(default_factory=dict)  # references of a block, from two on
    hash_to_block: dict[int, int] = field(default_factory=dict)
    block_to_hash: dict[int, int] = field(default_factory=dict)
    cached: dict[int, None] = field(default_factory=dict)  # hashed blocks without a reference
    origins: dict[int, tuple[int, int | None]] = field(default_factory=dict)  # start, parent's hash
    lost: set[int] = field(default_factory=set)  # hashes that were given up; for causes only

    def acquire(self, block: int) -> None:
        """Add a reference."""
        # Nobody else has it: it leaves the evictable blocks, and is counted from two references on.
        if block in self.cached:
            del self.cached[block]
        else:
            self.shared[block] = self.shared.get(block, 1) + 1

    def release(self, block: int, *, no_cache: bool = False) -> bool:
        """Remove a reference; True if the block is free. Follows `release`."""
        left = self.shared.pop(block, 1) - 1
        if left > 1:
            self.shared[block] = left
        if left > 0:
            return False
        if block in self.block_to_hash:
            # It keeps its hash, so a later prompt can still match it.
            if not no_cache:
                self.cached[block] = None
                return False
            self._forget(block)
        return True

    def _forget(self, block: int) -> None:
        given_up = self.block_to_hash.pop(block)
        del self.origins[block]
        del self.hash_to_block[given_up]
        self.lost.add(given_up)

    def register_new_hash(
        self, block: int, number: int, origin: tuple[int, int | None]
    ) -> int | None:
        """Register a hash; the block that has it already, if there is one."""
        known = self.hash_to_block.get(number)
        if known is None:
            self.hash_to_block[number] = block
            self.block_to_hash[block] = number
            self.origins[block] = origin
            self.lost.discard(number)
        return known

    def evict_cached_blocks(self) -> list[int]:
        """Evict every hashed block without a reference."""
        evicted = list(self.cached)
        self.cached.clear()
        for block in evicted:
            self._forget(block)
        return evicted


@dataclass(slots=True, kw_only=True, eq=False)
class CacheAllocator:
    """Blocks of the layers of one kind (`FullAttentionCacheAllocator`)."""

    index: int
    page: int
    bytes_per_block: int
    blocks_per_sector: int
    use_block_sharing: bool
    window: int = 0  # 0: full attention
    pool: CachePool
    emit: Emit
    tables: dict[int, list[int]] = field(default_factory=dict)  # blocks by request
    ledger: BlockLedger = field(default_factory=BlockLedger)

    @property
    def num_free(self) -> int:
        """Free blocks in the allocator's sectors."""
        return len(self.pool.free[self.index])

    # -- room --------------------------------------------------------------------------------------

    def needs_new_blocks(self, request: int, past: int, query: int) -> int:
        """Blocks that a request lacks; a window's ring needs none beyond its size."""
        total = past + query
        # A window's ring is written over, so it never grows beyond the window.
        if self.window:
            total = min(total, self.window)
        return max(0, -(-total // self.page) - len(self.tables.get(request, ())))

    def needs_new_sectors(self, request: int, past: int, query: int) -> int:
        """Sectors that a request lacks."""
        # Blocks of sectors that the allocator has already are used first.
        missing = self.needs_new_blocks(request, past, query) - self.num_free
        return max(0, -(-missing // self.blocks_per_sector))

    def allocate_cache_to_request(self, request: int, past: int, query: int) -> None:
        """Take the blocks that a request lacks."""
        needed = self.needs_new_blocks(request, past, query)
        taken = self.pool.free[self.index].pop_leaves(needed)
        self.tables.setdefault(request, []).extend(taken)

    def free_blocks(self, request: int, *, no_cache: bool = False) -> None:
        """Release a request's blocks; hashed ones stay cached unless `no_cache`."""
        table = self.tables.pop(request, [])
        freed = [block for block in table if self.ledger.release(block, no_cache=no_cache)]
        self.pool.free[self.index].add_leaves(freed)

    # -- sharing -----------------------------------------------------------------------------------

    # prompt    | page 0 | page 1 | page 2 |x|      the last token is never matched, so that a
    # matched     hash 0 , hash 1 , (none)          prompt of whole pages leaves its last page

    def match_prefix_blocks(self, prompt: Sequence[int]) -> list[int]:
        """The blocks of the longest hashed prefix. Follows `match_prefix_blocks`."""
        matched: list[int] = []
        for page_hash in self.hashes(prompt):
            block = self.ledger.hash_to_block.get(page_hash)
            if block is None:
                break
            matched.append(block)
        return matched

    def hashes(self, prompt: Sequence[int]) -> list[int]:
        """The hashes of the whole pages that a prompt may match."""
        hashes: list[int] = []
        number = None
        # Below the last token, which is computed in any case.
        for start in range(0, (len(prompt) - 1) // self.page * self.page, self.page):
            number = compute_block_hash(number, prompt[start : start + self.page])
            hashes.append(number)
        return hashes

    def acquire_prefix_blocks(self, request: int, length: int, blocks: list[int]) -> None:
        """Begin a request's table with matched blocks."""
        table = self.tables[request] = blocks[: length // self.page]
        for block in table:
            self.ledger.acquire(block)

    def mark_complete_blocks(self, request: int, tokens: Sequence[int], count: int) -> None:
        """Register the hashes of `count` blocks that the last batch filled.

        A block whose hash exists is freed, and the request continues with the other one. Follows
        `mark_complete_blocks`.
        """
        table = self.tables[request]
        parent: int | None = None
        hashed: list[int] = []
        ends: list[int] = []
        for at, block in enumerate(table):
            number = self.ledger.block_to_hash.get(block)
            if number is None:
                own = tokens[at * self.page : (at + 1) * self.page]
                # Only what the last batch filled: later blocks are not written yet.
                if not count or len(own) < self.page:
                    break
                number = compute_block_hash(parent, own)
                count -= 1
                end = (at + 1) * self.page
                origin = (at * self.page, parent)
                other = self.ledger.register_new_hash(block, number, origin)
                if other is None:
                    hashed.append(block)
                    ends.append(end)
                else:
                    # Two requests computed the same tokens: one block stays, unlike in vLLM, which
                    # keeps both.
                    self.ledger.acquire(other)
                    table[at] = other
                    if self.ledger.release(block):
                        self.pool.free[self.index].add_leaves([block])
                    self.emit(
                        vocabulary.BlockMerged(task=request, block=block, other=other, end=end)
                    )
            parent = number
        if hashed:
            self.emit(vocabulary.BlocksHashed(task=request, blocks=tuple(hashed), ends=tuple(ends)))

    def evict_cached_blocks(self) -> bool:
        """Evict all hashed blocks without a reference; True if there were any."""
        evicted = self.ledger.evict_cached_blocks()
        if evicted:
            self.pool.free[self.index].add_leaves(evicted)
            tokens = Count(len(evicted) * self.page)
            self.emit(vocabulary.BlocksEvicted(blocks=len(evicted), tokens=tokens))
        return bool(evicted)


FULL: Final = "attention"
WINDOW: Final = "window"
ALIGNMENT: Final = 128
"""Bytes to which sectors are aligned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Layers and sizes of a cache."""

    layers: tuple[str, ...]
    window: int
    token_bytes: int  # keys and values of a token in one layer
    page: int
    num_blocks: int
    sharing: bool


class PagedAttentionCache:
    """Room, matches and evictions over all allocators (`PagedAttentionCache`)."""

    def __init__(self, geometry: Geometry, emit: Emit) -> None:
        """Follows `PagedAttentionCache.__init__` for a given number of blocks."""
        page_bytes = geometry.token_bytes * geometry.page
        kinds = dict.fromkeys(geometry.layers)
        sizes = {kind: geometry.layers.count(kind) * page_bytes for kind in kinds}
        self.bytes_per_sector = lcm(*sizes.values(), ALIGNMENT)
        wanted = geometry.num_blocks * len(geometry.layers) * page_bytes
        per_sector = {kind: self.bytes_per_sector // size for kind, size in sizes.items()}
        self.pool = CachePool(
            max(1, ceil(wanted / self.bytes_per_sector)), list(per_sector.values())
        )
        self.allocators: dict[str, CacheAllocator] = {
            kind: CacheAllocator(
                index=index,
                page=geometry.page,
                bytes_per_block=sizes[kind],
                blocks_per_sector=per_sector[kind],
                use_block_sharing=geometry.sharing and kind == FULL,
                window=geometry.window if kind == WINDOW else 0,
                pool=self.pool,
                emit=emit,
            )
            for index, kind in enumerate(kinds)
        }
        # One ring among the allocators turns matches off: what left a window cannot be shared.
        self.use_prefix_sharing = all(
            allocator.use_block_sharing for allocator in self.allocators.values()
        )
        self.read_cache_limit = geometry.window if list(kinds) == [WINDOW] else None
        self.max_tokens_read = max(
            geometry.page * per_sector[kind] * self.pool.num_sectors for kind in kinds
        )

    def can_store_request_tokens(self, state: RequestState, query: int) -> bool:
        """Take room for a request's next tokens, if there is enough.

        Follows `can_store_request_tokens`.
        """
        past, each_one = state.position_offset, self.allocators.values()
        needed = [allocator.needs_new_sectors(state.id, past, query) for allocator in each_one]
        # Counted over all allocators first, so that a refused request takes nothing.
        if len(self.pool.free_sectors) < sum(needed):
            return False
        for allocator, count in zip(each_one, needed, strict=True):
            for _ in range(count):
                self.pool.allocate_sector(allocator.index)
        for allocator in each_one:
            allocator.allocate_cache_to_request(state.id, past, query)
        return True

    def count_storable_requests(self, wanted: Sequence[Mapping[str, int]]) -> int:
        """Number of requests, in order, that would find their blocks.

        Follows `count_storable_requests`.
        """
        sectors = len(self.pool.free_sectors)
        blocks = {name: allocator.num_free for name, allocator in self.allocators.items()}
        for number, needed in enumerate(wanted):
            for name, allocator in self.allocators.items():
                missing = needed[name] - blocks[name]
                if missing > 0:
                    new = ceil(missing / allocator.blocks_per_sector)
                    if new > sectors:
                        return number
                    sectors -= new
                    blocks[name] += new * allocator.blocks_per_sector
                blocks[name] -= needed[name]
        return len(wanted)

    def free_blocks(self, request: int, *, no_cache: bool = False) -> None:
        """Release a request's blocks in every allocator."""
        for allocator in self.allocators.values():
            allocator.free_blocks(request, no_cache=no_cache)

    def search_prefix_match(self, request: int, prompt: Sequence[int]) -> int:
        """Begin a request with the longest hashed prefix; return its tokens.

        Follows `search_prefix_match`; where blocks are shared there is one allocator.
        """
        [full] = self.allocators.values()
        blocks = full.match_prefix_blocks(prompt)
        length = len(blocks) * full.page
        if length:
            full.acquire_prefix_blocks(request, length, blocks)
        return length

    def count_new_complete_blocks(self, state: RequestState, query: int) -> int:
        """Blocks that the next tokens of a request fill."""
        if not self.use_prefix_sharing:
            return 0
        [full] = self.allocators.values()
        return (state.position_offset % full.page + query) // full.page

    def mark_complete_blocks(self, state: RequestState, count: int) -> None:
        """Register the blocks that a batch filled."""
        # Trap: the last batch of a finished request leaves no hash.
        if count and state.status != Status.FINISHED:
            self.register(state, count)

    def register(self, state: RequestState, count: int) -> None:
        """Register filled blocks, whatever the status."""
        [full] = self.allocators.values()
        full.mark_complete_blocks(state.id, state.initial + state.generated, count)

    def evict_cached_blocks(self) -> bool:
        """Evict all hashed blocks without a reference; True if there were any."""
        evicted = [allocator.evict_cached_blocks() for allocator in self.allocators.values()]
        return any(evicted)

    def compute_free_capacity(self) -> float:
        """The free share of the memory."""
        free = len(self.pool.free_sectors) * self.bytes_per_sector
        for allocator in self.allocators.values():
            free += allocator.num_free * allocator.bytes_per_block
        return free / (self.pool.num_sectors * self.bytes_per_sector)
