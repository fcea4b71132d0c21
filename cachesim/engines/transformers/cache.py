"""The paged cache: one allocator per kind of layer over a pool of sectors.

A sector is as large as the least common multiple of the allocators' blocks:

    layers      full, window, window, window
    sector      | full block | full block | full block |       or | one block of three windows |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, lcm
from typing import Final

from cachesim.engines.transformers.allocators import CacheAllocator, CachePool, Emit
from cachesim.engines.transformers.requests import RequestState, Status

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
        self.use_prefix_sharing = all(each.use_block_sharing for each in self.allocators.values())
        self.read_cache_limit = geometry.window if list(kinds) == [WINDOW] else None
        self.max_tokens_read = max(
            geometry.page * per_sector[kind] * self.pool.num_sectors for kind in kinds
        )

    def can_store_request_tokens(self, state: RequestState, query: int) -> bool:
        """Take room for a request's next tokens, if there is enough.

        Follows `can_store_request_tokens`.
        """
        past, each_one = state.position_offset, self.allocators.values()
        needed = [each.needs_new_sectors(state.id, past, query) for each in each_one]
        if len(self.pool.free_sectors) < sum(needed):
            return False
        for each, count in zip(each_one, needed, strict=True):
            for _ in range(count):
                self.pool.allocate_sector(each.index)
        for each in each_one:
            each.allocate_cache_to_request(state.id, past, query)
        return True

    def count_storable_requests(self, wanted: Sequence[Mapping[str, int]]) -> int:
        """Number of requests, in order, that would find their blocks.

        Follows `count_storable_requests`.
        """
        sectors = len(self.pool.free_sectors)
        blocks = {name: each.num_free for name, each in self.allocators.items()}
        for number, needed in enumerate(wanted):
            for name, each in self.allocators.items():
                missing = needed[name] - blocks[name]
                if missing > 0:
                    new = ceil(missing / each.blocks_per_sector)
                    if new > sectors:
                        return number
                    sectors -= new
                    blocks[name] += new * each.blocks_per_sector
                blocks[name] -= needed[name]
        return len(wanted)

    def free_blocks(self, request: int, *, no_cache: bool = False) -> None:
        """Release a request's blocks in every allocator."""
        for each in self.allocators.values():
            each.free_blocks(request, no_cache=no_cache)

    def search_prefix_match(self, request: int, prompt: Sequence[int]) -> int:
        """Begin a request with the longest prefix that is hashed; its tokens.

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
        """Register the blocks that a batch filled.

        Trap: a request that is finished registers none, so its last batch leaves no hash.
        """
        if count and state.status != Status.FINISHED:
            self.register(state, count)

    def register(self, state: RequestState, count: int) -> None:
        """Register filled blocks, whatever the status."""
        [full] = self.allocators.values()
        full.mark_complete_blocks(state.id, state.initial + state.generated, count)

    def evict_cached_blocks(self) -> bool:
        """Give up all hashed blocks without a reference; True if there were any."""
        evicted = [each.evict_cached_blocks() for each in self.allocators.values()]
        return any(evicted)

    def compute_free_capacity(self) -> float:
        """The free share of the memory."""
        free = len(self.pool.free_sectors) * self.bytes_per_sector
        for each in self.allocators.values():
            free += each.num_free * each.bytes_per_block
        return free / (self.pool.num_sectors * self.bytes_per_sector)
