"""A trace on an engine, without arithmetic.

    trace        | block 7: 512 | block 9: 512 | block 12: 86 |       reply: 500
    scaled by 32 |      16      |      16      |      3       |       reply:  15

A trace is scaled so that its blocks stay whole: a prompt of n tokens has n / scale, rounded up, a
reply rounded down and at least one. Only the order counts, unless turns are given a length; what is
claimed is what is reused, never how long it takes.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, cast

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.engines.family import Profile, family_of
from cachesim.engines.tokens import Rope
from cachesim.engines.words import counted
from cachesim.errors import InputError, ProfileError, SpecError, UntestedError, UpstreamAbort
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.build import arithmetic_of
from cachesim.model.presets import PRESETS, preset
from cachesim.model.spec import RECURRENT_KINDS, ModelSpec, Sizes
from cachesim.play.loop import EndlessError, Loop, handled
from cachesim.traces.fleet.fleet import Fleet
from cachesim.traces.memory import (
    FIRST_LOOK,
    KINDS,
    LONGEST,
    MEMORY,
    bytes_of,
    longest_in,
    longest_of,
    memory_in,
    pools,
    room_for,
    sentence_of,
)
from cachesim.traces.reading import TraceRequest
from cachesim.traces.source import MADE, Source
from cachesim.units import Tokens
from cachesim.verify.explain import lost_below
from cachesim.why.infer.model_memory import Memory, memory_of
from cachesim.why.infer.sizes import sizes_of_gguf

# -- limits in bytes -------------------------------------------------------------------------------

#     a trace, 32 tokens as one    | 32 | 32 | 32 | 9 |      4 tokens simulated
#     cache_ram counts of it       4 x the small network's bytes of a token, or
#                                  4 x 32 x those of the user's model
#
# Without the user's sizes a limit meant for a real model is hardly ever reached: a small network's
# token takes a few hundred bytes, and stands for many tokens of the trace.

BYTES: Final[Mapping[str, int]] = {"bytes": 1, "MiB": 1 << 20, "GB": 10**9}
"""Units of flags that limit bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes of the user's model per token of the trace, with their source."""

    sizes: Sizes | Memory  # of a memory each engine decides in how many bytes a state is kept
    by: str  # as --gguf model.gguf
    window: int = 0  # tokens of the trace that a window layer sees; 0: as the preset has it

    @classmethod
    def of_gguf(cls, path: Path) -> "Measured":
        """Sizes by the header of a model's file."""
        sizes, fields = sizes_of_gguf(path)
        window = fields.get(f"{fields.get('general.architecture')}.attention.sliding_window")
        length = window if isinstance(window, int) and window > 0 else 0
        return cls(sizes=sizes, by=f"--gguf {path}", window=length)

    @classmethod
    def of_model(cls, model: str, folder: Path = Path()) -> "Measured":
        """Sizes by a model's config.json, or by its name."""
        memory = memory_of(model, folder)
        return cls(sizes=memory, by=f"--sizes {model}", window=memory.length)

    def preset(self) -> str:
        """The first preset with layers of these kinds."""
        fitting = self._fitting()
        if not fitting:
            kinds = " and ".join(KINDS[name] for name in KINDS if name in self._given())
            raise SpecError(f"{self.by}: no preset has {kinds or 'no memory at all'}")
        return fitting[0]

    def over(self, spec: ModelSpec, scale: int, engine: str) -> ModelSpec:
        """A preset with these bytes, where `scale` tokens of the trace are replayed as one."""
        self._check(spec)
        sizes = self.sizes.sizes(engine) if isinstance(self.sizes, Memory) else self.sizes
        sizes = replace(sizes, token=sizes.token * scale, window=sizes.window * scale)
        window = max(1, self.window // scale) if self.window and spec.window else spec.window
        return replace(spec, sizes=sizes, window=window)

    def _check(self, spec: ModelSpec) -> None:
        """Refuse a preset with other kinds of layers than the measured ones."""
        given, fitting = self._given(), self._fitting()
        wrong = sorted(given ^ kinds_of(spec))
        if not wrong:
            return
        choice = f"--model {' or '.join(fitting)}" if fitting else "sizes of the preset's kinds"
        has = "has no" if wrong[0] in given else "has"
        but = "gives" if wrong[0] in given else "gives no"
        raise SpecError(
            f"{self.by} {but} bytes of {KINDS[wrong[0]]}, and the preset {spec.name!r} {has} "
            f"such layers; write {choice}"
        )

    def _given(self) -> set[str]:
        state = self.sizes.state or getattr(self.sizes, "conv", 0)
        sizes = {"token": self.sizes.token, "window": self.sizes.window, "state": state}
        return {name for name in KINDS if sizes[name]}

    def _fitting(self) -> list[str]:
        return [name for name, spec in PRESETS.items() if kinds_of(spec) == self._given()]


def kinds_of(spec: ModelSpec) -> set[str]:
    """The fields of `Sizes` for which a model has layers."""
    layers = set(spec.layers)
    recurrent = bool(layers & set(RECURRENT_KINDS))
    kinds = {"token": "attention" in layers, "window": "window" in layers, "state": recurrent}
    return {name for name, has in kinds.items() if has}


def limits_of(profile: str, options: Mapping[str, Any]) -> dict[str, int]:
    """The byte limits of a server with these options."""
    named = Profile.parse(profile)
    family = family_of(named.engine)
    read = family.read(named, options)
    limits = {}
    for option in family.table():
        value = getattr(read, option.name)
        applies = not option.needs or getattr(read, option.needs)
        limits_bytes = option.kind == "size" or option.unit in BYTES
        if limits_bytes and applies and value is not None and value > 0:
            limits[option.name] = round(value * BYTES.get(option.unit, 1))
    return limits


# -- the replay ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request before it is submitted."""

    number: int
    time: float  # milliseconds since the trace began
    known: int  # leading tokens of earlier requests
    prompt: Tokens
    reply: Tokens
    trace: TraceRequest  # the request as the trace has it

    def as_request(self) -> Request:
        """The engine's request, with its forced reply."""
        return Request(prompt=self.prompt, predict=len(self.reply), reply=self.reply)


@dataclass(frozen=True, slots=True)
class Served:
    """A request with its reply; None if the server refused it or has ended."""

    request: PendingRequest
    answer: Reply | None
    ended: str = ""  # why the server ended; no request follows


class Serving:
    """A server, and the requests inside."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        engine.leave_out_comparisons()  # no account of a trace reads them
        self.loop = Loop(engine)
        self.inside: dict[Ticket, PendingRequest] = {}
        self.now = 0.0
        self.ended = False

    def serve(
        self, requests: Iterable[PendingRequest], turn: float, *, more: bool = False
    ) -> Iterator[Served]:
        """Requests as they finish, in order if turns take no time.

        If `more` follow, running ones continue when they arrive.
        """
        if self.ended:
            return iter(())
        return self._on_time(requests, turn, more=more) if turn else self._in_order(requests)

    def _in_order(self, requests: Iterable[PendingRequest]) -> Iterator[Served]:
        engine = self.engine
        if arithmetic_of(engine.network) == "counts":
            engine.limit_turns(1 << 30)
        for request in requests:
            ticket = engine.submit(request.as_request())
            try:
                self.loop.drain()
            except (UpstreamAbort, EndlessError) as abort:
                self.ended = True
                yield Served(request, None, str(abort))
                return
            yield Served(request, engine.reply(ticket))
            engine.forget(ticket)  # a trace may be larger than memory

    def _on_time(
        self, requests: Iterable[PendingRequest], turn: float, *, more: bool
    ) -> Iterator[Served]:
        engine, inside = self.engine, self.inside
        engine.limit_turns(1)
        waiting = iter(requests)
        pending = next(waiting, None)
        while pending is not None or inside:
            while pending is not None and pending.time <= self.now:
                inside[engine.submit(pending.as_request())] = pending
                pending = next(waiting, None)
            if pending is None and more:
                return
            try:
                busy = self.loop.turn()
            except (UpstreamAbort, EndlessError) as abort:
                self.ended = True
                yield from (Served(request, None, str(abort)) for request in inside.values())
                return
            self.now += turn
            for ticket, answer in [(ticket, engine.reply(ticket)) for ticket in inside]:
                if answer is not None:
                    yield Served(inside.pop(ticket), answer)
                    engine.forget(ticket)
            if not busy:
                for ticket in [*inside]:  # no longer running
                    yield Served(inside.pop(ticket), None)
                    engine.forget(ticket)
                self.now = max(self.now, pending.time) if pending is not None else self.now


MOMENTS: Final = 32
"""Most recorded moments; at least half of them once as many requests were replayed."""


@dataclass(slots=True)
class Timeline:
    """Bytes by kind, after some of the requests."""

    every: int = 1
    moments: list[tuple[int, dict[str, int]]] = field(default_factory=list)

    def is_recorded(self, requests: int) -> bool:
        """True if the moment after a number of requests is recorded."""
        return requests % self.every == 0

    def add(self, requests: int, held: dict[str, int]) -> None:
        """Record a moment; at the limit every second one is dropped."""
        self.moments.append((requests, held))
        if len(self.moments) > MOMENTS:
            self.every *= 2
            self.moments = [moment for moment in self.moments if moment[0] % self.every == 0]

    def as_dict(self) -> dict[str, Any]:
        """The requests, and the bytes of each kind after each of them."""
        kinds = dict.fromkeys(kind for _, held in self.moments for kind in held)
        columns = {kind: [held.get(kind, 0) for _, held in self.moments] for kind in kinds}
        shown = {kind: column for kind, column in columns.items() if any(column)}
        return {"requests": [requests for requests, _ in self.moments], **shown}


REPLIES: Final = 1 << 37
"""The first text of a reply; no prompt repeats it, as traces have no replies."""

BOUND: Final = "bound"
"""Name of the upper bound in place of a profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A trace on a server."""

    source: Source
    profile: str
    model: str = "hybrid"
    options: tuple[tuple[str, Any], ...] = ()
    measured: Measured | None = None  # bytes of the user's model; the small network's if None
    fleet: Fleet | None = None  # replicas with a router; one server if None

    def check(self) -> None:
        """Raise for anything invalid, before the replay."""
        spec = preset(self.model)
        if self.measured is not None and self.profile != BOUND:
            self.measured.over(spec, 1, Profile.parse(self.profile).engine)
        if self.measured is None and self.profile != BOUND:
            self._refuse_limits()
        if self.profile == BOUND and self.options:
            raise ProfileError(f"{BOUND} is no server and has no flags: leave out {self.settings}")
        if self.profile != BOUND:
            try:
                self.engine()
            except UpstreamAbort as abort:
                msg = f"{self.profile} with a {self.model} model does not start: {abort}"
                raise ProfileError(msg) from None

    def _refuse_limits(self) -> None:
        family, given = family_of(Profile.parse(self.profile).engine), dict(self.options)
        limits: Iterable[str] = () if family.describes_model else limits_of(self.profile, self.own)
        if MEMORY in given:
            limits = [MEMORY, *limits]
        for name in (name for name in limits if name in given):
            flag = "" if name == MEMORY else f" ({family.option(name).flag})"
            raise InputError(
                f"{name} = {given[name]}{flag} limits bytes, and the preset "
                f"{self.model!r} has those of a small network; write --sizes MODEL, --gguf FILE or "
                '--token-bytes N, in a plan sizes = "MODEL"'
            )

    def engine(
        self, arithmetic: ArithmeticName = "counts", *, vocabulary: int | None = None
    ) -> Engine:
        """The server, without a network unless answers are verified."""
        if ":" in self.profile:
            msg = f"{self.profile} is a policy and no server: it has no answers and no events"
            raise InputError(msg)
        profile = Profile.parse(self.profile)
        family = family_of(profile.engine)
        quiet = {family.records_provenance: False} if family.records_provenance else {}
        options = {**longest_in(family), **self.own, **self.pools(), **self.room(), **quiet}
        options |= family.chosen(profile, options, scale=self.scale)
        model = self.spec()
        if vocabulary is not None:
            model = replace(model, vocabulary=vocabulary)
        made = Engine.create(profile, model=model, options=options, arithmetic=arithmetic)
        most = self.longest()
        above = {name: most for name, value in longest_of(made).items() if 0 < most < value}
        if above.keys() - self.own.keys():  # the pool holds longer requests than the model takes
            options |= above
            made = Engine.create(profile, model=model, options=options, arithmetic=arithmetic)
        if self.source.remember is not None:
            made.remember(self.source.remember)
        return made

    def replica(self, number: int) -> "Cell":
        """The server of a replica, by itself."""
        other = None if self.fleet is None else self.fleet.other(number)
        alone = replace(self, fleet=None)
        if self.fleet is not None and self.source.remember is not None:  # a share for each
            share = max(1, self.source.remember // self.fleet.replicas)
            alone = replace(alone, source=replace(self.source, remember=share))
        if other is None:
            return alone
        flags = {} if other.profile else dict(self.options)
        flags |= other.options
        return replace(alone, profile=other.profile or self.profile, options=tuple(flags.items()))

    @property
    def own(self) -> dict[str, Any]:
        """The flags of the server itself."""
        return {name: value for name, value in self.options if name != MEMORY}

    def pools(self) -> dict[str, int]:
        """The flags that follow from the memory of the device, if that is given."""
        memory = memory_in(dict(self.options))
        if memory is None:
            return {}
        flags = {name: value for name, value in self.own.items() if name not in LONGEST}
        engine = Engine.create(self.profile, model=self.spec(), options=flags, arithmetic="counts")
        return pools(engine, memory)

    def room(self) -> dict[str, int]:
        """The flag that follows from the trace's longest request, unless it or the memory is given.

        A real server refuses to start with a pool, or is given a context, that is too small for it.
        """
        if memory_in(dict(self.options)) is not None or self.own.keys() & LONGEST.keys():
            return {}
        profile, wanted, most = Profile.parse(self.profile), self.source.longest(), self.longest()
        return room_for(min(wanted, most or wanted), profile, self.spec(), self.own)

    def spec(self) -> ModelSpec:
        """The model, with the user's bytes if given."""
        spec = preset(self.model)
        if self.measured is None:
            return spec
        return self.measured.over(spec, self.scale, Profile.parse(self.profile).engine)

    @property
    def scale(self) -> int:
        """Tokens of the trace that are replayed as one."""
        return self.source.scale

    def longest(self) -> int:
        """Replayed tokens of a request at most by the model's config; 0 if not known."""
        if self.measured is None or not isinstance(self.measured.sizes, Memory):
            return 0
        return self.measured.sizes.longest(Profile.parse(self.profile).engine) // self.scale

    def requests(self) -> Iterator[PendingRequest]:
        """The requests as clients send them."""
        return Reader(Known(self.source.remember)).requests(self.source)

    @property
    def settings(self) -> str:
        """The flags with other values than the server's defaults."""
        return ", ".join(f"{name}={value}" for name, value in self.options)


@dataclass(slots=True, kw_only=True)
class Replayed:
    """Reuse of a trace on a server."""

    requests: int = 0
    refused: int = 0
    refusal: str = ""  # the server's words to the first request that it refused
    prompt_tokens: int = 0
    cached: int = 0
    lost: Counter[str] = field(default_factory=Counter)  # by cause: tokens that were equal once
    silent: int = 0  # requests of which the trace has no length of the reply
    seconds: bool = False  # the trace's timestamps count seconds
    ranks: set[int] = field(default_factory=set)  # data-parallel ranks of the requests
    ended: str = ""  # at which request the server ended, and why
    assumed: set[str] = field(default_factory=set)  # what the form of the trace does not say

    @property
    def rate(self) -> float:
        """The cached share of the prompts' tokens."""
        return self.cached / self.prompt_tokens if self.prompt_tokens else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The account as plain data, largest loss first."""
        return {
            "requests": self.requests,
            "refused": self.refused,
            "prompt_tokens": self.prompt_tokens,
            "cached": self.cached,
            "rate": round(self.rate, 6),
            "lost": {
                cause: count
                for cause, count in sorted(self.lost.items(), key=lambda loss: (-loss[1], loss[0]))
                if count
            },
            "ended": self.ended,
        }

    def add(self, served: Served) -> None:
        """Count a request."""
        account(self, served.request, served.answer)
        if served.ended and not self.ended:
            self.ended = f"request {served.request.number + 1}: {served.ended}"

    def join(self, other: "Replayed") -> None:
        """Add the account of other requests."""
        for name in ("requests", "refused", "prompt_tokens", "cached", "silent"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lost += other.lost
        self.seconds |= other.seconds
        self.ranks |= other.ranks
        self.assumed |= other.assumed
        self.refusal = self.refusal or other.refusal

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data, from which `of_json` makes it again."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return plain | {"lost": dict(self.lost), "ranks": [*self.ranks], "assumed": [*self.assumed]}

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> "Replayed":
        """An account from plain data."""
        sets = {name: set(plain[name]) for name in ("ranks", "assumed")}
        return cls(**{**plain, **sets, "lost": Counter(plain["lost"])})

    def add_trace(self, request: TraceRequest) -> None:
        """Count the open assumptions about a request."""
        self.requests += 1
        self.silent += request.silent
        self.seconds = request.seconds
        self.ranks.add(request.rank)
        if request.assumed:
            self.assumed.add(request.assumed)

    def notes(self, source: Source, profile: str = "") -> Iterator[str]:
        """Assumptions made while the trace was read, and why a server refused a request."""
        if self.refusal:
            yield f"{profile} refused requests; the first one: {self.refusal}"
        yield from sorted(self.assumed)
        if self.silent and source.replies is None:
            has = "have" if self.silent > 1 else "has"
            yield (
                f"{self.silent:,} of {counted(self.requests, 'request')} {has} no length of the "
                "reply in the trace: a reply of 1 token is assumed (--replies N: of N tokens)"
            )
        if source.turn:
            unit, other = ("seconds", "ms") if self.seconds else ("milliseconds", "s")
            if MADE.fullmatch(source.name) is None:
                yield f"timestamps are read as {unit} (--timestamps {other} reads them otherwise)"
        if len(self.ranks) > 1:
            ranks = ", ".join(map(str, sorted(self.ranks)))
            yield (
                f"the data-parallel ranks {ranks} have a cache each: what one computed is not "
                f"reused by another. Here one server simulates the requests of all; "
                f"--rank {min(self.ranks)} simulates those of one"
            )


class Seams(Protocol):
    """Storage of a replay between two slices of its trace."""

    @property
    def every(self) -> int:
        """The requests of a slice."""
        ...

    def load(self, cell: Cell) -> "Run | None":
        """The replay of a cell where it was left; None if it was not begun."""
        ...

    def save(self, cell: Cell, run: "Run") -> None:
        """Replace what is kept of a cell."""
        ...


class Run(ABC):
    """A replay with all that it needs to continue."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.reader = Reader(Known(cell.source.remember))

    def go_on(self, cell: Cell) -> None:
        """Take a cell that may end elsewhere, with its trace in another place."""
        self.cell = cell

    @abstractmethod
    def serve(self, requests: Iterable[PendingRequest], *, more: bool) -> Iterator[int]:
        """Run requests; the number of all that have finished, after each."""

    @abstractmethod
    def outcome(self) -> dict[str, Any]:
        """The results so far."""


def play_run(
    begin: Callable[[Cell], Run], cell: Cell, progress: Callable[[int], None], seams: Seams | None
) -> dict[str, Any]:
    """Run a cell to its end, from where it was left."""
    run = (seams and seams.load(cell)) or begin(cell)
    requests, read = run.reader.requests(cell.source), -1
    every = None if seams is None else seams.every
    with handled():
        while run.reader.read > read:
            read = run.reader.read
            for finished in run.serve(islice(requests, every), more=True):
                progress(finished)
            if seams is not None and run.reader.read > read:
                seams.save(cell, run)
        for finished in run.serve((), more=False):
            progress(finished)
    return run.outcome()


class ServerRun(Run):
    """A replay on one server."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.serving = Serving(cell.engine())
        self.found, self.over, self.evictions = Replayed(), Timeline(), 0

    def serve(self, requests: Iterable[PendingRequest], *, more: bool) -> Iterator[int]:
        engine, found, over = self.serving.engine, self.found, self.over
        limits = limits_of(self.cell.profile, self.cell.own)
        for served in self.serving.serve(requests, self.cell.source.turn, more=more):
            found.add(served)
            yield found.requests
            if over.is_recorded(found.requests):
                over.add(found.requests, engine.amounts().in_bytes(engine.network.spec))
            if limits:
                self.evictions += sum(event.for_bytes for event in engine.events)

    def outcome(self) -> dict[str, Any]:
        return _outcome(self.cell, self.found, self.over, bytes_counted(self.cell, self.evictions))


def play(
    cell: Cell, progress: Callable[[int], None] = lambda _: None, seams: Seams | None = None
) -> dict[str, Any]:
    """Replay a cell; `progress` is called with the number of finished requests."""
    if cell.profile != BOUND:
        return play_run(ServerRun, cell, progress, seams)
    found = Replayed()
    for found in _bound(cell.source):
        progress(found.requests)
    return _outcome(cell, found, Timeline(), None)


def _outcome(
    cell: Cell, found: Replayed, over: Timeline, counted: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "scale": cell.source.scale,
        **found.as_dict(),
        "held": over.as_dict(),
        "bytes": counted,
        "notes": [*found.notes(cell.source, cell.profile), *limit_notes(cell, found)],
    }


def bytes_counted(cell: Cell, evictions: int) -> dict[str, Any]:
    """Bytes counted by the limits in bytes, and the evictions for them."""
    scale, limits = cell.source.scale, limits_of(cell.profile, cell.own)
    by = None if cell.measured is None else cell.measured.by
    counted = bytes_of(cell.profile, limits, cell.spec(), scale, by)
    counted["evictions"] = evictions
    return counted | {"note": sentence_of(counted, scale)}


@dataclass(slots=True)
class Reader:
    """A place in a trace, and what was computed before it."""

    known: "Known"
    read: int = 0

    def requests(self, source: Source) -> Iterator[PendingRequest]:
        """The requests that follow."""
        unit, found = source.open()
        scale, left = source.scale, islice(found, self.read, None)
        for request, prompt, reply in scaled(left, unit, scale, source.replies, self.read):
            self.read += 1
            yield PendingRequest(
                number=self.read - 1,
                time=request.time,
                known=self.known.add(blocks_of(request, unit, scale), _fed(request)),
                prompt=cast("Tokens", prompt),
                reply=cast("Tokens", reply),
                trace=request,
            )


def scaled(
    requests: Iterable[TraceRequest],
    unit: int,
    scale: int,
    replies: int | None = None,
    first: int = 0,
) -> Iterator[tuple[TraceRequest, Rope, Rope]]:
    """Requests with their prompts and replies; each block is its own text."""
    for number, request in enumerate(requests, first):
        *whole, last = blocks_of(request, unit, scale)
        runs = request.runs or [(block + 1, 0, size) for block, size in (*whole, last)]
        length = max(1, request.output // scale) if replies is None else replies
        reply = Rope(request.reply) if request.reply and replies is None else None
        yield request, Rope(runs), reply or Rope.of(REPLIES + number, length)


def blocks_of(request: TraceRequest, unit: int, scale: int) -> list[tuple[int, int]]:
    """The blocks of a prompt with their tokens; the last one may be partly filled."""
    if request.sizes is not None:
        return list(zip(request.blocks, request.sizes, strict=True))
    size = unit // scale
    last = -(-request.length // scale) - size * (len(request.blocks) - 1)
    return [*((block, size) for block in request.blocks[:-1]), (request.blocks[-1], last)]


def _fed(request: TraceRequest) -> Sequence[tuple[int, int]]:
    if not request.reply:
        return request.kept
    *before, (block, size) = request.kept
    return [*before, (block, size - 1)] if size > 1 else before


def account(found: Replayed, request: PendingRequest, answer: Reply | None) -> None:
    """Add a reply: known tokens are reused, lost by a rule, or no longer held.

    |<---------------- known ---------------->|
    |<-- cached -->|<-- causes -->|<- not held ->|     equal: what the server found of it

    Where requests overlap, what another one has not computed yet is not held either. What the
    server found is known, though nobody remembered it.
    """
    found.add_trace(request.trace)
    if answer is None or answer.cached is None:
        found.refused += 1
        found.refusal = found.refusal or (answer.message or answer.error or "" if answer else "")
        return
    found.prompt_tokens += len(request.prompt)
    found.cached += answer.cached
    found.lost += lost_below(answer, max(request.known, int(answer.equal)))


class Known:
    """Tokens computed before: the longest part of each block in any prompt.

    An id stands for its block and all before it, so the longest known prefix is that of the ids.
    `most` limits the remembered blocks to those requested last.
    """

    def __init__(self, most: int | None = None) -> None:
        self._longest: dict[int, int] = {}
        self._most = most

    def add(self, blocks: Sequence[tuple[int, int]], kept: Sequence[tuple[int, int]] = ()) -> int:
        """Count the known leading tokens, then add all of them."""
        equal = 0
        for block, size in blocks:
            known = min(size, self._longest.get(block, 0))
            equal += known
            if known < size:
                break
        longest, bounded = self._longest, self._most is not None
        for block, size in kept or blocks:
            before = longest.pop(block, 0) if bounded else longest.get(block, 0)
            longest[block] = max(size, before)
        while self._most is not None and len(longest) > self._most:
            del longest[next(iter(longest))]
        return equal


def _bound(source: Source) -> Iterator[Replayed]:
    """An unlimited cache, after each request; a prompt's last token is always computed."""
    found, known = Replayed(), Known(source.remember)
    unit, requests = source.open()
    for request in requests:
        blocks = blocks_of(request, unit, source.scale)
        length = sum(size for _, size in blocks)
        equal = known.add(blocks, request.kept)
        found.add_trace(request)
        found.prompt_tokens += length
        found.cached += min(equal, length - 1)
        found.lost["last-token"] += equal - min(equal, length - 1)
        yield found


def limit_notes(cell: Cell, found: Replayed) -> Iterator[str]:
    """The length of a request and the pools that follow from the model and the device's memory."""
    if cell.profile == BOUND:
        return
    yield from _pool_note(cell)
    yield from _device_note(cell)
    if cell.scale > 1:
        yield FIRST_LOOK.format(cell.scale)
    most, by = cell.longest(), cell.measured.by if cell.measured else ""
    if not found.refused or not most:
        return
    scale = cell.source.scale
    for name, value in longest_of(cell.engine()).items():
        if value == most and name not in cell.own:
            yield (
                f"{cell.profile}: a request has at most {most * scale:,} tokens of the trace, "
                f"{most:,} as simulated, by {by}; --set {name}=N sets another limit, as simulated"
            )


def _pool_note(cell: Cell) -> Iterator[str]:
    for name, value in cell.room().items():
        wanted, unit = cell.source.longest(), "" if cell.scale == 1 else " as simulated"
        yield (
            f"{cell.profile}: {name} = {value:,}, for the longest request of the trace "
            f"({wanted:,} tokens{unit}); --set {name}=N sets that of your server"
        )
    pools = cell.pools()
    if pools:
        flags = " and ".join(f"{name} = {value:,}" for name, value in pools.items())
        memory, by = memory_in(dict(cell.options)), cell.measured.by if cell.measured else ""
        yield f"{cell.profile}: memory = {memory:,} bytes is {flags}, as simulated, by {by}"


def _device_note(cell: Cell) -> Iterator[str]:
    profile = Profile.parse(cell.profile)
    words = family_of(profile.engine).chosen_words(profile, cell.own)
    if words:
        scaled = "" if cell.scale == 1 else f"; tokens are scaled down {cell.scale}:1"
        yield f"{cell.profile}: {words}{scaled}; --set names another"


def require_answers(rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise UntestedError if every server refused every request."""
    servers = [row for row in rows if row["profile"] != BOUND]
    if servers and all(row["requests"] and row["refused"] == row["requests"] for row in servers):
        why = next((f"; {row['notes'][0]}" for row in servers if row["notes"]), "")
        raise UntestedError(f"nothing was replayed: every server refused every request{why}")


def row_of(cell: Cell, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """A cell and its result as plain data."""
    source = cell.source
    return {
        "trace": Path(source.name).name,
        "first": source.first,
        "replies": source.replies,
        "turn": source.turn,
        "rank": source.rank,
        "timestamps": source.timestamps,
        "profile": cell.profile,
        "model": cell.model,
        "settings": dict(cell.options),
        **outcome,
    }
