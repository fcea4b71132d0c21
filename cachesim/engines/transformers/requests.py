"""Requests, and their tokens in a batch."""

from dataclasses import dataclass, field
from enum import IntEnum

from cachesim.engines import job
from cachesim.units import Token, Tokens


class Status(IntEnum):
    """State of a request (`RequestStatus`)."""

    PENDING = 0
    PREFILLING = 1
    DECODING = 2
    FINISHED = 3


@dataclass(slots=True, kw_only=True, eq=False)
class RequestState:
    """A request (`RequestState`).

    initial    | ... done ... | to_process | remaining |
                              ^ position_offset
    generated                                          | one token per batch |
    """

    id: int
    initial: list[int]
    most: int  # tokens to generate
    generated: list[int] = field(default_factory=list)
    remaining: list[int] = field(default_factory=list)
    to_process: list[int] = field(default_factory=list)
    position_offset: int = 0
    status: Status = Status.PENDING

    def __post_init__(self) -> None:
        self.remaining = self.initial[:]

    def update_and_check_completion(self, token: int) -> bool:
        """Append a token; True if it is the last."""
        if self.status != Status.DECODING:
            return False
        self.generated.append(token)
        self.to_process = [token]
        if len(self.generated) >= self.most:
            self.status = Status.FINISHED
            return True
        return False

    def create_equivalent_initial_request(self) -> "RequestState":
        """A new request whose prompt includes the tokens generated so far."""
        return RequestState(
            id=self.id, initial=self.initial + self.generated, most=self.most - len(self.generated)
        )

    def computed(self) -> list[int]:
        """The tokens that a batch has computed."""
        return (self.initial + self.generated)[: self.position_offset]


@dataclass(slots=True, kw_only=True)
class FutureRequestState:
    """Tokens that a batch takes of a request (`FutureRequestState`)."""

    state: RequestState
    has_new_token: bool
    complete_blocks: int
    query: int
    start: int = 0
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Job(job.Job):
    """A request of a client, and its sampled tokens."""

    state: RequestState | None = None
    started: bool = False
    sampled: list[Token] = field(default_factory=list)

    @property
    def generated(self) -> Tokens:
        return tuple(self.sampled)
