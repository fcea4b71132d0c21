"""`cachesim run --watch`: one scenario, event by event."""

import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from cachesim.cli.jobs import jobs_of
from cachesim.cli.run import play, status
from cachesim.model.arithmetic import ArithmeticName
from cachesim.report.consoles import results, show
from cachesim.report.events import event_lines
from cachesim.report.story import step_after, step_before
from cachesim.scenario.result import Run

HINT: Final = "Enter: next event   s: to the next step   q: quit"


def watch_command(
    names: Sequence[str],
    *,
    profiles: Sequence[str] = (),
    seed: int | None = None,
    arithmetic: ArithmeticName = "float",
) -> int:
    """Step through the events of runs; without a terminal everything is printed in one go."""
    screen = results()
    asks = screen.is_terminal and sys.stdin.isatty()
    if asks:
        show(screen, Text(HINT, style="quiet"))
    runs = []
    for run in play(jobs_of(names, profiles, seed), arithmetic, verify=True):
        runs.append(run)
        show(screen, Text(f"{run.scenario} on {run.profile}", style="name"))
        if not _watch(run, screen, asks=asks):
            break
    return status(runs)


def _watch(run: Run, screen: Console, *, asks: bool) -> bool:
    """Show one run; False where the watcher has seen enough."""
    for index, step in enumerate(run.steps):
        show(screen, step_before(run, index))
        waits = asks
        for event in step.events:
            show(screen, event_lines([event]))
            if waits:
                answer = _asked(screen)
                if answer == "q":
                    return False
                waits = answer != "s"
        show(screen, step_after(run, index))
    return True


def _asked(screen: Console) -> str:
    """What the watcher types; the end of input ends the watching too."""
    try:
        return screen.input("").strip()
    except EOFError:
        return "q"
