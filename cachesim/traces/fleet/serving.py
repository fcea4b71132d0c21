"""A trace on a fleet: the router's choice for each request, and what it cost.

    at the choice    replica 0 would reuse 96, replica 1 would reuse 160 tokens
    chosen           replica 0, which reuses 96: 64 tokens are computed again that another one held

Without the length of a turn, a request comes when the one before it is answered: loads are 0. With
it, all replicas take their turns at the same times.

The KV events of its servers are written as real ones publish them: a replica is a data-parallel
rank, and the hash of a block is the key of its prefix, on all the same.

    router receives   stored (keys)                      removed (keys)
    a line has        BlockStored, with the key before   BlockRemoved
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias, cast

from cachesim.engines.base import Reply
from cachesim.engines.tokens import Rope
from cachesim.engines.words import counted
from cachesim.errors import SpecError, UpstreamAbort
from cachesim.play.loop import EndlessError
from cachesim.traces.fleet.fleet import Fleet
from cachesim.traces.fleet.kv_events import Absent, Server
from cachesim.traces.fleet.router import (
    Arrival,
    Dispatcher,
    Replica,
    Router,
    RouterError,
    Sessions,
    prefix_keys,
)
from cachesim.traces.replay import (
    Cell,
    PendingRequest,
    Replayed,
    Run,
    Seams,
    account,
    bytes_counted,
    limit_notes,
    play_run,
)
from cachesim.typed import Json, there_is

MOST_SESSIONS: Final = 1 << 16
"""Number of conversations that are distinguished, the latest ones."""


@dataclass(frozen=True, slots=True)
class Routed:
    """A request with its replica and its reply; None if it was refused or lost."""

    request: PendingRequest
    answer: Reply | None
    replica: int | None
    held: tuple[int | None, ...] = ()  # what each live replica would have reused at the choice
    ended: str = ""  # why its replica ended


@dataclass(slots=True)
class _Sent:
    request: PendingRequest
    held: tuple[int | None, ...]


class FleetLoop:
    """The replicas, the router, and the requests inside."""

    def __init__(
        self, fleet: Fleet, servers: Sequence[Server | Absent], remember: int | None
    ) -> None:
        self.servers = servers
        self.fleet = fleet
        self.router = fleet.router.start(servers)
        for server in servers:
            server.listen(self.router)
        self.sessions = Sessions(remember or MOST_SESSIONS)
        self.changes = list(fleet.changes)
        first = {change.replica: change.what for change in reversed(fleet.changes)}
        for number, what in first.items():
            servers[number].alive = what != "join"
        self.now = 0.0
        self._sent: dict[int, _Sent] = {}  # by the request's number

    # -- requests ----------------------------------------------------------------------------------

    def send(self, request: PendingRequest) -> tuple[Server | None, list[Routed]]:
        """Choose a replica and submit; None if none is alive."""
        lost = self._change(request.time / 1000)
        alive = [server for server in self.servers if server.alive]
        prompt, reply = cast("Rope", request.prompt), cast("Rope", request.reply)
        session = self.sessions.of(request.trace.blocks, last_whole(request))
        if not alive:
            nobody = [Routed(request, None, None)] if not self.fleet.part else []
            return None, [*lost, *nobody]
        arrival = Arrival(request.number, request.time, prompt, reply, session)
        held = tuple(server.peek(arrival) for server in alive) if self.fleet.parts == 1 else ()
        server = self.servers[self.router.choose(arrival)]
        if isinstance(server, Absent):
            self.router.finished(arrival, server.number)
            return None, lost
        self._sent[request.number] = _Sent(request, held)
        server.now = request.time
        server.enter(server.engine.submit(request.as_request()), arrival)
        return server, lost

    def collect(self, server: Server, now: float) -> Iterator[Routed]:
        """A turn of a replica, and what it has answered."""
        server.now = now
        try:
            busy = server.loop.turn()
        except (UpstreamAbort, EndlessError) as abort:
            yield from self._kill(server, str(abort))
            return
        for ticket in [*server.inside]:
            answer = server.engine.reply(ticket)
            if answer is not None or not busy:  # an idle server works on it no more
                sent = self._sent.pop(server.leave(ticket).number)
                yield Routed(sent.request, answer, server.number, sent.held)
                server.engine.forget(ticket)

    def _kill(self, server: Server | Absent, why: str) -> Iterator[Routed]:
        server.alive = False
        self.router.left(server.number)
        if isinstance(server, Absent):
            return
        for ticket in [*server.inside]:
            sent = self._sent.pop(server.leave(ticket).number)
            yield Routed(sent.request, None, server.number, sent.held, why)

    def _change(self, seconds: float) -> list[Routed]:
        """The changes up to a time; the requests that they end."""
        lost: list[Routed] = []
        while self.changes and self.changes[0].time <= seconds:
            change = self.changes.pop(0)
            server = self.servers[change.replica]
            match change.what:
                case "die":
                    lost += self._kill(server, "")
                    server.start()
                    server.listen(self.router)
                    server.alive = False
                case "drain":
                    server.alive = False
                    self.router.left(server.number)
                case "join":
                    server.alive = True
        return lost

    # -- in order, or on time ----------------------------------------------------------------------

    def in_order(self, requests: Iterable[PendingRequest]) -> Iterator[Routed]:
        """Each request when the one before it is answered."""
        for request in requests:
            server, lost = self.send(request)
            yield from lost
            while server is not None and server.inside:
                yield from self.collect(server, request.time)

    def on_time(
        self, requests: Iterable[PendingRequest], turn: float, *, more: bool = False
    ) -> Iterator[Routed]:
        """Each request at its time; if `more` follow, running ones continue when they arrive."""
        for server in self.servers:
            if isinstance(server, Server):
                server.engine.limit_turns(1)
        waiting = iter(requests)
        pending = next(waiting, None)
        while pending is not None or self._sent:
            while pending is not None and pending.time <= self.now:
                yield from self.send(pending)[1]
                pending = next(waiting, None)
            if pending is None and more:
                return
            yield from self._change(self.now / 1000)
            self.now += turn
            for server in self.servers:
                if server.inside and isinstance(server, Server):
                    yield from self.collect(server, self.now)
            if not self._sent and pending is not None:
                self.now = max(self.now, pending.time)


def last_whole(request: PendingRequest) -> int | None:
    """The last block of a request that its continuation repeats."""
    trace = request.trace
    if trace.kept:
        return trace.kept[-1][0]
    return trace.blocks[-2] if len(trace.blocks) > 1 else None


# -- the account -----------------------------------------------------------------------------------

ELSEWHERE: Final = "on-another-replica"

Facts: TypeAlias = Sequence[Sequence[int]]
"""For each replica: the requests at once, at most, and the evictions for a limit in bytes."""


@dataclass(slots=True)
class FleetReplayed:
    """Reuse of a trace on a fleet."""

    total: Replayed
    parts: list[Replayed]
    elsewhere: int | None = 0  # tokens computed again that another replica held at the choice
    best: int | None = 0  # tokens reused if each request went to the replica that held most
    lost: int = 0  # requests that ended with their replica, or found none
    refused_at: int = -1  # the first request that was refused

    def add(self, routed: Routed) -> None:
        """Count a request."""
        request, answer = routed.request, routed.answer
        elsewhere = self._held(routed)
        refused = self.total.refused
        account(self.total, request, answer)
        if self.total.refused > refused == 0:
            self.refused_at = request.number
        if elsewhere:
            moved = min(elsewhere, self.total.lost["not-held"])
            self.total.lost["not-held"] -= moved
            self.total.lost[ELSEWHERE] += moved
        if routed.replica is None or routed.ended or answer is None:
            self.lost += 1
        if routed.replica is not None:
            account(self.parts[routed.replica], request, answer)
        if routed.ended and not self.total.ended:
            self.total.ended = (
                f"request {request.number + 1}, replica {routed.replica}: {routed.ended}"
            )

    def _held(self, routed: Routed) -> int | None:
        """Tokens that another replica held; None if that is not known."""
        answer = routed.answer
        if answer is None or answer.cached is None or self.best is None or self.elsewhere is None:
            return 0 if self.best is not None else None
        known = [count for count in routed.held if count is not None]
        if len(known) < len(routed.held):
            self.best = self.elsewhere = None
            return None
        most = max([*known, int(answer.cached)])
        self.best += most
        self.elsewhere += most - int(answer.cached)
        return most - int(answer.cached)

    def join(self, other: "FleetReplayed") -> None:
        """Add the account of other replicas of the same fleet."""
        if other.refused_at >= 0 and not 0 <= self.refused_at <= other.refused_at:
            self.refused_at, self.total.refusal = other.refused_at, other.total.refusal
        self.total.join(other.total)
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.join(theirs)
        self.lost += other.lost

    def as_dict(self, facts: Facts) -> dict[str, Any]:
        """The fleet's part of a result."""
        prefilled = [part.prompt_tokens - part.cached for part in self.parts]
        mean = sum(prefilled) / len(prefilled)
        return {
            "by_replica": [
                {
                    "requests": part.requests,
                    "prompt_tokens": part.prompt_tokens,
                    "cached": part.cached,
                    "rate": round(part.rate, 6),
                    "at_once": most,
                }
                for part, (most, _) in zip(self.parts, facts, strict=True)
            ],
            "elsewhere": self.elsewhere,
            "best": self.best,
            "spread": round(max(prefilled) / mean, 4) if mean else 1.0,
            "lost_requests": self.lost,
        }


