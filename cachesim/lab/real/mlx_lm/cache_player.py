"""Operations on mlx-lm's layer caches, played on the port; vectors and workers speak the same."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from cachesim.engines.mlx_lm.caches.layer_cache import Mask, State, UpstreamRaise, name_of
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    LayerCache,
    RotatingKVCache,
    can_trim_prompt_cache,
    load_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.rules import CacheRules, StoreRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import (
    UNLIMITED,
    LRUPromptCache,
    PromptTrie,
    PromptTrieResult,
)
from cachesim.lab.real.mlx_lm.rows import read_row, write_row
from cachesim.typed import Json
from cachesim.units import Array, Integers

Operation: TypeAlias = Mapping[str, Json]
AnyCache: TypeAlias = Any
"""Of one of the classes, of which the operation asks what only that one can do."""

RowsCache: TypeAlias = (
    KVCache | RotatingKVCache | ChunkedKVCache | BatchKVCache | BatchRotatingKVCache
)

MODULUS: Final = 9973
HEADER: Final = {"k": "v"}


class CachePlayer:
    """Named cache objects, and one method per operation."""

    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules
        self.objects: dict[str, LayerCache] = {}

    def play(self, op: Operation) -> dict[str, Json]:
        """An operation: what it returned or raised, and the objects it touched."""
        act: Callable[[Operation], Json] = getattr(self, f"_{op['op']}")
        try:
            result: dict[str, Json] = {"ret": act(op)}
        except Exception as error:
            result = {"error": name_of(error)}
        touched = [op.get("obj"), op.get("other"), *op.get("objs", ()), op.get("out")]
        if op["op"] not in ("mask", "state"):
            result["after"] = {
                name: snapshot(self.objects[name], self.rules)
                for name in touched
                if name in self.objects
            }
        return result

    def _object(self, op: Operation) -> AnyCache:
        found: AnyCache = self.objects[op["obj"]]
        return found[op["member"]] if "member" in op else found

    def _objects(self, op: Operation) -> list[AnyCache]:
        return [self.objects[name] for name in op["objs"]]

    def _new(self, op: Operation) -> None:
        self.objects[op["out"]] = made(op["spec"], self.rules)

    def _write(self, op: Operation) -> list[str]:
        rows = np.array([read_row(text) for text in op["tokens"]], dtype=np.float32)
        block = rows[:, None, :, None]
        keys, _ = self._object(op).update_and_fetch(block, np.repeat(block, 2, axis=3))
        return written(keys)

    def _absorb(self, op: Operation) -> Json:
        cache, tokens = self._object(op), np.array(op["tokens"], dtype=np.int64)
        mask = cache.make_mask(tokens.shape[1])
        for slot in op["slots"]:
            cache[slot] = absorbed(cache[slot], slot, tokens, mask)
        cache.advance(tokens.shape[1])
        return _mask_as_text(mask)

    def _trim(self, op: Operation) -> int:
        count: int = self._object(op).trim(op["n"])
        return count

    def _front(self, op: Operation) -> None:
        self._object(op).maybe_trim_front()

    def _trim_list(self, op: Operation) -> int:
        return trim_prompt_cache(self._objects(op), op["n"])

    def _can_trim_list(self, op: Operation) -> bool:
        return can_trim_prompt_cache(self._objects(op))

    def _copy(self, op: Operation) -> None:
        self.objects[op["out"]] = self._object(op).copy()

    def _restore(self, op: Operation) -> None:
        cache = self._object(op)
        state, meta = copy.deepcopy(cache.state), cache.meta_state
        restored = type(cache).from_state(state, meta, rules=self.rules)
        self.objects[op["out"]] = restored

    def _save_load(self, op: Operation) -> Json:
        blob = save_prompt_cache(self._objects(op), HEADER, rules=self.rules)
        caches, metadata = load_prompt_cache(blob, rules=self.rules)
        return {
            "caches": [snapshot(each, self.rules) for each in caches],
            "metadata": metadata,
        }

    def _state(self, op: Operation) -> Json:
        return _state_shape(self._object(op).state)

    def _mask(self, op: Operation) -> Json:
        cache = self._object(op)
        if "array" in op:
            mask = cache.make_mask(op["n"], window_size=op["window"], return_array=op["array"])
        else:
            mask = cache.make_mask(op["n"])
        return _mask_as_text(mask)

    def _merge(self, op: Operation) -> None:
        caches = self._objects(op)
        self.objects[op["out"]] = type(caches[0]).merge(caches)

    def _filter(self, op: Operation) -> None:
        self._object(op).filter(op["rows"])

    def _extend(self, op: Operation) -> None:
        self._object(op).extend(self.objects[op["other"]])

    def _extract(self, op: Operation) -> None:
        self.objects[op["out"]] = self._object(op).extract(op["row"])

    def _prepare(self, op: Operation) -> None:
        names = ("left_padding", "lengths", "right_padding")
        self._object(op).prepare(**{name: op[name] for name in names if name in op})

    def _finalize(self, op: Operation) -> None:
        self._object(op).finalize()

    def _advance(self, op: Operation) -> None:
        self._object(op).advance(op["n"])


def made(spec: Mapping[str, Any], rules: CacheRules) -> LayerCache:
    """A new cache of the class and with the arguments that the operation names."""
    if spec["class"] == "CacheList":
        return CacheList(rules, *(made(member, rules) for member in spec["members"]))
    return LayerCache.named(spec["class"])(rules, **spec.get("args", {}))


def absorbed(state: Array | None, slot: int, tokens: Integers, mask: Mask) -> Array:
    """The stand-in recurrent layer: a count and a rolling hash of the columns not masked out."""
    after = np.zeros((len(tokens), 2), np.int32) if state is None else state.copy()
    for column in range(tokens.shape[1]):
        one_more = after[:, 0] + 1
        hashed = (after[:, 1] * (31 + 2 * slot) + tokens[:, column] + 7) % MODULUS
        step = np.stack((one_more, hashed), axis=1).astype(np.int32)
        if isinstance(mask, np.ndarray):
            step = np.where(mask[:, column, None], step, after)
        after = step
    return after


def written(buffer: Array) -> list[str]:
    """A text row per row of the batch; head and width are 1."""
    return [write_row([int(token) for token in row[0, :, 0]]) for row in buffer]


def _mask_as_text(mask: Mask) -> Json:
    if not isinstance(mask, np.ndarray):
        return mask
    return {"shape": list(mask.shape), "rows": _bits(mask)}


def _bits(mask: Array) -> Json:
    if mask.ndim == 1:
        return "".join("1" if seen else "0" for seen in mask)
    return [_bits(row) for row in mask]


def _state_shape(state: State) -> Json:
    if isinstance(state, np.ndarray):
        return {"array": list(state.shape)}
    if isinstance(state, list | tuple):
        return [_state_shape(each) for each in state]
    return state


def tried(ask: Callable[[], Json]) -> Json:
    """An answer, or the name of what was raised instead."""
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
        return _vector(ask())
    except UpstreamRaise:
        return "missing"


def _vector(values: Integers | None) -> Json:
    return None if values is None else values.tolist()


def _listed(value: Json) -> Json:
    return (
        [_listed(each) for each in value]
        if isinstance(value, Sequence) and not isinstance(value, str)
        else value
    )


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
        """An operation: what it returned or raised, and the store afterwards."""
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
        """An operation: what it returned or raised, and the values afterwards."""
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
