"""Common parts of the commands of all real engines: the console, tables, running a scenario.

Two runs are compared: their first difference, and the number that agree, by kind.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cachesim.careful import CarefulConsole
from cachesim.engines.family import Family
from cachesim.errors import OptionError, ScenarioError, UntestedError
from cachesim.model.recall import leaked_from, text_of
from cachesim.prove.environment import Environment, EnvironmentUnavailableError, package_of
from cachesim.scenario.checks import full_profile
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import load_all
from cachesim.typed import Json
from cachesim.units import Tokens
from cachesim.verify.verdict import SHOWN

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlayed:
    """A step of a scenario on the real engine and on the simulator, in the engine's own form."""

    name: str
    prompt_tokens: int
    real: Any
    simulated: Any
    agrees: bool
    confirmed: bool | None  # a wrong answer, or an end as simulated; None: nothing was proven
    cells: tuple[str, ...] = ()  # of its row in a table, behind the prompt
    proof: Any = None  # of the real answer, where there is one
    words: str = ""  # the replies as text, where a model that recalls facts answers wrongly


def releases_of(family: Family[Any, Any], scenario: Scenario, release: str = "") -> tuple[str, ...]:
    """A named release, or those among a scenario's profiles that a package runs."""
    if release and scenario.engine.name == family.name:
        return (package_of(family, release)[0],)
    profiles = [full_profile(scenario.engine.name, profile) for profile in scenario.engine.profiles]
    releases = tuple(
        profile.release
        for profile in profiles
        if profile.engine == family.name
        and not profile.patches
        and profile.release in family.real()
    )
    if not releases:
        raise ScenarioError(
            f"{scenario.name}: none of its profiles is an unpatched release that a package of "
            f"{family.name} runs; there are {', '.join(family.real())}"
        )
    return releases


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The parts of an engine's command that runs a scenario; `heads` are of the steps' cells."""

    family: Family[Any, Any]
    environment_for: Callable[[str], Environment]
    play: Callable[[Scenario, str], Sequence[StepPlayed]]
    heads: tuple[str, ...]
    shell: Callable[[Scenario, str, int], Iterable[str]] | None = None  # a wrong step, as curl

    def play_named(self, name: str, release: str = "") -> int:
        """Run a named scenario on one release, or on each of its releases; the exit status."""
        return max(self._play(scenario, release) for _, scenario in load_all([name]))

    def _play(self, scenario: Scenario, wanted: str) -> int:
        agree = True
        for release in releases_of(self.family, scenario, wanted):
            try:
                self.environment_for(release).ready()
            except EnvironmentUnavailableError as error:
                not_compared(error)
            steps = self.play(scenario, release)
            console().print(self._table(scenario.name, release, steps))
            out, wrong = console(), None
            for number, step in enumerate(steps):
                if step.words:
                    wrong = number if wrong is None else wrong
                    out.print(step.words, markup=False, highlight=False)
            if wrong is not None and self.shell is not None:
                out.print("\nThe same on llama-servers of your own; the second one stays cold:\n")
                for line in self.shell(scenario, release, wrong):
                    out.print(f"    {line}", markup=False, highlight=False, soft_wrap=True)
            agree = agree and all(step.agrees for step in steps)
        return 0 if agree else 1

    def _table(self, name: str, release: str, steps: Sequence[StepPlayed]) -> Table:
        title = f"{name} on {self.family.name} {release}"
        table = Table(title=title, title_style="", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
        for head in ("request", "prompt", *self.heads, ""):
            left = head in {"request", ""}
            table.add_column(head, justify="left" if left else "right", no_wrap="answer" in head)
        for step in steps:
            verdict = "equal" if step.agrees else "DIFFERENT"
            cells = (SHOWN.get(cell, cell) for cell in step.cells)
            table.add_row(step.name, str(step.prompt_tokens or ""), *cells, verdict)
        return table


def in_words(
    name: str,
    reply: Tokens,
    cold: Tokens,
    at: int,
    *,
    prompt: Sequence[int],
    earlier: Iterable[tuple[str, Sequence[int]]],
) -> str:
    """A wrong reply as text, beside that of a fresh server, and whose value it is.

    `at`: the first token whose probabilities differ.
    """
    said, right = text_of(reply), text_of(cold)
    text = f'{name}: the real server replied "{said}", a fresh one replies "{right}".'
    if reply[at : at + 1] == cold[at : at + 1] or not reply[at:]:
        return text
    if names := leaked_from(reply[at], (*prompt, *reply[:at]), earlier):
        text += f" Only {' and '.join(names)} contained {text_of(reply[at : at + 1])}."
    return text


def named(what: str, name: str, known: Mapping[str, T]) -> T:
    """The workloads that a command's option names, of those that there are."""
    if name not in known:
        raise OptionError(f"no workloads of {what} {name!r}: write one of {', '.join(known)}")
    return known[name]


