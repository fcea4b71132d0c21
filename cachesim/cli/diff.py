"""`cachesim compare NAME -p ONE -p OTHER`: the first decision in which two profiles differ."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from difflib import SequenceMatcher
from functools import partial
from typing import Any, Final, NamedTuple

from rich.console import RenderableType
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED, Format
from cachesim.cli.jobs import jobs_of
from cachesim.cli.outputs import print_report, write_page
from cachesim.cli.run import play, proof_of
from cachesim.engines.events import Event
from cachesim.files import Output
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.result import Run, Step
from cachesim.play.statements import BESIDE, side_by_side
from cachesim.report.consoles import results
from cachesim.report.document import FittingTable
from cachesim.report.findings import one_scenario
from cachesim.report.story import MOST_CHECKPOINTS, event_lines
from cachesim.report.tables import broken

OUTCOME: Final = ("cached", "processed", "answer", "error", "generated", "checkpoints")

NEUTRAL: Final[dict[str, Any]] = {
    "task": -1,
    "size": 0,
    "size_companion": 0,
    "n_bytes": 0,
    "nbytes": 0,
    "limit": 0,
    "limit_size": 0,
    "limit_tokens": 0,
    "rule": "",
    "numbers": "",
    "threshold": 0,
    "thold": 0,
}
"""Fields that may differ between releases without a different decision."""


class FirstDifference(NamedTuple):
    """The first different decision: its step, and the events of each profile."""

    step: int
    sides: tuple[Event | None, Event | None]


def diff(
    name: str,
    sides: Sequence[str],
    settings: Sequence[Mapping[str, Any]],
    *,
    seed: int | None,
    arithmetic: ArithmeticName,
    format: Format,
    page: Output | None,
) -> int:
    """Print the differences of both sides; 0 without any, else 1."""
    screen = results()
    pairs = zip(sides, settings, strict=True)
    jobs = [job for side, flags in pairs for job in jobs_of([name], [side], seed, flags)]
    runs = list(play(jobs, arithmetic, verify=True))
    if any(settings):
        runs = side_by_side([named(*each) for each in zip(runs, settings, strict=True)])
    whole = one_scenario(
        jobs[0].scenario, runs, width=screen.width, proof=partial(proof_of, jobs, runs)
    )
    differing = [i for i in range(len(runs[0].steps)) if _differ(*(r.steps[i] for r in runs))]
    parts = [
        whole,
        *first_difference(runs, differing),
        *outcomes(runs, differing),
    ]
    entries = [run.to_json() for run in runs]
    if format == "jsonl":
        print_report((), entries, format=format)
    else:
        names = [runs[0].steps[index].name for index in differing]
        print_report(parts, {"format": 1, "differing": names, "runs": entries}, format=format)
    write_page(page, f"cachesim compare {name}", parts)
    return NOT_AS_EXPECTED if differing else AS_EXPECTED


def named(run: Run, flags: Mapping[str, Any]) -> Run:
    """A run whose profile names the flags of its side, and that is not compared yet."""
    profile = ",".join([run.profile, *(f"{key}={value}" for key, value in flags.items())])
    steps = tuple(
        replace(step, facts=tuple(each for each in step.facts if each.word != BESIDE))
        for step in run.steps
    )
    return replace(run, profile=profile, steps=steps)


def first_difference(runs: Sequence[Run], differing: Sequence[int]) -> list[RenderableType]:
    """Number of differing steps, and the first differing decision."""
    steps = runs[0].steps
    if not differing:
        return [Text("no difference in any step")]
    first = steps[differing[0]].name
    lines: list[RenderableType] = [
        Text(f"{len(differing)} of {len(steps)} steps differ; the first is {first}")
    ]
    if len({run.profile.partition("@")[0] for run in runs}) > 1:
        return [*lines, Text("two engines decide each in its own words: outcomes alone compare")]
    difference = _first_difference(runs[0], runs[1])
    if difference is None:
        return [*lines, Text("every decision is the same")]
    where = Text(f"the first decision that differs is in step {steps[difference.step].name}:")
    sides = zip(runs, difference.sides, strict=True)
    return [*lines, where, *(each for run, event in sides for each in _side(run, event))]


MOST_STEPS: Final = 8
"""Most steps whose outcomes are printed side by side."""

ANSWERS: Final = frozenset({"cached", "processed", "answer", "error", "generated"})
"""Outcomes that a client reads; the others are the server's state."""


