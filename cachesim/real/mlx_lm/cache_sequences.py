"""Random operation sequences on mlx-lm's cache classes, chosen looking at the port's own state.

What the array library leaves undefined is not asked for: row numbers that a batch does not have,
and anything after an exception.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from cachesim.engines.mlx_lm.caches.prompt_cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    LayerCache,
)
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.real.mlx_lm.cache_player import CachePlayer
from cachesim.real.mlx_lm.rows import write_row

GROUPS: Final = (
    "KVCache",
    "RotatingKVCache",
    "ArraysCache",
    "ChunkedKVCache",
    "CacheList",
    "BatchKVCache",
    "BatchRotatingKVCache",
)
BATCHES: Final = {"BatchKVCache": "KVCache", "BatchRotatingKVCache": "RotatingKVCache"}

Operation = dict[str, Any]
Sequenced = dict[str, Any]


def draw_cache_sequence(release: str, group: str, random: Random) -> Sequenced:
    """A sequence of 6 to 30 operations; it ends early where the port raises."""
    drawing = _Drawing(release, group, random)
    for _ in range(random.randint(6, 30)):
        if not drawing.one_more():
            break
    return {"version": release, "group": group, "ops": drawing.ops, "until_error": True}


class _Drawing:
    """A sequence in the making."""

    def __init__(self, release: str, group: str, random: Random) -> None:
        self.group = group
        self.single = BATCHES.get(group, group)
        self.random = random
        self.player = CachePlayer(FAMILY.release(release).rules.caches)
        self.ops: list[Operation] = []
        self.window = random.choice((2, 3, 4, 5, 8, 16, 300))
        self.slots = random.choice((1, 2, 3))
        self.members = [self._spec(random.choice(GROUPS[:4])) for _ in range(random.choice((1, 2)))]
        self._names = 0
        self._token = 0

    @property
    def objects(self) -> Mapping[str, LayerCache]:
        """What there is by now."""
        return self.player.objects

    def one_more(self) -> bool:
        """Draw and play an operation; False when it raised."""
        op = self._draw()
        self.ops.append(op)
        return "error" not in self.player.play(op)

    def _draw(self) -> Operation:
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

    def _columns(self) -> int:
        if self.random.random() < 0.06:
            return self.random.choice((200, 250, 256, 300))
        return self.random.choice((1, 1, 1, 2, 3, 4, 6, 9))

    def _write(self, name: str, batch: int = 1, **more: Any) -> Operation:
        columns = self._columns()
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
        ][: 6 if self._savable(some) else 5]

    def _savable(self, names: Sequence[str]) -> bool:
        return all(name[0] == "c" for name in names)

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
        lengths = [self.random.randint(1, 6) for _ in range(batch)]
        padding = [max(lengths) - length for length in lengths]
        return {"op": "prepare", "obj": name, "lengths": lengths, "right_padding": padding}

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
