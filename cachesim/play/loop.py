"""The loop on any server: requests go in, turns are taken, clients leave, events come out."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.engines.events import Event
from cachesim.errors import OptionError


class EndlessError(Exception):
    """The server never comes to rest."""


@runtime_checkable
class Reading(Protocol):
    """A server that shows how many tokens of a request are in its slot."""

    def tokens_held_for(self, ticket: Ticket) -> int:
        """The tokens that the request's slot holds so far."""
        ...


class Loop:
    """A server under way; more turns than `most` raise EndlessError."""

    def __init__(self, engine: Engine, *, most: int | None = None) -> None:
        self.engine = engine
        self.most = most
        self.turns = 0
        self.seen = 0  # events already collected

    def turn(self) -> bool:
        """Take a turn; False when there was nothing to do."""
        self.turns += 1
        if self.most is not None and self.turns > self.most:
            raise EndlessError
        return self.engine.step()

    def drain(self, until: Callable[[], bool] | None = None) -> None:
        """Take turns until a condition holds or the server is idle."""
        while (until is None or not until()) and self.turn():
            pass

    def answer(self, request: Request) -> Reply | None:
        """The reply to a request that is served alone."""
        ticket = self.engine.submit(request)
        self.drain()
        return self.engine.reply(ticket)

    def leave(self, ticket: Ticket, held: int) -> int:
        """Cancel a request as soon as its slot holds so many tokens; those that it held then."""
        engine = self.engine
        if not isinstance(engine, Reading):
            name = engine.profile.engine
            msg = f"{name} has no 'leaves'; write a further step with do = 'cancel'"
            raise OptionError(msg)
        self.drain(until=lambda: engine.tokens_held_for(ticket) >= held)
        reached = engine.tokens_held_for(ticket)
        engine.cancel(ticket)
        return reached

    def new_events(self) -> tuple[Event, ...]:
        """The events since they were last collected."""
        new = tuple(self.engine.events[self.seen :])
        self.seen += len(new)
        return new
