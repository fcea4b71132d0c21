"""The store's books: entries, queues and byte counters say the same."""

from collections import Counter
from typing import Any

from cachesim.engines.mlx_lm.server.store import ServerStore
from cachesim.errors import ContractError


def entries_of(store: ServerStore) -> list[dict[str, Any]]:
    """The stored prompt caches, depth first; `checkpoints` is a word of other servers."""
    return [
        {
            "n_tokens": len(tokens),
            "checkpoints": 0,
            "type": entry.cache_type,
            "nbytes": entry.nbytes,
            "trimmable": all(layer.is_trimmable() for layer in entry.prompt_cache),
        }
        for _, tokens, entry in store.cache.trie.items()
    ]


def check_books(store: ServerStore) -> None:
    """Every entry stands in exactly one queue, and the counters are the sums."""
    cache = store.cache
    stored = cache.trie.items()
    entries = [(model, tuple(tokens)) for model, tokens, _ in stored]
    queued = [
        (model, tuple(tokens)) for queue in cache.order.queues.values() for model, tokens in queue
    ]
    if Counter(entries) != Counter(queued):
        msg = f"the trie holds {len(entries)} entries, the queues {len(queued)}, not the same"
        raise ContractError(msg)
    total = sum(entry.nbytes for _, _, entry in stored)
    if cache.rules.limits_bytes and total != cache.nbytes:
        msg = f"the entries take {total} bytes, the counter says {cache.nbytes}"
        raise ContractError(msg)
