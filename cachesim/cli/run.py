"""`cachesim run`: run scenarios on profiles, print reuse and verdicts."""

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import count, groupby
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.cli.jobs import Job, how_many, jobs_of, processes_wanted, setting, workers
from cachesim.cli.options import (
    AnyFormat,
    Arithmetic,
    Jobs,
    Profiles,
    Seed,
    Settings,
    refuse_beside,
)
from cachesim.cli.outputs import output_at, progress, write, written
from cachesim.engines.family import Profile, family_of
from cachesim.errors import InputError, OutOfTimeError, ScenarioError
from cachesim.files import GIF, PAGE, PLOT, Output
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.build import build
from cachesim.play import run
from cachesim.play.result import Run
from cachesim.play.statements import side_by_side
from cachesim.report import json_output, tables
from cachesim.report.consoles import notes, results, show
from cachesim.report.picture import Picture, after, decisive, moment
from cachesim.report.picture import story as pictured
from cachesim.report.picture_text import blocks, legend
from cachesim.report.story import event_lines, scale_of_run, step_after, step_before, story
from cachesim.report.svg import standalone
from cachesim.scenario.checks import spec_of, tokens_at_most
from cachesim.scenario.format import Scenario
from cachesim.scenario.readers import nearest, short
from cachesim.scenario.shipped import STDIN
from cachesim.verify.oracle import Oracle

MOST: Final = 7 * 24 * 3600
"""Longest time limit in seconds."""

SOON: Final = 1e-3
"""Shortest interval of a timer."""

REPEATED: Final = 0.5
"""Seconds between a timer's signals from its first on."""

LONG: Final = 20
"""Seconds from which a run is announced."""

RATE: Final = 5e9
"""Multiplications per second assumed for the float network."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline on the machine's clock, valid in every process."""

    at: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> "Deadline":
        """The deadline this many seconds from now."""
        if seconds is None:
            return cls()
        if not 0 < seconds <= MOST:
            msg = f"--timeout is {seconds:g}; write a number of seconds above 0, up to {MOST}"
            raise InputError(msg)
        return cls(time.monotonic() + seconds)


