"""The calls of `check_live_cache` on a cache, and what each of them must give."""

import math
import os
import resource
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from cachesim.model.arithmetic import LayerShape
from cachesim.testing.contents import (
    PLACEHOLDER,
    Request,
    Rows,
    Server,
    answer,
    finite,
    needed,
    rows_of,
)
from cachesim.testing.laws import BrokenLawError, Story
from cachesim.testing.room import NO_SIZE, PROBES, probes
from cachesim.units import Array, Token, as_tokens

Foreign: TypeAlias = Any
"""A cache, and the results of its calls."""

Open: TypeAlias = Callable[[Server, Path], Foreign]
"""Opens a cache for a server; one that persists, or is shared, keeps its files in the folder."""

Field: TypeAlias = Literal["adapter", "image", "salt", "model", "dtype", "rope"]
Verb: TypeAlias = Literal[
    "store", "keep", "ask", "look up", "give up", "evict", "clear", "restart", "crash",
    "other server",
]  # fmt: skip
Likeness: TypeAlias = Literal["new", "longer", "again", "other-head", "shorter", "moved"]

OF_REQUESTS: Final[tuple[Field, ...]] = ("adapter", "image", "salt")
OF_SERVERS: Final[tuple[Field, ...]] = ("model", "dtype", "rope")
LIKENESSES: Final[tuple[Likeness, ...]] = get_args(Likeness)
"""Relation of a prompt to an earlier one."""

VARIANTS: Final = 5
SCRIBBLE: Final = 7
RECENT: Final = 3
CRASHED_AT: Final = (0, 1, 64, 100, 1000, 4096)
"""The bytes of a file after which a process dies."""

HASH: Final = "5e1f0c94d2a7b386" * 4
HASHES: Final = (HASH, *(HASH[:at] + "b" + HASH[at + 1 :] for at in (0, 32, 63)))
"""Hashes of images, which differ in one digit: the first, the middle or the last."""


@dataclass(frozen=True, slots=True)
class Act:
    """A call: a prompt of pieces and a rest, or one derived from an earlier prompt."""

    verb: Verb
    pieces: tuple[int, ...]
    rest: int
    like: Likeness
    of: int
    who: int  # which names the request bears; those beyond `NAMES`: an earlier prompt's
    image: int  # none, or one of four
    cache: int  # of two that share a store


