"""The wheels that carry llama.cpp's server, one version of a package for each build, beside the
releases known here: as the newest one, or the rules that explain a wheel.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.words import counted
from cachesim.errors import ProfileError
from cachesim.lab.real.environment import versions_of
from cachesim.lab.real.fit import Change, Fit, Played, Search, explain, shown
from cachesim.lab.real.llama_cpp.calls import RealServerError
from cachesim.lab.real.llama_cpp.compare import (
    Difference,
    SideBySide,
    Tally,
    show_difference,
    title_of,
)
from cachesim.lab.real.llama_cpp.recordings import (
    Probed,
    Recording,
    Recordings,
    open_changes,
    play_under,
    probe,
)
from cachesim.lab.real.llama_cpp.server import as_release, environment_for
from cachesim.lab.real.llama_cpp.simulated import Trial, known_trials
from cachesim.lab.real.llama_cpp.workload import Release
from cachesim.lab.real.playing import console, watched

PACKAGE: Final = "xllamacpp"
_VERSION: Final = re.compile(r"\d{4}\.\d+\.(?P<build>\d+)(\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A build, and the version of the package that is it."""

    release: Release
    version: str

    @property
    def build(self) -> int:
        return int(self.release.removeprefix("b"))

    def __str__(self) -> str:
        return f"{self.release} ({PACKAGE} {self.version})"


def wheel_named(name: str) -> Wheel:
    """The wheel of a build (`b9713`), or of a version of the package (`2026.6.9713`)."""
    version = _VERSION.fullmatch(name)
    if version is not None:
        return Wheel(release=f"b{version['build']}", version=name)
    for each in FAMILY.releases:
        if name == each.name and each.package is not None:
            return Wheel(release=name, version=each.package.version)
    if re.fullmatch(r"b\d+", name):
        for wheel in _on_the_registry():
            if wheel.release == name:
                return wheel
    msg = (
        f"there is no wheel of llama.cpp {name!r}; write a build such as b9713 or a version of "
        f"{PACKAGE} such as 2026.6.9713; known are {', '.join(FAMILY.real())}"
    )
    raise ProfileError(msg)


def newest_wheel() -> Wheel:
    """The newest one that the registry has."""
    return _on_the_registry()[0]


def _on_the_registry() -> tuple[Wheel, ...]:
    shapes = ((version, _VERSION.fullmatch(version)) for version in versions_of(PACKAGE))
    return tuple(
        Wheel(release=f"b{shape['build']}", version=version) for version, shape in shapes if shape
    )


def real_newest(
    wheel: str,
    *,
    release: str = "",
    workloads: int,
    seed: int,
) -> int:
    """Run workloads on the newest wheel, or on the one named, under a profile's rules: those of
    the newest one, unless another is named.

    0 if every request agrees, 1 if something is new, or if there is no wheel to be had. Where they
    do not agree, the rule fields are fitted that explain it.
    """
    release = as_release(release) if release else FAMILY.real()[-1]
    out, shown = console(), None
    unstarted, recorded = list[RealServerError](), list[Played[Trial]]()
    found = wheel_named(wheel) if wheel else newest_wheel()
    environment_for(release, found.version).ready()
    tally = Tally(title=title_of(str(found), seed))
    with SideBySide(release, version=found.version) as pair:
        for number in watched(range(workloads)):
            try:
                played = pair.play_random(seed=seed, number=number, presets=())
            except RealServerError as error:
                unstarted.append(error)
                continue
            tally.count(played)
            recorded.append(_played(Recording(workload=played.workload, outcomes=played.outcomes)))
            if played.difference is not None and shown is None:
                shown = pair.shrunk(played.difference)
    if unstarted:
        count = counted(len(unstarted), "workload")
        out.print(f"{found} is NOT as {release}: {unstarted[0]} ({count})", markup=False)
    if tally.counts:
        out.print(tally.table())
    requests, agreeing = tally.total("requests"), tally.total("agreeing")
    if shown is None:
        if not unstarted:
            out.print(f"{found} is as {release}: all {requests:,} requests agree")
        return int(bool(unstarted))
    out.print(f"{found} is NOT as {release}: {requests - agreeing:,} of {requests:,} requests")
    show_difference(out, shown, profile=release, version=found.version)
    explain(found.release, release, known_trials(), recorded)
    out.print(f"with more workloads: cachesim real llama.cpp --fit {found.version} --workloads 150")
    return 1


def _played(recording: Recording) -> Played[Trial]:
    steps = recording.workload.step
    return Played(
        kind=str(recording.workload.model.preset),
        requests=len(steps),
        size=sum(len(each.ids) for each in steps),
        check=lambda trial: play_under(recording, trial),
    )


ANOTHER: Final = 1_000_000
"""Added to the seed where workloads are drawn for rules that were left open."""

SHOWN: Final = 5
"""So many of the remaining disagreements are shrunk and printed."""


def real_fit(name: str, *, workloads: int, seed: int) -> int:
    """Record, search, report; 0 if every request agrees in the end, else 1."""
    out = console()
    wheel = wheel_named(name)
    environment_for(wheel.release, wheel.version).ready()
    kept = Recordings(wheel.release, seed=seed, version=wheel.version)
    beside = console(stderr=True)
    with Progress(console=beside, transient=True, disable=not beside.is_terminal) as progress:
        task = progress.add_task(f"running {wheel}", total=workloads)
        found = []
        for recording in kept.take(workloads):
            found.append(recording)
            progress.advance(task)
    recordings = tuple(found)
    known = known_trials()
    aside = console(stderr=True)

    def log(line: str) -> None:
        aside.print(f"  {line}")

    fit = Search(recordings, known, play_under, log).run()
    others = Recordings(wheel.release, seed=seed + ANOTHER, version=wheel.version)
    probed = probe(_open(fit, wheel, known, recordings), fit.trial, others)
    found = [each.recording for each in probed if each.recording]
    more = tuple({each.workload.name: each for each in found}.values())
    first, fit = fit, Search((*recordings, *more), known, play_under, log).run() if more else fit
    out.print(f"{wheel}: {fit.requests:,} requests in {len(recordings):,} workloads, seed {seed}")
    out.print(_table(fit, known))
    if probed:
        out.print(_left_open(probed, first.trial, known))
    _show_rest(out, fit, wheel)
    return 0 if not fit.differences else 1


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
    """Rules that no request depends on; first those in which the neighbours differ."""
    near = [trial for name, trial in known.items() if name in _neighbours(wheel, known)]
    found = open_changes(fit.trial, tuple(known.values()), recordings)
    return tuple(sorted(found, key=lambda change: not any(map(change.holds, near))))


def _neighbours(wheel: Wheel, known: dict[str, Trial]) -> list[str]:
    others = [name for name in known if name != wheel.release]
    before = [name for name in others if int(name[1:]) < wheel.build][-1:]
    return before + [name for name in others if int(name[1:]) > wheel.build][:1]


def _left_open(probed: Sequence[Probed], trial: Trial, known: dict[str, Trial]) -> Table:
    """Rules that no workload depends on, and the results of workloads drawn for them."""
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
        kinds = {
            (each.workload.model.preset, tuple(each.fields)): each
            for each in reversed(fit.differences)
        }
        rest = [each for each in fit.differences if each not in kinds.values()]
        for difference in [*reversed(kinds.values()), *rest][:SHOWN]:
            show_difference(
                out, pair.shrunk(difference), version=wheel.version, profile=fit.nearest
            )
