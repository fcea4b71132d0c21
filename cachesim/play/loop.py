"""The loop of any server: submit requests, take turns, cancel, collect events."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.engines.events import Event
from cachesim.errors import OptionError


class EndlessError(Exception):
    """A server that never becomes idle."""


@runtime_checkable
class Reading(Protocol):
    """A server that reports the number of a request's tokens in its slot."""

    def tokens_held_for(self, ticket: Ticket) -> int:
        """The request's tokens in its slot so far."""
        ...


class Loop:
    """A running server; more turns than `most` raise EndlessError."""

    def __init__(self, engine: Engine, *, most: int | None = None) -> None:
        self.engine = engine
        self.most = most
        self.turns = 0
        self.seen = 0  # events already collected

    def turn(self) -> bool:
        """Take a turn; False if the server is idle."""
        self.turns += 1
        if self.most is not None and self.turns > self.most:
            raise EndlessError
        return self.engine.step()

    def drain(self, until: Callable[[], bool] | None = None) -> None:
        """Take turns until a condition holds or the server is idle."""
        while (until is None or not until()) and self.turn():
            pass

    def answer(self, request: Request) -> Reply | None:
        """The reply to a request served alone."""
        ticket = self.engine.submit(request)
        self.drain()
        return self.engine.reply(ticket)

    def leave(self, ticket: Ticket, held: int) -> int:
        """Cancel a request once its slot holds a number of tokens; return the tokens held then."""
        engine = self.engine
        if not isinstance(engine, Reading):
            name = engine.profile.engine
            raise OptionError(f"{name} has no 'leaves'; write a further step with do = 'cancel'")
        self.drain(until=lambda: engine.tokens_held_for(ticket) >= held)
        reached = engine.tokens_held_for(ticket)
        engine.cancel(ticket)
        return reached

    def new_events(self) -> tuple[Event, ...]:
        """The events since the last call."""
        new = tuple(self.engine.events[self.seen :])
        self.seen += len(new)
        return new