def outcomes(runs: Sequence[Run], differing: Sequence[int]) -> Iterator[RenderableType]:
    """Table of different outcomes, one profile beside the other."""
    if not differing:
        return
    found = [row for index in differing for row in _outcomes(*(run.steps[index] for run in runs))]
    seen = any(row[1] in ANSWERS for row in found)
    yield Text(
        "\nwhat differs:"
        if seen
        else "\nwhat differs: only what is kept; every request is answered alike"
    )
    table = FittingTable()
    for name in ("step", "", *(broken(run.profile, 24) for run in runs)):
        table.add_column(name, overflow="fold")
    shown = {runs[0].steps[index].name for index in differing[:MOST_STEPS]}
    for name, what, *sides in found:
        if name in shown:
            table.add_row(*(Text(word) for word in (name, what, *sides)))
    yield table
    if len(differing) > MOST_STEPS:
        yield Text(f"and {len(differing) - MOST_STEPS} more steps", style="quiet")


def _outcomes(one: Step, other: Step) -> Iterator[tuple[str, str, str, str]]:
    for what in OUTCOME:
        sides = getattr(one, what), getattr(other, what)
        if sides[0] == sides[1]:
            continue
        left, right = (_word(each) for each in sides)
        if what == "generated":  # tokens alone tell nothing: say from where on
            pairs = enumerate(zip(*sides, strict=False), 1)
            at = next((i for i, (a, b) in pairs if a != b), min(map(len, sides)) + 1)
            left, right = (_from(each, at) for each in sides)
        yield one.name, what, left, right
    entries = [" ".join(str(entry["n_tokens"]) for entry in s.prompt_cache) for s in (one, other)]
    if entries[0] != entries[1]:
        yield one.name, "prompt cache", entries[0] or "none", entries[1] or "none"


def _from(tokens: Sequence[int], at: int) -> str:
    return f"token {at} is {tokens[at - 1]}" if at <= len(tokens) else f"ends before token {at}"


def _word(value: object) -> str:
    if isinstance(value, tuple):
        shown = [*map(str, value)]
        more = ["..."] if len(shown) > MOST_CHECKPOINTS else []
        return " ".join([*more, *shown[-MOST_CHECKPOINTS:]]) or "none"
    return "none" if value is None else str(value)


def _differ(one: Step, other: Step) -> bool:
    entries = [[entry["n_tokens"] for entry in each.prompt_cache] for each in (one, other)]
    return entries[0] != entries[1] or any(getattr(one, k) != getattr(other, k) for k in OUTCOME)


def _first_difference(one: Run, other: Run) -> FirstDifference | None:
    """The first event, routine ones left out, that differs between the profiles."""
    for index, (ours, theirs) in enumerate(zip(one.steps, other.steps, strict=True)):
        left, right = (
            [each for each in step.events if each.loudness() != "quiet"] for step in (ours, theirs)
        )
        keys = [_key(each) for each in left], [_key(each) for each in right]
        matcher = SequenceMatcher(None, *keys, autojunk=False)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            if tag != "equal":
                sides = (left[i1] if i1 < i2 else None, right[j1] if j1 < j2 else None)
                return FirstDifference(index, sides)
    return None


def _key(event: Event) -> tuple[str, str]:
    known = {each.name for each in fields(event)}
    neutral = replace(event, **{k: v for k, v in NEUTRAL.items() if k in known})
    return event.name(), neutral.sentence


def _side(run: Run, event: Event | None) -> tuple[RenderableType, RenderableType]:
    what = Text("    nothing of the kind") if event is None else event_lines([event])
    return Text(f"  {run.profile}", style="quiet"), what
