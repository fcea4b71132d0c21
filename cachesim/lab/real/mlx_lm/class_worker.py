"""Inside a real release's environment: operations on mlx-lm's own classes, logits of its models.

One line of JSON in, one line out. `{"group": ..., "args": ..., "ops": [...]}` runs a sequence on
fresh objects and answers with the list of its results, in the form of the vector files. A model
(its module, arguments and a file of tensors) with prompts, in the pieces that they are to be fed
in, and padded batches brings the logits of every token, and of every token that a batch decodes.
"""

import copy
import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from cachesim.lab.real.mlx_lm import players
from cachesim.lab.real.mlx_lm.players import HEADER, Player, written
from cachesim.lab.real.prompts import write_row
from cachesim.lab.real.worker_side import Json, Real, own_output


def main() -> None:
    """Run sequences until the input ends."""
    answers = own_output()
    mx = importlib.import_module("mlx.core")
    classes = importlib.import_module("mlx_lm.models.cache")
    for line in sys.stdin:
        order = json.loads(line)
        found = play(order, mx, classes) if "ops" in order else logits(order, mx, classes)
        answers.write(json.dumps(found) + "\n")


def play(sequence: Json, mx: Real, classes: Real) -> list[Json]:
    """Results of a sequence on fresh objects."""
    player, results = player_for(sequence, mx, classes), list[Json]()
    for op in sequence["ops"]:
        results.append(player.play(op))
        if sequence.get("until_error") and "error" in results[-1]:
            break
    return results


def player_for(sequence: Json, mx: Real, classes: Real) -> Player:
    """Fresh objects of the release."""
    if sequence["group"] == "trie":
        return TriePlayer(classes.PromptTrie())
    if sequence["group"] == "store":
        return StorePlayer(mx, classes, sequence["args"])
    return CachePlayer(mx, classes)


class CachePlayer(players.CachePlayer):
    """Layer caches of the release."""

    def restored(self, cache: Real) -> Real:
        more = (cache.meta_state,) if hasattr(type(cache), "meta_state") else ()
        return type(cache).from_state(copy.deepcopy(cache.state), *more)

    def reloaded(self, caches: list[Real]) -> tuple[list[Real], Json]:
        with tempfile.TemporaryDirectory() as folder:
            name = str(Path(folder) / "cache.safetensors")
            self.caches.save_prompt_cache(name, caches, HEADER)
            loaded, metadata = self.caches.load_prompt_cache(name, return_metadata=True)
            return loaded, metadata

    def batch_class(self, kind: Real) -> Real:
        if hasattr(kind, "merge"):
            return kind
        return getattr(self.caches, f"Batch{kind.__name__}", kind)  # which alone had it until #743

    def snapshot(self, cache: Real) -> dict[str, Json]:
        return snapshot(cache)


def tried(ask: Callable[[], Json]) -> Json:
    """A result, or the exception."""
    try:
        return ask()
    except Exception as error:
        return {"error": type(error).__name__}


def snapshot(cache: Real) -> dict[str, Json]:
    """Fields of one cache in a vector."""
    shown: dict[str, Json] = {
        "class": type(cache).__name__,
        "size": tried(lambda: cache.size() if hasattr(cache, "size") else len(cache)),
        "trimmable": tried(cache.is_trimmable),
        "nbytes": tried(lambda: cache.nbytes),
    }
    if hasattr(cache, "empty"):  # since #769
        shown["empty"] = tried(cache.empty)
    if hasattr(type(cache), "meta_state"):
        shown["meta_state"] = tried(lambda: cache.meta_state)
    if hasattr(cache, "caches"):
        shown["members"] = [snapshot(each) for each in cache.caches]
    elif hasattr(cache, "cache"):
        shown["slots"] = [None if each is None else each.tolist() for each in cache.cache]
        shown["left_padding"] = vector(getattr(cache, "left_padding", "missing"))
        lacking = "missing" if hasattr(cache, "prepare") else None  # no release before #690 has it
        shown["lengths"] = vector(getattr(cache, "lengths", lacking))
    else:
        shown |= rows_snapshot(cache)
    return shown


FIELDS = {
    "idx": "_idx",
    "max_size": "max_size",
    "keep": "keep",
    "start_position": "start_position",
    "chunk_size": "chunk_size",
    "left_padding": "left_padding",
}


def rows_snapshot(cache: Real) -> dict[str, Json]:
    """Buffer and numbers of a cache of keys and values."""
    shown = {"buffer": None if cache.keys is None else written(cache.keys)}
    shown["offset"] = vector(cache.offset)
    shown |= {n: vector(getattr(cache, f)) for n, f in FIELDS.items() if hasattr(cache, f)}
    kind = type(cache).__name__
    if kind == "BatchRotatingKVCache":
        shown |= {"written": cache._offset, "rotated": cache.rotated}
        shown["lengths"] = vector(getattr(cache, "_lengths", "missing"))
    if kind == "BatchKVCache":
        shown["right_padding"] = vector(getattr(cache, "_right_padding", "missing"))
    return shown


def vector(value: Real) -> Json:
    """A number or a list of them."""
    return value.tolist() if hasattr(value, "tolist") else value