def check_fleet(cell: Cell) -> None:
    """Raise for a fleet whose router does not fit its servers."""
    fleet = cell.fleet
    if fleet is None:
        return
    kinds = [kind for _, kind in _kinds(cell, fleet)]
    for kind in kinds:
        kind.check()
    if fleet.parts > 1 and cell.source.turn:
        msg = "with --turn the replicas' loads decide, and they stay together: leave out --parts"
        raise RouterError(msg)
    servers = [Server(number, kind.engine) for number, kind in enumerate(kinds)]
    router = fleet.router.start(servers)
    for server in servers:
        server.listen(router)


class FleetRun(Run):
    """A replay on a fleet; of one part of the replicas, its outcome is what `joined` adds up."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        fleet = there_is(cell.fleet)
        cells = dict(_cells(cell, fleet))
        servers = [
            Server(number, cells[number].engine) if fleet.mine(number) else Absent(number)
            for number in range(fleet.replicas)
        ]
        self.loop = FleetLoop(fleet, servers, cell.source.remember)
        self.found = _account(fleet)

    def go_on(self, cell: Cell) -> None:
        super().go_on(cell)
        for number, kind in _cells(cell, there_is(cell.fleet)):
            server = self.loop.servers[number]
            if isinstance(server, Server):
                server.create = kind.engine

    def serve(self, requests: Iterable[PendingRequest], *, more: bool) -> Iterator[int]:
        turn = self.cell.source.turn
        on_time = partial(self.loop.on_time, turn=turn, more=more)
        for routed in (on_time if turn else self.loop.in_order)(requests):
            self.found.add(routed)
            yield self.found.total.requests

    def outcome(self) -> dict[str, Any]:
        found, servers = self.found, self.loop.servers
        facts = [(server.most, server.evictions) for server in servers]
        if there_is(self.cell.fleet).part is not None:
            if found.total.ended:
                msg = f"{found.total.ended}; a fleet in which a server ends cannot be in parts"
                raise SpecError(msg)
            totals = [part.as_json() for part in (found.total, *found.parts)]
            return {"facts": facts, "totals": totals, "at": [found.lost, found.refused_at]}
        engines = [server for server in servers if isinstance(server, Server) and server.silent]
        return _outcome(
            self.cell, found, facts, {engine.engine.profile.engine for engine in engines}
        )


def play_fleet(
    cell: Cell, progress: Callable[[int], None] = lambda _: None, seams: Seams | None = None
) -> dict[str, Any]:
    """Replay a cell on its fleet; `progress` is called with the number of finished requests."""
    return play_run(FleetRun, cell, progress, seams)


def _cells(cell: Cell, fleet: Fleet) -> Iterator[tuple[int, Cell]]:
    """Each replica with its server."""
    for numbers, kind in _kinds(cell, fleet):
        yield from ((number, kind) for number in numbers)


def _account(fleet: Fleet) -> FleetReplayed:
    known = 0 if fleet.parts == 1 else None
    return FleetReplayed(
        Replayed(), [Replayed() for _ in range(fleet.replicas)], elsewhere=known, best=known
    )


def parts_of(cell: Cell) -> list[Cell]:
    """The parts of a cell that may run in several processes; the cell itself if it has none."""
    fleet = cell.fleet
    if fleet is None or fleet.parts == 1:
        return [cell]
    return [replace(cell, fleet=replace(fleet, part=part)) for part in range(fleet.parts)]


def joined(cell: Cell, outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The outcome of a cell from those of its parts: as if they had run in one process."""
    fleet = there_is(cell.fleet)
    account = _account(fleet)
    facts = [[0, 0] for _ in range(fleet.replicas)]
    for outcome in outcomes:
        lost, refused_at = outcome["at"]
        total, *parts = (Replayed.of_json(one) for one in outcome["totals"])
        account.join(FleetReplayed(total, parts, lost=lost, refused_at=refused_at))
        facts = [
            [a + b for a, b in zip(*both, strict=True)]
            for both in zip(facts, outcome["facts"], strict=True)
        ]
    return _outcome(cell, account, facts, set())


