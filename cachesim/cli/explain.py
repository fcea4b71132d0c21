"""`cachesim explain`: the story of a scenario, step by step."""

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from cachesim.cli.jobs import jobs_of
from cachesim.cli.run import play, status, write_report
from cachesim.model.arithmetic import ArithmeticName
from cachesim.report.consoles import results, show
from cachesim.report.findings import heading
from cachesim.report.story import story
from cachesim.scenario.result import Run


def explain_command(
    name: str,
    *,
    profiles: Sequence[str] = (),
    seed: int | None = None,
    arithmetic: ArithmeticName = "float",
    report: Path | None = None,
) -> int:
    """Print the story of a scenario on each of its profiles."""
    screen = results()
    jobs = jobs_of([name], profiles, seed)
    runs: list[Run] = []
    played = play(jobs, arithmetic, verify=True, detail=True)
    for job, run in zip(jobs, played, strict=True):
        if not runs:
            show(screen, heading(job.scenario, [run]))
        show(screen, Text(f"\non {run.profile}", style="name"))
        show(screen, story(run))
        runs.append(run)
    if report is not None:
        write_report(runs, report)
    return status(runs)
