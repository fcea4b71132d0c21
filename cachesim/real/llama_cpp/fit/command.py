"""`cachesim real llama.cpp --fit RELEASE`: the rules that come nearest to a wheel."""

from collections.abc import Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cachesim.real.environment import EnvironmentUnavailableError
from cachesim.real.llama_cpp.compare import Difference, SideBySide
from cachesim.real.llama_cpp.differences import show_difference
from cachesim.real.llama_cpp.fit.fields import Change, differing, shown, value_of
from cachesim.real.llama_cpp.fit.recordings import Recording, Recordings
from cachesim.real.llama_cpp.fit.search import Fit, Search, play_under
from cachesim.real.llama_cpp.server import environment_for
from cachesim.real.llama_cpp.trial import Trial, known_trials
from cachesim.real.llama_cpp.wheels import Wheel, wheel_named
from cachesim.real.playing import console, not_compared

SHOWN: Final = 5
"""So many of the remaining disagreements are shrunk and printed."""


def real_fit(name: str, *, workloads: int, seed: int) -> int:
    """Record, search, report; 0 if every request agrees in the end, else 1."""
    out = console()
    try:
        wheel = wheel_named(name)
        environment_for(wheel.release, wheel.version).ready()
    except EnvironmentUnavailableError as error:
        return not_compared(error)
    recordings = _recorded(wheel, workloads=workloads, seed=seed)
    known = known_trials()
    aside = console(stderr=True)
    fit = Search(recordings, known, play_under, lambda line: aside.print(f"  {line}")).run()
    out.print(f"{wheel}: {fit.requests:,} requests in {len(recordings):,} workloads, seed {seed}")
    out.print(_table(fit, known))
    left_open = _left_open(fit, wheel, known, recordings)
    if left_open is not None:
        out.print(left_open)
    _show_rest(out, fit, wheel)
    return 0 if not fit.differences else 1


def _recorded(wheel: Wheel, *, workloads: int, seed: int) -> tuple[Recording, ...]:
    """What the wheel answered: played now where it is not on disk yet."""
    kept = Recordings(wheel.release, seed=seed, version=wheel.version)
    beside = console(stderr=True)
    with Progress(console=beside, transient=True, disable=not beside.is_terminal) as progress:
        task = progress.add_task(f"playing {wheel}", total=workloads)
        found = []
        for recording in kept.take(workloads):
            found.append(recording)
            progress.advance(task)
    return tuple(found)


def _table(fit: Fit, known: dict[str, Trial]) -> Table:
    """The climb: from the nearest release, change by change."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("rules")
    table.add_column("as in")
    table.add_column("requests", justify="right")
    table.add_row(f"{fit.nearest} as it is", "", f"{fit.at_first:,}")
    for step in fit.steps:
        for change in step.changes[:-1]:
            table.add_row(str(change), ", ".join(_holding(change, known)), "")
        last = step.changes[-1]
        table.add_row(str(last), ", ".join(_holding(last, known)), f"{step.agreeing:,}")
    return table


def _holding(change: Change, known: dict[str, Trial]) -> list[str]:
    return [name for name, trial in known.items() if change.holds(trial)]


def _left_open(
    fit: Fit, wheel: Wheel, known: dict[str, Trial], recordings: Sequence[Recording]
) -> Table | None:
    """Fields in which the releases before and after differ, and on which no request turned."""
    others = [name for name in known if name != wheel.release]
    before = [name for name in others if int(name[1:]) < wheel.build][-1:]
    after = [name for name in others if int(name[1:]) > wheel.build][:1]
    table = Table(title="left open: these workloads fit either", title_style="", box=SIMPLE_HEAD)
    for head in ("rule", "found", "or", "as in"):
        table.add_column(head)
    for name in before + after:
        for change in differing(fit.trial, known[name]):
            if _agreeing(recordings, change.of(fit.trial)) == fit.agreeing:
                found = value_of(fit.trial, change.part, change.field)
                rule = f"{change.part}.{change.field}"
                table.add_row(rule, shown(found), shown(change.value), name)
    return table if table.rows else None


def _agreeing(recordings: Sequence[Recording], trial: Trial) -> int:
    return sum(each.agreeing(play_under(each, trial)) for each in recordings)


def _show_rest(out: Console, fit: Fit, wheel: Wheel) -> None:
    """The remaining disagreements, as small as they get, as scenarios."""
    if not fit.differences:
        out.print("every request agrees")
        return
    out.print(f"{len(fit.differences)} workloads still disagree")
    with SideBySide(wheel.release, version=wheel.version, trial=fit.trial) as pair:
        for difference in _unlike(fit.differences)[:SHOWN]:
            show_difference(
                out, pair.shrunk(difference), version=wheel.version, profile=fit.nearest
            )


def _unlike(differences: Sequence[Difference]) -> list[Difference]:
    """One of each kind first: models and fields that differ alike are told once."""
    kinds = {(each.workload.preset, tuple(each.fields)): each for each in reversed(differences)}
    rest = [each for each in differences if each not in kinds.values()]
    return [*reversed(kinds.values()), *rest]
