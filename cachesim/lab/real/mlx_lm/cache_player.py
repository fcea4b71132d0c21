"""mlx-lm's cache classes, store and trie of the port, and sequences of recorded operations."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from cachesim.engines.mlx_lm.caches import prompt_cache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache, UpstreamRaise, name_of
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    load_prompt_cache,
    save_prompt_cache,
)
from cachesim.engines.mlx_lm.family import FAMILY, MlxRules
from cachesim.engines.mlx_lm.rules import CacheRules, StoreRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import UNLIMITED, LRUPromptCache, PromptTrie
from cachesim.errors import ProfileError, ScenarioError
from cachesim.lab.real.agreement import Difference
from cachesim.lab.real.mlx_lm import players
from cachesim.lab.real.mlx_lm.players import HEADER, Player, TriePlayer, written
from cachesim.lab.real.prompts import write_row
from cachesim.typed import Json
from cachesim.units import Array, Integers

RowsCache: TypeAlias = (
    KVCache | RotatingKVCache | ChunkedKVCache | BatchKVCache | BatchRotatingKVCache
)


class CachePlayer(players.CachePlayer):
    """Layer caches of the port."""

    def __init__(self, rules: CacheRules) -> None:
        super().__init__(np, prompt_cache)
        self.rules = rules

    def construct(self, name: str, *members: LayerCache, **args: Any) -> LayerCache:
        return LayerCache.named(name)(self.rules, *members, **args)

    def duplicate(self, cache: LayerCache) -> LayerCache:
        return cache.copy()

    def restored(self, cache: LayerCache) -> LayerCache:
        state, meta = copy.deepcopy(cache.state), cache.meta_state
        return type(cache).from_state(state, meta, rules=self.rules)

    def reloaded(self, caches: list[LayerCache]) -> tuple[list[LayerCache], dict[str, str]]:
        blob = save_prompt_cache(caches, HEADER, rules=self.rules)
        return load_prompt_cache(blob, rules=self.rules)

    def snapshot(self, cache: LayerCache) -> dict[str, Json]:
        return snapshot(cache, self.rules)


def tried(ask: Callable[[], Json]) -> Json:
    """A result, or the name of the exception."""
    try:
        return ask()
    except UpstreamRaise as error:
        return {"error": name_of(error)}


def snapshot(cache: LayerCache, rules: CacheRules) -> dict[str, Json]:
    """A cache in the form of the vector files."""
    shown: dict[str, Json] = {"class": type(cache).__name__}
    shown |= {
        "size": tried(cache.size),
        "trimmable": tried(cache.is_trimmable),
        "nbytes": tried(lambda: cache.nbytes),
    }
    if rules.batches_recurrent:
        shown["empty"] = tried(cache.empty)
    if rules.state_form == "sliced":
        shown["meta_state"] = tried(lambda: _listed(cache.meta_state))
    if isinstance(cache, CacheList):
        shown["members"] = [snapshot(each, rules) for each in cache.caches]
    elif isinstance(cache, ArraysCache):
        shown["slots"] = [None if each is None else each.tolist() for each in cache.cache]
        shown["left_padding"] = _pending(lambda: cache.left_padding)
        shown["lengths"] = _pending(lambda: cache.lengths)
    elif isinstance(cache, RowsCache):
        shown |= _rows_snapshot(cache)
    return shown


def _rows_snapshot(rows: RowsCache) -> dict[str, Json]:
    shown: dict[str, Json] = {"buffer": None if rows.keys is None else written(rows.keys)}
    shown["offset"] = rows.offset if isinstance(rows.offset, int) else rows.offset.tolist()
    if isinstance(rows, RotatingKVCache | BatchKVCache | BatchRotatingKVCache):
        shown["idx"] = rows.idx
    if isinstance(rows, RotatingKVCache | BatchRotatingKVCache):
        shown["max_size"] = rows.max_size
    if isinstance(rows, RotatingKVCache):
        shown["keep"] = rows.keep
    if isinstance(rows, ChunkedKVCache):
        shown |= {"start_position": rows.start_position, "chunk_size": rows.chunk_size}
    if isinstance(rows, BatchKVCache | BatchRotatingKVCache):
        shown["left_padding"] = rows.left_padding.tolist()
    if isinstance(rows, BatchRotatingKVCache):
        shown |= {"written": rows.fill, "rotated": rows.rotated}
        shown["lengths"] = _pending(lambda: rows.lengths)
    if isinstance(rows, BatchKVCache):
        shown["right_padding"] = _pending(lambda: rows.right_padding)
    return shown


def _pending(ask: Callable[[], Integers | None]) -> Json:
    try:
        values = ask()
    except UpstreamRaise:
        return "missing"
    return None if values is None else values.tolist()


def _listed(value: Json) -> Json:
    return (
        [_listed(each) for each in value]
        if isinstance(value, Sequence) and not isinstance(value, str)
        else value
    )


GENERATIONS: Final = {("all",): "G0", ("ordinary", "checkpoint"): "G2"}


class StorePlayer(players.StorePlayer):
    """The store of the port."""

    def __init__(self, caches: CacheRules, rules: StoreRules, args: Mapping[str, int]) -> None:
        classes = {name: partial(kind, caches) for name, kind in LayerCache.classes.items()}
        store = LRUPromptCache(rules, args["max_size"], args.get("max_bytes", UNLIMITED))
        super().__init__(np, classes, store, np.copy)
        self.generation = GENERATIONS.get(rules.queues, "G4")
        self.search = store.search
        self.can_trim = prompt_cache.can_trim_prompt_cache
        self.layer = _layer_shown

    def held(self) -> tuple[Any, Mapping[str, Any]]:
        return self.store.trie.items(), self.store.order.queues


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


def _player_for(line: Mapping[str, Any], rules: MlxRules | None) -> Player:
    release = line["version"]
    try:
        rules = rules or FAMILY.release(release).rules
    except ProfileError as error:
        msg = f"sequence {line['id']}: {error}"
        raise ScenarioError(msg) from None
    if line["group"] == "trie":
        return TriePlayer(PromptTrie[int]())
    if line["group"] == "store":
        return StorePlayer(rules.caches, rules.store, line["args"])
    return CachePlayer(rules.caches)


def played(line: Mapping[str, Any], rules: MlxRules | None = None) -> Iterator[dict[str, Json]]:
    """The port's results of a sequence, in the form of the recorded ones."""
    player = _player_for(line, rules)
    for op in line["ops"]:
        yield json.loads(json.dumps(player.play(op)))


def mismatch(line: Mapping[str, Any], rules: MlxRules | None = None) -> Difference | None:
    """The first operation that differs; None if every one is equal, those after exceptions too."""
    pairs = zip(line["results"], played(line, rules), strict=True)
    for step, (expected, actual) in enumerate(pairs):
        if _either_way(expected) != _either_way(actual):
            return Difference(step=step, real=expected, simulated=actual)
    return None


def _either_way(result: Json) -> Json:
    """A result in one way of writing, where recorders have two.

    A mask without columns has no row to show, as an empty text or an empty list. A chunked cache
    that holds nothing starts at 0, said or not.
    """
    if isinstance(result, list):
        return [_either_way(each) for each in result]
    if not isinstance(result, dict):
        return result
    read = {name: _either_way(value) for name, value in result.items()}
    if 0 in (read.get("shape") or ()):
        read.pop("rows", None)
    if read.get("class") == "ChunkedKVCache" and read.get("buffer") is None:
        read["start_position"] = read.get("start_position") or 0
    return read
