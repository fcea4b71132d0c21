"""What the stores of mlx-lm's server, and of those built on it, hold; and their checks."""

from collections import Counter
from collections.abc import Iterator, Mapping
from operator import is_
from typing import Any, Final

import numpy as np

from cachesim.engines.held import Amounts, EntryHeld, Held, NodeHeld, Texts, TreeHeld
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache, CacheList
from cachesim.engines.mlx_lm.caches.batch_kv_cache import (
    BatchCache,
    BatchKVCache,
    BatchRotatingKVCache,
)
from cachesim.engines.mlx_lm.caches.kv_cache import QuantizedKVCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache, State
from cachesim.engines.mlx_lm.generate.shared import PromptCache, Row, leaves
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.engines.mlx_lm.server.store import ServerStore
from cachesim.engines.mlx_lm.server.store import holdings as proof_of
from cachesim.engines.mlx_lm.server.thread import ResponseGenerator
from cachesim.engines.mlx_lm.store.lru_prompt_cache import CacheEntry, LRUPromptCache
from cachesim.errors import ContractError
from cachesim.model.arithmetic import Network
from cachesim.units import Tokens, as_tokens


def snapshot(server: ResponseGenerator) -> dict[str, Any]:
    """The entries of the store, their order, and the requests."""
    batch = server.batch
    return {
        "slots": [],
        "prompt_cache": server.store.entries(),
        "order": {
            name: [len(tokens) for _, tokens in queue]
            for name, queue in server.store.cache.order.queues.items()
        },
        "at_work": [] if batch is None else [int(job.ticket) for job in batch.jobs.values()],
        "queued": [int(job.ticket) for job in server.requests],
        "worker": server.dead or "alive",
    }


def held(store: ServerStore, networks: Mapping[Any, Network]) -> Held:
    """Every entry of the store, and the places that hold other tokens than its key's."""
    return Held(
        entries=tuple(
            EntryHeld(
                tokens=as_tokens(tokens),
                checkpoints=0,
                size=int(entry.nbytes),
                kind=entry.cache_type,
                held=_misplaced(store, networks[model], entry, as_tokens(tokens)),
            )
            for model, tokens, entry in store.cache.trie.items()
        ),
        tree=TreeHeld(name="prompt trie", of="entries", nodes=tuple(_nodes(store, networks))),
    )


def _nodes(store: ServerStore, networks: Mapping[Any, Network]) -> Iterator[NodeHeld]:
    """The nodes of the trie; a leaf without an entry is a remainder of a removed one."""
    for segment in store.cache.trie.segments():
        tokens = as_tokens(segment.tokens)
        saved = [f"{entry.cache_type} cache".strip() for entry in segment.values]
        yield NodeHeld(
            number=segment.number,
            parent=segment.parent,
            tokens=tokens,
            count=segment.count,
            kept="here" if saved or segment.leads_on else "gone",
            saved=saved[0] if saved else "",
            held=tuple(
                place
                for entry in segment.values
                for place in _misplaced(store, networks[segment.model], entry, tokens)
            ),
        )


def _misplaced(
    store: ServerStore, network: Network, entry: CacheEntry, tokens: Tokens
) -> tuple[tuple[str, Tokens], ...]:
    if store.cache.has_images(tokens):  # their tokens are not in the key
        return ()
    return tuple(
        (holding.place, holding.tokens)
        for holding in proof_of(network, entry.prompt_cache, tokens)
        if not holding.sound
    )


def texts(store: ServerStore) -> Texts:
    """The keys of the entries without images, whose ids are no tokens of a text."""
    keys = (as_tokens(tokens) for _, tokens, _ in store.cache.trie.items())
    return Texts(entries=tuple(key for key in keys if not store.cache.has_images(key)))


def amounts(store: ServerStore) -> Amounts:
    """The bytes of all entries; 0 in releases without a byte limit."""
    return Amounts(prompt_cache=store.cache.nbytes if store.cache.rules.limits_bytes else 0)


def check_books(server: ResponseGenerator) -> None:
    """Raise ContractError unless the store and the live batch are consistent."""
    for problem in problems(server.store.cache):
        raise ContractError(problem)
    if server.batch is None or server.dead is not None:
        return
    counted = server.rules.segments and not server.store.cache.rules.reuses_untrimmed
    for rows, cache in server.batch.held():
        for problem in of_batch(rows, cache, counted=counted):
            raise ContractError(problem)


GROUP: Final = 64
"""Numbers that are quantised together."""

NEAR: Final = 1e-9
"""Difference of a group's extreme from itself."""


