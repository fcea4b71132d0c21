"""Servers that keep a job for each request: the request and its result."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import numpy as np

from cachesim.engines import base
from cachesim.engines.causes import Ledger
from cachesim.engines.events import Event, EventLog
from cachesim.engines.held import Texts
from cachesim.errors import OptionError, TokenError
from cachesim.model.adapters import Strengths
from cachesim.model.build import arithmetic_of
from cachesim.units import Array, Count, Token, Tokens


class Answered(Protocol):
    """The facts about a job that its reply needs."""

    @property
    def done(self) -> bool:
        """True if the job is finished."""
        ...

    def reply(self) -> base.Reply:
        """The reply to the client."""
        ...


R = TypeVar("R")
"""The type of an engine's rules."""

S = TypeVar("S")
"""The type of an engine's options."""

J = TypeVar("J", bound=Answered)
"""The type of an engine's jobs."""


class Jobs(Generic[J]):
    """Jobs by their tickets, oldest first; tickets are never reused."""

    def __init__(self) -> None:
        self._jobs: dict[int, J] = {}
        self._given = 0

    def __getitem__(self, ticket: int) -> J:
        return self._jobs[ticket]

    def __iter__(self) -> Iterator[J]:
        return iter(self._jobs.values())

    def ticket(self) -> base.Ticket:
        """The next ticket."""
        return base.Ticket(self._given)

    def append(self, job: J) -> None:
        """Add a job under the next ticket."""
        self._jobs[self._given] = job
        self._given += 1

    def forget(self, ticket: int) -> None:
        """Remove a job."""
        self._jobs.pop(ticket, None)


@dataclass(slots=True, kw_only=True)
class Job(ABC):
    """A request and its result; engines add fields."""

    ticket: base.Ticket
    prompt: Tokens
    forced: Tokens | None = None
    ledger: Ledger = field(default_factory=Ledger)
    rows: list[Array] = field(default_factory=list)
    cached: Count | None = None
    error: str | None = None
    message: str = ""
    done: bool = False
    strengths: Strengths = ()  # adapter strengths of the answer

    @property
    @abstractmethod
    def generated(self) -> Tokens:
        """The sampled tokens."""

    def end(self, error: str, message: str = "") -> None:
        self.done, self.error, self.message = True, error, message

    def reply(self) -> base.Reply:
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


@dataclass(slots=True, kw_only=True)
class SampledJob(Job):
    """A request served alone: its tokens are sampled one by one."""

    limit: int = 0
    sampled: list[Token] = field(default_factory=list)

    @property
    def generated(self) -> Tokens:
        return tuple(self.sampled)


class JobEngine(base.Engine, Generic[R, S, J]):
    """A server that keeps a job for each request, and replies from it."""

    def _open(self, rules: R, options: S, store: base.ByteStore | None) -> None:
        del store  # nothing is saved to files
        self.rules, self.options = rules, options
        self.computes = arithmetic_of(self.network) != "counts"
        self._events = EventLog()
        self._jobs: Jobs[J] = Jobs()
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Create the parts that only this server has."""

    @property
    def events(self) -> Sequence[Event]:
        return self._events

    def _emit(self, event: Event) -> None:
        self._events.append(event)

    def reply(self, ticket: base.Ticket) -> base.Reply | None:
        job = self._jobs[ticket]
        return job.reply() if job.done else None

    def forget(self, ticket: base.Ticket) -> None:
        self._events.clear()
        if self._jobs[ticket].done:
            self._jobs.forget(ticket)


B = TypeVar("B", bound=Job)
"""The type of an engine's jobs."""

NO_SLOTS: Final = "{} has no slots to save: a step may be complete, cancel or slot-erase{}"


class SlotlessEngine(JobEngine[R, S, B]):
    """A queue and one cache for all requests."""

    erasing: ClassVar[str] = ""
    """The server's own operation for `slot-erase`; empty if it has none."""

    limit_flag: ClassVar[str]
    """The server's option for the maximum tokens of a reply."""

    # -- requests ----------------------------------------------------------------------------------

    def _check(self, request: base.Request, **foreign: bool) -> None:
        """Refuse fields that an engine does not have, and tokens outside the vocabulary.

        Without a network any token id is accepted.
        """
        everywhere = {
            "slot": request.slot != -1,
            "completions": request.completions != 1,
            "messages": bool(request.messages),
        }
        for name, present in (everywhere | foreign).items():
            if present:
                msg = f"a request to {self.family.name} has no field {name!r} here: leave it out"
                raise OptionError(msg)
        if not request.prompt:
            raise TokenError("a prompt without tokens: write at least one")
        size = self.network.spec.vocabulary
        outside = (token for token in request.prompt if not 0 <= token < size)
        first = next(outside, None) if self.computes else None
        if first is not None:
            raise TokenError(f"token {first} of the prompt is outside the vocabulary of {size}")

    def _limit(self, request: base.Request, capacity: int) -> int:
        wanted = capacity if request.predict < 0 else min(request.predict, capacity)
        if request.reply is not None:
            wanted = min(wanted, len(request.reply))
        if wanted < 1:
            msg = f"{self.limit_flag} must be at least 1: let the request generate a token"
            raise OptionError(msg)
        return wanted

    def _token(self, job: Job, index: int, row: Array) -> int:
        if job.forced is not None and index < len(job.forced):
            return int(job.forced[index])
        return int(self.network.sample(row))

    def cancel(self, ticket: base.Ticket) -> None:
        if not self._jobs[ticket].done:
            self._jobs[ticket].end("cancelled")

    # -- actions on slots --------------------------------------------------------------------------

    @abstractmethod
    def _empty(self) -> None:
        """Clear the cache, if the server supports it."""

    @abstractmethod
    def _blank(self, ticket: base.Ticket) -> B:
        """A job without a request."""

    def slot_erase(self, slot: int) -> base.Ticket:
        """Clear the cache: the `slot-erase` of a scenario."""
        self._empty()
        job = self._blank(self._jobs.ticket())
        job.done, job.cached = True, Count(0)
        self._jobs.append(job)
        return job.ticket

    def slot_save(self, slot: int, name: str) -> base.Ticket:
        """Refuse: the server has no slots to save."""
        raise OptionError(NO_SLOTS.format(self.family.name, self.erasing))

    slot_restore = slot_save

    # -- inspection --------------------------------------------------------------------------------

    def books(self) -> dict[str, Any]:
        return {"slots": [], "prompt_cache": []}

    def texts(self) -> Texts:
        return Texts()


class SerialEngine(SlotlessEngine[R, S, SampledJob]):
    """A server that serves one request at a time, in order of arrival."""

    limit_flag: ClassVar[str] = "predict"

    most_tokens: ClassVar[int] = 256
    """The maximum tokens of a reply."""

    def submit(self, request: base.Request) -> base.Ticket:
        drafts, declined = request.drafts is not None, not request.cache_prompt
        self._check(request, drafts=drafts, cache_prompt=declined)
        self._fields(request)
        job = self._blank(self._jobs.ticket())
        job.prompt, job.forced = request.prompt, request.reply
        job.limit = self._limit(request, self.most_tokens)
        self._jobs.append(job)
        return job.ticket

    def step(self) -> bool:
        job = next((sampled_job for sampled_job in self._jobs if not sampled_job.done), None)
        if job is None:
            return False
        self._serve(job)
        job.done = True
        return True

    @abstractmethod
    def _serve(self, job: SampledJob) -> None:
        """Answer a request: its `cached`, `ledger`, `rows` and `sampled`."""

    def _blank(self, ticket: base.Ticket) -> SampledJob:
        return SampledJob(ticket=ticket, prompt=())