@dataclass(slots=True, kw_only=True)
class LiveCacheReport:
    """Counts of a check without findings."""

    examples: int = 0
    stored: int = 0
    lookups: int = 0
    loaded: Counter[int] = field(default_factory=Counter)  # tokens -> how often
    continued: int = 0
    restarts: int = 0
    sized: int = 0  # calls after which `nbytes` was read
    emptied: int = 0  # caches whose room was compared with a new one's
    size: str = NO_SIZE

    def __str__(self) -> str:
        """The number of loads, and their lengths."""
        lengths = ", ".join(
            f"{length} ({self.loaded[length]})" for length in sorted(self.loaded)[:12]
        )
        return (
            f"{self.examples} examples, {self.stored} requests stored, {self.lookups} lookups, "
            f"{self.loaded.total()} loads, of which {self.continued} were continued; "
            f"{self.restarts} restarts, {self.emptied} emptied; {self.size}; "
            f"tokens loaded (how often): {lengths or 'none'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the check is told of a cache."""

    make: Open
    varied: tuple[Field, ...]
    unit: int
    persists: bool
    shared: bool
    isolates: bool
    limit: int | None
    keeps: bool
    holds: int
    outstanding: int
    size: tuple[str, Callable[[Server], int]] | None

    def opened(self, server: Server, place: Path, *, small: bool) -> Foreign:
        """The cache; a small one if its size can be given."""
        size = {self.size[0]: self.size[1](server)} if small and self.size else {}
        return self.make(server, place, **size)


def piece(variant: int, length: int) -> list[int]:
    """Tokens that differ from those of another variant in one place, or in all but the last."""
    tokens = [0] * length
    if variant == 4:
        return [2] * (length - 1) + [0] if length > 1 else [2]
    if variant and length:
        tokens[(0, 0, -1, length // 2)[variant]] = 1
    return tokens


def shown(tokens: Sequence[int]) -> str:
    """Tokens as a list; runs of equal tokens are abbreviated."""
    if len(tokens) <= 12:
        return str(list(tokens))
    runs = ((token, len(list(group))) for token, group in groupby(tokens))
    parts = [f"{token} x {count}" if count > 1 else str(token) for token, count in runs]
    return f"[{', '.join(parts)}]"


NAMES: Final = (("", ""), ("a", ""), ("", "a"), ("ab", "c"), ("a", "bc"), ("b", "c"))
"""Adapters and salts, some of which are equal when they are put together."""


Ending: TypeAlias = Literal["evict", "clear", "fill"]
"""How the cache is emptied at the end, before its room is compared with a new one's.

`fill`: more is stored first than a tiny cache has room for, so it has evicted by itself.
"""

OTHER_SERVER: Final = "another server opens the store"
EMPTY: Final = Request(tokens=())


@dataclass(slots=True, eq=False)
class _Promise:
    """What a lookup said, until so many further calls are made."""

    cache: int
    request: Request
    count: int
    calls: int


class Player:
    """Caches over one folder, what was stored in them, and the calls so far."""

    def __init__(
        self,
        told: Told,
        place: Path,
        server: Server,
        report: LiveCacheReport,
        fresh: dict[tuple[Server, bool, Request | None], int],
        *,
        small: bool,
    ) -> None:
        self._told, self._place, self._report = told, place, report
        self._make = partial(told.opened, small=small)
        self._small, self._fresh = small, fresh
        self.varied, self.unit, self.limit = told.varied, told.unit, told.limit
        self.isolates, self.persists = told.isolates, told.persists
        self._server = server
        self._open: dict[int, Any] = {}
        self._stored: list[tuple[Server, Request]] = []
        self._ever: list[tuple[Server, Request]] = []
        self._asked: list[Request] = []
        self._promises: list[_Promise] = []
        self._calls = 1
        self._latest: tuple[int, Request] | None = None  # what the call before this one stored
        self._whole = True  # nothing was evicted, cleared or reopened
        self._story = Story()
        self._continued = False
        self.ended = 0
        self.emptied = False

    def play(self, acts: Sequence[Act]) -> None:
        """Make the calls in order, then the closing requests."""
        self._report.examples += 1
        for act in acts:
            request = self._request(act)
            if act.verb in {"look up", "evict"} and self._stored:
                request = self._stored[-1 - act.of % len(self._stored)][1]
            self._asked.append(request)
            open_before = list(self._promises)
            self._calls = 1 + 2 * act.rest
            if act.verb != "keep":
                self._latest = None
            if act.verb in {"restart", "crash", "other server"}:
                self._reopened(act, request)
            else:
                getattr(self, "_" + act.verb.replace(" ", "_"))(act.cache, request)
            size = getattr(self._open.get(act.cache), "nbytes", None)
            if isinstance(size, Integral):
                self._report.sized += 1
                if not 0 <= int(size) <= (math.inf if self.limit is None else self.limit):
                    self._story.broken(
                        "bytes within limits", f"nbytes is {size}, the limit {self.limit}"
                    )
            for promise in open_before:
                promise.calls -= 1
                if promise in self._promises and promise.calls <= 0:
                    self._kept(promise)

    def end(self, only: int | None) -> None:
        """Query recent requests and variants of them; or one of them `only`."""
        for promise in list(self._promises):
            self._kept(promise)
        self._latest = None
        recent = [request for _, request in self._stored[-2:]]
        closing: list[tuple[Server | None, int, Request]] = [
            (None, cache, request)
            for request in self._closing()
            for cache in list(self._open) or [0]
        ]
        closing += [(server, 0, request) for server in self._servers() for request in recent]
        for number, (server, cache, request) in enumerate(closing):
            self.ended = number + 1
            if only in {None, number}:
                if server is not None and server != self._server:
                    self.close()
                    self._served_by(server)
                self._ask(cache, request)

    def empty(self, how: Ending) -> None:
        """Empty the cache if that is possible, and compare its room with a new one's."""
        cache, told = self._cache(0), self._told
        verb = "clear" if how == "clear" or not hasattr(cache, "evict") else "evict"
        call = getattr(cache, verb, None)
        others = any(server != self._server for server, _ in self._ever)
        if call is None or not told.keeps or told.shared or others:
            return
        self.emptied = True
        held = dict.fromkeys(request for _, request in self._ever)
        if how == "fill":
            self._story.add(f"{PROBES} short prompts are stored, then loaded")
            self._room(cache)
        if verb == "evict":
            for request in held:
                self._story.add(f"evict({self._text(request)})")
                self._call(call, request)
            for request in probes(self.unit) if how == "fill" else ():
                self._call(call, request)
        else:
            self._story.add("clear()")
            self._call(call)
        self._report.emptied += 1
        size = getattr(cache, "nbytes", 0)
        room, new = self._room(cache), self._in_new(None)
        if room != new:
            why = f"{room} of {PROBES} short prompts are found together, and {new} in a new cache"
            self._story.broken("room returns", why)
        if isinstance(size, Integral) and int(size) > self._in_new(EMPTY):
            self._story.broken("room returns", f"nbytes of the empty cache is {size}")

    def _room(self, cache: Foreign) -> int:
        """The short prompts that are found together, when all were stored."""
        asked = probes(self.unit)
        for request in asked:
            self._call(cache.store, request, [row.copy() for row in rows_of(self._server, request)])
        found = 0
        for request in asked:
            count = self._call(cache.lookup, request)
            if count:
                found += 1
                self._call(cache.load, request, count)
        return found

    def _in_new(self, request: Request | None) -> int:
        """What a new cache finds of the one request it stored; None: its room; `EMPTY`: bytes."""
        key = self._server, self._small, request
        if key not in self._fresh:
            with tempfile.TemporaryDirectory(prefix="cache") as place:
                cache = self._call(self._make, self._server, Path(place))
                if request is None:
                    self._fresh[key] = self._room(cache)
                elif request == EMPTY:
                    self._fresh[key] = int(getattr(cache, "nbytes", 0))
                else:
                    rows = [row.copy() for row in rows_of(self._server, request)]
                    self._call(cache.store, request, rows)
                    self._fresh[key] = int(self._call(cache.lookup, request))
                if hasattr(cache, "close"):
                    cache.close()
        return self._fresh[key]

    def close(self) -> None:
        for cache in self._open.values():
            if hasattr(cache, "close"):
                cache.close()
        self._open.clear()

    # -- requests

    def _request(self, act: Act) -> Request:
        unit = self.unit
        rest = piece(act.pieces[-1], (0, 1, unit - 1, unit // 2)[act.rest])
        own = [token for variant in act.pieces for token in piece(variant, unit)] + rest
        adapter, salt = NAMES[act.who % len(NAMES)]
        image = HASHES[act.image - 1] if act.image else ""
        derived = bool(self._asked) and act.like != "new"
        if derived and act.who >= len(NAMES):  # a conversation goes on under its names
            earlier = self._asked[-1 - act.of % len(self._asked)]
            adapter, salt, image = earlier.adapter, earlier.salt, earlier.image
        request = Request(
            tokens=tuple(map(Token, own)),
            adapter=adapter if "adapter" in self.varied else "",
            salt=salt if "salt" in self.varied else "",
        )
        if derived:
            before = [*map(int, self._asked[-1 - act.of % len(self._asked)].tokens)]
            made: dict[Likeness, list[int]] = {
                "again": before,
                "longer": before + own,
                "shorter": before[: max(1, len(before) - len(rest) - 1)],
                "other-head": own[:unit] + before[unit:],
                "moved": own[:unit] + before,
            }
            request = replace(request, tokens=as_tokens(made[act.like]))
        if image:  # the same place in all prompts: what differs is the image alone
            span = [PLACEHOLDER] * (unit // 2)
            tokens = [*request.tokens[:1], *span, *request.tokens[1 + len(span) :]]
            request = replace(request, tokens=tuple(tokens), image=image, image_at=1)
        return request

    def _closing(self) -> Iterator[Request]:
        """Recent requests and longer ones, and the tokens of each under the names of another."""
        recent = list(dict.fromkeys(reversed(self._asked)))[:RECENT]
        for request in recent:
            yield replace(request, tokens=(*request.tokens, Token(5)))
            yield replace(request, tokens=(*request.tokens[: self.unit], *[Token(4)] * self.unit))
            for other in recent:
                if other.image == request.image:
                    yield replace(request, adapter=other.adapter, salt=other.salt)
                elif other.image and request.image:
                    yield replace(request, image=other.image)
            for other in recent:
                tokens = (*request.tokens[: self.unit], *other.tokens[self.unit :], Token(5))
                yield replace(request, tokens=tokens)

    def _text(self, request: Request) -> str:
        named = {of_request: getattr(request, of_request) for of_request in OF_REQUESTS}
        names = [f", {name}={value!r}" for name, value in named.items() if value]
        return shown(request.tokens) + "".join(names)

    # -- calls

    def _cache(self, number: int) -> Foreign:
        if number not in self._open:
            made = self._call(self._make, self._server, self._place)
            for name in ("store", "lookup", "load"):
                if not callable(getattr(made, name, None)):
                    self._story.broken("calls return", f"the cache has no method {name}")
            self._open[number] = made
        return self._open[number]

    def _call(self, call: Callable[..., Foreign], *given: Foreign) -> Foreign:
        try:
            return call(*given)
        except (BrokenLawError, ImportError):
            raise  # a missing package is nothing of the cache's
        except Exception as error:  # noqa: BLE001 - it is what the law is about
            self._story.broken("calls return", f"{type(error).__name__}: {error}")

    def _add(self, number: int, line: str) -> None:
        self._story.add(f"cache {number + 1}: {line}" if len(self._open) > 1 else line)

    def _store(self, number: int, request: Request) -> None:
        cache = self._cache(number)
        self._report.stored += 1
        rows = [row.copy() for row in rows_of(self._server, request)]
        self._add(number, f"store({self._text(request)})")
        self._call(cache.store, request, rows)
        self._stored.append((self._server, request))
        self._ever.append((self._server, request))
        for row in rows:
            row[:] = SCRIBBLE

    def _keep(self, number: int, request: Request) -> None:
        self._store(number, request)
        self._latest = number, request
        self._ask(number, request)

    def _look_up(self, number: int, request: Request) -> None:
        if len(self._promises) < self._told.outstanding:
            count = self._found(number, request)
            self._promises.append(_Promise(number, request, count, self._calls))

    def _give_up(self, number: int, request: Request) -> None:
        del number, request
        if self._promises:
            promise = self._promises[-1]
            release = getattr(self._cache(promise.cache), "release", None)
            if release is None or not promise.count:
                self._kept(promise)
                return
            self._promises.remove(promise)
            self._add(promise.cache, f"release({self._text(promise.request)})")
            self._call(release, promise.request)

    def _kept(self, promise: "_Promise") -> None:
        self._promises.remove(promise)
        self._check(promise.cache, promise.request, promise.count)

    def _least(self, number: int, request: Request) -> tuple[int, str]:
        """The tokens of a request that must be found now, and the law that says so."""
        if not self._told.keeps or self._promises:  # what is in use leaves less room
            return 0, ""
        if self._latest == (number, request):
            return self._in_new(request), "just stored is found"
        everything = {of for server, of in self._stored if server == self._server}
        fits = sum(len(of.tokens) for of in everything) <= self._told.holds
        if fits and self._whole and request in everything and not self._told.shared:
            return self._in_new(request), "kept while it fits"
        return 0, ""

    def _found(self, number: int, request: Request) -> int:
        """The length of a lookup, which stored content must explain."""
        self._report.lookups += 1
        if self._told.outstanding == 1:
            self._promises.clear()
        least, law = self._least(number, request)
        count = self._call(self._cache(number).lookup, request)
        self._add(number, f"lookup({self._text(request)}) is {count}")
        if not isinstance(count, Integral):
            self._story.broken("calls return", f"lookup returned {count!r}, no number of tokens")
        count = int(count)
        if not 0 <= count <= len(request.tokens):
            self._story.broken("only what was stored", f"{count} is no number of its tokens")
        salts = () if self.isolates else ("salt",)
        if count > self._explained(request, self._stored, but=salts):
            if count <= self._explained(request, self._ever, but=salts):
                self._story.broken("evicted is gone", f"{count} tokens of it were evicted")
            if count <= self._explained(request, self._stored, but=("salt",)):
                self._story.broken("salts apart", "requests under other salts stored this")
            self._check(number, request, count)  # loads what was found, to say where it comes from
            self._story.broken("only what was stored", "nobody stored as much of this request")
        if count < least:
            self._story.broken(law, f"a new cache that stores it alone finds {least} tokens")
        return count

    def _explained(
        self, request: Request, stored: Sequence[tuple[Server, Request]], *, but: Sequence[str] = ()
    ) -> int:
        """The most leading tokens that it shares with a stored request of equal names."""
        most = 0
        for server, other in stored:
            same = server == self._server and other.adapter == request.adapter
            if same and (other.salt == request.salt or "salt" in but):
                most = max(most, _common(request, other))
        return most

    def _ask(self, number: int, request: Request) -> None:
        self._check(number, request, self._found(number, request))

    def _check(self, number: int, request: Request, count: int) -> None:
        if not count:
            return
        asked = request
        request = request.first(count)
        rows = self._call(self._cache(number).load, asked, count)
        self._add(number, f"load(the first {count} of {self._text(asked)})")
        if rows is None:
            self._story.broken("promise kept", f"the lookup said {count}, and nothing is loaded")
        self._report.loaded[count] += 1
        cold = rows_of(self._server, request)
        shapes = self._server.shapes
        rows = self._layers(rows, cold)
        self._forms(rows, cold, count)
        same = all(
            _last(got, needed(self._server, shape, count)).tobytes()
            == _last(right, needed(self._server, shape, count)).tobytes()
            for got, right, shape in zip(rows, cold, shapes, strict=True)
        )
        if not same or not self._continued:
            self._continued = True
            self._report.continued += 1
            rest = [Token(301), Token(302)]
            right = answer(self._server, request, cold, rest)
            got = answer(self._server, request, rows, rest) if finite(self._server, rows) else None
            if got is None or not np.array_equal(got, right):
                self._blame(request, rows, cold)
        for row in rows:
            if row.flags.writeable:
                row[:] = SCRIBBLE

    def _layers(self, rows: Foreign, cold: Rows) -> Rows:
        """The rows as arrays; a layer may be a list of rows."""
        try:
            layers = list(rows)
        except TypeError:
            why = f"load returned {type(rows).__name__}, no sequence of layers"
            self._story.broken("calls return", why)
        if len(layers) != len(cold):
            self._story.broken("true contents", f"{len(layers)} layers, not {len(cold)}")
        for number, layer in enumerate(layers):
            if isinstance(layer, np.ndarray):
                continue
            try:
                layers[number] = np.array(layer, dtype=cold[number].dtype)
            except (TypeError, ValueError, OverflowError, RuntimeError):
                why = f"layer {number} is {type(layer).__name__}, no array and no list of rows"
                self._story.broken("calls return", why)
        return layers

    def _forms(self, rows: Rows, cold: Rows, count: int) -> None:
        for number, (got, right) in enumerate(zip(rows, cold, strict=True)):
            least = needed(self._server, self._server.shapes[number], count)
            if got.shape[1:] != right.shape[1:] or not least <= len(got) <= count:
                form = f"{got.shape}, not {(least, *right.shape[1:])}"
                self._blame_dtype(f"layer {number} has the form {form}")
            if got.dtype != right.dtype:
                self._blame_dtype(f"layer {number} holds {got.dtype}, not {right.dtype}")

    def _blame_dtype(self, why: str) -> None:
        others = any(server.dtype != self._server.dtype for server, _ in self._ever)
        self._story.broken("dtype in the key" if others else "true contents", why)

    def _blame(self, request: Request, rows: Rows, cold: Rows) -> None:
        """Break the law that the first wrong row belongs to."""
        count = len(request.tokens)
        for number in reversed(range(len(rows))):  # the last layer depends on every token
            shape, got, right = self._server.shapes[number], rows[number], cold[number]
            least = needed(self._server, shape, count)
            for back in range(least, 0, -1):
                row = got[-back].tobytes()
                if row == right[-back].tobytes():
                    continue
                if np.all(got[-back] == SCRIBBLE):
                    self._story.broken(
                        "no aliasing",
                        f"layer {number}, token {count - back} is what a caller wrote later",
                    )
                source = self._source(number, row, count - back)
                if source is not None:
                    self._named(request, shape, count - back, source)
                break
        why = f"the network continues otherwise after these {count} tokens"
        if count > self._explained(request, self._ever, but=("salt",)):
            self._blame_dtype(why)
        self._story.broken("true contents", why)

    def _source(self, layer: int, row: bytes, at: int) -> tuple[Server, Request, int] | None:
        source = None
        for server, other in [
            *reversed(self._ever),
            *((self._server, request) for request in self._asked),
        ]:
            for index, stored in enumerate(rows_of(server, other)[layer]):
                if stored.tobytes() == row and (source is None or index == at != source[2]):
                    source = server, other, index
        return source

    def _named(
        self, request: Request, shape: LayerShape, at: int, source: tuple[Server, Request, int]
    ) -> None:
        server, other, index = source
        told = f"layer {shape.layer}, token {at} is token {index} of {self._text(other)}"
        pairs = {
            "adapter": (request.adapter, other.adapter),
            "image": (request.image, other.image),
            "model": (self._server.seed, server.seed),
            "rope": (self._server.rope_base, server.rope_base),
            "dtype": (self._server.dtype, server.dtype),
        }
        for name, (one, two) in pairs.items():
            if one != two:
                self._story.broken(f"{name} in the key", f"{told}, computed under {name} {two!r}")
        shared = min(at, index) + 1
        if shape.place == "recurrent" and request.tokens[:shared] == other.tokens[:shared]:
            self._story.broken("state of the boundary", f"{told}; the boundary is token {at}")
        law = "position in the key" if index != at else "tokens in the key"
        self._story.broken(law, told)

    # -- what a cache may have

    def _evict(self, number: int, request: Request) -> None:
        cache = self._cache(number)
        if not hasattr(cache, "evict") or self._promises:
            return
        self._whole = False
        self._add(number, f"evict({self._text(request)})")
        self._call(cache.evict, request)
        self._stored = [kept for kept in self._stored if kept != (self._server, request)]

    def _clear(self, number: int, _: Request) -> None:
        cache = self._cache(number)
        if hasattr(cache, "clear") and not self._promises:
            self._add(number, "clear()")
            self._call(cache.clear)
            self._stored.clear()

    def _reopened(self, act: Act, request: Request) -> None:
        """Stop all caches, or kill one in the middle of a write, and open them anew."""
        self._promises.clear()
        self._whole = False
        recent = list(dict.fromkeys(request for _, request in self._stored))[-RECENT:]
        before = [(request, self._call(self._cache(0).lookup, request)) for request in recent]
        self.close()
        self._report.restarts += 1
        if act.verb == "other server":
            others = [server for server in self._servers() if server != self._server]
            self._served_by(others[act.who % len(others)])
            return
        if act.verb == "crash":
            size = CRASHED_AT[act.who % len(CRASHED_AT)]
            self._story.add(f"a process is killed at byte {size}: store({self._text(request)})")
            _killed(lambda: self._write(request), size)
            self._ever.append((self._server, request))
            self._stored.append((self._server, request))
        else:
            self._story.add("the cache is closed and opened")
        if self.limit is not None or not self.persists:
            return
        for asked, count in before:
            known = self._call(self._cache(0).lookup, asked)
            if known < count:
                self._story.broken(
                    "acknowledged stays",
                    f"lookup({self._text(asked)}) is {known}, and was {count} before",
                )

    def _write(self, request: Request) -> None:
        cache = self._make(self._server, self._place)
        cache.store(request, [row.copy() for row in rows_of(self._server, request)])
        if hasattr(cache, "close"):
            cache.close()

    def _servers(self) -> list[Server]:
        """The first server, and those that differ from it in one thing."""
        plain = Server(preset=self._server.preset)
        others: dict[Field, list[Server]] = {
            "model": [replace(plain, seed=1)],
            "dtype": [replace(plain, dtype="float16"), replace(plain, dtype="bfloat16")],
            "rope": [replace(plain, rope_base=40000.0)],
        }
        others_of = [other for name in OF_SERVERS if name in self.varied for other in others[name]]
        return [plain, *others_of] if others_of else []

    def _served_by(self, server: Server) -> None:
        self._server = server
        named = f"{server.model}, {server.dtype}, rope {server.rope_base:g}"
        self._story.add(f"{OTHER_SERVER}: {named}")


def _common(one: Request, other: Request) -> int:
    """The leading tokens that two requests share; those of different images differ."""
    sides = [
        [
            (token, request.image * (token != seen))
            for token, seen in zip(request.tokens, request.embedded, strict=True)
        ]
        for request in (one, other)
    ]
    pairs = zip(*sides, strict=False)
    least = min(map(len, sides))
    return next((at for at, (a, b) in enumerate(pairs) if a != b), least)


def _last(rows: Array, count: int) -> Array:
    return rows[len(rows) - count :]


def _killed(call: Callable[[], None], size: int) -> None:
    """Run a call in a process that dies where it writes a file beyond `size` bytes."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        call()
    finally:
        os._exit(0)