def problems(cache: LRUPromptCache) -> Iterator[str]:
    """Inconsistencies of a store, in words."""
    yield from _queues(cache)
    known, cache.restored = cache.restored, {}
    for _, _, entry in cache.trie.items():
        for layer in entry.prompt_cache:
            parts, before = _parts(layer), known.get(id(layer), [])
            if len(parts) != len(before) or not all(map(is_, parts, before)):
                yield from restore_problems(layer)
            cache.restored[id(layer)] = parts
    if cache.rules.limits_bytes:
        yield from _bytes(cache)
    yield from cache.problems()


def quantised_otherwise(rules: CacheRules, bits: int) -> Iterator[str]:
    """Groups of numbers that are quantised by more than a step, or whose extreme changes."""
    rows = (np.sin(1.7 * np.arange(256)) + np.repeat((0.3, -0.3, 8.0, -90.0), GROUP)).reshape(2, -1)
    rounded = QuantizedKVCache(rules, GROUP, bits).rounded(rows).reshape(-1, GROUP)
    for group, other in zip(rows.reshape(-1, GROUP), rounded, strict=True):
        step, extreme = np.ptp(group) / (2**bits - 1), abs(group).argmax()
        far = abs(group - other).max() > step
        if far or abs(group - other)[extreme] > NEAR or len({*other.round(9)}) > 2**bits:
            yield f"numbers around {group.mean():.1f} are not quantised to {bits} bits"


def of_batch(rows: list[Row], cache: PromptCache, *, counted: bool) -> Iterator[str]:
    """Inconsistencies of a batch between two steps; `counted`: its rows list their tokens."""
    for layer in leaves(cache):
        yield from restore_problems(layer)
        name, held = type(layer).__name__, [len(row.tokens) for row in rows]
        if isinstance(layer, ArraysCache):
            sizes = {len(array) for array in layer.cache if array is not None}
        elif isinstance(layer, BatchCache):
            sizes = {len(layer.offset), len(layer.left_padding)}
            sizes |= set() if layer.keys is None else {len(layer.keys)}
            if counted and held != layer.offset.tolist():
                yield f"a {name} counts {layer.offset.tolist()} tokens, its rows are of {held}"
            ends = set((layer.offset + layer.left_padding).tolist())
            if isinstance(layer, BatchKVCache) and ends - {layer.idx}:
                yield f"the rows of a {name} end at {ends}, not at {layer.idx}"
        if sizes - {len(rows)}:
            yield f"a {name} is of {sizes} rows in a batch of {len(rows)}"


def _parts(layer: LayerCache) -> list[object]:
    """A layer and what it consists of: what is the same object is restored as it was before."""
    parts: list[object] = [layer]
    for value in vars(layer).values():
        for part in value if isinstance(value, list) else (value,):
            parts += _parts(part) if isinstance(part, LayerCache) else [part]
    return parts


def restore_problems(layer: LayerCache) -> Iterator[str]:
    """A difference of a layer after a save and a restore, where the release can do both."""
    rules, kind = layer.rules, type(layer)
    if rules.state_form == "sliced":
        slots = layer.cache if isinstance(layer, ArraysCache) else [getattr(layer, "keys", layer)]
        lists = isinstance(layer, CacheList) and not rules.list_state_by_member
        if any(slot is None for slot in slots) or lists:
            return
    saved = layer.state, layer.meta_state
    other = LayerCache.named(kind.__name__).from_state(*saved, rules=rules)
    again = other.state, other.meta_state
    if isinstance(layer, BatchRotatingKVCache) and not rules.rotated_is_restored:
        saved, again = (saved[0], saved[1][:-1]), (again[0], again[1][:-1])
    if not _same(saved, again):
        yield f"a {kind.__name__} is not the same after a save and a restore"


def _same(one: State, other: State) -> bool:
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=True)
        return len(one) == len(other) and all(_same(*pair) for pair in pairs)
    if isinstance(one, np.ndarray):
        return one is other or np.array_equal(one, other)
    return bool(one == other)


def _queues(cache: LRUPromptCache) -> Iterator[str]:
    """Each entry is in the queue of its type, once."""
    stored = cache.trie.items()
    entries = [(entry.cache_type, model, tuple(tokens)) for model, tokens, entry in stored]
    queued = [
        (name, model, tuple(tokens))
        for name, queue in cache.order.queues.items()
        for model, tokens in queue
    ]
    if Counter(entries) != Counter(queued):
        yield f"the trie holds {len(entries)} entries, the queues {len(queued)}, not the same"


def _bytes(cache: LRUPromptCache) -> Iterator[str]:
    """The counters are the sums over the entries, in all and by type."""
    sizes: Counter[str] = Counter()
    for _, _, entry in cache.trie.items():
        sizes[entry.cache_type] += entry.nbytes
    if sizes.total() != cache.nbytes:
        yield f"the entries take {sizes.total()} bytes, the counter says {cache.nbytes}"
    for name, counts in cache.stats_by_type().items():
        if counts["n_bytes"] != sizes[name]:
            yield f"{name} entries take {sizes[name]} bytes, their counter says {counts}"
