"""Watches the real server's store: what is inserted, and whether the state is the key's.

Runs in a release's environment, where nothing of cachesim is.
"""

import importlib
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

Json: TypeAlias = Any
Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs

TOLERANCE = 1e-5
"""Largest deviation of a right state, relative to its largest value; wrong ones are far off."""


class StoreWatch:
    """Recorder of an `LRUPromptCache`'s insertions and lookups."""

    def __init__(
        self, store: Real, model: Callable[[], Real], on_fetch: Callable[[int], None]
    ) -> None:
        self.mx = importlib.import_module("mlx.core")
        self.caches = importlib.import_module("mlx_lm.models.cache")
        self.store = store
        self._model = model
        self.busy = False
        self.inserted: list[Json] = []
        self._numbers: list[tuple[Real, int]] = []
        self._insert, self._fetch = store.insert_cache, store.fetch_nearest_cache
        self._on_fetch = on_fetch
        store.insert_cache, store.fetch_nearest_cache = self.insert, self.fetch

    @property
    def model(self) -> Real:
        """The model, which is there once the first request is."""
        return self._model()

    @property
    def count(self) -> int:
        """Insertions so far."""
        return len(self._numbers)

    def fetch(self, model: Real, tokens: Real) -> Real:
        """The store's own lookup; the cached count is told."""
        found = self._fetch(model, tokens)
        self._on_fetch(len(tokens) - len(found[1]))
        return found

    def insert(self, model: Real, tokens: Real, cache: Real, **more: Real) -> None:
        """The store's own insertion, described."""
        key = list(tokens)
        self.busy = True
        layers = self._layers(key, cache)
        self.busy = False
        self._insert(model, tokens, cache, **more)
        self._numbers.append((cache, len(self._numbers) + 1))
        entry = {"number": self.count, "key": key, "length": len(key), "layers": layers}
        self.inserted.append(entry | self._type(more))

    def _type(self, more: Json) -> Json:
        order = self.store._lru
        if hasattr(order, "_lrus"):
            return {"type": more.get("cache_type", "assistant")}
        if hasattr(order, "_lru_checkpoints"):
            return {"type": "checkpoint" if more.get("checkpoint") else "ordinary"}
        return {}

    def stored(self) -> Json:
        """The queues, oldest first, as numbers of insertions; bytes where they are counted."""
        order = self.store._lru
        if hasattr(order, "_lrus"):
            queues = dict(order._lrus)
        elif hasattr(order, "_lru_checkpoints"):
            queues = {"ordinary": order._lru, "checkpoint": order._lru_checkpoints}
        else:
            queues = {"all": order}
        found: Json = {
            "order": {
                name: [self._number(model, tokens) for model, tokens in queue]
                for name, queue in queues.items()
            }
        }
        if hasattr(self.store, "nbytes"):
            found["nbytes"] = self.store.nbytes
        return found

    def _number(self, model: Real, tokens: Real) -> int:
        trie = getattr(self.store, "_trie", None)
        find = self.store._get if trie is None else trie.get
        cache = find(model, tokens).prompt_cache
        return next((number for held, number in reversed(self._numbers) if held is cache), 0)

    def cold(self, tokens: list[int]) -> Real:
        """The logits of every token of a cold run, (tokens, vocabulary)."""
        self.busy = True
        cache = self.caches.make_prompt_cache(self.model)
        logits = self.model(self.mx.array([tokens]), cache=cache)[0]
        self.mx.eval(logits)
        self.busy = False
        return logits

    def _layers(self, key: list[int], cache: Real) -> list[Json]:
        cold = self.caches.make_prompt_cache(self.model)
        if key:
            self.mx.eval(self.model(self.mx.array([key]), cache=cold))
        pairs = zip_longest(_leaves(cold), _leaves(cache))  # those of a draft model come last
        return [self._layer(key, *pair) for pair in pairs]

    def _layer(self, key: list[int], cold: Real, layer: Real) -> Json:
        kind = type(layer).__name__.replace("MambaCache", "ArraysCache")  # its other name, to #842
        entry: Json = {"class": kind, "trimmable": layer.is_trimmable()}
        at_end = True
        if hasattr(layer, "offset"):
            entry["offset"] = layer.offset
            entry["rows"] = _rows(layer)
            at_end = layer.offset == len(key)
        else:
            entry["filled"] = [each is not None for each in layer.cache]
        try:
            entry["nbytes"] = layer.nbytes
        except (AttributeError, NotImplementedError) as error:
            entry["nbytes"] = {"error": type(error).__name__}
        if cold is None or isinstance(getattr(layer, "keys", None), (list, tuple)):
            entry["state_is_key"] = None  # packed numbers are never the computed ones
        else:
            entry["state_is_key"] = at_end and self._close(_content(cold), _content(layer))
        return entry

    def _close(self, one: Sequence[Real], other: Sequence[Real]) -> bool:
        return all(self._alike(a, b) for a, b in zip(one, other, strict=True))

    def _alike(self, one: Real, other: Real) -> bool:
        if one is None or other is None:
            return one is other
        if one.shape != other.shape:
            return False
        if not one.size:
            return True
        largest = self.mx.abs(one).max().item()
        difference = self.mx.abs(one - other).max().item()
        return bool(difference <= TOLERANCE * max(largest, 1e-6))


def _rows(layer: Real) -> int:
    """Rows that a cache has allocated; of DeepSeek's own class those of its window."""
    if hasattr(layer, "window"):
        return 0 if layer.window is None else int(layer.window.shape[1])
    keys = layer.keys[0] if isinstance(layer.keys, (list, tuple)) else layer.keys
    return 0 if keys is None else int(keys.shape[2])


def _leaves(cache: Sequence[Real]) -> list[Real]:
    """The layer caches one by one, those of a `CacheList` too."""
    return [each for layer in cache for each in getattr(layer, "caches", (layer,))]


def _content(layer: Real) -> list[Real]:
    if not hasattr(layer, "offset"):
        return list(layer.cache)
    if hasattr(layer, "window"):
        return [layer.window, layer.compress_kv, layer.index_k, layer.pending_kv]
    if layer.keys is None:
        return [None, None]
    if hasattr(layer, "chunk_size"):
        begins = layer.offset // layer.chunk_size * layer.chunk_size - layer.start_position
        end = layer.offset - layer.start_position
        return [each[..., begins:end, :] for each in (layer.keys, layer.values)]
    if not hasattr(layer, "max_size"):
        return [each[..., : layer.offset, :] for each in (layer.keys, layer.values)]
    count = min(layer.offset, layer.max_size)
    ordered = [layer._temporal_order(each) for each in (layer.keys, layer.values)]
    return [each[..., max(0, each.shape[2] - count) :, :] for each in ordered]