@dataclass(frozen=True, slots=True)
class Clock:
    """The pace of a run: a deadline, and the callback for finished steps."""

    deadline: Deadline
    step_done: Callable[[], None]

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Interrupt the run at the deadline."""
        if self.deadline.at is None:
            yield
            return
        before = signal.signal(signal.SIGALRM, _over)
        left = self.deadline.at - time.monotonic()
        # Repeated, since an exception raised in a callback of the garbage collector is lost.
        signal.setitimer(signal.ITIMER_REAL, max(SOON, left), REPEATED)
        try:
            yield
        finally:
            _disarm(before)


def _disarm(before: Callable[[int, FrameType | None], Any] | int | None) -> None:
    """Stop the timer; a signal that arrives meanwhile is of a run that has ended."""
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        except OutOfTimeError:
            continue
        return


def _over(_: int, __: FrameType | None) -> None:
    raise OutOfTimeError("the time given is over")


def seconds_of(
    jobs: Sequence[Job], processes: int = 1, arithmetic: ArithmeticName = "float"
) -> float:
    """Upper estimate of a run's seconds: the float network's arithmetic without reuse, and replies
    that an engine decodes token by token.

    The runs of one scenario follow each other in one process, so more processes help only as far
    as there are more scenarios.
    """
    longest = total = 0.0
    for _, group in groupby(jobs, key=lambda job: job.source):
        alone = sum(_seconds(job, arithmetic) for job in group)
        longest, total = max(longest, alone), total + alone
    return max(longest, total / processes)


def _seconds(job: Job, arithmetic: ArithmeticName) -> float:
    once, again = family_of(job.profile.engine).reply_cost
    replies = sum(
        grown * once + again * (prompt * grown + grown * grown / 2)
        for prompt, grown in tokens_at_most(job.scenario)
    )
    return replies + (_multiplications(job) / RATE if arithmetic == "float" else 0)


def _multiplications(job: Job) -> float:
    """Multiplications of all layers per token, and of attention layers per pair of tokens.

    The server and the uncached run both do it; tokens one by one cost more than many at once.
    """
    spec = spec_of(job.scenario.model)
    total = 0.0
    for prompt, grown in tokens_at_most(job.scenario):
        tokens = prompt + grown
        pairs = tokens * tokens / 2
        layers = (
            len(spec.layers) * spec.width * (4 * spec.heads * spec.head_size + 3 * spec.mlp_width)
        )
        total += 2 * (
            (layers + spec.width * spec.vocabulary) * (prompt + 8 * grown)
            + (2 * spec.layers.count("attention") * spec.heads * spec.head_size) * pairs
        )
    return total


STATES: Final = 20_000
"""Most states of all runs together that a page holds."""

SOON_DONE: Final = 8
"""Runs that finish before a progress bar is shown."""

ENDLESS: Final = Deadline()
"""A pace without a deadline."""


def run_command(
    *names: Annotated[
        str, Parameter(help="Files, folders, shipped scenarios, or - for standard input.")
    ],
    explain: Annotated[
        bool,
        Parameter(
            help="Go through the run request by request: tokens, checkpoints, caches, and the"
            " rule that decided."
        ),
    ] = False,
    step: Annotated[
        str | None, Parameter(help="With --explain: show only this request, by its name or number.")
    ] = None,
    watch: Annotated[
        bool, Parameter(help="Stop after every event until Enter is pressed.")
    ] = False,
    profile: Profiles = None,
    settings: Settings = None,
    seed: Seed = None,
    arithmetic: Arithmetic = "float",
    verify: Annotated[
        bool, Parameter(negative="--no-verify", help="Compare every answer with an uncached run.")
    ] = True,
    brief: Annotated[
        bool, Parameter(help="Print a line per engine and class, not one per run.")
    ] = False,
    detail: Annotated[
        bool, Parameter(help="Add the server's content after every event to the JSON.")
    ] = False,
    jobs: Jobs = None,
    timeout: Annotated[
        float | None,
        Parameter(help="Stop after this many seconds, and show the requests until then."),
    ] = None,
    format: AnyFormat = "text",
    report: Annotated[
        Path | None,
        Parameter(help="Write the report as one HTML page, to step through the events."),
    ] = None,
    picture: Annotated[
        Path | None, Parameter(help="Draw one run: write a picture, as FILE.svg or as FILE.gif.")
    ] = None,
) -> int:
    """Run scenarios: tokens reused, why not more, wrong answers.

    Without --profile a scenario runs on the profiles that its file lists. With --set the file's
    [[expect]] blocks are ignored.

    Example: cachesim run llama.cpp-24143-load-consumes-entry-hybrid -p b9538 -p b9538+24143
    """
    for flag, given in (("--brief", brief), ("--explain", explain or step), ("--watch", watch)):
        if given and format != "text":
            raise InputError(f"{flag} prints text to read; leave it out with --format {format}")
    if detail and format == "text":
        raise InputError("--detail is a part of JSON: add --format json")
    if brief:
        refuse_beside("--brief", {"--explain": explain, "--step": step, "--watch": watch})
    if watch:
        further = {"--explain": explain, "--step": step, "--jobs": jobs, "--timeout": timeout}
        written = {"--no-verify": not verify, "--report": report, "--picture": picture}
        refuse_beside("--watch", {**further, **written})
    deadline = Deadline.after(timeout)
    page = output_at(report, "--report", PAGE)
    processes = processes_wanted(jobs)
    tasks = jobs_of(names, profile or (), seed, dict(map(setting, settings or ())))
    drawing = _drawing_at(picture, len(tasks))
    if watch:
        return status(watched_runs(play(tasks, arithmetic, verify=True, detail=True)))
    explained = explain or step is not None
    number = None if step is None else _step_number(tasks, step)
    played = play(
        tasks,
        arithmetic,
        verify=verify,
        detail=explained or detail or page is not None or drawing is not None,
        processes=processes,
        deadline=deadline,
    )
    if format == "jsonl" and page is None and drawing is None:
        return _stream(played, detail=detail)
    if explained:
        runs = list(_explained(tasks, played, number))
    else:
        runs = list(played if detail else _seen_first(played))
    if format == "json":
        sys.stdout.write(json_output.document(runs, detail=detail) + "\n")
    elif format == "jsonl":
        _write_lines(runs, detail=detail)
    elif not explained:
        _show(tasks, runs, results(), brief=brief)
    if page is not None:
        sys.stdout.flush()
        write_report(runs, page)
    if drawing is not None:
        _draw(decisive(pictured(runs[0])), drawing)
    return status(runs)


def _drawing_at(picture: Path | None, runs: int) -> Output | None:
    if picture is None:
        return None
    moves = picture.suffix == ".gif"
    if not moves and picture.suffix not in {"", ".svg"}:
        msg = f"--picture {picture}: write a name that ends in .svg, or in .gif"
        raise InputError(msg)
    if moves and find_spec("PIL") is None:
        raise InputError(f"--picture {picture}: {PILLOW}")
    if runs != 1:
        raise InputError(f"--picture draws one run, these are {runs}; add --profile")
    return output_at(picture, "--picture", GIF if moves else PLOT)


PILLOW: Final = (
    "a GIF needs Pillow, which is not installed here: pip install pillow; a name that ends in .svg "
    "needs nothing"
)
MOST_ROWS: Final = 120
"""Rows of a GIF: each request's frame holds those of all before it."""