class StorePlayer(players.StorePlayer):
    """The store of the release."""

    def __init__(self, mx: Real, caches: Real, args: Json) -> None:
        home = caches
        if not hasattr(caches, "LRUPromptCache"):
            home = importlib.import_module("mlx_lm.server")
        store = home.LRUPromptCache(**args)
        super().__init__(mx, vars(caches), store, mx.contiguous)
        self.can_trim = caches.can_trim_prompt_cache
        self.layer = layer_shown
        self.lru = store._lru
        self.generation = "G4" if hasattr(self.lru, "_lrus") else "G2"
        if not hasattr(self.lru, "push"):
            self.generation = "G0"
        self.search = store._trie.search if self.generation == "G4" else store._search

    def insert(self, model: str, key: list[int], cache: list[Real], kind: str) -> None:
        more: Json = {"G4": {"cache_type": kind}, "G2": {"checkpoint": kind != "assistant"}}
        self.store.insert_cache(model, key, cache, **more.get(self.generation, {}))

    def held(self) -> tuple[list[tuple[str, list[int], Real]], Mapping[str, Real]]:
        typed, lru = self.generation == "G4", self.lru
        root = self.store._trie._trie if typed else self.store._cache
        queues = {"all": lru}
        if typed:
            queues = lru._lrus
        elif self.generation == "G2":
            queues = {"ordinary": lru._lru, "checkpoint": lru._lru_checkpoints}
        return stored_in(root, "__value__" if typed else "cache"), queues


class TriePlayer(players.TriePlayer):
    """The trie of the release."""

    def items(self) -> list[tuple[str, list[int], int]]:
        return stored_in(self.trie._trie, "__value__")


def stored_in(root: Json, mark: str) -> list[tuple[str, list[int], Real]]:
    """Model, key and value of all that a trie holds."""
    return [(model, *pair) for model, node in root.items() for pair in walk(node, mark)]


def walk(node: Json, mark: str, key: tuple[int, ...] = ()) -> list[tuple[list[int], Real]]:
    """Values below a node, depth first, children in order of creation."""
    found = [(list(key), node[mark])] if mark in node else []
    for token, child in node.items():
        if token != mark:
            found += walk(child, mark, (*key, token))
    return found


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
        shown["idx"] = layer._idx
        values = layer._temporal_order(values)
    else:
        values = values[:, :, : layer.offset - getattr(layer, "start_position", 0)]
    pairs = values.tolist()[0][0]
    return shown | {
        "tokens": write_row([int(each[0]) for each in pairs]),
        "tags": write_row([int(each[1]) for each in pairs]),
    }


# -- logits --------------------------------------------------------------------------------------


def logits(order: Json, mx: Real, caches: Real) -> Json:
    """Per prompt, the logits of each of its tokens; per batch, those of each step and row."""
    module = importlib.import_module(f"mlx_lm.models.{order['module']}")
    model = module.Model(module.ModelArgs.from_dict(order["arguments"]))
    model.load_weights(list(mx.load(order["weights"]).items()), strict=True)
    model.eval()
    mx.eval(model.parameters())
    return {
        "prompts": [_prompt(mx, caches, model, each) for each in order["prompts"]],
        "batches": [tried(partial(_batch, mx, caches, model, each)) for each in order["batches"]],
    }


def _prompt(mx: Real, caches: Real, model: Real, pieces: list[list[int]]) -> list[list[float]]:
    cache = caches.make_prompt_cache(model)
    rows: list[list[float]] = []
    for piece in pieces:
        out = model(mx.array([piece]), cache=cache)[0].astype(mx.float32)
        mx.eval(out, [layer.state for layer in cache])
        rows += out.tolist()
    return rows


def _batch(mx: Real, caches: Real, model: Real, order: Json) -> Json:
    """Sequences with a past of their own, fed as one padded batch, then decoded together.

    Padded as the release's generator does it: fresh ones on the left before #1072, others on the
    right.
    """
    generate = importlib.import_module("mlx_lm.generate")
    single = [caches.make_prompt_cache(model) for _ in order["past"]]
    for past, cache in zip(order["past"], single, strict=True):
        if past:
            model(mx.array([past]), cache=cache)
            mx.eval([layer.state for layer in cache])
    calls = [(mx.array(columns), lengths, padding) for columns, lengths, padding in order["calls"]]
    if order["left_padding"] is not None:
        make = generate._make_cache
        wants = make.__code__.co_varnames[: make.__code__.co_argcount]
        more = (None,) if len(wants) > 2 else ()
        batch = make(model, order["left_padding"], *more)
    else:
        batch = generate._merge_caches(single)
    for columns, lengths, padding in calls:
        if lengths is not None:
            for layer in batch:
                layer.prepare(lengths=lengths, right_padding=padding)
        for start in range(0, columns.shape[1], order["step"]):
            model(columns[:, start : start + order["step"]], cache=batch)
        if lengths is not None or order["left_padding"] is not None:
            for layer in batch:
                layer.finalize()
    rows = []
    for row in order["said"]:
        out = model(mx.array(row)[:, None], cache=batch)[:, -1].astype(mx.float32)
        mx.eval(out)
        rows.append(out.tolist())
    return rows
