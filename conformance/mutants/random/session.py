"""Plants mutants in children of one process that has imported everything.

A control with nothing planted plays every example first: it shows which of them reach the line of a
mutant, and how long each takes. Only those are played with the mutant in place.
"""

import builtins
import os
import pickle
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Final

from conformance.mutants.random import ports
from conformance.mutants.random.means import MEANS, Example, Means
from conformance.mutants.random.ports import RandomMutant

SHARE: Final = 2.5
"""Processor seconds of the control's examples that one means takes for one mutant by default."""

PATIENCE: Final = 2.0
SLOWER: Final = 8
"""An example that takes longer than this, and so many times the control's, hangs."""

MEMORY: Final = 6 << 30
"""Bytes that a child may have: a mutant may ask for any amount."""

PROBE: Final = "__mutant_reached__"


class HangError(BaseException):
    """An example takes far longer than without the mutant; nothing that is played catches it."""


class PlantingError(RuntimeError):
    """A mutant cannot be planted: the source has changed since it was read."""


class ControlError(RuntimeError):
    """The control ended without its results."""


@dataclass(frozen=True, slots=True)
class Played:
    """An example in the control: its answer, its time, the mutants whose line it reached."""

    answer: bool | str  # False, too, where it raised
    seconds: float
    reached: frozenset[int]

    @property
    def holds(self) -> bool:
        """True if a mutant can be found by another answer."""
        return self.answer is not False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The means, example and way by which a mutant was found; without a means it escaped."""

    means: Means | None = None
    example: str = ""
    how: str = ""
    seconds: float = 0.0
    tried: Mapping[str, int] = field(default_factory=dict)


def control(
    examples: Sequence[Example], mutants: Sequence[RandomMutant], jobs: int
) -> dict[int, Played]:
    """Every example with nothing planted, in so many processes."""
    found: dict[int, Played] = {}
    tasks = [partial(_control, examples, mutants, part, jobs) for part in range(jobs)]
    for _, part in children(tasks, jobs):
        if isinstance(part, str):
            raise ControlError(part)
        found |= part
    return found


def _control(
    examples: Sequence[Example], mutants: Sequence[RandomMutant], part: int, jobs: int
) -> dict[int, Played]:
    reached: set[int] = set()
    setattr(builtins, PROBE, lambda *numbers: reached.update(numbers))
    ports.probe(mutants, PROBE)
    found = {}
    for number in range(part, len(examples), jobs):
        reached.clear()
        began = time.process_time()
        answer: bool | str = False
        with suppress(Exception):  # as a mutant would be found by it
            answer = examples[number].plays()
        found[number] = Played(answer, time.process_time() - began, frozenset(reached))
    return found


def judge(
    examples: Sequence[Example],
    known: Mapping[int, Played],
    mutants: Sequence[RandomMutant],
    jobs: int,
    share: float = SHARE,
) -> Iterator[tuple[int, Outcome]]:
    """The result of each mutant, as they finish; one that ends its process is found."""
    tasks = [
        partial(_judge, mutant, _chosen(number, examples, known, share))
        for number, mutant in enumerate(mutants)
    ]
    for number, outcome in children(tasks, jobs):
        if isinstance(outcome, PlantingError):
            raise outcome
        ended = isinstance(outcome, str)
        yield number, Outcome("vectors", how=outcome) if ended else outcome


def _chosen(
    number: int, examples: Sequence[Example], known: Mapping[int, Played], share: float
) -> list[tuple[Example, Played]]:
    """Examples that reach the line: of each means the cheap ones, as many as its share of time."""
    chosen = []
    for means in MEANS:
        reaching = [
            (known[at].seconds, at)
            for at, example in enumerate(examples)
            if example.means == means and known[at].holds and number in known[at].reached
        ]
        left = share
        for seconds, at in sorted(reaching):
            if seconds <= left:
                left -= seconds
                chosen.append((examples[at], known[at]))
    return chosen


def _judge(mutant: RandomMutant, chosen: list[tuple[Example, Played]]) -> Outcome | PlantingError:
    began = time.process_time()
    try:
        ports.plant(mutant)
    except Exception as error:  # noqa: BLE001 - sent to the parent, which ends
        return PlantingError(f"{mutant.function.file}:{mutant.line}: {error!r}")
    tried: dict[str, int] = dict.fromkeys(MEANS, 0)
    for example, played in chosen:
        tried[example.means] += 1
        how = _fails(example, played)
        if how:
            taken = time.process_time() - began
            return Outcome(example.means, example.name, how, taken, tried)
    return Outcome(seconds=time.process_time() - began, tried=tried)


def _fails(example: Example, played: Played) -> str:
    """The difference from the control; empty if there is none."""
    try:
        with limited(max(PATIENCE, SLOWER * played.seconds)):
            return "" if example.plays() == played.answer else "differs"
    except HangError:
        return "hangs"
    except Exception as error:  # noqa: BLE001 - whatever a mutant raises is what it is found by
        return type(error).__name__


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _hangs(_signal: int, _frame: FrameType | None) -> None:
    raise HangError


# -- children --------------------------------------------------------------------------------------


def children(tasks: Sequence[Callable[[], Any]], jobs: int) -> Iterator[tuple[int, Any]]:
    """The result of each task in a child of its own; a text describes the end of its process."""
    running: dict[int, tuple[int, int]] = {}
    waiting = list(enumerate(tasks))[::-1]
    while waiting or running:
        while waiting and len(running) < jobs:
            number, task = waiting.pop()
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(read)
                _child(task, write)
            os.close(write)
            running[read] = (number, pid)
        for read in select.select([*running], [], [])[0]:
            number, pid = running.pop(read)
            with os.fdopen(read, "rb") as pipe:
                data = pipe.read()
            _, status = os.waitpid(pid, 0)
            yield number, pickle.loads(data) if data else f"the process ended with {status}"


def _child(task: Callable[[], Any], write: int) -> None:
    """Run a task, send what it returns, and end the process."""
    signal.signal(signal.SIGPROF, _hangs)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    told = os.environ.get("CACHESIM_TRACEBACK")
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in () if told else (1, 2):
        os.dup2(silent, stream)
    try:
        with os.fdopen(write, "wb") as pipe:
            pipe.write(pickle.dumps(task()))
    except BaseException:  # noqa: BLE001 - nothing of the parent may go on in the child
        if told:
            traceback.print_exc()
    finally:
        os._exit(0)