def _outcome(
    cell: Cell, found: FleetReplayed, facts: Facts, silent: Collection[str]
) -> dict[str, Any]:
    fleet, source = there_is(cell.fleet), cell.source
    kinds = _kinds(cell, fleet)
    return {
        "scale": source.scale,
        **found.total.as_dict(),
        "held": {"requests": []},
        "bytes": _bytes(*kinds[0], facts),
        "notes": [
            *found.total.notes(source, cell.profile),
            *(note for _, kind in kinds for note in limit_notes(kind, found.total)),
            *_notes(cell, fleet, found, silent),
            *_limits_of_others(kinds[1:], facts),
        ],
        "fleet": {**fleet.as_dict(), **found.as_dict(facts)},
    }


def _kinds(cell: Cell, fleet: Fleet) -> list[tuple[Sequence[int], Cell]]:
    """Each kind of server, with the numbers of its replicas."""
    rest = [number for number in range(fleet.replicas) if fleet.other(number) is None]
    common = [(rest, cell.replica(rest[0]))] if rest else []
    return [*common, *((other.numbers, cell.replica(other.first)) for other in fleet.others)]


def _bytes(numbers: Sequence[int], kind: Cell, facts: Facts) -> dict[str, Any]:
    return bytes_counted(kind, sum(facts[number][1] for number in numbers))


