"""The settings of a probe, and its findings so far."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from cachesim.probe import judging
from cachesim.probe.answers import Answer, Query
from cachesim.probe.connection import Sent
from cachesim.probe.playing import Played
from cachesim.probe.profiles import Candidate, Fingerprint
from cachesim.probe.shapes import Shapes
from cachesim.scenario.format import Scenario
from cachesim.testing.survey import Cause

BATCH: Final = 8
"""Replays of an undecided suspicion, after which as many requests search for another one."""

FindingKind: TypeAlias = Literal[
    "answer", "reuse", "company", "no answer", "count", "lost reuse", "isolation", "restart"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of a run."""

    seed: int = 0
    alarms: float = 1000.0  # runs of a right server per false alarm
    longest: int = 0  # tokens of a prompt that workloads are drawn with; 0: by the context
    repeats: bool = True  # prompts may be sent twice, and may be one token
    like: Shapes | None = None
    shrinking: float = 60.0  # seconds after which the smallest workload so far is taken; 0: none
    identifying: int = 40  # requests at most that identify the server before anything else
    tries: int = 8  # drawn workloads of which the simulator chooses one; 1: it chooses none
    failures: int = 1  # distinct findings that end the run


@dataclass(slots=True, kw_only=True)
class Finding:
    """Something wrong, with its evidence."""

    kind: FindingKind
    sentence: str
    requests: int
    seconds: float
    scenario: Scenario | None = None
    evidence: float = 0.0  # e-value
    hits: int = 0
    replays: int = 0
    distances: list[float] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)  # of the smallest workload
    answers: list[Answer] = field(default_factory=list)
    wrong: int = -1  # which of them
    cold: Answer | None = None
    proofs: tuple[int, int] = (0, 0)  # wrong runs, and all runs, after a restart
    mechanism: list[str] = field(default_factory=list)
    fresh: bool = False  # wrong from a fresh start, if only a simulated one
    sent: list[Sent] = field(default_factory=list)  # all requests up to the wrong answer
    asked: Query | None = None  # the request that was answered wrong then
    server: Candidate | None = None  # a simulated one that shows it
    causes: frozenset[Cause] = frozenset()  # in the simulated servers of the mechanism
    repeats: int = 0  # later wrong answers of the same causes


@dataclass(slots=True, kw_only=True)
class Suspicion:
    """An answer beyond the limit, and its replays so far."""

    forms: list[tuple[Scenario, int]]  # workload and step, as it was sent and one at a time
    played: Played
    at: int  # of the answer
    test: judging.SequentialTest
    threshold: float
    before: list[list[Query]]
    hits: Counter[int] = field(default_factory=Counter)  # by form
    seen: list[float] = field(default_factory=list)
    resumes: int = 0  # number of requests
    sent: list[Sent] = field(default_factory=list)  # of the server, and up to here:
    until: int = 0

    @property
    def form(self) -> int:
        """The form of the next replay: each in turn, then the one that was wrong more often."""
        if self.test.replays < BATCH:
            return self.test.replays % len(self.forms)
        return max(range(len(self.forms)), key=self.hits.__getitem__)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Results of a run, so far or at its end."""

    workloads: int = 0
    compared: int = 0
    reused: int | None = 0  # of them answers from cache; None if a server reports no counts
    searched: int = 0  # of them those of drawn workloads
    plain: bool = False  # plain extensions were enough to accuse a server that is wrong in all
    apart: float = math.inf  # the largest distance of cold answers to different prompts
    suspicions: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # with distinct causes
    proven_cold: bool = False  # a cold answer was that of a server that had just been started
    ended: str = ""  # why
    fingerprint: Fingerprint = field(default_factory=lambda: Fingerprint([]))

    @property
    def finding(self) -> Finding | None:
        """The first finding."""
        return self.findings[0] if self.findings else None

    def note(self, sentence: str) -> None:
        """Keep a sentence, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


@dataclass(frozen=True, slots=True)
class Shown:
    """A workload that was wrong from a fresh start."""

    scenario: Scenario
    played: Played
    wrong: list[tuple[int, float, Answer]]
    proofs: tuple[int, int]  # wrong plays, and all
