"""`cachesim real llama.cpp --fit RELEASE`: the rules that come nearest to a wheel."""

from collections.abc import Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cachesim.lab.real.fit.search import Change, Fit, Search, shown
from cachesim.lab.real.llama_cpp.compare import Difference, SideBySide
from cachesim.lab.real.llama_cpp.differences import show_difference
from cachesim.lab.real.llama_cpp.fit.probes import Probed, open_changes, probe
from cachesim.lab.real.llama_cpp.fit.recordings import Recording, Recordings, play_under
from cachesim.lab.real.llama_cpp.server import environment_for
from cachesim.lab.real.llama_cpp.trial import Trial, known_trials
from cachesim.lab.real.llama_cpp.wheels import Wheel, wheel_named
from cachesim.lab.real.playing import console

ANOTHER: Final = 1_000_000
"""Added to the seed where workloads are drawn for rules that were left open."""

SHOWN: Final = 5
"""So many of the remaining disagreements are shrunk and printed."""


def real_fit(name: str, *, workloads: int, seed: int) -> int:
    """Record, search, report; 0 if every request agrees in the end, else 1."""
    out = console()
    wheel = wheel_named(name)
    environment_for(wheel.release, wheel.version).ready()
    recordings = _recorded(wheel, workloads=workloads, seed=seed)
    known = known_trials()
    aside = console(stderr=True)

    def say(line: str) -> None:
        aside.print(f"  {line}")

    fit = Search(recordings, known, play_under, say).run()
    others = Recordings(wheel.release, seed=seed + ANOTHER, version=wheel.version)
    probed = probe(_open(fit, wheel, known, recordings), fit.trial, others)
    told = tuple({each.told.workload.name: each.told for each in probed if each.told}.values())
    first, fit = fit, Search((*recordings, *told), known, play_under, say).run() if told else fit
    out.print(f"{wheel}: {fit.requests:,} requests in {len(recordings):,} workloads, seed {seed}")
    out.print(_table(fit, known))
    if probed:
        out.print(_left_open(probed, first.trial, known))
    _show_rest(out, fit, wheel)
    return 0 if not fit.differences else 1


def _recorded(wheel: Wheel, *, workloads: int, seed: int) -> tuple[Recording, ...]:
    kept = Recordings(wheel.release, seed=seed, version=wheel.version)
    beside = console(stderr=True)
    with Progress(console=beside, transient=True, disable=not beside.is_terminal) as progress:
        task = progress.add_task(f"playing {wheel}", total=workloads)
        found = []
        for recording in kept.take(workloads):
            found.append(recording)
            progress.advance(task)
    return tuple(found)


def _table(fit: Fit[Trial, Difference], known: dict[str, Trial]) -> Table:
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


def _open(
    fit: Fit[Trial, Difference],
    wheel: Wheel,
    known: dict[str, Trial],
    recordings: Sequence[Recording],
) -> tuple[Change, ...]:
    """Rules on which no request turned; those in which the neighbours differ come first."""
    near = [trial for name, trial in known.items() if name in _neighbours(wheel, known)]
    found = open_changes(fit.trial, tuple(known.values()), recordings)
    return tuple(sorted(found, key=lambda change: not any(map(change.holds, near))))


def _neighbours(wheel: Wheel, known: dict[str, Trial]) -> list[str]:
    others = [name for name in known if name != wheel.release]
    before = [name for name in others if int(name[1:]) < wheel.build][-1:]
    return before + [name for name in others if int(name[1:]) > wheel.build][:1]


def _left_open(probed: Sequence[Probed], trial: Trial, known: dict[str, Trial]) -> Table:
    """Rules on which none of the workloads turned, and what others drawn for them showed."""
    title = "no request turned on these; others were drawn until one did"
    table = Table(title=title, title_style="", box=SIMPLE_HEAD)
    for head in ("rule", "found", "or", "as in", "the wheel says"):
        table.add_column(head)
    for each in probed:
        change = each.change
        own = change.value_in(trial)
        value = each.value(trial)
        says = shown(value)
        if value is None:
            says = "nothing" if each.turned else "open: nothing drawn turns on it"
        holding = _holding(change, known)
        among = holding[0] if len(holding) == 1 else f"{holding[0]} .. {holding[-1]}"
        table.add_row(change.name, shown(own), shown(change.value), among, says)
    return table


def _show_rest(out: Console, fit: Fit[Trial, Difference], wheel: Wheel) -> None:
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
    kinds = {
        (each.workload.model.preset, tuple(each.fields)): each for each in reversed(differences)
    }
    rest = [each for each in differences if each not in kinds.values()]
    return [*reversed(kinds.values()), *rest]
