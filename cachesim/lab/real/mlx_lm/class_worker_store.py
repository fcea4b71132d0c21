"""The worker's part for the store of prompt caches and its trie: the real ones of the release."""

import importlib
import runpy
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = Any
Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs
Operation: TypeAlias = dict[str, Any]

ROWS = runpy.run_path(str(Path(__file__).parent / "rows.py"))
read_row, write_row = ROWS["read_row"], ROWS["write_row"]


class StorePlayer:
    """The store of the release."""

    def __init__(self, mx: Real, caches: Real, args: Json) -> None:
        self.mx = mx
        self.caches = caches
        home = caches
        if not hasattr(caches, "LRUPromptCache"):
            home = importlib.import_module("mlx_lm.server")
        self.store = home.LRUPromptCache(**args)
        lru = hidden(self.store, "_lru")
        self.generation = "G4" if hasattr(lru, "_lrus") else "G2"
        if not hasattr(lru, "push"):
            self.generation = "G0"
        self.built: dict[int, Real] = {}
        self.tags: dict[int, int] = {}

    def feed(self, cache: list[Real], tokens: list[int], tag: int) -> None:
        """Write tokens marked with a tag."""
        row = self.mx.array(tokens, dtype=self.mx.float32)[None, None, :, None]
        values = self.mx.concatenate([row, self.mx.full(row.shape, tag)], axis=3)
        for layer in cache:
            if isinstance(layer, self.caches.ArraysCache):
                count = 0 if layer[0] is None else layer[0].tolist()[0][0]
                layer[0] = self.mx.array([[count + len(tokens), tag]], dtype=self.mx.int32)
            else:
                layer.update_and_fetch(row, values)

    def fresh(self, kind: str, window: int) -> list[Real]:
        """Two layers."""
        first = {
            "attn": self.caches.KVCache,
            "swa": lambda: self.caches.RotatingKVCache(window),
            "hyb": lambda: self.caches.ArraysCache(1),
            "chunked": lambda: self.caches.ChunkedKVCache(window),
        }
        return [first[kind](), self.caches.KVCache()]

    def cut(self, cache: list[Real]) -> None:
        """Rows of full attention, no more than tokens."""
        for layer in cache:
            if type(layer) is self.caches.KVCache and layer.keys is not None:
                layer.keys = self.mx.contiguous(layer.keys[:, :, : layer.offset])
                layer.values = self.mx.contiguous(layer.values[:, :, : layer.offset])

    def put(self, model: str, key: list[int], cache: list[Real], kind: str) -> None:
        """Insert as the generation takes it."""
        if self.generation == "G4":
            self.store.insert_cache(model, key, cache, cache_type=kind)
        elif self.generation == "G2":
            self.store.insert_cache(model, key, cache, checkpoint=kind != "assistant")
        else:
            self.store.insert_cache(model, key, cache)

    def keep(self, cache: list[Real], tag: int) -> None:
        """Remember an object by its tag."""
        self.built[tag] = cache
        self.tags[id(cache)] = tag

    def do_insert(self, op: Operation) -> Json:
        """Build and insert."""
        entry, key = op["entry"], read_row(op["key"])
        cache, first = self.fresh(entry["kind"], entry.get("window", 0)), 0
        for count in entry["pieces"]:
            self.feed(cache, key[first : first + count], entry["tag"])
            first += count
        if entry["exact"]:
            self.cut(cache)
        self.keep(cache, entry["tag"])
        self.put(op["model"], key, cache, op["type"])
        return {"trimmable": self.caches.can_trim_prompt_cache(cache)}

    def fetched(self, model: str, key: list[int]) -> tuple[Json, Real, list[int]]:
        """Look up and show."""
        known = {id(each) for each in self.built.values()}
        cache, rest = self.store.fetch_nearest_cache(model, key)
        shown = {
            "rest": write_row(rest),
            "cached": len(key) - len(rest),
            "layers": None if cache is None else [layer_shown(each) for each in cache],
        }
        if cache is not None:
            shown["same_object_as"] = self.tags[id(cache)] if id(cache) in known else None
        return shown, cache, rest

    def do_fetch(self, op: Operation) -> Json:
        """Look up."""
        return self.fetched(op["model"], read_row(op["key"]))[0]

    def do_turn(self, op: Operation) -> Json:
        """A whole request."""
        key, reply = read_row(op["key"]), read_row(op["reply"])
        shown, cache, rest = self.fetched(op["model"], key)
        if cache is None:
            cache = self.fresh(op["kind"], op.get("window", 0))
        for piece in [rest, *([token] for token in reply)]:
            if piece:
                self.feed(cache, piece, op["tag"])
        if op["exact"]:
            self.cut(cache)
        self.keep(cache, op["tag"])
        shown["inserted"] = [layer_shown(each) for each in cache]
        self.put(op["model"], [*key, *reply], cache, op["type"])
        return shown

    def do_grow(self, op: Operation) -> None:
        """Write behind the store's back."""
        self.feed(self.built[op["tag"]], read_row(op["tokens"]), op["new_tag"])

    def do_trim_to(self, op: Operation) -> None:
        """Evict down to limits."""
        self.store.trim_to(**{n: op[n] for n in ("n_sequences", "n_bytes") if n in op})

    def do_search(self, op: Operation) -> Json:
        """The trie's answer."""
        key = read_row(op["key"])
        if self.generation == "G4":
            return result_shown(hidden(self.store, "_trie").search(op["model"], key))
        return result_shown(hidden(self.store, "_search")(op["model"], key))

    def left_behind(self, _op: Operation) -> dict[str, Json]:
        """Entries, queues and bytes."""
        root = (
            hidden(self.store, "_trie", "_trie")
            if self.generation == "G4"
            else hidden(self.store, "_cache")
        )
        mark = "__value__" if self.generation == "G4" else "cache"
        found = [(m, k, e) for m, node in root.items() for k, e in walk(node, mark)]
        keys, entries = [(model, key) for model, key, _ in found], []
        for model, key, entry in found:
            row = [model, write_row(key), self.tags[id(entry.prompt_cache)]]
            row.append(entry.count if self.generation == "G0" else entry.nbytes)
            entries.append([*row, entry.cache_type] if self.generation == "G4" else row)
        lru = hidden(self.store, "_lru")
        queues = {"all": lru}
        if self.generation == "G2":
            queues = {
                "ordinary": hidden(lru, "_lru"),
                "checkpoint": hidden(lru, "_lru_checkpoints"),
            }
        elif self.generation == "G4":
            queues = hidden(lru, "_lrus")
        order = {
            name: [keys.index((model, list(key))) for model, key in queue]
            for name, queue in queues.items()
        }
        shown: dict[str, Json] = {"entries": entries, "order": order}
        if self.generation != "G0":
            shown |= {"nbytes": self.store.nbytes, "len": len(self.store)}
        if self.generation == "G4":
            stats = self.store.stats_by_type()
            shown["by_type"] = {n: [s["n_sequences"], s["n_bytes"]] for n, s in stats.items()}
        return {"store": shown}