def _draw(picture: Picture, drawing: Output) -> None:
    if drawing.kind == PLOT:
        write(drawing, standalone(picture))
        return
    if len(picture.rows) > MOST_ROWS:
        raise InputError(
            f"--picture {drawing.path}: the picture has {len(picture.rows)} rows, a GIF at most "
            f"{MOST_ROWS}; write a name that ends in .svg"
        )
    from cachesim.report.gif import write_gif

    drawing.fill(lambda path: write_gif(picture, path))
    written(drawing)


def _explained(jobs: Sequence[Job], played: Iterable[Run], number: int | None) -> Iterator[Run]:
    screen, before = results(), ""
    for job, done in zip(jobs, played, strict=True):
        if job.source != before:
            show(screen, tables.heading(job.scenario, [done]))
        before = job.source
        show(screen, Text(f"\non {done.profile}", style="name"), story(done, only=number))
        yield done


def _step_number(jobs: Sequence[Job], step: str) -> int:
    names = jobs[0].scenario.step_names
    if step in names:
        return names.index(step)
    if step.isdecimal() and 1 <= int(step) <= len(names):
        return int(step) - 1
    hint = nearest(step, names) or f"; there are {', '.join(names[:20])}"
    raise InputError(f"{jobs[0].source}: there is no step {short(step)}{hint}")


def _seen_first(played: Iterable[Run]) -> Iterator[Run]:
    """The runs, with recorded states as long as they fit on a page."""
    left = STATES
    for done in played:
        states = 0 if done.detail is None else len(done.detail.states)
        left -= states
        if states and left < 0:
            steps = tuple(replace(step, detail=None) for step in done.steps)
            yield replace(done, steps=steps, detail=None)
        else:
            yield done


def write_report(runs: Sequence[Run], page: Output) -> None:
    """Write the page of some runs; its name goes to standard error."""
    from cachesim.report import html

    fitted = html.page_of_most(runs)
    page.write(fitted.text)
    text = f"report: {page.path}"
    if fitted.runs:
        fit = len(runs) - fitted.runs
        text += f", with {fit} of {len(runs)} runs: those of most interest that fit"
    text += f"; {fitted.note}" if fitted.note else ""
    show(notes(), Text(text))


def status(runs: Sequence[Run]) -> int:
    """The exit status of some runs."""
    return AS_EXPECTED if all(run.as_expected for run in runs) else NOT_AS_EXPECTED


def play(
    jobs: Sequence[Job],
    arithmetic: ArithmeticName,
    *,
    verify: bool,
    detail: bool = False,
    processes: int | None = None,
    deadline: Deadline = ENDLESS,
) -> Iterator[Run]:
    """The runs in order, with a progress bar if standard error is a terminal."""
    groups = [list(group) for _, group in groupby(jobs, key=lambda job: job.source)]
    screen = notes()
    announce(seconds_of(jobs, how_many(len(groups), processes), arithmetic), arithmetic, screen)
    alone = how_many(len(groups), processes) == 1
    steps = sum(len(job.scenario.step) for job in jobs)
    (total, unit), done = (steps, "steps") if alone else (len(jobs), "runs"), count(1)
    with (
        workers(len(groups), processes) as do,
        progress("running", total, unit, shown=watched(jobs)) as move,
    ):
        play_one = partial(
            _play_group, arithmetic=arithmetic, verify=verify, detail=detail, deadline=deadline
        )
        if alone:  # another process has no bar to move
            play_one = partial(play_one, on_step=lambda: move(next(done)))
        for runs in do(play_one, groups):
            if isinstance(runs, ScenarioError):
                raise runs
            for run in runs:
                if not alone:
                    move(next(done))
                yield run


def watched(jobs: Sequence[Job]) -> bool:
    """True if a progress bar is useful: on a terminal, for more than a few runs."""
    return sys.stderr.isatty() and (len(jobs) > SOON_DONE or seconds_of(jobs) > 1)


def announce(seconds: float, arithmetic: ArithmeticName, screen: Console) -> None:
    """Print a warning before a slow run: float arithmetic, or replies decoded token by token."""
    if seconds < LONG:
        return
    about = f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    text = f"in {arithmetic} arithmetic this may take up to {about}:"
    if arithmetic == "float":
        text += " --arithmetic ring is much faster,"
    show(screen, Text(f"{text} --timeout SECONDS stops with what there is", style="quiet"))


