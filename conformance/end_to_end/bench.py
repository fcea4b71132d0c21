"""Cases and their results: a command line, its laws, its counts, its failures."""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from conformance.end_to_end.laws import broken
from conformance.end_to_end.program import Ran, run, run_as_a_shell_does

ROOT: Final = Path(__file__).parents[2]
FAILURES: Final = ROOT / ".end_to_end"

ONE_OF_A_SHELL: Final = 150
"""One command line of so many runs as a shell starts it, the others in a forked process."""

Extra = Callable[[Ran], Iterable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One command line over a file of the corpus."""

    words: list[str]
    form: str = "text"
    """The output format: text, json, or the option that names a file."""
    statuses: frozenset[int] = frozenset({0})
    writes: tuple[str, ...] = ()
    stdin: bytes = b""
    extra: Extra | None = None
    """A law of this case alone."""

    @property
    def command(self) -> str:
        """Its first word, and the second one of `real`."""
        return " ".join(self.words[: 2 if self.words[0] == "real" else 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A command line that broke a law, and where its files are kept."""

    kind: str
    line: str
    problem: str
    folder: Path


@dataclass(slots=True)
class Result:
    """The results of a part."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # command, form, kind
    statuses: Counter[int] = field(default_factory=Counter)
    inputs: Counter[str] = field(default_factory=Counter)  # files of the corpus, by kind
    failures: list[Failure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    milliseconds: Counter[str] = field(default_factory=Counter)  # by command

    def merge(self, other: "Result") -> None:
        self.counts.update(other.counts)
        self.statuses.update(other.statuses)
        self.inputs.update(other.inputs)
        self.failures += other.failures
        self.skipped += other.skipped
        self.milliseconds.update(other.milliseconds)


class Bench:
    """Runs cases in a folder of their own and holds the laws on each."""

    def __init__(self, kind: str, folder: Path, result: Result) -> None:
        self.kind = kind
        self.folder = folder
        self.result = result
        result.inputs[kind] += 1

    def put(self, name: str, data: bytes) -> str:
        """Write an input; its name, as the command lines have it."""
        (self.folder / name).write_bytes(data)
        return name

    def has(self, name: str) -> bool:
        """True where a command has written such a file."""
        return (self.folder / name).exists()

    def try_(self, case: Case) -> Ran:
        number = self.result.counts.total()
        run_it = run_as_a_shell_does if number % ONE_OF_A_SHELL == 7 else run
        before = {name: (self.folder / name).exists() for name in case.writes}
        ran = run_it(case.words, self.folder, stdin=case.stdin)
        self.result.counts["as a shell does", "", ""] += run_it is run_as_a_shell_does
        self.took(case, ran, before)
        return ran

    def took(self, case: Case, ran: Ran, before: Mapping[str, bool] = MappingProxyType({})) -> None:
        """Count a command line that was run, and hold the laws on it."""
        result = self.result
        result.counts[case.command, case.form, self.kind] += 1
        result.statuses[ran.status] += 1
        result.milliseconds[case.command] += round(1000 * ran.seconds)
        problems = list(broken(ran, statuses=case.statuses, form=case.form))
        problems += _unwritten(ran, self.folder, before)
        if case.extra is not None and ran.status in {0, 1}:
            problems += case.extra(ran)
        for problem in problems[:3]:
            result.failures.append(self._kept(ran, problem))

    def fail(self, command: str, problem: str) -> None:
        """Record a failure of no single command line."""
        ran = Ran(words=(command,), status=0, out="", err="", seconds=0)
        self.result.failures.append(self._kept(ran, problem))

    def _kept(self, ran: Ran, problem: str) -> Failure:
        """Keep the folder of a failure, with its command line and output."""
        FAILURES.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{self.kind.replace(' ', '-')}-", dir=FAILURES))
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        (folder / "README").write_text(f"{ran.line}\n{problem}\nstatus {ran.status}\n{ran.err}\n")
        return Failure(kind=self.kind, line=ran.line, problem=problem, folder=folder)


def _unwritten(ran: Ran, folder: Path, before: Mapping[str, bool]) -> Iterator[str]:
    """A file that was asked for is there after status 0 or 1, and only then."""
    for name, was_there in before.items():
        path = folder / name
        if ran.status in {0, 1} and (not path.exists() or not path.stat().st_size):
            yield f"status {ran.status}, but {name} was not written"
        if ran.status not in {0, 1} and path.exists() and not was_there:
            yield f"status {ran.status}, but {name} was left behind ({path.stat().st_size} bytes)"


@contextmanager
def bench(kind: str, result: Result) -> Iterator[Bench]:
    """A folder for the cases of one input."""
    with tempfile.TemporaryDirectory(prefix="cachesim-end-to-end-") as name:
        yield Bench(kind, Path(name), result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of a part that one process runs."""

    name: str
    do: Callable[..., Result]
    given: tuple[Any, ...] = ()


def done(task: Task) -> tuple[Task, Result]:
    """Run a task on one processor, so that its commands start no processes of their own."""
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[os.getpid() % len(processors)]})
    return task, task.do(*task.given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    seed: int
    logs: int
    recordings: int
    every: int
    """One log of so many is read alone too."""
    all_commands: bool = False
    """Every printed command, and not a sixth of those that start a real engine."""
    whole: bool = False
    """All GGUF headers, scenarios and logs of other servers, and not a part of them."""
