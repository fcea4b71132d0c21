"""Operations on mlx-lm's store of prompt caches, and on its trie, played on the port."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from cachesim.engines.mlx_lm.caches.prompt_cache import (
    ArraysCache,
    ChunkedKVCache,
    KVCache,
    LayerCache,
    RotatingKVCache,
    can_trim_prompt_cache,
)
from cachesim.engines.mlx_lm.caches.raised import name_of
from cachesim.engines.mlx_lm.rules import CacheRules, StoreRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import UNLIMITED, LRUPromptCache
from cachesim.engines.mlx_lm.store.trie import PromptTrie, PromptTrieResult
from cachesim.real.mlx_lm.cache_player import Operation
from cachesim.real.mlx_lm.rows import read_row, write_row
from cachesim.typed import Json
from cachesim.units import Array

GENERATIONS: Final = {("all",): "G0", ("ordinary", "checkpoint"): "G2"}


class StorePlayer:
    """A store, the prompt caches built so far, and one method per operation."""

    def __init__(self, caches: CacheRules, store: StoreRules, args: Mapping[str, int]) -> None:
        self.rules = caches
        self.generation = GENERATIONS.get(store.queues, "G4")
        self.store = LRUPromptCache(store, args["max_size"], args.get("max_bytes", UNLIMITED))
        self.built: dict[int, list[LayerCache]] = {}
        self.tags: dict[int, int] = {}  # by identity: the newest tag of each object

    def play(self, op: Operation) -> dict[str, Json]:
        """One operation: what it returned or raised, and the store afterwards."""
        act: Callable[[Operation], Json] = getattr(self, f"_{op['op']}")
        try:
            result: dict[str, Json] = {"ret": act(op)}
        except Exception as error:
            result = {"error": name_of(error)}
        return result | {"store": self._snapshot()}

    def _insert(self, op: Operation) -> Json:
        entry, key = op["entry"], read_row(op["key"])
        cache = fresh(entry["kind"], entry.get("window", 0), self.rules)
        first = 0
        for count in entry["pieces"]:
            feed(cache, key[first : first + count], entry["tag"])
            first += count
        if entry["exact"]:
            cut(cache)
        self._built(cache, entry["tag"])
        self.store.insert_cache(op["model"], key, cache, cache_type=op["type"])
        return {"trimmable": can_trim_prompt_cache(cache)}

    def _built(self, cache: list[LayerCache], tag: int) -> None:
        self.built[tag] = cache
        self.tags[id(cache)] = tag

    def _fetch(self, op: Operation) -> Json:
        shown, _, _ = self._fetched(op["model"], read_row(op["key"]))
        return shown

    def _fetched(
        self, model: str, key: list[int]
    ) -> tuple[dict[str, Json], list[LayerCache] | None, list[int]]:
        known = {id(cache): tag for tag, cache in self.built.items()}
        cache, rest = self.store.fetch_nearest_cache(model, key)
        shown: dict[str, Json] = {
            "rest": write_row(rest),
            "cached": len(key) - len(rest),
            "layers": None if cache is None else [_layer_shown(each) for each in cache],
        }
        if cache is not None:
            shown["same_object_as"] = self.tags[id(cache)] if id(cache) in known else None
        return shown, cache, list(rest)

    def _turn(self, op: Operation) -> Json:
        key, reply = read_row(op["key"]), read_row(op["reply"])
        shown, cache, rest = self._fetched(op["model"], key)
        if cache is None:
            cache = fresh(op["kind"], op.get("window", 0), self.rules)
        for piece in [rest, *([token] for token in reply)]:
            if piece:
                feed(cache, piece, op["tag"])
        if op["exact"]:
            cut(cache)
        self._built(cache, op["tag"])
        shown["inserted"] = [_layer_shown(each) for each in cache]
        self.store.insert_cache(op["model"], [*key, *reply], cache, cache_type=op["type"])
        return shown

    def _grow(self, op: Operation) -> None:
        feed(self.built[op["tag"]], read_row(op["tokens"]), op["new_tag"])

    def _trim_to(self, op: Operation) -> None:
        limits = {name: op[name] for name in ("n_sequences", "n_bytes") if name in op}
        self.store.trim_to(**limits)

    def _search(self, op: Operation) -> Json:
        return _result_shown(self.store.search(op["model"], read_row(op["key"])))

    def _snapshot(self) -> Json:
        items = self.store.trie.items()
        keys = [(model, tokens) for model, tokens, _ in items]
        entries = []
        for model, tokens, entry in items:
            row = [model, write_row(tokens), self.tags[id(entry.prompt_cache)]]
            row.append(entry.count if self.generation == "G0" else entry.nbytes)
            entries.append([*row, entry.cache_type] if self.generation == "G4" else row)
        shown: dict[str, Json] = {
            "entries": entries,
            "order": {
                name: [keys.index((model, list(tokens))) for model, tokens in queue]
                for name, queue in self.store.order.queues.items()
            },
        }
        if self.generation != "G0":
            shown |= {"nbytes": self.store.nbytes, "len": len(self.store)}
        if self.generation == "G4":
            shown["by_type"] = {
                name: [each["n_sequences"], each["n_bytes"]]
                for name, each in self.store.stats_by_type().items()
            }
        return shown


class TriePlayer:
    """The trie alone, with integers as values."""

    def __init__(self) -> None:
        self.trie: PromptTrie[int] = PromptTrie()

    def play(self, op: Operation) -> dict[str, Json]:
        """One operation: what it returned or raised, and the values afterwards."""
        try:
            result: dict[str, Json] = {"ret": self._act(op, read_row(op["key"]))}
        except Exception as error:
            result = {"error": name_of(error)}
        values = [[model, write_row(key), value] for model, key, value in self.trie.items()]
        return result | {"entries": values}

    def _act(self, op: Operation, key: list[int]) -> Json:
        if op["op"] == "add":
            return self.trie.add(op["model"], key, op["value"])
        if op["op"] == "get":
            return self.trie.get(op["model"], key)
        if op["op"] == "pop":
            return self.trie.pop(op["model"], key)
        if op["op"] == "pop_prefixes":
            return [list(pair) for pair in self.trie.pop_prefixes(op["model"], key)]
        return _result_shown(self.trie.search(op["model"], key))


def _result_shown(found: PromptTrieResult) -> Json:
    shown = {
        name: None if getattr(found, name) is None else write_row(getattr(found, name))
        for name in ("exact", "shorter", "longer")
    }
    return shown | {"common_prefix": found.common_prefix}


def fresh(kind: str, window: int, rules: CacheRules) -> list[LayerCache]:
    """Two layers of one of the four kinds."""
    first: dict[str, Callable[[], LayerCache]] = {
        "attn": lambda: KVCache(rules),
        "swa": lambda: RotatingKVCache(rules, window),
        "hyb": lambda: ArraysCache(rules, 1),
        "chunked": lambda: ChunkedKVCache(rules, window),
    }
    return [first[kind](), KVCache(rules)]


def feed(cache: Sequence[LayerCache], tokens: Sequence[int], tag: int) -> None:
    """Write tokens, marked with a tag, in one piece."""
    row = np.array(tokens, dtype=np.float32)[None, None, :, None]
    values = np.concatenate((row, np.full_like(row, tag)), axis=3)
    for layer in cache:
        if isinstance(layer, ArraysCache):
            state = layer[0]
            count = 0 if state is None else int(state[0, 0])
            layer[0] = np.array([[count + len(tokens), tag]], dtype=np.int32)
            continue
        layer.update_and_fetch(row, values)


def cut(cache: Sequence[LayerCache]) -> None:
    """Full attention's buffers as a batch extraction leaves them: no row too many."""
    for layer in cache:
        if isinstance(layer, KVCache) and layer.keys is not None and layer.values is not None:
            layer.keys = layer.keys[:, :, : layer.offset].copy()
            layer.values = layer.values[:, :, : layer.offset].copy()


def _layer_shown(layer: LayerCache) -> dict[str, Json]:
    shown: dict[str, Json] = {"class": type(layer).__name__}
    if isinstance(layer, ArraysCache):
        return shown | {"slot": None if layer[0] is None else layer[0][0].tolist()}
    if isinstance(layer, RotatingKVCache):
        shown["offset"] = layer.offset
        if layer.keys is not None:
            shown["idx"] = layer.idx
        return shown | _rows(None if layer.values is None else layer.temporal_order(layer.values))
    if isinstance(layer, ChunkedKVCache):
        shown["start_position"] = layer.start_position
    if isinstance(layer, KVCache | ChunkedKVCache):
        shown["offset"] = layer.offset
        return shown | _rows(None if layer.values is None else layer.keys_and_values()[1])
    return shown


def _rows(values: Array | None) -> dict[str, Json]:
    if values is None:
        return {"tokens": None, "tags": None}
    rows = values[0, 0].astype(int)
    return {"tokens": write_row(rows[:, 0].tolist()), "tags": write_row(rows[:, 1].tolist())}
