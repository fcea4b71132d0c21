"""How long a run may take: a limit that ends it, a bar that shows it, a guess before it begins."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import groupby
from types import FrameType
from typing import Final

from cachesim.cli.jobs import Job
from cachesim.engines.family import family_of
from cachesim.errors import InputError, OutOfTimeError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.spec import ModelSpec
from cachesim.scenario.checks import tokens_at_most
from cachesim.scenario.models import spec_of

MOST: Final = 7 * 24 * 3600
"""Seconds that a limit may be."""

SOON: Final = 1e-3
"""The shortest time that a timer can be set to."""

LONG: Final = 20
"""Seconds from which on a run is announced."""

RATE: Final = 5e9
"""Multiplications a second that the float network is counted on to do."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the machine's clock at which playing ends, in this process or another."""

    at: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> "Deadline":
        """So long from now."""
        if seconds is None:
            return cls()
        if not 0 < seconds <= MOST:
            msg = f"--timeout is {seconds:g}; write a number of seconds above 0, up to {MOST}"
            raise InputError(msg)
        return cls(time.monotonic() + seconds)


@dataclass(frozen=True, slots=True)
class Clock:
    """The pace of a run: a deadline, and whoever counts the steps."""

    deadline: Deadline
    tell: Callable[[], None]

    def limit(self) -> AbstractContextManager[None]:
        """Interrupts what is played when the time is over."""
        return _until(self.deadline)

    def step_done(self) -> None:
        """Count a step."""
        self.tell()


@contextmanager
def _until(deadline: Deadline) -> Iterator[None]:
    if deadline.at is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, _over)
    signal.setitimer(signal.ITIMER_REAL, max(SOON, deadline.at - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _over(_: int, __: FrameType | None) -> None:
    msg = "the time given is over"
    raise OutOfTimeError(msg)


def seconds_of(
    jobs: Sequence[Job], processes: int = 1, arithmetic: ArithmeticName = "float"
) -> float:
    """About how long a run will take, at most: the float network's arithmetic, where nothing is
    counted as cached, and replies that an engine plays token by token.

    The runs of one scenario follow each other in one process, so more processes help only as far
    as there are more scenarios.
    """
    longest = total = 0.0
    for _, group in groupby(jobs, key=lambda job: job.source):
        alone = sum(_seconds(job, arithmetic) for job in group)
        longest, total = max(longest, alone), total + alone
    return max(longest, total / processes)


def _seconds(job: Job, arithmetic: ArithmeticName) -> float:
    once, again = family_of(job.profile.engine).reply_cost
    replies = sum(
        grown * once + again * (prompt * grown + grown * grown / 2)
        for prompt, grown in tokens_at_most(job.scenario)
    )
    return replies + (_multiplications(job) / RATE if arithmetic == "float" else 0)


def _multiplications(job: Job) -> float:
    """What every layer does for every token, and every attention layer for every pair of tokens.

    The server and the cold run both do it; tokens one by one cost more than many at once.
    """
    spec = spec_of(job.scenario.model)
    total = 0.0
    for prompt, grown in tokens_at_most(job.scenario):
        tokens = prompt + grown
        pairs = tokens * tokens / 2
        total += 2 * (_per_token(spec) * (prompt + 8 * grown) + _per_pair(spec) * pairs)
    return total


def _per_token(spec: ModelSpec) -> float:
    layers = len(spec.layers) * spec.width * (4 * spec.heads * spec.head_size + 3 * spec.mlp_width)
    return layers + spec.width * spec.vocabulary


def _per_pair(spec: ModelSpec) -> float:
    return 2 * spec.layers.count("attention") * spec.heads * spec.head_size
