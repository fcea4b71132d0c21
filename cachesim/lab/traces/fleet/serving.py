"""A trace on a fleet: the router's choice for each request, and what it cost.

    at the choice    replica 0 would reuse 96, replica 1 would reuse 160 tokens
    chosen           replica 0, which reuses 96: 64 tokens are computed again that another one held

Without the length of a turn, a request comes when the one before it is answered: loads are 0. With
it, all replicas take their turns at the same times.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from cachesim.engines.base import Reply
from cachesim.engines.tokens import Rope
from cachesim.engines.words import counted
from cachesim.errors import SpecError, UpstreamAbort
from cachesim.lab.traces.fleet.changes import Change
from cachesim.lab.traces.fleet.fleet import Fleet
from cachesim.lab.traces.fleet.kv_events import Server
from cachesim.lab.traces.fleet.router import Arrival, Sessions
from cachesim.lab.traces.replay import (
    Cell,
    PendingRequest,
    Replayed,
    account,
    bytes_counted,
    limit_notes,
)

MOST_SESSIONS: Final = 1 << 16
"""Conversations that are told apart, those that went on last."""


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

    def __init__(self, fleet: Fleet, servers: list[Server], remember: int | None) -> None:
        self.servers = servers
        self.router = fleet.router.start(servers)
        for each in servers:
            each.listen(self.router)
        self.sessions = Sessions(remember or MOST_SESSIONS)
        self.changes = list(fleet.changes)
        first = {change.replica: change.what for change in reversed(fleet.changes)}
        for number, what in first.items():
            servers[number].alive = what != "join"
        self._sent: dict[int, _Sent] = {}  # by the request's number

    # -- requests ----------------------------------------------------------------------------------

    def send(self, request: PendingRequest) -> tuple[Server | None, list[Routed]]:
        """Choose a replica and submit; None if none is alive."""
        lost = self._change(request.time / 1000)
        alive = [each for each in self.servers if each.alive]
        prompt, reply = cast("Rope", request.prompt), cast("Rope", request.reply)
        session = self.sessions.of(request.trace.blocks, last_whole(request))
        if not alive:
            return None, [*lost, Routed(request, None, None)]
        arrival = Arrival(request.number, request.time, prompt, reply, session)
        held = tuple(each.peek(arrival) for each in alive)
        server = self.servers[self.router.choose(arrival)]
        self._sent[request.number] = _Sent(request, held)
        server.now = request.time
        server.enter(server.engine.submit(request.as_request()), arrival)
        return server, lost

    def collect(self, server: Server, now: float) -> Iterator[Routed]:
        """A turn of a replica, and what it has answered."""
        server.now = now
        try:
            busy = server.loop.turn()
        except UpstreamAbort as abort:
            yield from self._kill(server, str(abort))
            return
        for ticket in [*server.inside]:
            answer = server.engine.reply(ticket)
            if answer is not None or not busy:  # an idle server works on it no more
                sent = self._sent.pop(server.leave(ticket).number)
                yield Routed(sent.request, answer, server.number, sent.held)
                server.engine.forget(ticket)

    def _kill(self, server: Server, why: str) -> Iterator[Routed]:
        server.alive = False
        self.router.left(server.number)
        for ticket in [*server.inside]:
            sent = self._sent.pop(server.leave(ticket).number)
            yield Routed(sent.request, None, server.number, sent.held, why)

    def _change(self, seconds: float) -> list[Routed]:
        """The changes up to a time; the requests that they end."""
        lost: list[Routed] = []
        while self.changes and self.changes[0].time <= seconds:
            lost += self._apply(self.changes.pop(0))
        return lost

    def _apply(self, change: Change) -> Iterator[Routed]:
        server = self.servers[change.replica]
        match change.what:
            case "die":
                yield from self._kill(server, "")
                server.start()
                server.listen(self.router)
                server.alive = False
            case "drain":
                server.alive = False
                self.router.left(server.number)
            case "join":
                server.alive = True

    # -- in order, or on time ----------------------------------------------------------------------

    def in_order(self, requests: Iterable[PendingRequest]) -> Iterator[Routed]:
        """Each request when the one before it is answered."""
        for request in requests:
            server, lost = self.send(request)
            yield from lost
            while server is not None and server.inside:
                yield from self.collect(server, request.time)

    def on_time(self, requests: Iterable[PendingRequest], turn: float) -> Iterator[Routed]:
        """Each request at its time."""
        for each in self.servers:
            each.engine.limit_turns(1)
        waiting = iter(requests)
        pending = next(waiting, None)
        now = 0.0
        while pending is not None or self._sent:
            while pending is not None and pending.time <= now:
                yield from self.send(pending)[1]
                pending = next(waiting, None)
            yield from self._change(now / 1000)
            now += turn
            for server in self.servers:
                if server.inside:
                    yield from self.collect(server, now)
            if not self._sent and pending is not None:
                now = max(now, pending.time)


def last_whole(request: PendingRequest) -> int | None:
    """The last block of a request that its continuation repeats."""
    trace = request.trace
    if trace.kept:
        return trace.kept[-1][0]
    return trace.blocks[-2] if len(trace.blocks) > 1 else None


# -- the account -----------------------------------------------------------------------------------

ELSEWHERE: Final = "on-another-replica"


@dataclass(slots=True)
class FleetReplayed:
    """Reuse of a trace on a fleet."""

    total: Replayed
    parts: list[Replayed]
    elsewhere: int | None = 0  # tokens computed again that another replica held at the choice
    best: int | None = 0  # tokens reused if each request went to the replica that held most
    lost: int = 0  # requests that ended with their replica, or found none

    def add(self, routed: Routed) -> None:
        """Count a request."""
        request, answer = routed.request, routed.answer
        elsewhere = self._held(routed)
        account(self.total, request, answer)
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
        known = [each for each in routed.held if each is not None]
        if len(known) < len(routed.held):
            self.best = self.elsewhere = None
            return None
        most = max([*known, int(answer.cached)])
        self.best += most
        self.elsewhere += most - int(answer.cached)
        return most - int(answer.cached)

    def as_dict(self, servers: Sequence[Server]) -> dict[str, Any]:
        """The fleet's part of a result."""
        prefilled = [each.prompt_tokens - each.cached for each in self.parts]
        mean = sum(prefilled) / len(prefilled)
        return {
            "by_replica": [
                {
                    "requests": each.requests,
                    "prompt_tokens": each.prompt_tokens,
                    "cached": each.cached,
                    "rate": round(each.rate, 6),
                    "at_once": server.most,
                }
                for each, server in zip(self.parts, servers, strict=True)
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
    servers = [Server(number, kind.engine) for number, kind in enumerate(kinds)]
    router = fleet.router.start(servers)
    for each in servers:
        each.listen(router)


def play_fleet(cell: Cell, progress: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
    """Replay a cell on its fleet; `progress` is called with the number of finished requests."""
    fleet = cell.fleet
    if fleet is None:
        msg = f"{cell.profile} has no fleet"
        raise SpecError(msg)
    source = cell.source
    kinds = _kinds(cell, fleet)
    cells = {number: kind for numbers, kind in kinds for number in numbers}
    servers = [Server(number, cells[number].engine) for number in range(fleet.replicas)]
    loop = FleetLoop(fleet, servers, source.remember)
    serve = partial(loop.on_time, turn=source.turn) if source.turn else loop.in_order
    found = FleetReplayed(Replayed(), [Replayed() for _ in servers])
    for routed in serve(cell.requests()):
        found.add(routed)
        progress(found.total.requests)
    return {
        "scale": source.scaling(source.open()[0]),
        **found.total.as_dict(),
        "held": {"requests": []},
        "bytes": _bytes(*kinds[0], servers),
        "notes": [
            *found.total.notes(source, cell.profile),
            *(note for _, kind in kinds for note in limit_notes(kind, found.total)),
            *_notes(cell, servers, found),
            *_limits_of_others(kinds[1:], servers),
        ],
        "fleet": {**fleet.as_dict(), **found.as_dict(servers)},
    }


def _kinds(cell: Cell, fleet: Fleet) -> list[tuple[Sequence[int], Cell]]:
    """Each kind of server, with the numbers of its replicas."""
    rest = [number for number in range(fleet.replicas) if fleet.other(number) is None]
    common = [(rest, cell.replica(rest[0]))] if rest else []
    return [*common, *((each.numbers, cell.replica(each.first)) for each in fleet.others)]


def _bytes(numbers: Sequence[int], kind: Cell, servers: Sequence[Server]) -> dict[str, Any]:
    return bytes_counted(kind, sum(servers[number].evictions for number in numbers))


def _limits_of_others(
    kinds: Sequence[tuple[Sequence[int], Cell]], servers: Sequence[Server]
) -> Iterator[str]:
    """Limits in bytes of the replicas that differ."""
    for numbers, kind in kinds:
        if note := _bytes(numbers, kind, servers)["note"]:
            yield f"replica {', '.join(map(str, numbers))}, {kind.profile}: {note}"


def _notes(cell: Cell, servers: Sequence[Server], found: FleetReplayed) -> Iterator[str]:
    if not cell.source.turn and len(servers) > 1:
        yield (
            "requests come one after the other, so that every replica is idle when a router "
            "chooses; --turn MS lets them overlap"
        )
    if found.best is None:
        silent = {each.engine.profile.engine for each in servers if each.silent}
        names = ", ".join(sorted(silent))
        yield f"{names}: what other replicas held at each choice is not known"
    if found.lost:
        yield f"{counted(found.lost, 'request')} got no reply: refused, or lost with their replica"
