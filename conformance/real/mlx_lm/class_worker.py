"""Inside a real release's environment: operations on mlx-lm's own classes, logits of its models.

One line of JSON in, one line out. `{"group": ..., "args": ..., "ops": [...]}` runs a sequence on
fresh objects and answers with the list of its results, in the form of the vector files. A model
(its module, arguments and a file of tensors) with prompts, in the pieces that they are to be fed
in, and padded batches brings the logits of every token, and of every token that a batch decodes.
"""

import copy
import importlib
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from cachesim.prove.mlx_lm.server_worker import queues_of
from cachesim.prove.worker_side import Json, Real, answer_each, own_output
from conformance.real.mlx_lm import players
from conformance.real.mlx_lm.players import HEADER, Player, feed_batch, tried


def main() -> None:
    """Run sequences until the input ends."""
    answers = own_output()
    mx = importlib.import_module("mlx.core")
    classes = importlib.import_module("mlx_lm.models.cache")
    answer_each(answers, lambda order: (play if "ops" in order else logits)(order, mx, classes))


def play(sequence: Json, mx: Real, classes: Real) -> list[Json]:
    """Results of a sequence on fresh objects."""
    player: Player = CachePlayer(mx, classes)
    if sequence["group"] == "trie":
        player = TriePlayer(classes.PromptTrie())
    elif sequence["group"] == "store":
        player = StorePlayer(mx, classes, sequence["args"])
    results: list[Json] = []
    for op in sequence["ops"]:
        results.append(player.play(op))
        if sequence.get("until_error") and "error" in results[-1]:
            break
    return results


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

    def tells(self, cache: Real) -> tuple[bool, bool]:
        return hasattr(cache, "empty"), hasattr(type(cache), "meta_state")  # the first since #769

    def pending(self, cache: Real, name: str) -> Real:
        lacking = None if name == "lengths" and not hasattr(cache, "prepare") else "missing"
        return getattr(cache, name, lacking)  # before #690 none has lengths


class StorePlayer(players.StorePlayer):
    """The store of the release."""

    def __init__(self, mx: Real, caches: Real, args: Json) -> None:
        home = caches
        if not hasattr(caches, "LRUPromptCache"):
            home = importlib.import_module("mlx_lm.server")
        store = home.LRUPromptCache(**args)
        super().__init__(mx, vars(caches), store, mx.contiguous)
        self.can_trim = caches.can_trim_prompt_cache
        self.lru = store._lru
        self.generation = "G4" if hasattr(self.lru, "_lrus") else "G2"
        if not hasattr(self.lru, "push"):
            self.generation = "G0"
        self.search = store._trie.search if self.generation == "G4" else store._search

    def insert(self, model: str, key: list[int], cache: list[Real], kind: str) -> None:
        more: Json = {"G4": {"cache_type": kind}, "G2": {"checkpoint": kind != "assistant"}}
        self.store.insert_cache(model, key, cache, **more.get(self.generation, {}))

    def held(self) -> tuple[list[tuple[str, list[int], Real]], Mapping[str, Real]]:
        typed = self.generation == "G4"
        root = self.store._trie._trie if typed else self.store._cache
        return stored_in(root, "__value__" if typed else "cache"), queues_of(self.lru)

    def ordered(self, layer: Real, rows: Real) -> Real:
        return layer._temporal_order(rows)


class TriePlayer(players.TriePlayer):
    """The trie of the release."""

    def items(self) -> list[tuple[str, list[int], int]]:
        return stored_in(self.trie._trie, "__value__")


def stored_in(root: Json, mark: str) -> list[tuple[str, list[int], Real]]:
    """Model, key and value of each entry of a trie."""
    return [(model, *pair) for model, node in root.items() for pair in walk(node, mark)]


def walk(node: Json, mark: str, key: tuple[int, ...] = ()) -> list[tuple[list[int], Real]]:
    """Values below a node, depth first, children in order of creation."""
    found = [(list(key), node[mark])] if mark in node else []
    for token, child in node.items():
        if token != mark:
            found += walk(child, mark, (*key, token))
    return found


# -- logits --------------------------------------------------------------------------------------


def logits(order: Json, mx: Real, caches: Real) -> Json:
    """Per prompt, the logits of each of its tokens; per batch, those of each step and row."""
    module = importlib.import_module(f"mlx_lm.models.{order['module']}")
    model = module.Model(module.ModelArgs.from_dict(order["arguments"]))
    model.load_weights(list(mx.load(order["weights"]).items()), strict=True)
    model.eval()
    mx.eval(model.parameters())
    return {
        "prompts": [_prompt(mx, caches, model, prompt) for prompt in order["prompts"]],
        "batches": [tried(partial(_batch, mx, caches, model, batch)) for batch in order["batches"]],
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
    calls = [(mx.array(columns), *rest) for columns, *rest in order["calls"]]
    if order["left_padding"] is not None:
        make = generate._make_cache
        wants = make.__code__.co_varnames[: make.__code__.co_argcount]
        more = (None,) if len(wants) > 2 else ()
        batch = make(model, order["left_padding"], *more)
    else:
        batch = generate._merge_caches(single)
    is_padded = order["left_padding"] is not None
    fed = partial(model, cache=batch)
    feed_batch(fed, batch, calls, step=order["step"], is_padded=is_padded)
    rows = []
    for row in order["said"]:
        out = model(mx.array(row)[:, None], cache=batch)[:, -1].astype(mx.float32)
        mx.eval(out)
        rows.append(out.tolist())
    return rows
