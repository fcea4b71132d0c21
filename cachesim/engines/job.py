"""Servers that keep a job for each request: what was asked for, and what came of it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from cachesim.engines import base
from cachesim.engines.events import Event, EventLog
from cachesim.engines.ledger import Ledger
from cachesim.model.adapters import Strengths
from cachesim.model.build import arithmetic_of
from cachesim.units import Array, Count, Tokens


class Answered(Protocol):
    """The facts about a job that its reply needs."""

    @property
    def done(self) -> bool:
        """True if the job is over."""
        ...

    def reply(self) -> base.Reply:
        """The reply to the client."""
        ...


R = TypeVar("R")
"""An engine's value of rules."""

S = TypeVar("S")
"""An engine's options."""

J = TypeVar("J", bound=Answered)
"""An engine's own view of a request."""


class Jobs(Generic[J]):
    """Requests by their tickets, oldest first; a ticket is given once, whatever is forgotten."""

    def __init__(self) -> None:
        self._jobs: dict[int, J] = {}
        self._given = 0

    def __getitem__(self, ticket: int) -> J:
        return self._jobs[ticket]

    def __iter__(self) -> Iterator[J]:
        return iter(self._jobs.values())

    def ticket(self) -> base.Ticket:
        """The ticket of the next one."""
        return base.Ticket(self._given)

    def append(self, job: J) -> None:
        """Keep a request under the next ticket."""
        self._jobs[self._given] = job
        self._given += 1

    def forget(self, ticket: int) -> None:
        """Keep nothing of a request."""
        self._jobs.pop(ticket, None)


@dataclass(slots=True, kw_only=True)
class Job(ABC):
    """The evidence of a request; an engine adds its own view of the request."""

    ticket: base.Ticket
    prompt: Tokens
    forced: Tokens | None = None
    ledger: Ledger = field(default_factory=Ledger)
    rows: list[Array] = field(default_factory=list)
    cached: Count | None = None
    error: str | None = None
    message: str = ""
    done: bool = False
    strengths: Strengths = ()  # of the adapters that the answer is to be computed under

    @property
    @abstractmethod
    def generated(self) -> Tokens:
        """The sampled tokens."""

    def end(self, error: str, message: str = "") -> None:
        """End the job without a reply."""
        self.done, self.error, self.message = True, error, message

    def reply(self) -> base.Reply:
        """The reply to the client."""
        served = self.error is None
        generated = self.generated
        rows = self.rows[: len(generated)]
        cached = self.cached or Count(0)
        return base.Reply(
            prompt=self.prompt,
            generated=generated,
            logits=np.stack(rows) if rows else np.zeros((0, 0)),
            cached=cached if served else None,
            processed=Count(len(self.prompt) - cached) if served else None,
            equal=self.ledger.equal,
            equal_with=self.ledger.equal_with,
            losses=self.ledger.losses,
            strengths=self.strengths,
            error=self.error,
            message=self.message,
        )


class JobEngine(base.Engine, Generic[R, S, J]):
    """A server that keeps a job for each request, and answers from it."""

    def _open(self, rules: R, options: S, store: base.ByteStore | None) -> None:
        del store  # nothing is saved to files
        self.rules, self.options = rules, options
        self.computes = arithmetic_of(self.network) != "counts"
        self._events = EventLog()
        self._jobs: Jobs[J] = Jobs()
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Start what only this server has."""

    @property
    def events(self) -> Sequence[Event]:
        return self._events

    def _tell(self, event: Event) -> None:
        self._events.append(event)

    def reply(self, ticket: base.Ticket) -> base.Reply | None:
        job = self._jobs[ticket]
        return job.reply() if job.done else None

    def forget(self, ticket: base.Ticket) -> None:
        self._events.clear()
        if self._jobs[ticket].done:
            self._jobs.forget(ticket)