class TriePlayer:
    """The trie alone."""

    def __init__(self, caches: Real) -> None:
        self.trie = caches.PromptTrie()

    def do_add(self, op: Operation) -> Json:
        """Put a value."""
        return self.trie.add(op["model"], read_row(op["key"]), op["value"])

    def do_get(self, op: Operation) -> Json:
        """The value of a key."""
        return self.trie.get(op["model"], read_row(op["key"]))

    def do_pop(self, op: Operation) -> Json:
        """Take a value out."""
        return self.trie.pop(op["model"], read_row(op["key"]))

    def do_pop_prefixes(self, op: Operation) -> Json:
        """Take out all on the way."""
        return [list(p) for p in self.trie.pop_prefixes(op["model"], read_row(op["key"]))]

    def do_search(self, op: Operation) -> Json:
        """Walk and look below."""
        return result_shown(self.trie.search(op["model"], read_row(op["key"])))

    def left_behind(self, _op: Operation) -> dict[str, Json]:
        """All values."""
        return {
            "entries": [
                [model, write_row(key), value]
                for model, node in hidden(self.trie, "_trie").items()
                for key, value in walk(node, "__value__")
            ]
        }


def walk(node: Json, mark: str, key: tuple[int, ...] = ()) -> list[tuple[list[int], Real]]:
    """Values below a node, depth first, children in order of creation."""
    found = [(list(key), node[mark])] if mark in node else []
    for token, child in node.items():
        if token != mark:
            found += walk(child, mark, (*key, token))
    return found


def result_shown(found: Real) -> Json:
    """A search result."""
    shown = {
        name: None if getattr(found, name) is None else write_row(getattr(found, name))
        for name in ("exact", "shorter", "longer")
    }
    return shown | {"common_prefix": found.common_prefix}


def layer_shown(layer: Real) -> dict[str, Json]:
    """Fields of one layer of a stored prompt cache in a vector."""
    kind = type(layer).__name__
    shown: dict[str, Json] = {"class": kind}
    if kind == "ArraysCache":
        return shown | {"slot": None if layer[0] is None else layer[0].tolist()[0]}
    shown["offset"] = layer.offset
    if kind == "ChunkedKVCache":
        shown["start_position"] = layer.start_position
    if layer.values is None:
        return shown | {"tokens": None, "tags": None}
    values = layer.values
    if kind == "RotatingKVCache":
        shown["idx"] = hidden(layer, "_idx")
        values = hidden(layer, "_temporal_order")(values)
    else:
        values = values[:, :, : layer.offset - getattr(layer, "start_position", 0)]
    pairs = values.tolist()[0][0]
    return shown | {
        "tokens": write_row([int(each[0]) for each in pairs]),
        "tags": write_row([int(each[1]) for each in pairs]),
    }


def hidden(thing: Real, *names: str) -> Real:
    """A field that the real class keeps to itself."""
    for name in names:
        thing = getattr(thing, name)
    return thing
