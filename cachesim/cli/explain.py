"""`cachesim explain`: the story of a scenario, step by step."""

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from cachesim.cli.jobs import Job, jobs_of
from cachesim.cli.outputs import output_at
from cachesim.cli.run import play, status, write_report
from cachesim.errors import InputError
from cachesim.files import PAGE
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.result import Run
from cachesim.report.consoles import results, show
from cachesim.report.findings import heading
from cachesim.report.story import story
from cachesim.scenario.readers import nearest, short


def explain_command(
    name: str,
    *,
    profiles: Sequence[str] = (),
    seed: int | None = None,
    arithmetic: ArithmeticName = "float",
    report: Path | None = None,
    step: str | None = None,
) -> int:
    """Print the story of a scenario, or of one step, on each of its profiles."""
    screen = results()
    page = output_at(report, "--report", PAGE)
    jobs = jobs_of([name], profiles, seed)
    number = None if step is None else _step_number(jobs[0], step)
    runs: list[Run] = []
    played = play(jobs, arithmetic, verify=True, detail=True)
    for job, run in zip(jobs, played, strict=True):
        if not runs:
            show(screen, heading(job.scenario, [run]))
        show(screen, Text(f"\non {run.profile}", style="name"))
        show(screen, story(run, only=number))
        runs.append(run)
    if page is not None:
        write_report(runs, page)
    return status(runs)


def _step_number(job: Job, step: str) -> int:
    names = job.scenario.step_names
    if step in names:
        return names.index(step)
    if step.isdecimal() and 1 <= int(step) <= len(names):
        return int(step) - 1
    hint = nearest(step, names) or f"; there are {', '.join(names[:20])}"
    msg = f"{job.source}: there is no step {short(step)}{hint}"
    raise InputError(msg)
