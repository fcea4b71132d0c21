"""A request to an engine core that knows no slots: what was asked for, and what came of it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from cachesim.engines import base
from cachesim.engines.ledger import Ledger
from cachesim.errors import OptionError, TokenError
from cachesim.model.adapters import Strengths
from cachesim.units import Array, Count, Tokens

J = TypeVar("J")


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
    """One request's evidence; an engine adds its own view of the request."""

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
        """What was sampled."""

    def reply(self) -> base.Reply:
        """What the client gets."""
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


def check(
    request: base.Request, engine: str, vocabulary: int | None, foreign: Mapping[str, bool]
) -> None:
    """Refuse fields that an engine does not have, and tokens outside the vocabulary.

    Without a vocabulary tokens may be any numbers.
    """
    everywhere = {
        "slot": request.slot != -1,
        "completions": request.completions != 1,
        "messages": bool(request.messages),
    }
    for name, present in (everywhere | dict(foreign)).items():
        if present:
            msg = f"a request to {engine} has no field {name!r} here: leave it out"
            raise OptionError(msg)
    if not request.prompt:
        msg = "a prompt without tokens: write at least one"
        raise TokenError(msg)
    if vocabulary is None:
        return
    outside = next((each for each in request.prompt if not 0 <= each < vocabulary), None)
    if outside is not None:
        msg = f"token {outside} of the prompt is outside the vocabulary of {vocabulary}"
        raise TokenError(msg)
