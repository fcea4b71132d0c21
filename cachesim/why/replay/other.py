"""The same workload on another release, or with another patch or flag.

A workload knows when requests came relative to each other, not how long another server would have
taken: concurrent requests stay concurrent, sequential ones sequential.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.tokens import Rope
from cachesim.model.spec import ModelSpec
from cachesim.why.infer.settings import Settings
from cachesim.why.replay.player import FAILED, Move, Player, Replayed, ReplayRequest
from cachesim.why.replay.replayed import Replay


@dataclass(slots=True)
class ServerResult:
    """Results of all requests on another server."""

    profile: str
    options: Mapping[str, Any]
    replayed: dict[int, Replayed] = field(default_factory=dict)
    peak_bytes: int = 0
    held: dict[int, list[Rope]] = field(default_factory=dict)  # as each request comes


def options_for(release: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that a release has; others are dropped."""
    profile = Profile.parse(f"llama.cpp@{release}")
    known = {option.name: option for option in FAMILY.declared}
    return {
        name: value
        for name, value in values.items()
        if name not in known or FAMILY.has(known[name], profile, value)
    }


def default_step(settings: Settings) -> set[str]:
    """Flags that the log has at its release's default, and that differ elsewhere."""
    own = str(settings.release.value)
    values = settings.values
    return {
        option.name
        for option in FAMILY.declared
        if option.later and values.get(option.name) == FAMILY.default(option, own)
    }


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one run of all requests."""

    played: Mapping[int, Replayed]
    peak_bytes: int  # of prompt-cache entries and checkpoints
    failed: int  # requests without an answer


@dataclass(frozen=True, slots=True)
class Replayable(ABC):
    """Requests to a server of one profile and model, under any settings."""

    profile: str
    spec: ModelSpec

    @property
    def engine(self) -> str:
        """The server's engine."""
        return Profile.parse(self.profile).engine

    @property
    def release(self) -> str:
        """The release alone."""
        return Profile.parse(self.profile).release

    @property
    @abstractmethod
    def requests(self) -> int:
        """Number of requests."""

    @abstractmethod
    def outcome(self, options: Mapping[str, Any]) -> Outcome:
        """Replay under these settings; raises InputError if the server refuses them."""


@dataclass(frozen=True, slots=True)
class Workload(Replayable):
    """Requests in the order of their arrivals and ends."""

    submitted: Mapping[int, ReplayRequest]
    order: tuple[tuple[str, int], ...]
    moves: tuple[Move, ...] = ()  # of the order, with the turns in which its requests overlapped

    @property
    def requests(self) -> int:
        """Number of requests, without those invented for the time before a log."""
        return sum(number >= 0 for number in self.submitted)

    def outcome(self, options: Mapping[str, Any]) -> Outcome:
        """Replay with these settings on its own release."""
        result = play_workload(self, self.profile, options)
        answers = {n: answer for n, answer in result.replayed.items() if n >= 0}
        failed = sum(answer.cached is None for answer in answers.values())
        return Outcome(answers, result.peak_bytes, failed)


def workload_of(replay: Replay, spec: ModelSpec | None = None) -> Workload:
    """Workload of a replay."""
    submitted = {request.number: request for request in replay.invented}
    submitted |= {
        request.submitted.number: request.submitted
        for request in replay.requests
        if request.submitted is not None
    }
    settings = replay.settings
    return Workload(
        settings.profile,
        spec or settings.spec,
        submitted,
        tuple(replay.order),
        tuple(replay.moves),
    )


def play_workload(workload: Workload, profile: str, options: Mapping[str, Any]) -> ServerResult:
    """Run a workload on a server."""
    player = Player(profile, workload.spec, options)
    files = (request.file for request in workload.submitted.values())
    player.saved_after = frozenset(file[0] for file in files if file is not None)
    found = ServerResult(profile, dict(options))
    for what, number in workload.order:
        if what == "launch":
            found.held[number] = [rope[:] for rope in chain(*player.held())]
            player.launch(workload.submitted[number])
        elif what == "erase":
            player.erase(number)
        else:
            found.replayed[number] = player.run_until(number)
        found.peak_bytes = max(found.peak_bytes, player.held_bytes())
        if player.dead:
            break
    for number in workload.submitted:
        found.replayed.setdefault(number, FAILED)
    return found
