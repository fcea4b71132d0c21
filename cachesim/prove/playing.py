"""Common parts of the commands of all real engines: the console, tables, running a scenario.

Two runs are compared: their first difference, and the number that agree, by kind.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import islice, zip_longest
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
    found = tuple(
        profile.release
        for profile in profiles
        if profile.engine == family.name
        and not profile.patches
        and profile.release in family.real()
    )
    if not found:
        raise ScenarioError(
            f"{scenario.name}: none of its profiles is an unpatched release that a package of "
            f"{family.name} runs; there are {', '.join(family.real())}"
        )
    return found


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
        for head in ("step", "prompt", *self.heads, ""):
            left = head in {"step", ""}
            table.add_column(head, justify="left" if left else "right", no_wrap="answer" in head)
        for step in steps:
            verdict = "equal" if step.agrees else "DIFFERENT"
            table.add_row(step.name, str(step.prompt_tokens or ""), *step.cells, verdict)
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


def table_of_numbers(title: str, name: str, *heads: str) -> Table:
    """A name for each row, and numbers behind it."""
    table = Table(title=title, title_style="")
    table.add_column(name)
    for head in heads:
        table.add_column(head, justify="right")
    return table


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


def differing_defaults(
    family: Family[Any, Any], release: str, started: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Rows of the simulator's options whose default differs from a real server's."""
    defaults = {
        option.name: str(family.default(option, release))
        for option in family.declared
        if option.name in started and not option.internal
    }
    return [
        (f"simulator: {name}", started[name], ours)
        for name, ours in defaults.items()
        if started[name] != ours
    ]


def show_overrides(title: str, overrides: Sequence[Override]) -> int:
    """Overrides with their reasons; the exit status: 1 where one of them has none."""
    out = console()
    out.print(f"{title}: {len(overrides)}")
    for override in overrides:
        out.print(f"\n{override.field}: {override.default} -> {override.ours}", markup=False)
        out.print(f"    {override.why or 'NO REASON GIVEN'}", markup=False)
    return 0 if all(override.why for override in overrides) else 1


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
        found = list(islice(differing(self.real, self.simulated, ""), MOST_LINES + 1))
        for where, real, simulated in found[:MOST_LINES]:
            yield f"  {where}: real {_short(real)}, simulated {_short(simulated)}"
        if len(found) > MOST_LINES:
            yield "  ..."


@dataclass(frozen=True, slots=True)
class Race:
    """A run that is equal to the real one if its requests arrive in another order."""

    order: str  # in words


def _short(value: Json) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


def first_difference(real: Iterable[Json], simulated: Iterable[Json]) -> Difference | None:
    """The first results that are not equal; one that is missing on a side is null."""
    for step, (one, other) in enumerate(zip_longest(real, simulated)):
        if one != other:
            return Difference(step=step, real=one, simulated=other)
    return None


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


@dataclass(slots=True, kw_only=True)
class Agreement:
    """Counts of what was run on both, a column and a kind each, and the first difference."""

    title: str = ""
    kinds: str = "kind"  # the head of the kinds
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    difference: tuple[Any, Difference] | None = None  # and what was run
    reasons: Counter[str] = field(default_factory=Counter)  # why something was not compared

    @property
    def all_agree(self) -> bool:
        """True when nothing differs, and something was run."""
        return self.difference is None and any(count.total() for count in self.counts.values())

    def require(self) -> None:
        """End the command if nothing was compared."""
        compared = any(self.total(each) for each in ("agreeing", "requests"))
        if self.difference is None and not compared:
            not_compared(next(iter(self.reasons), "no workload was run on both"))

    def add(self, kind: str, played: object, difference: Difference | None, **numbers: int) -> None:
        """Count something that was run, and keep it if it is the first that differs."""
        for column, number in numbers.items():
            self.counts[column.replace("_", " ")][kind] += number
        if difference is not None and self.difference is None:
            self.difference = played, difference

    def total(self, column: str) -> int:
        return self.counts[column].total()

    def table(self) -> Table:
        """A row for each kind, and the sums."""
        columns = self.counts.values()
        table = table_of_numbers(self.title, self.kinds, *self.counts)
        for text in sorted(next(iter(columns), ())):
            table.add_row(text, *(f"{column[text]:,}" for column in columns))
        table.add_section()
        table.add_row("all", *(f"{column.total():,}" for column in columns))
        return table

    def show(self) -> int:
        """Print the table and the first difference; the exit status."""
        out = console()
        out.print(self.table())
        for reason, number in self.reasons.most_common():
            out.print(f"not compared, {number:,}: {reason}", markup=False)
        if self.difference is not None:
            played, difference = self.difference
            out.print(f"first difference, workload {played}, step {difference.step}:")
            for line in difference.lines():
                out.print(line, markup=False)
        self.require()
        return 0 if self.all_agree else 1


def play_on_runner(
    family: Family[Any, Any],
    name: str,
    wanted: str,
    differs_in: Callable[[Scenario, str], Difference | None],
) -> int:
    """Compare a release's model runner on the steps of scenarios; the exit status."""
    agree = True
    for _, scenario in load_all([name]):
        for release in releases_of(family, scenario, wanted):
            found = differs_in(scenario, release)
            verdict = "equal" if found is None else f"DIFFERENT in step {found.step}"
            title = f"{scenario.name} on {family.name} {release}"
            console().print(f"{title}: reads, writes and copies of its model runner: {verdict}")
            if found is not None:
                console().print("\n".join(found.lines()), markup=False)
            agree = agree and found is None
    return 0 if agree else 1
