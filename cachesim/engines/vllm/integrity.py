"""The manager's books: references, the free queue and the map must tell the same story."""

from collections import Counter
from collections.abc import Mapping

from cachesim.engines.vllm.block_pool import NULL
from cachesim.engines.vllm.manager import KVCacheManager
from cachesim.engines.vllm.request import Request
from cachesim.errors import ContractError


def check_books(manager: KVCacheManager, requests: Mapping[int, Request]) -> None:
    """Raise ContractError at the first disagreement."""
    pool = manager.pool
    holders: Counter[int] = Counter()  # read by `get`, which is quicker for blocks without any
    for each in manager.managers:
        for number, table in each.tables.items():
            if number not in requests:
                _fail(f"a block table of request {number}, which was never sent")
            holders.update(block for block in table if block != NULL)
    for pinned in manager.pins.values():
        holders.update(pinned)
    for block in range(1, pool.size):
        references, count = pool.ref[block], holders.get(block, 0)
        if references != count:
            _fail(f"block {block} has {references} references and {count} holders")
        if (references == 0) != (block in pool.free):
            _fail(f"block {block} with {references} references and the free queue disagree")
    for key, found in pool.cached.items():
        for block in (found,) if isinstance(found, int) else found:
            if key != pool.key[block] and key not in pool.more_keys.get(block, ()):
                _fail(f"block {block} is cached under an id that it does not have")


def _fail(what: str) -> None:
    msg = f"vllm: {what}"
    raise ContractError(msg)
