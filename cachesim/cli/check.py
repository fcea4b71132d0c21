"""`cachesim check`: search for a wrong answer, or hold two profiles against each other."""

import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cachesim.cli.status import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.cli.workers import processes, processors
from cachesim.engines.profile import Profile
from cachesim.errors import InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import PRESETS
from cachesim.report.consoles import notes, results, show
from cachesim.scenario.writing import to_toml
from cachesim.testing.against import Comparison, Side, compare
from cachesim.testing.chunks import CHUNK, search_by
from cachesim.testing.flags import try_flags
from cachesim.testing.search import Counterexample, Report, search
from cachesim.testing.shrink import ids
from cachesim.testing.trial import EXERCISED
from cachesim.testing.workloads import Shape

WORDS: Final = ("reuse", *EXERCISED, "refusal")
"""What a search may be required to have exercised."""

MOST_MINUTES: Final = 7 * 24 * 60

MOST_JOBS: Final = 256


def check(
    *profiles: Annotated[str, Parameter(help="Profiles such as llama.cpp@b11549+erase-equal.")],
    model: Annotated[str, Parameter(help="A preset; `cachesim list presets`.")] = "hybrid",
    examples: Annotated[int | None, Parameter(help="Workloads at most.")] = None,
    minutes: Annotated[float | None, Parameter(help="Minutes at most.")] = None,
    seed: Annotated[int, Parameter(help="Another seed plays other workloads.")] = 0,
    arithmetic: Annotated[ArithmeticName, Parameter(help="ring is fast, float is real.")] = "ring",
    against: Annotated[
        str | None, Parameter(help="A second profile on the same workloads.")
    ] = None,
    jobs: Annotated[int | None, Parameter(help="Processes; all processors if left out.")] = None,
    settings: Annotated[
        list[str] | None,
        Parameter("--set", negative="", help="A flag of every server, as in cache_reuse=0."),
    ] = None,
    emit: Annotated[Path | None, Parameter(help="Where counterexamples are written.")] = None,
    require: Annotated[
        list[str] | None,
        Parameter(negative="", help=f"Fail unless exercised; one of {', '.join(WORDS)}."),
    ] = None,
) -> int:
    """Search random workloads for an answer that is not the cold answer.

    Example: cachesim check llama.cpp@b11549+erase-equal --model hybrid --minutes 1
    """
    named = _profiles(profiles)
    if model not in PRESETS:
        msg = f"there is no preset {model!r}; there are {', '.join(PRESETS)}"
        raise InputError(msg)
    unknown = sorted(set(require or ()) - set(WORDS))
    if unknown:
        msg = f"nothing is called {unknown[0]!r}; --require takes {', '.join(WORDS)}"
        raise InputError(msg)
    if minutes is not None and not 0 < minutes <= MOST_MINUTES:
        msg = f"--minutes is {minutes}; write a number above 0, up to {MOST_MINUTES}"
        raise InputError(msg)
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        msg = f"--jobs is {jobs}; write a whole number from 1 to {MOST_JOBS}"
        raise InputError(msg)
    if examples is not None and examples < 1:
        msg = f"--examples is {examples}; write a whole number from 1"
        raise InputError(msg)
    plan = Plan(
        model=model,
        examples=examples if examples is not None else (10**9 if minutes else 200),
        seed=seed,
        arithmetic=arithmetic,
        minutes=minutes,
        shape=Shape(fixed=dict(map(_setting, settings or ()))),
        jobs=processors() if jobs is None else jobs,
    )
    for profile in [*named, *([] if against is None else [Profile.parse(against)])]:
        try_flags(profile, model, plan.shape.fixed)
    status = AS_EXPECTED
    for profile in named:
        if against is not None:
            status |= _compare(profile, Profile.parse(against), plan)
        else:
            status |= _search(profile, plan, emit, set(require or ()))
    return status


