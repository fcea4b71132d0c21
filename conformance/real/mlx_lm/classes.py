"""mlx-lm's own cache classes beside the port: the same random operations, result by result.

Recorded operations are replayed on the port's classes, store and trie.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final

import numpy as np

from cachesim.engines.mlx_lm.caches import prompt_cache
from cachesim.engines.mlx_lm.caches.layer_cache import UpstreamRaise
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    LayerCache,
    RotatingKVCache,
    load_prompt_cache,
    save_prompt_cache,
)
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.rules import CacheRules, MlxRules, StoreRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import UNLIMITED, LRUPromptCache, PromptTrie
from cachesim.errors import ProfileError, ScenarioError
from cachesim.prove.mlx_lm.process import RealProcess
from cachesim.prove.playing import Difference
from cachesim.prove.rows import read_row, write_row
from cachesim.typed import Json
from cachesim.units import Array
from conformance.real.agreement import Agreement
from conformance.real.fit import Played
from conformance.real.mlx_lm import players
from conformance.real.mlx_lm.players import HEADER, Player, TriePlayer


class CachePlayer(players.CachePlayer):
    """Layer caches of the port."""

    raises = UpstreamRaise

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

    def tells(self, _: LayerCache) -> tuple[bool, bool]:
        return self.rules.batches_recurrent, self.rules.state_form == "sliced"

    def pending(self, cache: LayerCache, name: str) -> Json:
        return getattr(cache, name.removeprefix("_"), "missing")


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

    def held(self) -> tuple[Any, Mapping[str, Any]]:
        return self.store.trie.items(), self.store.order.queues

    def ordered(self, layer: RotatingKVCache, rows: Array) -> Array:
        return layer.temporal_order(rows)


def _player_for(line: Mapping[str, Any], rules: MlxRules | None) -> Player:
    release = line["version"]
    try:
        rules = rules or FAMILY.release(release).rules
    except ProfileError as error:
        raise ScenarioError(f"sequence {line['id']}: {error}") from None
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


GROUPS: Final = (
    "KVCache", "RotatingKVCache", "ArraysCache", "ChunkedKVCache", "CacheList", "BatchKVCache",
    "BatchRotatingKVCache",
)  # fmt: skip
BATCHES: Final = {"BatchKVCache": "KVCache", "BatchRotatingKVCache": "RotatingKVCache"}

Operation = dict[str, Any]
Sequenced = dict[str, Any]


def draw_cache_sequence(release: str, group: str, random: Random) -> Sequenced:
    """A sequence of 6 to 30 operations; it ends early where the port raises."""
    ops = _Drawing(release, group, random).grown(random.randint(6, 30))
    return {"version": release, "group": group, "ops": ops, "until_error": True}


class _Growing:
    """A sequence in the making."""

    player: Player
    draw: Callable[[], Operation]

    def grown(self, most: int) -> list[Operation]:
        """Up to `most` operations; fewer where the port raises."""
        ops: list[Operation] = []
        for _ in range(most):
            ops.append(self.draw())
            if "error" in self.player.play(ops[-1]):
                break
        return ops


class _Drawing(_Growing):
    """Operations on layer caches."""

    player: CachePlayer

    def __init__(self, release: str, group: str, random: Random) -> None:
        self.group = group
        self.single = BATCHES.get(group, group)
        self.random = random
        self.player = CachePlayer(FAMILY.release(release).rules.caches)
        self.window = random.choice((2, 3, 4, 5, 8, 16, 300))
        self.slots = random.choice((1, 2, 3))
        self.members = [self._spec(random.choice(GROUPS[:4])) for _ in range(random.choice((1, 2)))]
        self._names = 0
        self._token = 0

    @property
    def objects(self) -> Mapping[str, LayerCache]:
        return self.player.objects

    def draw(self) -> Operation:
        name = self.random.choice(list(self.objects) or [""])
        if not name or (len(self.objects) < 4 and self.random.random() < 0.2):
            return self._new()
        cache = self.objects[name]
        if isinstance(cache, BatchKVCache | BatchRotatingKVCache):
            return self._on_batch(name, cache)
        if isinstance(cache, ArraysCache):
            return self._on_arrays(name, cache)
        if isinstance(cache, CacheList):
            return self._on_list(name, cache)
        return self._on_single(name, cache)

    def _pick(self, weighted: Sequence[tuple[int, Callable[[], Operation]]]) -> Operation:
        weights = [weight for weight, _ in weighted]
        return self.random.choices([draw for _, draw in weighted], weights)[0]()

    def _out(self, letter: str = "c") -> str:
        self._names += 1
        return f"{letter}{self._names}"

    def _new(self) -> Operation:
        if self.group in BATCHES and self.random.random() < 0.4:
            padding = [self.random.randint(0, 3) for _ in range(self.random.randint(1, 3))]
            args: dict[str, Any] = {"left_padding": padding}
            if self.group == "BatchRotatingKVCache":
                args["max_size"] = self.window
            return {"op": "new", "out": self._out("b"), "spec": {"class": self.group, "args": args}}
        return {"op": "new", "out": self._out(), "spec": self._spec(self.single)}

    def _spec(self, name: str) -> dict[str, Any]:
        match name:
            case "RotatingKVCache":
                keep = self.random.choice((0, 0, 1, 2))
                keep = min(keep, self.window - 1)
                return {"class": name, "args": {"max_size": self.window, "keep": keep}}
            case "ChunkedKVCache":
                return {"class": name, "args": {"chunk_size": self.random.choice((2, 4, 8, 256))}}
            case "ArraysCache":
                return {"class": name, "args": {"size": self.slots}}
            case "CacheList":
                return {"class": name, "members": self.members}
            case _:
                return {"class": name}

    def _tokens(self, count: int) -> str:
        first = self._token + 1
        self._token += count
        return write_row(self.random.sample(range(first, first + count), count))

    def _write(self, name: str, batch: int = 1, **more: Any) -> Operation:
        many = self.random.random() < 0.06
        columns = self.random.choice((200, 250, 256, 300) if many else (1, 1, 1, 2, 3, 4, 6, 9))
        return {"op": "write", "obj": name, **more} | {
            "tokens": [self._tokens(columns) for _ in range(batch)]
        }

    def _named(self, op: str, name: str, **more: Any) -> Callable[[], Operation]:
        return lambda: {"op": op, "obj": name, **more}

    def _to_other(self, op: str, name: str) -> Callable[[], Operation]:
        return lambda: {"op": op, "obj": name, "out": self._out(name[0])}

    def _common(self, name: str) -> list[tuple[int, Callable[[], Operation]]]:
        some = [each for each in self.objects if self.random.random() < 0.4] or [name]
        return [
            (1, self._to_other("copy", name)),
            (1, self._to_other("restore", name)),
            (1, self._named("state", name)),
            (1, lambda: {"op": "trim_list", "objs": some, "n": self.random.randint(0, 9)}),
            (1, lambda: {"op": "can_trim_list", "objs": some}),
            (1, lambda: {"op": "save_load", "objs": [n for n in some if n[0] == "c"] or ["c0"]}),
        ][: 6 if all(name[0] == "c" for name in some) else 5]

    def _on_single(self, name: str, cache: LayerCache) -> Operation:
        choices = [
            (10, lambda: self._write(name)),
            (3, self._named("trim", name, n=self.random.randint(0, 9))),
            *self._common(name),
        ]
        if type(cache).__name__ == "ChunkedKVCache":
            choices.append((3, self._named("front", name)))
        else:
            window = self.random.choice((None, None, 2, 4, self.window))
            array = self.random.random() < 0.3
            columns = self.random.randint(1, 5)
            mask = self._named("mask", name, n=columns, window=window, array=array)
            choices += [(2, mask), (4, self._merge)]
        return self._pick(choices)

    def _merge(self) -> Operation:
        batch_form = (BatchKVCache, BatchRotatingKVCache)
        single = [n for n, each in self.objects.items() if not isinstance(each, batch_form)]
        if self.group in ("ArraysCache", "CacheList"):
            single = [n for n in single if n[0] == "c"]
        if self.group not in BATCHES and self.group not in ("ArraysCache", "CacheList"):
            return self._new()
        if not single:
            return self._new()
        chosen = [self.random.choice(single) for _ in range(self.random.randint(1, 3))]
        return {"op": "merge", "objs": chosen, "out": self._out("b")}

    def _on_batch(self, name: str, cache: BatchKVCache | BatchRotatingKVCache) -> Operation:
        batch = len(cache.offset)
        others = [
            n
            for n, each in self.objects.items()
            if type(each) is type(cache) and each is not cache and _same_rows(each)
        ]
        some = sorted(self.random.sample(range(batch), self.random.randint(1, batch)))
        choices: list[tuple[int, Callable[[], Operation]]] = [
            (10, lambda: self._write(name, batch)),
            (1, self._named("trim", name, n=self.random.randint(0, 5))),
            (2, self._named("mask", name, n=self.random.randint(1, 4))),
            (2, self._named("filter", name, rows=some)),
            (3, lambda: self._extract(name, batch)),
            (3, lambda: self._prepare(name, batch)),
            (3, self._named("finalize", name)),
            (1, self._to_other("copy", name)),
            (1, self._named("state", name)),
        ]
        if others:
            choices.append((4, self._named("extend", name, other=self.random.choice(others))))
        return self._pick(choices)

    def _extract(self, name: str, batch: int) -> Operation:
        row = self.random.randrange(batch)
        return {"op": "extract", "obj": name, "row": row, "out": self._out()}

    def _prepare(self, name: str, batch: int) -> Operation:
        if self.random.random() < 0.15:
            padding = [self.random.randint(0, 3) for _ in range(batch)]
            return {"op": "prepare", "obj": name, "left_padding": padding}
        return self._lengths(name, batch)

    def _on_arrays(self, name: str, cache: ArraysCache) -> Operation:
        batch = cache.batch_size
        padded = cache.is_padded
        choices: list[tuple[int, Callable[[], Operation]]] = [
            (10, lambda: self._absorb(name, batch)),
            (2, self._named("mask", name, n=self.random.randint(1, 4))),
            (1, self._named("advance", name, n=self.random.randint(1, 3))),
            (3, self._named("finalize", name)),
            *self._common(name),
        ]
        if name[0] == "c" and not padded:
            choices.append((3, self._merge))
        if name[0] == "b":
            choices.append((3, lambda: self._lengths(name, batch)))
            choices.append((2, lambda: self._extract(name, batch)))
            if not padded or self.player.rules.filter_keeps_left_padding:
                some = sorted(self.random.sample(range(batch), self.random.randint(1, batch)))
                choices.append((2, self._named("filter", name, rows=some)))
                choices += self._extensions(name)
        return self._pick(choices)

    def _extensions(self, name: str) -> list[tuple[int, Callable[[], Operation]]]:
        others = [
            n
            for n, each in self.objects.items()
            if n[0] == "b" and n != name and isinstance(each, ArraysCache)
        ]
        if not others:
            return []
        return [(4, self._named("extend", name, other=self.random.choice(others)))]

    def _lengths(self, name: str, batch: int) -> Operation:
        lengths = [self.random.randint(1, 6) for _ in range(batch)]
        padding = [max(lengths) - length for length in lengths]
        return {"op": "prepare", "obj": name, "lengths": lengths, "right_padding": padding}

    def _absorb(self, name: str, batch: int, **more: Any) -> Operation:
        columns = self.random.randint(1, 5)
        tokens = [[self.random.randint(1, 99) for _ in range(columns)] for _ in range(batch)]
        slots = list(range(self.slots if self.random.random() < 0.9 else 1))
        return {"op": "absorb", "obj": name, **more} | {"tokens": tokens, "slots": slots}

    def _on_list(self, name: str, cache: CacheList) -> Operation:
        member = self.random.randrange(len(cache.caches))
        batch = max(_batch_of(each) for each in cache.caches)
        if isinstance(cache[member], ArraysCache):
            feed = partial(self._absorb, name, batch, member=member)
        else:
            feed = partial(self._write, name, batch, member=member)
        choices: list[tuple[int, Callable[[], Operation]]] = [
            (12, feed),
            (2, self._named("trim", name, n=self.random.randint(0, 6))),
            *self._common(name),
        ]
        if name[0] == "c":
            choices.append((3, self._merge))
        else:
            choices.append((3, lambda: self._extract(name, batch)))
        return self._pick(choices)


def _batch_of(cache: LayerCache) -> int:
    if isinstance(cache, ArraysCache):
        return cache.batch_size
    if isinstance(cache, BatchKVCache | BatchRotatingKVCache):
        return len(cache.offset)
    return 1


def _same_rows(cache: LayerCache) -> bool:
    if not isinstance(cache, BatchKVCache | BatchRotatingKVCache) or cache.keys is None:
        return True
    return len(cache.keys) == len(cache.offset)


KINDS: Final = ("attn", "swa", "hyb", "chunked")
TYPES: Final = ("assistant", "assistant", "user", "system")


class _StoreDrawing(_Growing):
    """Operations on a store."""

    player: StorePlayer

    def __init__(self, release: str, args: dict[str, int], random: Random) -> None:
        self.random = random
        self.rules = FAMILY.release(release).rules.store
        self.player = StorePlayer(FAMILY.release(release).rules.caches, self.rules, args)
        self.kinds = KINDS if random.random() < 0.4 else (random.choice(KINDS),)
        self.alphabet = random.choice((2, 3, 5))
        self.window = random.choice((4, 8))
        self._tag = 0
        self._keys: list[list[int]] = []

    def draw(self) -> Operation:
        draws = [self._insert, self._fetch, self._turn, self._search]
        weights = [8, 5, 6, 2]
        if self.rules.limits_bytes:
            draws, weights = [*draws, self._trim_to], [*weights, 1]
        if self.player.built:
            draws, weights = [*draws, self._grow], [*weights, 1]
        return self.random.choices(draws, weights)[0]()

    def _key(self, shortest: int = 1) -> str:
        key: list[int] = []
        if self._keys and self.random.random() < 0.75:
            known = self.random.choice(self._keys)
            key = known[: self.random.randint(0, len(known))]
        for _ in range(self.random.randint(0, 6)):
            key.append(self.random.randint(1, self.alphabet))
        while len(key) < shortest:
            key.append(self.random.randint(1, self.alphabet))
        return write_row(key)

    def _entry(self) -> dict[str, Any]:
        self._tag += 1
        entry: dict[str, Any] = {
            "kind": self.random.choice(self.kinds),
            "exact": self.random.random() < 0.7,
            "tag": self._tag,
        }
        if entry["kind"] in ("swa", "chunked"):
            entry["window"] = self.window
        return entry

    def _insert(self) -> Operation:
        key = self._key(int(self.random.random() < 0.95))
        self._keys.append(read_row(key))
        pieces, left = [], len(read_row(key))
        while left:
            pieces.append(self.random.randint(1, left))
            left -= pieces[-1]
        return {
            "op": "insert",
            "model": self.random.choice("mmmn"),
            "key": key,
            "type": self.random.choice(TYPES),
            "entry": self._entry() | {"pieces": pieces},
        }

    def _fetch(self) -> Operation:
        return {"op": "fetch", "model": self.random.choice("mmmn"), "key": self._key()}

    def _search(self) -> Operation:
        return {"op": "search", "model": self.random.choice("mmmn"), "key": self._key(0)}

    def _turn(self) -> Operation:
        key = self._key()
        count = self.random.randint(1, 4)
        reply = [self.random.randint(1, self.alphabet) for _ in range(count)]
        self._keys.append([*read_row(key), *reply])
        entry = self._entry()
        return {
            "op": "turn",
            "model": self.random.choice("mmmn"),
            "key": key,
            "reply": write_row(reply),
            "type": self.random.choice(TYPES),
            **entry,
        }

    def _grow(self) -> Operation:
        self._tag += 1
        tokens = write_row([90, 91, 92][: self.random.randint(1, 3)])
        tag = self.random.choice(list(self.player.built))
        return {"op": "grow", "tag": tag, "tokens": tokens, "new_tag": self._tag}

    def _trim_to(self) -> Operation:
        op: Operation = {"op": "trim_to"}
        if self.random.random() < 0.6:
            op["n_sequences"] = self.random.randint(-1, 5)
        if self.random.random() < 0.5:
            op["n_bytes"] = self.random.choice((-5, 0, 100, 500, 3000))
        return op


class RealClasses(RealProcess):
    """The cache classes of one release, in a process of their own."""

    def __init__(self, release: str) -> None:
        super().__init__(release, "conformance.real.mlx_lm.class_worker")

    def play(self, sequence: Sequenced) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = self.order(sequence)
        return results


def played_of(
    line: Mapping[str, Any],
    steps: int,
    mismatch: Callable[[Mapping[str, Any], MlxRules], Difference | None],
) -> Played[MlxRules]:
    """A recorded line of this many steps, to compare other rules with."""
    return Played(
        kind=line["id"].partition("/")[0],
        requests=steps,
        size=len(str(line["results"])),
        check=lambda rules: mismatch(line, rules),
    )


def compare_classes(
    release: str,
    seed: int,
    sequences: int,
    *,
    record: Callable[[Played[MlxRules]], None] = lambda _: None,
) -> Agreement:
    """Random sequences on the real classes and on the port."""
    agreement = Agreement(
        title=f"mlx-lm {release}: cache classes and store, seed {seed}", kinds="group"
    )
    if not sequences:
        return agreement
    with RealClasses(release) as real:
        for number in range(sequences):
            sequence = draw(release, seed, number)
            results = real.play(sequence)
            sequence["ops"] = sequence["ops"][: len(results)]
            line = sequence | {"results": results}
            found = mismatch(line)
            agreement.add(
                sequence["group"],
                sequence["id"],
                found,
                sequences=1,
                operations=len(results),
                agreeing=len(results) if found is None else found.step,
            )
            record(played_of(line, len(results), mismatch))
    return agreement


def draw(release: str, seed: int, number: int) -> Sequenced:
    """A sequence: the groups take turns, the store comes up as often as three classes."""
    kinds = [*GROUPS, "store", "store", "store"]
    order = FAMILY.names()
    if order.index(release) >= order.index("0.31.2"):  # a trie of its own class (#1072)
        kinds.append("trie")
    kind = kinds[number % len(kinds)]
    random = Random(f"{seed}/{number}")
    if kind == "store":
        args: dict[str, int] = {"max_size": random.choice((1, 2, 3, 5, 10))}
        if FAMILY.release(release).rules.store.limits_bytes and random.random() < 0.4:
            args["max_bytes"] = random.choice((60, 200, 1000, 7000))
        ops = _StoreDrawing(release, args, random).grown(random.randint(10, 30))
        drawn: Sequenced = {"version": release, "group": "store", "args": args}
        drawn |= {"ops": ops, "until_error": True}
    elif kind == "trie":
        keys: list[list[int]] = [[]]
        ops = []
        for value in range(random.randint(10, 40)):
            known = random.choice(keys)
            key = known[: random.randint(0, len(known))]
            key = [*key, *(random.randint(1, 3) for _ in range(random.randint(0, 5)))]
            name = random.choice(
                ("add", "add", "add", "search", "search", "get", "pop", "pop_prefixes")
            )
            op: Operation = {"op": name, "model": random.choice("mmn"), "key": write_row(key)}
            if name == "add":
                op["value"] = value
                keys.append(key)
            ops.append(op)
        drawn = {"version": release, "group": "trie", "ops": ops}
    else:
        drawn = draw_cache_sequence(release, kind, random)
    return drawn | {"id": f"{kind}/{seed}/{number}"}