def not_compared(why: object) -> NoReturn:
    """End a command that compared nothing."""
    raise UntestedError(f"NOT COMPARED: {why}")


def comparing(command: Callable[P, int]) -> Callable[P, int]:
    """A command that compares nothing where a real engine is missing."""

    @wraps(command)
    def or_not(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except EnvironmentUnavailableError as error:
            not_compared(error)

    return or_not


def watched(parts: Iterable[T], count: int | None = None) -> Iterable[T]:
    """The parts of a comparison, with a progress bar; `count`: how many, if they have no length."""
    beside = console(stderr=True)
    hidden = not beside.is_terminal
    return track(parts, total=count, console=beside, transient=True, disable=hidden)


def console(*, stderr: bool = False) -> Console:
    """The console for results, or for messages; never wrapped in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    return CarefulConsole(file=stream, soft_wrap=not stream.isatty())


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A setting that a real server would have otherwise."""

    field: str
    default: str  # as a server starts with the same flags
    ours: str  # as it is compared
    why: str = ""  # no result depends on it; empty: nobody has given a reason


def overrides_of(
    rows: Iterable[Sequence[str]],
    reasons: Mapping[str, str],
    pretended: Mapping[str, tuple[str, str, str]] = MappingProxyType({}),
) -> list[Override]:
    """Settings without a field, then rows of field, default and ours; a field's first row counts.

    `pretended` holds, by setting, its default, ours, and the reason.
    """
    first: dict[str, Sequence[str]] = {}
    for row in rows:
        first.setdefault(row[0], row)
    known = [(field, *rest) for field, rest in pretended.items()]
    found = [(*row, reasons.get(field, "")) for field, row in first.items()]
    return [
        Override(field=field, default=default, ours=ours, why=why)
        for field, default, ours, why in (*known, *found)
    ]


Workload = dict[str, Any]

MOST_LINES: Final = 12
"""Fields of a difference that are printed."""

MOST_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first step of a run at which the simulator differs from the real engine."""

    step: int
    real: Json = None
    simulated: Json

    def lines(self) -> Iterator[str]:
        """A line for each field that differs, as many as fit on a screen."""
        differences = list(islice(differing(self.real, self.simulated, ""), MOST_LINES + 1))
        for where, real, simulated in differences[:MOST_LINES]:
            yield f"  {where}: real {_short(real)}, simulated {_short(simulated)}"
        if len(differences) > MOST_LINES:
            yield "  ..."


def _short(value: Json) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


def differing(real: Json, simulated: Json, where: str) -> Iterator[tuple[str, Json, Json]]:
    """The places where two JSON values differ, as deep as both have the same shape."""
    if isinstance(real, dict) and isinstance(simulated, dict):
        for key in sorted({*real, *simulated}):
            inside = f"{where}.{key}" if where else str(key)
            yield from differing(real.get(key), simulated.get(key), inside)
    elif isinstance(real, list) and isinstance(simulated, list) and len(real) == len(simulated):
        for i, (one, other) in enumerate(zip(real, simulated, strict=True)):
            yield from differing(one, other, f"{where}[{i}]")
    elif real != simulated:
        yield where, real, simulated
