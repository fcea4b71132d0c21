"""The loop of any server: submit requests, take turns, cancel, collect events."""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import get_ident
from types import FrameType
from typing import Final, Protocol, runtime_checkable

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.engines.events import Event
from cachesim.errors import OptionError

LONGEST_TURN: Final = 20.0
"""Processor seconds of a turn, or of a group of requests, beside those for its tokens."""

PER_TOKEN: Final = 0.01
"""Processor seconds for each token of the prompts; float arithmetic takes up to 0.003."""


FOREVER: Final = "the server computes without an end"
"""The message of a turn that takes more time than its bound."""


class EndlessError(Exception):
    """A server that never becomes idle, or whose turn never ends."""


class _Timer:
    """The process's timer of blocks: it has one, and the outermost block uses it."""

    runs = False
    thread: int | None = None  # that handles its signal


_TIMER: Final = _Timer()


@contextmanager
def handled() -> Iterator[None]:
    """Handle the timer's signal once for all `bounded` blocks inside, which takes its time."""
    # A browser's Python has the signal and no timer; Windows has neither.
    if _TIMER.thread is not None or not hasattr(signal, "setitimer"):
        yield
        return
    try:
        before = signal.signal(signal.SIGVTALRM, _over)
    except ValueError:  # no main thread
        yield
        return
    _TIMER.thread = get_ident()
    try:
        yield
    finally:
        _TIMER.thread = None
        signal.signal(signal.SIGVTALRM, before)


class bounded:  # noqa: N801 - used as a function, and cheaper: each request enters one
    """Raise EndlessError in a block that takes more processor time; the outermost bound counts.

    A loop of a server that never ends is interrupted by a signal, which only a main thread gets: a
    server in another thread, or in a browser, has no bound.
    """

    __slots__ = ("_handled", "_seconds", "_starts")

    def __init__(self, seconds: float) -> None:
        self._seconds, self._starts = seconds, False
        self._handled: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        if _TIMER.runs:
            return
        if _TIMER.thread is None:
            self._handled = handled()
            self._handled.__enter__()
        if _TIMER.thread == get_ident():
            self._starts = _TIMER.runs = True
            signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds)

    def __exit__(self, *error: object) -> None:
        if self._starts:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            _TIMER.runs = False
        if self._handled is not None:
            self._handled.__exit__(None, None, None)


def _over(_: int, __: FrameType | None) -> None:
    _TIMER.runs = False
    raise EndlessError(FOREVER)


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
            raise EndlessError(f"still busy after {self.most} turns of the loop")
        if _TIMER.runs:
            return self.engine.step()
        with bounded(LONGEST_TURN):
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
