"""What the cache holds: blocks with positions and owners; and whether its books agree."""

from collections import Counter
from typing import Any, Final

import numpy as np

from cachesim.engines.held import Amounts, BlockHeld, CellsHeld, Held, Marks, Run, runs_of
from cachesim.engines.transformers.cache import CacheAllocator, PagedAttentionCache
from cachesim.engines.transformers.continuous_api import Pages
from cachesim.engines.transformers.scheduler import Scheduler
from cachesim.errors import ContractError
from cachesim.model.arithmetic import Network


def snapshot(cache: PagedAttentionCache, scheduler: Scheduler) -> dict[str, Any]:
    """The blocks of each kind of layer, and the requests."""
    return {
        "slots": [],
        "prompt_cache": [],
        "blocks": {
            name: {"tables": dict(allocator.tables), "cached": list(allocator.ledger.cached)}
            for name, allocator in cache.allocators.items()
        },
        "free": cache.compute_free_capacity(),
        "running": list(scheduler.active),
        "waiting": list(scheduler.order),
    }


def held(cache: PagedAttentionCache, pages: Pages, network: Network) -> Held:
    """The hashed blocks, with positions and owners."""
    marks = Marks.of(network)
    return Held(
        cells=tuple(
            _cells(kind, allocator, cache, pages, marks)
            for kind, allocator in cache.allocators.items()
        )
    )


SHOWN: Final = (1 << 52) - 1
"""The bits of a hash that a page shows: a browser's numbers hold no more."""


def _cells(
    kind: str, allocator: CacheAllocator, cache: PagedAttentionCache, pages: Pages, marks: Marks
) -> CellsHeld:
    ledger, page = allocator.ledger, allocator.page
    used = {block for table in allocator.tables.values() for block in table}
    order = sorted(ledger.block_to_hash, key=lambda block: (ledger.origins[block][0], block))
    blocks: list[BlockHeld] = []
    runs: list[Run] = []
    for block in order:
        start, parent = ledger.origins[block]
        blocks.append(
            BlockHeld(
                block=block,
                cell=block * page,
                position=start,
                count=page,
                hash=ledger.block_to_hash[block] & SHOWN,
                parent=-1 if parent is None else parent & SHOWN,
            )
        )
        births = None
        if block in pages.rows[kind]:
            first = pages.rows[kind][block] * page
            births = marks.births(pages.keys, kind, slice(first, first + page))
        at = np.arange(page, dtype=np.int64)
        owners = np.full(page, int(block in used), np.int64)
        runs.extend(runs_of(block * page + at, start + at, owners, births))
    return CellsHeld(
        part=kind,
        stream=0,
        size=cache.pool.num_sectors * allocator.blocks_per_sector * page,
        window=allocator.window or None,
        runs=tuple(runs),
        blocks=tuple(blocks),
    )


def amounts(cache: PagedAttentionCache) -> Amounts:
    """Tokens of blocks that are in use or cached."""
    counts = {}
    for kind, allocator in cache.allocators.items():
        used = {block for table in allocator.tables.values() for block in table}
        counts[kind] = (len(used) + len(allocator.ledger.cached)) * allocator.page
    return Amounts(attention=counts.get("attention", 0), window=counts.get("window", 0))


def check_books(cache: PagedAttentionCache) -> None:
    """Raise ContractError if blocks are lost or counted twice."""
    sectors = len(cache.pool.free_sectors)
    for kind, allocator in cache.allocators.items():
        ledger = allocator.ledger
        owners = Counter(block for table in allocator.tables.values() for block in table)
        free = [leaf for tree in cache.pool.free[allocator.index].trees.values() for leaf in tree]
        groups = (set(free), set(owners), set(ledger.cached))
        total = len(free) + len(owners) + len(ledger.cached)
        shared = {block: count for block, count in owners.items() if count > 1}
        sound = (
            len(set().union(*groups)) == total
            and total % allocator.blocks_per_sector == 0
            and len(free) == allocator.num_free
            and shared == ledger.shared
            and {number: block for block, number in ledger.block_to_hash.items()}
            == ledger.hash_to_block
        )
        if not sound:
            raise ContractError(f"transformers: the {kind} blocks disagree with tables and ledger")
        sectors += total // allocator.blocks_per_sector
    if sectors != cache.pool.num_sectors:
        msg = f"transformers: {sectors} of {cache.pool.num_sectors} sectors are accounted for"
        raise ContractError(msg)
