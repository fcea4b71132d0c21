"""The worker's part for layer caches: named objects of the real classes, played upon."""

import copy
import runpy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = Any
Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs
Operation: TypeAlias = dict[str, Any]

ROWS = runpy.run_path(str(Path(__file__).parent / "rows.py"))
read_row, write_row = ROWS["read_row"], ROWS["write_row"]

MODULUS = 9973
HEADER = {"k": "v"}


class CachePlayer:
    """Named cache objects."""

    def __init__(self, mx: Real, caches: Real) -> None:
        self.mx = mx
        self.caches = caches
        self.objects: dict[str, Real] = {}

    def left_behind(self, op: Operation) -> dict[str, Json]:
        """Snapshots of the objects touched."""
        if op["op"] in ("mask", "state"):
            return {}
        names = [op.get("obj"), op.get("other"), *op.get("objs", ()), op.get("out")]
        after = {n: snapshot(self.objects[n]) for n in names if n in self.objects}
        return {"after": after}

    def one(self, op: Operation) -> Real:
        """The object acted on."""
        found = self.objects[op["obj"]]
        return found.caches[op["member"]] if "member" in op else found

    def many(self, op: Operation) -> list[Real]:
        """The objects acted on."""
        return [self.objects[name] for name in op["objs"]]

    def do_new(self, op: Operation) -> None:
        """A fresh object."""
        self.objects[op["out"]] = self.made(op["spec"])

    def made(self, spec: Json) -> Real:
        """Construct by name."""
        if spec["class"] == "CacheList":
            return self.caches.CacheList(*map(self.made, spec["members"]))
        return getattr(self.caches, spec["class"])(**spec.get("args", {}))

    def do_write(self, op: Operation) -> Json:
        """Write rows; what comes back."""
        block = self.mx.array([read_row(text) for text in op["tokens"]], dtype=self.mx.float32)
        keys = block[:, None, :, None]
        values = self.mx.concatenate([keys, keys], axis=3)
        return written(self.one(op).update_and_fetch(keys, values)[0])

    def do_absorb(self, op: Operation) -> Json:
        """The stand-in recurrent layer."""
        cache, tokens = self.one(op), op["tokens"]
        mask = cache.make_mask(len(tokens[0]))
        shown = None if mask is None else mask.tolist()
        for slot in op["slots"]:
            state = cache[slot]
            start = [[0, 0] for _ in tokens] if state is None else state.tolist()
            after = absorbed(start, slot, tokens, shown)
            cache[slot] = self.mx.array(after, dtype=self.mx.int32)
        cache.advance(len(tokens[0]))
        return mask_as_text(mask)

    def do_trim(self, op: Operation) -> Json:
        """Trim one."""
        return self.one(op).trim(op["n"])

    def do_front(self, op: Operation) -> None:
        """Drop a chunk's front."""
        self.one(op).maybe_trim_front()

    def do_trim_list(self, op: Operation) -> Json:
        """Trim a prompt cache."""
        return self.caches.trim_prompt_cache(self.many(op), op["n"])

    def do_can_trim_list(self, op: Operation) -> Json:
        """Ask a prompt cache."""
        return self.caches.can_trim_prompt_cache(self.many(op))

    def do_copy(self, op: Operation) -> None:
        """A deep copy."""
        self.objects[op["out"]] = copy.deepcopy(self.one(op))

    def do_restore(self, op: Operation) -> None:
        """Rebuild from the state."""
        cache = self.one(op)
        state = copy.deepcopy(cache.state)
        more = (cache.meta_state,) if hasattr(type(cache), "meta_state") else ()
        self.objects[op["out"]] = type(cache).from_state(state, *more)

    def do_save_load(self, op: Operation) -> Json:
        """Through a file."""
        with tempfile.TemporaryDirectory() as folder:
            name = str(Path(folder) / "cache.safetensors")
            self.caches.save_prompt_cache(name, self.many(op), HEADER)
            caches, metadata = self.caches.load_prompt_cache(name, return_metadata=True)
            return {"caches": [snapshot(each) for each in caches], "metadata": metadata}

    def do_state(self, op: Operation) -> Json:
        """The shape of the state."""
        return shape_of(self.one(op).state)

    def do_mask(self, op: Operation) -> Json:
        """A mask for new columns."""
        cache = self.one(op)
        if "array" in op:
            mask = cache.make_mask(op["n"], window_size=op["window"], return_array=op["array"])
        else:
            mask = cache.make_mask(op["n"])
        return mask_as_text(mask)

    def do_merge(self, op: Operation) -> None:
        """A batch of several."""
        caches = self.many(op)
        form = type(caches[0])
        if not hasattr(form, "merge"):  # before #743 the batch form alone had it
            form = getattr(self.caches, f"Batch{form.__name__}", form)
        self.objects[op["out"]] = form.merge(caches)

    def do_filter(self, op: Operation) -> None:
        """Keep rows."""
        self.one(op).filter(op["rows"])

    def do_extend(self, op: Operation) -> None:
        """Append rows."""
        self.one(op).extend(self.objects[op["other"]])

    def do_extract(self, op: Operation) -> None:
        """A row alone."""
        self.objects[op["out"]] = self.one(op).extract(op["row"])

    def do_prepare(self, op: Operation) -> None:
        """Announce padding."""
        names = ("left_padding", "lengths", "right_padding")
        self.one(op).prepare(**{name: op[name] for name in names if name in op})

    def do_finalize(self, op: Operation) -> None:
        """End padding."""
        self.one(op).finalize()

    def do_advance(self, op: Operation) -> None:
        """Columns went through."""
        self.one(op).advance(op["n"])


def absorbed(state: Json, slot: int, tokens: Json, mask: Json) -> Json:
    """Count and hash of the columns not masked out, row by row."""
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
    """A text row per row of the batch."""
    return [write_row([int(r[0]) for r in row[0]]) for row in buffer.tolist()]


def mask_as_text(mask: Real) -> Json:
    """A mask in zeros and ones."""
    if mask is None or isinstance(mask, str):
        return mask
    return {"shape": list(mask.shape), "rows": bits(mask.tolist())}


def bits(mask: Json) -> Json:
    """The innermost lists as texts."""
    if not mask or not isinstance(mask[0], list):
        return "".join("1" if each else "0" for each in mask)
    return [bits(each) for each in mask]


def shape_of(state: Real) -> Json:
    """A state with shapes for arrays."""
    if hasattr(state, "shape"):
        return {"array": list(state.shape)}
    if isinstance(state, list | tuple):
        return [shape_of(each) for each in state]
    return state


def tried(ask: Callable[[], Json]) -> Json:
    """An answer, or what was raised instead."""
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
        shown |= {"written": hidden(cache, "_offset"), "rotated": cache.rotated}
        shown["lengths"] = vector(getattr(cache, "_lengths", "missing"))
    if kind == "BatchKVCache":
        shown["right_padding"] = vector(getattr(cache, "_right_padding", "missing"))
    return shown


def vector(value: Real) -> Json:
    """A number or a list of them."""
    return value.tolist() if hasattr(value, "tolist") else value


def hidden(thing: Real, *names: str) -> Real:
    """A field that the real class keeps to itself."""
    for name in names:
        thing = getattr(thing, name)
    return thing