def _play_group(
    jobs: Sequence[Job],
    *,
    arithmetic: ArithmeticName,
    verify: bool,
    detail: bool = False,
    deadline: Deadline = ENDLESS,
    on_step: Callable[[], None] = lambda: None,
) -> list[Run] | ScenarioError:
    """The profiles of one scenario, which share uncached answers; or the scenario's error."""
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
                    pace=Clock(deadline, on_step),
                )
            )
        except InputError as error:
            problems = error.problems if isinstance(error, ScenarioError) else (str(error),)
            return ScenarioError(*(f"{job.source}: {problem}" for problem in problems))
    return side_by_side(runs)


def _stream(played: Iterable[Run], *, detail: bool) -> int:
    status = AS_EXPECTED
    for entry in played:
        _write_lines([entry], detail=detail)
        status = status if entry.as_expected else NOT_AS_EXPECTED
    return status


def _write_lines(runs: Sequence[Run], *, detail: bool) -> None:
    for done in runs:
        sys.stdout.writelines(f"{line}\n" for line in json_output.lines(done, detail=detail))


def proof_of(jobs: Sequence[Job], runs: Sequence[Run], run: Run, index: int) -> list[tables.Line]:
    """The command that proves a wrong answer; empty without a scenario file."""
    job = next(job for job, other in zip(jobs, runs, strict=True) if other is run)
    source = None if job.changed or job.source == STDIN else job.source
    return proof_lines(job.scenario, job.profile, source, index)


def proof_lines(
    scenario: Scenario, profile: Profile, source: str | None, index: int
) -> list[tables.Line]:
    """The command that shows a wrong answer on the real engine; empty without the file `source` and
    where the real engine computes no answers.
    """
    if source is None:
        return []
    from cachesim.prove.command import proof_command

    command = proof_command(scenario, profile, source, index)
    return [(tables.PROVE, command)] if command else []


def _show(jobs: Sequence[Job], runs: Sequence[Run], screen: Console, *, brief: bool) -> None:
    names = {job.source for job in jobs}
    if brief:
        kinds = {job.scenario.name: job.scenario.kind for job in jobs}
        show(screen, tables.by_class(runs, kinds), Text(), tables.by_evidence(runs), Text())
    elif len(names) == 1:
        job = jobs[0]
        proof = partial(proof_of, jobs, runs)
        show(screen, tables.one_scenario(job.scenario, runs, width=screen.width, proof=proof))
    else:
        show(screen, tables.summary(runs), Text())
    show(screen, *tables.closing(runs))


HINT: Final = "Enter: next event   b: back   s: to the end of the step   q: quit"


def watched_runs(played: Iterable[Run]) -> list[Run]:
    """Step through the events of runs; without a terminal all are printed at once."""
    screen = results()
    interactive = screen.is_terminal and sys.stdin.isatty()
    if interactive:
        show(screen, Text(HINT, style="quiet"))
    runs = []
    for done in played:
        runs.append(done)
        show(screen, Text(f"{done.scenario} on {done.profile}", style="name"))
        first = after(done, 0) if done.steps else None
        if first is not None:
            show(screen, Text("\n".join(legend(first)), style="quiet"))
        if not _watch(done, screen, interactive=interactive):
            break
    return runs


def _watch(run: Run, screen: Console, *, interactive: bool) -> bool:
    numbers = (range(len(step.events) + 1) for step in run.steps)
    stops = [(index, number) for index, numbers_of in enumerate(numbers) for number in numbers_of]
    scale = scale_of_run(run)
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
        before = [] if answer == "b" else shown
        lines = [f"    {line}" for row in memory if row not in before for line in row]
        places = {_place(row) for row in memory}
        gone = [row[0].strip() for row in before if _place(row) not in places]
        lines = [*lines, *(f"      gone: {label}" for label in gone)]
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


def _memory(run: Run, index: int, number: int) -> list[tuple[str, ...]]:
    detail = run.steps[index].detail
    if detail is None or run.detail is None or number >= len(detail.at):
        return []
    return blocks(moment(run, index, run.detail.states[detail.at[number]]))


def _place(row: tuple[str, ...]) -> str:
    """The label without a state's position or a node's parent."""
    label = row[0].partition(" at ")[0].strip(" │├└─")
    return label.partition(",")[0] if label.startswith("node ") else label


def _input(screen: Console) -> str:
    try:
        return screen.input("").strip()
    except EOFError:
        return "q"
