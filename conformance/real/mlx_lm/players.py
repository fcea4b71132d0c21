"""Operations on mlx-lm's layer caches, its store and its trie, in the form of the vector files.

The port and the worker in a release's environment run the same; what differs between them is a
method of their own. Nothing is imported that a release's environment lacks.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from cachesim.prove.rows import read_row, write_row
from cachesim.prove.worker_side import Json, Real

Operation: TypeAlias = Mapping[str, Any]
"""Modules, classes and objects of the port or of the release."""

Library: TypeAlias = Any
"""NumPy or MLX: functions of the same names."""

MODULUS: Final = 9973
HEADER: Final = {"k": "v"}


class Player:
    """Objects of one sequence, and one method per operation."""

    after: Callable[[Any], dict[str, Json]]  # the compared state behind an operation

    def play(self, op: Operation) -> dict[str, Json]:
        """Result or exception of an operation, and the state afterwards."""
        try:
            result: dict[str, Json] = {"ret": getattr(self, f"do_{op['op']}")(op)}
        except Exception as error:
            result = {"error": type(error).__name__.removeprefix("Upstream")}
        return result | self.after(op)


def tried(ask: Callable[[], Json], raises: type[Exception] = Exception) -> Json:
    """A result, or the name of the exception."""
    try:
        return ask()
    except raises as error:
        return {"error": type(error).__name__.removeprefix("Upstream")}


FIELDS: Final = {
    "idx": "_idx",
    "max_size": "max_size",
    "keep": "keep",
    "start_position": "start_position",
    "chunk_size": "chunk_size",
    "left_padding": "left_padding",
}
"""Numbers of a cache of keys and values, by their names in a vector."""


def vector(value: Real) -> Json:
    """A number or a list of them."""
    return value.tolist() if hasattr(value, "tolist") else value


class CachePlayer(Player):
    """Named cache objects of `caches`, the port's or the release's module."""

    raises: type[Exception] = Exception
    """An exception that is a result."""

    restored: Callable[[Any], Real]  # a cache made from another one's state
    reloaded: Callable[[list[Any]], tuple[list[Any], Json]]  # prompt cache and metadata from a file
    tells: Callable[[Any], tuple[bool, bool]]  # whether a cache has `empty`, and `meta_state`
    pending: Callable[
        [Any, str], Real
    ]  # padding or lengths by name; "missing" where there are none

    def __init__(self, library: Library, caches: Real) -> None:
        self.library, self.caches = library, caches
        self.objects: dict[str, Real] = {}

    def construct(self, name: str, *members: Real, **args: Any) -> Real:
        return getattr(self.caches, name)(*members, **args)

    def duplicate(self, cache: Real) -> Real:
        return copy.deepcopy(cache)

    def batch_class(self, kind: Real) -> Real:
        """The class whose `merge` makes a batch."""
        return kind

    def snapshot(self, cache: Real) -> dict[str, Json]:
        """Fields of a cache in a vector."""
        size = cache.size if hasattr(cache, "size") else cache.__len__
        shown: dict[str, Json] = {"class": type(cache).__name__}
        shown |= {
            "size": tried(size, self.raises),
            "trimmable": tried(cache.is_trimmable, self.raises),
            "nbytes": tried(lambda: cache.nbytes, self.raises),
        }
        has_empty, has_meta_state = self.tells(cache)
        if has_empty:
            shown["empty"] = tried(cache.empty, self.raises)
        if has_meta_state:
            shown["meta_state"] = tried(lambda: cache.meta_state, self.raises)
        if hasattr(cache, "caches"):
            return shown | {"members": [self.snapshot(each) for each in cache.caches]}
        if hasattr(cache, "cache"):
            shown["slots"] = [None if each is None else each.tolist() for each in cache.cache]
            padding = ("left_padding", "lengths")
            return shown | {name: vector(self.pending(cache, name)) for name in padding}
        shown["buffer"] = None if cache.keys is None else written(cache.keys)
        shown["offset"] = vector(cache.offset)
        shown |= {n: vector(getattr(cache, f)) for n, f in FIELDS.items() if hasattr(cache, f)}
        if shown["class"] == "BatchRotatingKVCache":
            shown |= {"written": getattr(cache, "_offset", None), "rotated": cache.rotated}
            shown["lengths"] = vector(self.pending(cache, "_lengths"))
        if shown["class"] == "BatchKVCache":
            shown["right_padding"] = vector(self.pending(cache, "_right_padding"))
        return shown

    def after(self, op: Operation) -> dict[str, Json]:
        if op["op"] in ("mask", "state"):
            return {}
        names = [op.get("obj"), op.get("other"), *op.get("objs", ()), op.get("out")]
        return {"after": {n: self.snapshot(self.objects[n]) for n in names if n in self.objects}}

    def _object(self, op: Operation) -> Real:
        found = self.objects[op["obj"]]
        return found.caches[op["member"]] if "member" in op else found

    def _objects(self, op: Operation) -> list[Real]:
        return [self.objects[name] for name in op["objs"]]

    def _made(self, spec: Mapping[str, Any]) -> Real:
        members = map(self._made, spec.get("members", ()))
        return self.construct(spec["class"], *members, **spec.get("args", {}))

    def do_new(self, op: Operation) -> None:
        self.objects[op["out"]] = self._made(op["spec"])

    def do_write(self, op: Operation) -> list[str]:
        rows = [read_row(text) for text in op["tokens"]]
        block = self.library.array(rows, dtype=self.library.float32)[:, None, :, None]
        keys, _ = self._object(op).update_and_fetch(block, self.library.repeat(block, 2, axis=3))
        return written(keys)

    def do_absorb(self, op: Operation) -> Json:
        cache, tokens = self._object(op), op["tokens"]
        mask = cache.make_mask(len(tokens[0]))
        shown = None if mask is None else mask.tolist()
        for slot in op["slots"]:
            state = cache[slot]
            start = [[0, 0] for _ in tokens] if state is None else state.tolist()
            after = absorbed(start, slot, tokens, shown)
            cache[slot] = self.library.array(after, dtype=self.library.int32)
        cache.advance(len(tokens[0]))
        return mask_as_text(mask)

    def do_trim(self, op: Operation) -> Json:
        return self._object(op).trim(op["n"])

    def do_front(self, op: Operation) -> None:
        self._object(op).maybe_trim_front()

    def do_trim_list(self, op: Operation) -> Json:
        return self.caches.trim_prompt_cache(self._objects(op), op["n"])

    def do_can_trim_list(self, op: Operation) -> Json:
        return self.caches.can_trim_prompt_cache(self._objects(op))

    def do_copy(self, op: Operation) -> None:
        self.objects[op["out"]] = self.duplicate(self._object(op))

    def do_restore(self, op: Operation) -> None:
        self.objects[op["out"]] = self.restored(self._object(op))

    def do_save_load(self, op: Operation) -> Json:
        caches, metadata = self.reloaded(self._objects(op))
        return {"caches": [self.snapshot(cache) for cache in caches], "metadata": metadata}

    def do_state(self, op: Operation) -> Json:
        return shape_of(self._object(op).state)

    def do_mask(self, op: Operation) -> Json:
        named = {"window_size": op["window"], "return_array": op["array"]} if "array" in op else {}
        return mask_as_text(self._object(op).make_mask(op["n"], **named))

    def do_merge(self, op: Operation) -> None:
        caches = self._objects(op)
        self.objects[op["out"]] = self.batch_class(type(caches[0])).merge(caches)

    def do_filter(self, op: Operation) -> None:
        self._object(op).filter(op["rows"])

    def do_extend(self, op: Operation) -> None:
        self._object(op).extend(self.objects[op["other"]])

    def do_extract(self, op: Operation) -> None:
        self.objects[op["out"]] = self._object(op).extract(op["row"])

    def do_prepare(self, op: Operation) -> None:
        names = ("left_padding", "lengths", "right_padding")
        self._object(op).prepare(**{name: op[name] for name in names if name in op})

    def do_finalize(self, op: Operation) -> None:
        self._object(op).finalize()

    def do_advance(self, op: Operation) -> None:
        self._object(op).advance(op["n"])


def absorbed(state: Json, slot: int, tokens: Json, mask: Json) -> Json:
    """The stand-in recurrent layer: count and rolling hash of the columns not masked out."""
    after = []
    for index, row in enumerate(tokens):
        count, code = state[index]
        seen = None if mask is None else mask[index if len(mask) > 1 else 0]
        for column, token in enumerate(row):
            if seen is None or seen[column]:
                count, code = count + 1, (code * (31 + 2 * slot) + token + 7) % MODULUS
        after.append([count, code])
    return after


def written(buffer: Real) -> list[str]:
    """A text row per row of the batch; head and width are 1."""
    return [write_row([int(token[0]) for token in row[0]]) for row in buffer.tolist()]


def mask_as_text(mask: Real) -> Json:
    """A mask in zeros and ones."""
    if mask is None or isinstance(mask, str):
        return mask
    return {"shape": list(mask.shape), "rows": _bits(mask.tolist())}


def _bits(mask: Json) -> Json:
    if not mask or not isinstance(mask[0], list):
        return "".join("1" if seen else "0" for seen in mask)
    return [_bits(each) for each in mask]


def shape_of(state: Real) -> Json:
    """A state with shapes in place of arrays."""
    if hasattr(state, "shape"):
        return {"array": list(state.shape)}
    if isinstance(state, list | tuple):
        return [shape_of(each) for each in state]
    return state


class StorePlayer(Player):
    """A store, and the prompt caches built so far; `classes` constructs layer caches by name."""

    search: Callable[[str, list[int]], Real]
    can_trim: Callable[[list[Real]], Json]
    held: Callable[[], tuple[Any, Mapping[str, Any]]]  # what is stored, and the keys in each queue
    ordered: Callable[[Any, Any], Real]  # rows of a ring, the oldest first

    def __init__(
        self,
        library: Library,
        classes: Mapping[str, Any],
        store: Real,
        contiguous: Callable[[Any], Any],
    ) -> None:
        self.library, self.classes, self.store = library, classes, store
        self.contiguous = contiguous
        self.generation = "G4"
        self.built: dict[int, list[Real]] = {}
        self.tags: dict[int, int] = {}  # by identity: the newest tag of each object

    def insert(self, model: str, key: list[int], cache: list[Real], kind: str) -> None:
        self.store.insert_cache(model, key, cache, cache_type=kind)

    def fresh(self, kind: str, window: int) -> list[Real]:
        name, *args = {
            "attn": ("KVCache",),
            "swa": ("RotatingKVCache", window),
            "hyb": ("ArraysCache", 1),
            "chunked": ("ChunkedKVCache", window),
        }[kind]
        return [self.classes[str(name)](*args), self.classes["KVCache"]()]

    def _keep(self, cache: list[Real], tag: int, *, exact: bool) -> None:
        """Remember a prompt cache; `exact`: no more rows than tokens, as extracted from a batch."""
        for layer in cache if exact else ():
            if type(layer).__name__ == "KVCache" and layer.keys is not None:
                layer.keys = self.contiguous(layer.keys[:, :, : layer.offset])
                layer.values = self.contiguous(layer.values[:, :, : layer.offset])
        self.built[tag] = cache
        self.tags[id(cache)] = tag

    def do_insert(self, op: Operation) -> Json:
        entry, key = op["entry"], read_row(op["key"])
        cache, first = self.fresh(entry["kind"], entry.get("window", 0)), 0
        for count in entry["pieces"]:
            feed(self.library, cache, key[first : first + count], entry["tag"])
            first += count
        self._keep(cache, entry["tag"], exact=entry["exact"])
        self.insert(op["model"], key, cache, op["type"])
        return {"trimmable": self.can_trim(cache)}

    def _fetched(
        self, model: str, key: list[int]
    ) -> tuple[dict[str, Json], list[Real] | None, list[int]]:
        known = {id(cache) for cache in self.built.values()}
        cache, rest = self.store.fetch_nearest_cache(model, key)
        shown: dict[str, Json] = {
            "rest": write_row(rest),
            "cached": len(key) - len(rest),
            "layers": None if cache is None else [self.layer(each) for each in cache],
        }
        if cache is not None:
            shown["same_object_as"] = self.tags[id(cache)] if id(cache) in known else None
        return shown, cache, list(rest)

    def layer(self, layer: Real) -> dict[str, Json]:
        """Fields of one layer of a stored prompt cache in a vector."""
        kind = type(layer).__name__
        shown: dict[str, Json] = {"class": kind}
        if kind == "ArraysCache":
            return shown | {"slot": None if layer[0] is None else layer[0].tolist()[0]}
        shown["offset"], values = layer.offset, layer.values
        if kind == "ChunkedKVCache":
            shown["start_position"] = layer.start_position
        if values is None:
            return shown | {"tokens": None, "tags": None}
        if kind == "RotatingKVCache":
            shown["idx"] = getattr(layer, FIELDS["idx"])
            values = self.ordered(layer, values)
        else:
            values = values[:, :, : layer.offset - getattr(layer, "start_position", 0)]
        tokens, tags = ([int(pair[at]) for pair in values.tolist()[0][0]] for at in (0, 1))
        return shown | {"tokens": write_row(tokens), "tags": write_row(tags)}

    def do_fetch(self, op: Operation) -> Json:
        return self._fetched(op["model"], read_row(op["key"]))[0]

    def do_turn(self, op: Operation) -> Json:
        key, reply = read_row(op["key"]), read_row(op["reply"])
        shown, cache, rest = self._fetched(op["model"], key)
        if cache is None:
            cache = self.fresh(op["kind"], op.get("window", 0))
        for piece in [rest, *([token] for token in reply)]:
            if piece:
                feed(self.library, cache, piece, op["tag"])
        self._keep(cache, op["tag"], exact=op["exact"])
        shown["inserted"] = [self.layer(each) for each in cache]
        self.insert(op["model"], [*key, *reply], cache, op["type"])
        return shown

    def do_grow(self, op: Operation) -> None:
        feed(self.library, self.built[op["tag"]], read_row(op["tokens"]), op["new_tag"])

    def do_trim_to(self, op: Operation) -> None:
        self.store.trim_to(**{n: op[n] for n in ("n_sequences", "n_bytes") if n in op})

    def do_search(self, op: Operation) -> Json:
        return result_shown(self.search(op["model"], read_row(op["key"])))

    def after(self, op: Operation) -> dict[str, Json]:
        items, queues = self.held()
        keys, entries = [(model, key) for model, key, _ in items], []
        for model, key, entry in items:
            row = [model, write_row(key), self.tags[id(entry.prompt_cache)]]
            row.append(entry.count if self.generation == "G0" else entry.nbytes)
            entries.append([*row, entry.cache_type] if self.generation == "G4" else row)
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


def feed(library: Library, cache: Sequence[Real], tokens: Sequence[int], tag: int) -> None:
    """Write tokens, marked with a tag, in one piece."""
    row = library.array(list(tokens), dtype=library.float32)[None, None, :, None]
    marks = library.full(row.shape, tag, dtype=library.float32)
    for layer in cache:
        if hasattr(layer, "cache"):
            count = 0 if layer[0] is None else int(layer[0].tolist()[0][0])
            layer[0] = library.array([[count + len(tokens), tag]], dtype=library.int32)
        else:
            layer.update_and_fetch(row, library.concatenate([row, marks], axis=3))


class TriePlayer(Player):
    """The trie alone, with integers as values."""

    def __init__(self, trie: Real) -> None:
        self.trie = trie

    def items(self) -> list[tuple[str, list[int], int]]:
        return list(self.trie.items())

    def after(self, op: Operation) -> dict[str, Json]:
        return {"entries": [[model, write_row(key), value] for model, key, value in self.items()]}

    def do_add(self, op: Operation) -> Json:
        return self.trie.add(op["model"], read_row(op["key"]), op["value"])

    def do_get(self, op: Operation) -> Json:
        return self.trie.get(op["model"], read_row(op["key"]))

    def do_pop(self, op: Operation) -> Json:
        return self.trie.pop(op["model"], read_row(op["key"]))

    def do_pop_prefixes(self, op: Operation) -> Json:
        return [list(pair) for pair in self.trie.pop_prefixes(op["model"], read_row(op["key"]))]

    def do_search(self, op: Operation) -> Json:
        return result_shown(self.trie.search(op["model"], read_row(op["key"])))


def result_shown(found: Real) -> Json:
    """A search result in a vector."""
    shown = {
        name: None if getattr(found, name) is None else write_row(getattr(found, name))
        for name in ("exact", "shorter", "longer")
    }
    return shown | {"common_prefix": found.common_prefix}


def feed_batch(
    model: Callable[[Any], object],
    batch: Sequence[Real],
    calls: Sequence[tuple[Any, ...]],
    *,
    step: int,
    is_padded: bool,
) -> None:
    """Feed columns to a batch, in pieces of at most a step, with their lengths and padding."""
    for columns, lengths, padding in calls:
        for layer in batch if lengths is not None else ():
            layer.prepare(lengths=lengths, right_padding=padding)
        for start in range(0, columns.shape[1], step):
            model(columns[:, start : start + step])
        for layer in batch if lengths is not None or is_padded else ():
            layer.finalize()