def _profiles(texts: tuple[str, ...]) -> list[Profile]:
    if not texts:
        msg = "name a profile to check, such as llama.cpp@b11549+erase-equal"
        raise InputError(msg)
    return [Profile.parse(text) for text in texts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to play, and for how long."""

    model: str
    examples: int
    seed: int
    arithmetic: ArithmeticName
    minutes: float | None
    shape: Shape
    jobs: int


def _setting(text: str) -> tuple[str, Any]:
    """A flag and its value, written as in a scenario file."""
    name, _, value = text.partition("=")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        msg = f"--set {text} cannot be read; write a flag and its value, as in cache_reuse=0"
        raise InputError(msg) from None


class Budget:
    """How long a search may go on, and a bar that says how far it is."""

    def __init__(self, minutes: float | None) -> None:
        self._minutes = minutes
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    def left(self) -> bool:
        """Whether there is time for one more workload."""
        return self._minutes is None or self.seconds < 60 * self._minutes


def _search(profile: Profile, plan: Plan, emit: Path | None, required: set[str]) -> int:
    budget = Budget(plan.minutes)
    with _bar(f"{profile} {plan.model}") as advance:

        def going(report: Report) -> bool:
            report.rate = report.workloads / max(budget.seconds, 1e-9)
            advance(report.workloads, report.requests)
            return budget.left()

        with _searching(plan) as search_with:
            report = search_with(
                profile,
                plan.model,
                examples=plan.examples,
                seed=plan.seed,
                arithmetic=plan.arithmetic,
                shape=plan.shape,
                going=going,
            )
        if report.counterexample is None:  # else time went into making it small
            report.rate = report.workloads / max(budget.seconds, 1e-9)
    return _tell(report, emit, required)


@contextmanager
def _searching(plan: Plan) -> Iterator[Callable[..., Report]]:
    """The search in this process, or in several where that is asked for and pays."""
    count = min(plan.jobs, -(-plan.examples // CHUNK))
    if count == 1:
        yield search
        return
    with processes(count) as pool:
        yield partial(search_by, pool, count)


class _bar:  # noqa: N801 - used like a function
    """Workloads played so far, on standard error, where that is a terminal."""

    def __init__(self, title: str) -> None:
        text = TextColumn("{task.description}  {task.fields[said]}")
        self._progress = Progress(text, TimeElapsedColumn(), console=notes(), transient=True)
        self._task = self._progress.add_task(title, total=None, said="")

    def __enter__(self) -> Callable[[int, int], None]:
        self._progress.start()
        return self._advance

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _advance(self, workloads: int, requests: int) -> None:
        said = f"{workloads} workloads, {requests} requests"
        self._progress.update(self._task, said=said)


# -- what is said --------------------------------------------------------------------------------


def _tell(report: Report, emit: Path | None, required: set[str]) -> int:
    count = f"{report.workloads} workloads, {report.requests} requests"
    lines = [
        f"{report.profile}, {report.model}: {count}, {report.rate:.0f} workloads/s",
        f"  exercised: {_exercised(report.exercised)}",
    ]
    never = [word for word in WORDS if not report.exercised[word]]
    lines += [f"  never exercised: {', '.join(never)}"] if never else []
    status = AS_EXPECTED
    if report.counterexample is None:
        lines.append("  nothing wrong was found")
    else:
        lines += _story(report.counterexample, report.profile)
        lines += _emitted(report.counterexample, report.profile, emit)
        status = NOT_AS_EXPECTED
    missing = sorted(word for word in required if not report.exercised[word])
    if missing:
        lines.append(f"  NOT EXERCISED, though required: {', '.join(missing)}")
        status = NOT_AS_EXPECTED
    show(results(), *lines)
    return status


def _exercised(counts: Counter[str]) -> str:
    said = [f"{word} {counts[word]}" for word in WORDS if counts[word]]
    return ", ".join(said) or "nothing"


def _story(found: Counterexample, profile: Profile) -> list[str]:
    """The smallest workload, as what a client does."""
    scenario = found.scenario
    flags = ", ".join(f"{key} = {value}" for key, value in scenario.engine.options.items())
    lines = [f"  {found.finding.kind.upper()} in workload {found.number}, made small:"]
    lines.append(f"    a server of {profile}, {flags or 'all flags default'}")
    seen: list[tuple[int, ...]] = []
    for index, step in enumerate(scenario.step):
        prompt = ids(step)
        equal = max((_common(prompt, other) for other in seen), default=0)
        shared = f", {equal} as before" if equal else ""
        together = " together with the one before" if step.with_previous else ""
        mark = "  <- " + found.finding.detail if index == found.finding.step else ""
        lines.append(
            f"    {step.name}: a prompt of {len(prompt)} tokens{shared}, "
            f"{len(step.reply or ())} generated{together}{mark}"
        )
        seen.append(prompt + tuple(int(token) for token in step.reply or ()))
    return lines


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _emitted(found: Counterexample, profile: Profile, folder: Path | None) -> list[str]:
    if folder is None:
        return ["  --emit DIR writes it as a scenario that `cachesim run` plays"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{str(profile).replace('@', '-')}-{found.scenario.name}.toml"
    path.write_text(to_toml(found.scenario), encoding="utf-8")
    return [f"  to play it again: cachesim run {path} --arithmetic {found.arithmetic}"]


# -- two profiles --------------------------------------------------------------------------------


def _compare(one: Profile, other: Profile, plan: Plan) -> int:
    budget = Budget(plan.minutes)
    with _bar(f"{one} against {other}, {plan.model}") as advance:

        def going(found: Comparison) -> bool:
            advance(found.workloads, found.requests)
            return budget.left()

        found = compare(
            one,
            other,
            plan.model,
            examples=plan.examples,
            seed=plan.seed,
            arithmetic=plan.arithmetic,
            shape=plan.shape,
            going=going,
        )
    show(results(), _table(found), *found.verdict)
    return NOT_AS_EXPECTED if found.other.wrong or found.other.crashed else AS_EXPECTED


def _table(found: Comparison) -> Table:
    """Totals of both, side by side."""
    title = f"{found.workloads} workloads, {found.requests} requests, {found.prompt_tokens} tokens"
    table = Table(title=title, title_style="", box=None, pad_edge=False)
    for head in ("profile", "cached", "of all", "reuses more", "wrong", "crashes"):
        table.add_column(head, justify="left" if head == "profile" else "right")
    for side in (found.one, found.other):
        table.add_row(*_row(side, found))
    return table


def _row(side: Side, found: Comparison) -> tuple[str, ...]:
    share = 100 * side.cached / max(1, found.prompt_tokens)
    return (
        str(side.profile),
        str(side.cached),
        f"{share:.1f} %",
        str(side.more),
        str(side.wrong),
        str(side.crashed),
    )