def _limits_of_others(kinds: Sequence[tuple[Sequence[int], Cell]], facts: Facts) -> Iterator[str]:
    """Limits in bytes of the replicas that differ."""
    for numbers, kind in kinds:
        if note := _bytes(numbers, kind, facts)["note"]:
            yield f"replica {', '.join(map(str, numbers))}, {kind.profile}: {note}"


def _notes(
    cell: Cell, fleet: Fleet, found: FleetReplayed, silent: Collection[str]
) -> Iterator[str]:
    if not cell.source.turn and fleet.replicas > 1:
        yield (
            "requests come one after the other, so that every replica is idle when a router "
            "chooses; --turn MS lets them overlap"
        )
    if fleet.parts > 1:
        yield "what other replicas held at each choice is not known where they are in parts"
    elif found.best is None:
        yield f"{', '.join(sorted(silent))}: what other replicas held at each choice is not known"
    if found.lost:
        yield f"{counted(found.lost, 'request')} got no reply: refused, or lost with their replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording(Router):
    """A router whose events are written too."""

    name: ClassVar[str] = "recording"
    follows: ClassVar[str] = "KVEventBatch of vLLM and SGLang"

    inner: Router
    write: Callable[[str], object]

    def start(self, replicas: Sequence[Replica]) -> Dispatcher:
        return _Recorder(self.inner.start(replicas), replicas, self.write)

    def as_text(self) -> str:
        return self.inner.as_text()


class _Recorder(Dispatcher):
    needs_events = True

    def __init__(
        self, inner: Dispatcher, replicas: Sequence[Replica], write: Callable[[str], object]
    ) -> None:
        super().__init__(replicas)
        self._inner, self._write = inner, write
        self._parents: dict[int, int | None] = {}
        self._sent: list[int] = [0 for _ in replicas]

    def choose(self, arrival: Arrival) -> int:
        number = self._inner.choose(arrival)
        text = arrival.prompt.copy()
        text += arrival.reply
        before: int | None = None
        for key in prefix_keys(text, self.replicas[number].unit):
            self._parents.setdefault(key, before)
            before = key
        return number

    def stored(self, replica: int, keys: Sequence[int], time: float) -> None:
        """Keys of one event follow each other, but for those that were held already."""
        events, chain = list[Json](), list[int]()
        for key in [*keys, None]:
            if chain and (key is None or self._parents.get(key) != chain[-1]):
                events.append(
                    {
                        "type": "BlockStored",
                        "block_hashes": chain,
                        "parent_block_hash": self._parents.get(chain[0]),
                        "token_ids": [],
                        "block_size": self.replicas[replica].unit,
                        "lora_id": None,
                        "medium": "GPU",
                    }
                )
                chain = []
            chain += [] if key is None else [key]
        self._send(replica, events, time)
        if self._inner.needs_events:
            self._inner.stored(replica, keys, time)

    def removed(self, replica: int, keys: Sequence[int], time: float) -> None:
        event = {"type": "BlockRemoved", "block_hashes": [*keys], "medium": "GPU"}
        self._send(replica, [event] if keys else [], time)
        if self._inner.needs_events:
            self._inner.removed(replica, keys, time)

    def left(self, replica: int) -> None:
        self._send(replica, [{"type": "AllBlocksCleared"}], 0.0)
        self._inner.left(replica)

    def prefilled(self, arrival: Arrival, replica: int) -> None:
        self._inner.prefilled(arrival, replica)

    def finished(self, arrival: Arrival, replica: int) -> None:
        self._inner.finished(arrival, replica)

    def _send(self, replica: int, events: list[Json], time: float) -> None:
        if events:
            batch = {
                "ts": time / 1000,
                "events": events,
                "data_parallel_rank": replica,
                "seq": self._sent[replica],
            }
            self._sent[replica] += 1
            self._write(json.dumps(batch, separators=(",", ":")) + "\n")


def record_events(cell: Cell, path: Path) -> None:
    """Run a cell again, and write the KV events of its servers."""
    fleet = cell.fleet or Fleet.of(1, "round-robin")
    with path.open("w", encoding="utf-8") as file:
        router = Recording(inner=fleet.router, write=file.write)
        play_fleet(replace(cell, fleet=replace(fleet, router=router)))
