"""`cachesim run`: play scenarios on profiles and say what was reused and whether it was right."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from cachesim.cli import Format
from cachesim.cli.status import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.cli.workers import workers
from cachesim.engines.profile import Profile
from cachesim.errors import InputError, ScenarioError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.build import build
from cachesim.report import json_output
from cachesim.report.consoles import notes, results, show
from cachesim.report.findings import one_scenario
from cachesim.report.tables import closing, summary
from cachesim.scenario import Scenario, full_profile, run
from cachesim.scenario.models import spec_of
from cachesim.scenario.result import Run
from cachesim.scenario.shipped import load_all
from cachesim.scenario.statements import side_by_side
from cachesim.verify.oracle import Oracle

SOON_DONE: Final = 8
"""So many runs are over before anyone looks at a bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One scenario on one profile."""

    source: str
    scenario: Scenario
    profile: Profile


def jobs_of(names: Sequence[str], profiles: Sequence[str], seed: int | None) -> list[Job]:
    """Everything asked for, in order; nothing runs before all of it is known to be right."""
    if not names:
        msg = "name a scenario to run: a file, a folder, `-`, or one that `cachesim list` names"
        raise InputError(msg)
    jobs, problems = [], []
    for source, scenario in load_all(names):
        if seed is not None:
            scenario = replace(scenario, model=replace(scenario.model, seed=seed))  # noqa: PLW2901
        wanted = profiles or scenario.engine.profiles
        if not wanted:
            problems.append(f"{source}: lists no profile; name one with --profile")
        jobs += [
            Job(
                source=source,
                scenario=scenario,
                profile=full_profile(scenario.engine.name, each),
            )
            for each in wanted
        ]
    if problems:
        raise ScenarioError(*problems)
    return jobs


def run_command(
    names: Sequence[str],
    *,
    profiles: Sequence[str] = (),
    output: Format = "text",
    seed: int | None = None,
    arithmetic: ArithmeticName = "float",
    verify: bool = True,
    detail: bool = False,
    report: Path | None = None,
) -> int:
    """Run scenarios; 0 if all was as expected, 1 if not."""
    jobs = jobs_of(names, profiles, seed)
    if output == "jsonl" and report is None:
        return _stream(jobs, arithmetic, verify=verify, detail=detail)
    watched = detail or report is not None
    runs = list(play(jobs, arithmetic, verify=verify, detail=watched))
    if report is not None:
        write_report(runs, report)
    if output == "json":
        sys.stdout.write(json_output.document(runs, detail=detail) + "\n")
    elif output == "jsonl":
        _write_lines(runs, detail=detail)
    else:
        _show(jobs, runs, results())
    return status(runs)


def write_report(runs: Sequence[Run], path: Path) -> None:
    """The page of some runs, as one file; its name goes to standard error."""
    from cachesim.report import html  # noqa: PLC0415 - a page is rarely asked for

    text = html.page(runs)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"--report {path}: cannot be written: {error.strerror or error}"
        raise InputError(msg) from None
    show(notes(), Text(f"report: {path}"))


def status(runs: Sequence[Run]) -> int:
    """The exit status of some runs."""
    return AS_EXPECTED if all(each.as_expected for each in runs) else NOT_AS_EXPECTED


def play(
    jobs: Sequence[Job], arithmetic: ArithmeticName, *, verify: bool, detail: bool = False
) -> Iterator[Run]:
    """The runs in order, with a bar on standard error where someone is watching."""
    groups = [list(group) for _, group in groupby(jobs, key=lambda job: job.source)]
    screen = notes()
    with (
        workers(len(groups)) as do,
        Progress(console=screen, transient=True, disable=not watched(screen, jobs)) as bar,
    ):
        task = bar.add_task("running", total=len(jobs))
        play_one = partial(play_group, arithmetic=arithmetic, verify=verify, detail=detail)
        for runs in do(play_one, groups):
            if isinstance(runs, ScenarioError):
                raise runs
            bar.advance(task, len(runs))
            yield from runs


def watched(screen: Console, jobs: Sequence[Job]) -> bool:
    """Whether a bar is worth the trouble."""
    return screen.is_terminal and len(jobs) > SOON_DONE


def play_group(
    jobs: Sequence[Job], *, arithmetic: ArithmeticName, verify: bool, detail: bool = False
) -> list[Run] | ScenarioError:
    """The profiles of one scenario, which share their cold answers; or what is wrong with it."""
    oracle: Oracle | None = None
    runs = []
    for job in jobs:
        try:
            if oracle is None:
                oracle = Oracle(build(spec_of(job.scenario.model), arithmetic))
            runs.append(
                run(
                    job.scenario,
                    job.profile,
                    arithmetic=arithmetic,
                    verify=verify,
                    oracle=oracle,
                    detail=detail,
                )
            )
        except InputError as error:
            problems = error.problems if isinstance(error, ScenarioError) else (str(error),)
            return ScenarioError(*(f"{job.source}: {each}" for each in problems))
    return side_by_side(runs)


def _stream(jobs: Sequence[Job], arithmetic: ArithmeticName, *, verify: bool, detail: bool) -> int:
    status = AS_EXPECTED
    for entry in play(jobs, arithmetic, verify=verify, detail=detail):
        _write_lines([entry], detail=detail)
        status = status if entry.as_expected else NOT_AS_EXPECTED
    return status


def _write_lines(runs: Sequence[Run], *, detail: bool) -> None:
    for each in runs:
        sys.stdout.writelines(f"{line}\n" for line in json_output.lines(each, detail=detail))


def _show(jobs: Sequence[Job], runs: Sequence[Run], screen: Console) -> None:
    names = {job.source for job in jobs}
    if len(names) == 1:
        job = jobs[0]
        show(screen, one_scenario(job.scenario, runs, source=job.source, width=screen.width))
    else:
        show(screen, summary(runs), Text())
    show(screen, *closing(runs))
