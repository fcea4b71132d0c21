"""`cachesim run --watch`: one scenario, event by event."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from cachesim.play.result import Run
from cachesim.report.consoles import results, show
from cachesim.report.picture import after, moment
from cachesim.report.picture_text import blocks, legend
from cachesim.report.story import event_lines, scale_of_run, step_after, step_before

HINT: Final = "Enter: next event   b: back   s: to the end of the step   q: quit"


def watched_runs(played: Iterable[Run]) -> list[Run]:
    """Step through the events of runs; without a terminal all are printed at once."""
    screen = results()
    interactive = screen.is_terminal and sys.stdin.isatty()
    if interactive:
        show(screen, Text(HINT, style="quiet"))
    runs = []
    for run in played:
        runs.append(run)
        show(screen, Text(f"{run.scenario} on {run.profile}", style="name"))
        first = after(run, 0) if run.steps else None
        if first is not None:
            show(screen, Text("\n".join(legend(first)), style="quiet"))
        if not _watch(run, screen, interactive=interactive):
            break
    return runs


def _watch(run: Run, screen: Console, *, interactive: bool) -> bool:
    stops, scale = list(_stops(run)), scale_of_run(run)
    shown: list[tuple[str, ...]] = []
    at, answer = 0, ""
    while at < len(stops):
        step, number = stops[at]
        events = run.steps[step].events
        if number == 0 or answer == "b":
            show(screen, step_before(run, step))
        if number == len(events):
            show(screen, step_after(run, step, scale))
            at, answer = at + 1, ""
            continue
        show(screen, event_lines([events[number]]))
        memory = _memory(run, step, number)
        lines = _changed([] if answer == "b" else shown, memory)
        if lines:
            show(screen, Text("\n".join(lines), style="computed"), wrap=False)
        shown, answer = memory, _input(screen) if interactive else ""
        if answer == "q":
            return False
        at = _next(run, stops, at, answer)
    return True


def _next(run: Run, stops: Sequence[tuple[int, int]], at: int, answer: str) -> int:
    if answer == "s":
        step = stops[at][0]
        return stops.index((step, len(run.steps[step].events)))
    if answer == "b":
        events = (
            i for i in reversed(range(at)) if stops[i][1] < len(run.steps[stops[i][0]].events)
        )
        return next(events, at)
    return at + 1


def _stops(run: Run) -> Iterator[tuple[int, int]]:
    for index, step in enumerate(run.steps):
        yield from ((index, number) for number in range(len(step.events) + 1))


def _memory(run: Run, index: int, number: int) -> list[tuple[str, ...]]:
    detail = run.steps[index].detail
    if detail is None or run.detail is None or number >= len(detail.at):
        return []
    return blocks(moment(run, index, run.detail.states[detail.at[number]]))


def _changed(before: Sequence[tuple[str, ...]], now: Sequence[tuple[str, ...]]) -> Sequence[str]:
    """New and changed rows, and the names of removed ones."""
    lines = [f"    {line}" for row in now if row not in before for line in row]
    places = {_place(row) for row in now}
    gone = [row[0].strip() for row in before if _place(row) not in places]
    return [*lines, *(f"      gone: {label}" for label in gone)]


def _place(row: tuple[str, ...]) -> str:
    """The label without a state's position or a node's parent."""
    label = row[0].partition(" at ")[0].strip(" │├└─")
    return label.partition(",")[0] if label.startswith("node ") else label


def _input(screen: Console) -> str:
    try:
        return screen.input("").strip()
    except EOFError:
        return "q"
