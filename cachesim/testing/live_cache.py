"""`check_live_cache`: laws of a cache that keeps keys, values and states of real layers.

X in the key            nothing computed under another X is loaded: tokens, position, adapter,
                        image, model, data type, scaling of positions
state of the boundary   the state is the one after exactly the tokens that the lookup promised
true contents           the network continues as in an uncached run, bit for bit
salts apart             a lookup never covers what only requests under other salts have stored
only what was stored    nor anything else that nobody has stored
promise kept            what a lookup covers can be loaded, whatever is called in between
just stored is found    a lookup right after a store finds what it finds in an empty cache
kept while it fits      so does every later one, while `holds` tokens or fewer are stored
room returns            when all is evicted or cleared, as much fits as in a new cache
evicted is gone         what was evicted or cleared is not found
acknowledged stays      a restart or a crash in the middle of a write loses nothing stored before
bytes within limits     the size is neither negative nor above the limit
no aliasing             arrays of the caller's are the caller's own
calls return            no call fails on valid arguments

What a cache may rely on, and what is relied on:

lookup    promises tokens until they are loaded, given up (`release`), evicted or cleared: other
          requests may be stored, looked up and loaded before. With `outstanding=1`, until the next
          lookup.
load      is called with the request and the number of the lookup, once; it returns a sequence of
          layers, each an array or a list of rows: all of a layer with attention, at least those in
          the window, the last of a recurrent one. They are the caller's, who may write to them.
store     gets arrays that are the caller's too, and may be called with a known request.
evict     forgets a request; it may take others along. It is not called while a promise is open.

`cachesim.testing.examples` has a complete cache. A crash is a process that is killed
at the byte of a file at which it is to die: files are as a killed server leaves them, renamed or
not.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final, Protocol

from hypothesis import strategies as st

from cachesim.errors import InputError
from cachesim.testing.contents import Request, Rows, Server
from cachesim.testing.laws import EXAMPLES, BrokenLawError, VacuousCheckError, hold
from cachesim.testing.live_player import (
    LIKENESSES,
    NAMES,
    OF_REQUESTS,
    OF_SERVERS,
    OTHER_SERVER,
    VARIANTS,
    Act,
    Ending,
    Field,
    LiveCacheReport,
    Open,
    Player,
    Told,
    Verb,
)
from cachesim.testing.room import FEW, size_of
from cachesim.typed import check_whole


class LiveCache(Protocol):
    """A cache between a server and its memory.

    A cache may have `evict(request)`, `release(request)` for a lookup that is not loaded,
    `clear()`, `close()` and the number `nbytes`, too.
    """

    def store(self, request: Request, rows: Rows) -> None:
        """Keep the rows of all tokens of a request; a recurrent layer brings each token's state."""
        ...

    def lookup(self, request: Request) -> int:
        """The number of leading tokens that can be loaded now."""
        ...

    def load(self, request: Request, count: int) -> Rows | None:
        """The rows of the first `count` tokens, of which the last lookup said that they are here.

        A layer with attention needs all of them, one with a window those that the next token
        sees, a recurrent one the last state.
        """
        ...


def check_live_cache(
    make: Open,
    *,
    presets: Sequence[str] = ("dense",),
    varied: Sequence[Field] = OF_REQUESTS,
    unit: int = 8,
    persists: bool = False,
    shared: bool = False,
    isolates: bool = True,
    limit: int | None = None,
    keeps: bool = True,
    holds: int = 0,
    outstanding: int = 2,
    examples: int = EXAMPLES,
    seed: int = 0,
) -> LiveCacheReport:
    """Search for a short sequence of calls that breaks a law.

    `presets` are the models, `unit` the tokens of a block. `varied` names what requests and
    servers differ in; servers differ where a store outlives one (`persists`). `shared`: two
    caches use a store at once. `isolates` False: hit counts may tell of other salts. `limit`: the
    most bytes that `nbytes` may be. `keeps` False: a store may be refused, and room need not
    return. `holds`: tokens that fit together. `outstanding`: lookups that are open at once.

    Raises `BrokenLawError` with the law and the steps, and `VacuousCheckError` where nothing was
    ever loaded. Returns what was exercised.
    """
    _refuse_arguments(presets, varied, unit=unit, limit=limit, examples=examples)
    numbers = {"holds": (holds, 0), "outstanding": (outstanding, 1), "seed": (seed, 0)}
    for name, (number, least) in numbers.items():
        check_whole(name, number, least)
    told = Told(
        make=make,
        varied=tuple(varied),
        unit=unit,
        persists=persists,
        shared=shared,
        isolates=isolates,
        limit=limit,
        keeps=keeps,
        holds=holds,
        outstanding=outstanding,
        size=size_of(make, unit),
    )
    try:
        return _searched(told, presets, examples, seed)
    except BrokenLawError as error:
        lines = "\n".join(error.story)
        if not any(f"{name}=" in lines for name in OF_REQUESTS) and OTHER_SERVER not in lines:
            raise
        # The law is named by what differs, so leave out what need not.
        for fewer in ((), *((name,) for name in varied)):
            if len(fewer) < len(varied):
                _searched(replace(told, varied=fewer), presets, examples, seed, vacuous=True)
        raise


