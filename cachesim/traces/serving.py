"""Requests handed to a server: one after the other, or when their time has come.

    in order    | request 1, to its end | request 2, to its end | ...
    on time     arrivals   1  2        3          4
                turns      |--|--|--|--|--|--|    |--|--|         each takes `turn` milliseconds

The second is a service model, and a plain one: a turn of the server's loop takes as long whatever
is in it, and an idle server waits for the next arrival. So it says which requests are in the server
at once, as far as its own limits let them be. How long anything takes is not claimed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.errors import UpstreamAbort
from cachesim.traces.asked import Asked
from cachesim.units import Tokens


@dataclass(frozen=True, slots=True)
class Coming:
    """A request before it is served."""

    number: int
    time: float  # milliseconds since the trace began
    known: int  # leading tokens that were asked for before
    prompt: Tokens
    reply: Tokens
    trace: Asked  # the request as the trace has it

    def request(self) -> Request:
        """As a client sends it, with the reply it is to get."""
        return Request(prompt=self.prompt, predict=len(self.reply), reply=self.reply)


@dataclass(frozen=True, slots=True)
class Served:
    """A request, and what came back; no answer where the server refused it, or has ended."""

    asked: Coming
    answer: Reply | None
    ended: str = ""  # why the server ended with it: nothing comes after


def serve(engine: Engine, requests: Iterable[Coming], turn: float = 0.0) -> Iterator[Served]:
    """Requests as they are finished; in order if a turn takes no time."""
    return _on_time(engine, requests, turn) if turn else _in_order(engine, requests)


def _in_order(engine: Engine, requests: Iterable[Coming]) -> Iterator[Served]:
    for asked in requests:
        ticket = engine.submit(asked.request())
        try:
            engine.run()
        except UpstreamAbort as abort:
            yield Served(asked, None, str(abort))
            return
        yield Served(asked, engine.reply(ticket))
        engine.forget(ticket)  # a trace may be larger than memory


def _on_time(engine: Engine, requests: Iterable[Coming], turn: float) -> Iterator[Served]:
    engine.limit_turns(1)
    waiting = iter(requests)
    coming = next(waiting, None)
    inside: dict[Ticket, Coming] = {}
    now = 0.0
    while coming is not None or inside:
        while coming is not None and coming.time <= now:
            inside[engine.submit(coming.request())] = coming
            coming = next(waiting, None)
        try:
            busy = engine.step()
        except UpstreamAbort as abort:
            yield from (Served(each, None, str(abort)) for each in inside.values())
            return
        now += turn
        for ticket, answer in [(each, engine.reply(each)) for each in inside]:
            if answer is not None:
                yield Served(inside.pop(ticket), answer)
                engine.forget(ticket)
        if not busy:
            for ticket in [*inside]:  # nobody works on them any more
                yield Served(inside.pop(ticket), None)
                engine.forget(ticket)
            now = max(now, coming.time) if coming is not None else now