NONE: Final = -1
"""Of the closing requests, where it is emptying the cache that breaks a law."""


def _several(acts: st.SearchStrategy[Act]) -> st.SearchStrategy[list[Act]]:
    """Some ten calls: a plain list of up to 32 would have six of them most of the time."""
    few = st.lists(acts, min_size=1, max_size=4)
    return st.lists(few, min_size=1, max_size=8).map(lambda lists: [*chain.from_iterable(lists)])


def _searched(
    told: Told, presets: Sequence[str], examples: int, seed: int, *, vacuous: bool = False
) -> LiveCacheReport:
    """Draw calls until a law is broken; `vacuous`: none may be possible."""
    report = LiveCacheReport()
    if told.size is not None:
        report.size = f"half of the caches were opened with {told.size[0]} for {FEW} blocks"
    varied, limit = told.varied, told.limit
    verbs: list[Verb] = ["store", "store", "keep", "keep", "ask", "look up", "look up"]
    verbs += ["give up", "evict", "clear"]
    verbs += ["restart", "crash"] if told.persists else []
    verbs += ["other server"] if set(varied) & set(OF_SERVERS) else []
    acts = st.builds(
        Act,
        st.sampled_from(verbs),
        st.lists(st.integers(0, VARIANTS - 1), min_size=1, max_size=3).map(tuple),
        st.integers(0, 3),
        st.sampled_from((*LIKENESSES, "longer")),  # conversations go on
        st.integers(0, 2),
        st.integers(0, 2 * len(NAMES) - 1),
        st.integers(0, 4) if "image" in varied else st.just(0),
        st.integers(0, 1) if told.shared else st.just(0),
    )
    small = st.booleans() if told.size is not None else st.just(value=False)
    endings: st.SearchStrategy[Ending] = st.sampled_from(("evict", "clear", "fill"))
    ways = st.tuples(st.sampled_from(list(presets)), _several(acts), small, endings)
    fresh: dict[tuple[Server, bool, Request | None], int] = {}

    def once(
        way: tuple[str, list[Act], bool, Ending], report: LiveCacheReport, only: int | None = None
    ) -> None:
        preset, acts, small, ending = way
        with tempfile.TemporaryDirectory(prefix="cache") as place:
            player = Player(told, Path(place), Server(preset=preset), report, fresh, small=small)
            try:
                player.play(acts)
                player.end(only)
                player.empty(ending)
            except BrokenLawError:
                if only is None and player.ended:  # told with the one closing request that shows it
                    once(way, LiveCacheReport(), NONE if player.emptied else player.ended - 1)
                raise
            finally:
                player.close()

    def play(way: tuple[str, list[Act], bool, Ending]) -> None:
        once(way, report)

    hold(play, ways, examples=examples, seed=seed)
    if vacuous:
        return report
    if not report.loaded:
        msg = (
            f"nothing was ever loaded, so nothing was checked: {report}. Does a block have more "
            "tokens than these prompts? Then write unit=N, the tokens of a block"
        )
        raise VacuousCheckError(msg)
    if limit is not None and not report.sized:
        msg = f"no cache has a number `nbytes`, so limit={limit} was not checked"
        raise VacuousCheckError(msg)
    return report


def _refuse_arguments(
    presets: Sequence[str], varied: Sequence[str], *, unit: int, limit: int | None, examples: int
) -> None:
    known = (*OF_REQUESTS, *OF_SERVERS)
    if not presets or isinstance(presets, str):
        is_what = repr(presets) if presets else "empty"
        msg = f"presets is {is_what}; write one or more, as presets=('dense',)"
        raise InputError(msg)
    if isinstance(varied, str) or not {*varied} <= {*known}:
        msg = f"varied is {varied!r}; write a tuple of some of {', '.join(known)}"
        raise InputError(msg)
    check_whole("unit", unit, 1)
    check_whole("limit", limit, 0)
    check_whole("examples", examples, 1)
