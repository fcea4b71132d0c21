"""The wheels that carry llama.cpp's server, one version of a package for each build, beside the
releases known here: as the newest one, or the rules that explain a wheel.

Answers of a wheel's servers to random workloads are kept on disk and run once. A recording is a
line of JSON. It is reused while the generator sends the same requests; from the first different
workload on, the wheel is run again. Rules that the recorded workloads leave open are decided by
others, on which the simulator's answers under both values diverge:

    drawn 0 .. drawn 41 equal, drawn 42 diverges   ->   drawn 42 is run on the wheel

The wheel's replies differ from the simulator's, and so does the workload grown on it; where it no
longer separates the two values, the next is drawn.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.words import counted
from cachesim.errors import ProfileError
from cachesim.prove.environment import environments_folder, versions_of
from cachesim.prove.llama_cpp.calls import RealServerError
from cachesim.prove.llama_cpp.fitting import Release
from cachesim.prove.llama_cpp.server import as_release, declared, environment_for
from cachesim.prove.llama_cpp.simulated import SimulatedServer, Trial, known_trials
from cachesim.prove.llama_cpp.workload import Outcome
from cachesim.prove.playing import console, watched
from cachesim.scenario.files import to_toml
from cachesim.scenario.format import Scenario, Step
from cachesim.scenario.structure import read
from cachesim.typed import Value, there_is
from cachesim.units import as_tokens
from conformance.real.fields import judge_declared
from conformance.real.fit import (
    CONTRADICTIONS,
    Change,
    Fit,
    Played,
    Search,
    changes,
    explain,
    shown,
)
from conformance.real.llama_cpp.compare import (
    Difference,
    SideBySide,
    Tally,
    first_difference,
    show_difference,
    title_of,
)
from conformance.real.llama_cpp.workloads import Setting, draw_setting, grow

UNRECORDED: Final = frozenset({"top"})
"""Fields of an outcome that no comparison reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A workload with the answers of the wheel's server."""

    workload: Scenario
    outcomes: tuple[Outcome, ...]

    @classmethod
    def from_line(cls, line: str) -> "Recording":
        plain = json.loads(line)
        outcomes = tuple(_outcome(outcome) for outcome in plain["outcomes"])
        workload, _ = read(tomllib.loads(plain["workload"]))  # of a release that may be unknown
        return cls(workload=there_is(workload), outcomes=outcomes)

    @property
    def requests(self) -> int:
        return self.workload.requests

    def agreeing(self, difference: Difference | None) -> int:
        """The number of requests before a difference: all where there is none."""
        steps = self.workload.step
        until = len(steps) if difference is None else difference.step
        return sum(step.do == "complete" for step in steps[:until])

    def line(self) -> str:
        outcomes = [
            {name: value for name, value in asdict(outcome).items() if name not in UNRECORDED}
            for outcome in self.outcomes
        ]
        return json.dumps({"workload": to_toml(self.workload), "outcomes": outcomes})


def _outcome(plain: dict[str, Any]) -> Outcome:
    drafts = plain.pop("drafts")
    reply = as_tokens(plain.pop("reply"))
    proposed = None if drafts is None else tuple(as_tokens(draft) for draft in drafts)
    return Outcome(reply=reply, drafts=proposed, **plain)


@dataclass(slots=True)
class _Recorded:
    """Recorded answers, as long as the requests are the recorded ones."""

    recording: Recording
    at: int = 0
    lost: bool = False

    def send(self, group: Sequence[Step]) -> tuple[Outcome, ...]:
        end = self.at + len(group)
        if tuple(group) != self.recording.workload.step[self.at : end]:
            raise _RequestMismatchError
        outcomes, self.at = self.recording.outcomes[self.at : end], end
        self.lost = end == len(self.recording.outcomes)
        return outcomes


class _RequestMismatchError(Exception):
    """The generator sends another request than the recorded one."""


class Recordings:
    """The recordings of one wheel and one seed, in the order of their numbers."""

    def __init__(
        self, release: Release, *, seed: int, version: str = "", folder: Path | None = None
    ) -> None:
        self.release = release
        self.version = version
        self.seed = seed
        kept = folder or environments_folder() / "recordings"
        self.file = kept / f"{release}-seed-{seed}.jsonl"
        self.singles = kept / f"{release}-seed-{seed}-singles.jsonl"

    def take(self, count: int) -> Iterator[Recording]:
        """The first `count` workloads in order: from disk, or run now and kept."""
        kept: list[Recording] = []
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        for line in lines[:count]:
            try:
                recording = Recording.from_line(line)
            except (ValueError, KeyError, TypeError):  # a line cut short by an interruption
                break
            if not self._is_current(recording, len(kept)):
                break
            kept.append(recording)
        yield from kept
        if len(kept) == count:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("".join(f"{each.line()}\n" for each in kept))
        with SideBySide(self.release, version=self.version) as pair, self.file.open("a") as file:
            for number in range(len(kept), count):
                recording = self._played(pair, number)
                file.write(f"{recording.line()}\n")
                file.flush()
                yield recording

    def play(self, number: int) -> Recording:
        """A workload by its number: from disk, or run now and kept."""
        kept = next((each for at, each in self._singles() if at == number), None)
        if kept is not None and self._is_current(kept, number):
            return kept
        with SideBySide(self.release, version=self.version) as pair:
            recording = self._played(pair, number)
        self.singles.parent.mkdir(parents=True, exist_ok=True)
        with self.singles.open("a") as file:
            file.write(f"{number} {recording.line()}\n")
        return recording

    def _singles(self) -> Iterator[tuple[int, Recording]]:
        if not self.singles.exists():
            return
        for line in reversed(self.singles.read_text().splitlines()):
            number, _, rest = line.partition(" ")
            try:
                yield int(number), Recording.from_line(rest)
            except (ValueError, KeyError, TypeError):  # a line cut short by an interruption
                continue

    def _is_current(self, recording: Recording, number: int) -> bool:
        setting = draw_setting(self.seed, number, release=self.release)
        if not recording.outcomes:
            return False
        try:
            workload, _ = grow(setting, _Recorded(recording))
        except _RequestMismatchError:
            return False
        return workload == recording.workload

    def _played(self, pair: SideBySide, number: int) -> Recording:
        setting = draw_setting(self.seed, number, release=self.release)
        model = pair.model(setting.preset, setting.window)
        with pair.real(setting.options).started(setting.options, model) as server:
            workload, outcomes = grow(setting, server)
        return Recording(workload=workload, outcomes=outcomes)


def play_under(recording: Recording, trial: Trial) -> Difference | None:
    """The first difference of the simulator under these rules from the wheel."""
    try:
        return first_difference(recording.workload, recording.outcomes, trial)
    except CONTRADICTIONS as error:
        failed = Outcome(error=type(error).__name__)
        return Difference(
            workload=recording.workload, step=0, real=recording.outcomes[0], simulated=failed
        )


DRAWN: Final = 400
"""Workloads drawn for the open rules."""

PLAYS: Final = 8_000
"""Maximum runs on the simulator: a quarter of an hour or less."""

PLAYED: Final = 3
"""Workloads run on the wheel among those on which a rule turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A rule that was open, and its recording on the wheel."""

    change: Change  # the other value
    turned: int = 0  # workloads on which the simulator's answers depend on it
    recording: Recording | None = None  # the wheel's answers that differ between the values

    def value(self, trial: Trial) -> Value | None:
        """The value that agrees with the wheel for longer; None if both agree."""
        if self.recording is None:
            return None
        ours = self.recording.agreeing(play_under(self.recording, trial))
        theirs = self.recording.agreeing(play_under(self.recording, self.change.of(trial)))
        own = self.change.value_in(trial)
        return self.change.value if theirs > ours else own


def open_changes(
    trial: Trial, known: Sequence[Trial], recordings: Sequence[Recording]
) -> tuple[Change, ...]:
    """A change for each rule that no recording turns on: to a value that some release has."""
    found: dict[tuple[str, str], Change] = {}
    turned: set[tuple[str, str]] = set()
    played = [(recording, play_under(recording, trial)) for recording in recordings]
    for change in changes(known):
        rule = (change.part, change.field)
        if change.holds(trial) or rule in turned or not any(map(change.holds, known)):
            continue
        if any(parts(*each, change.of(trial)) for each in played):
            turned.add(rule)
        else:
            found.setdefault(rule, change)
    return tuple(change for rule, change in found.items() if rule not in turned)


def parts(recording: Recording, ours: Difference | None, trial: Trial) -> bool:
    """True if the answers, or their first difference from the wheel's, are others than `ours`."""
    theirs = play_under(recording, trial)
    if ours is None or theirs is None:
        return ours is not theirs
    return (ours.step, ours.simulated) != (theirs.step, theirs.simulated)


def probe(
    rules: Sequence[Change], trial: Trial, recordings: Recordings, *, most: int = DRAWN
) -> tuple[Probed, ...]:
    """Draw workloads for open rules; run those on which one turns, until the wheel decides."""
    turned: Counter[Change] = Counter()
    decisive: dict[Change, Recording] = {}
    plays = 0
    for number in range(most):
        waiting = [rule for rule in rules if rule not in decisive and turned[rule] < PLAYED]
        if not waiting or plays > PLAYS:
            break
        setting = draw_setting(recordings.seed, number, release=recordings.release)
        workload, outcomes = grow(setting, server_under(setting, trial))
        drawn = Recording(workload=workload, outcomes=outcomes)
        turning = [each for each in waiting if parts(drawn, None, each.of(trial))]
        plays += 1 + len(waiting)
        if not turning:
            continue
        turned.update(turning)
        recording = recordings.play(number)
        ours = play_under(recording, trial)
        decisive |= {each: recording for each in turning if parts(recording, ours, each.of(trial))}
    found = ((rule, turned[rule], decisive.get(rule)) for rule in rules)
    return tuple(Probed(change=c, turned=n, recording=recording) for c, n, recording in found)


def server_under(setting: Setting, trial: Trial) -> SimulatedServer:
    """A fresh simulated server under rules that are tried."""
    return SimulatedServer(setting.workload(), trial=trial)


PACKAGE: Final = "xllamacpp"
_VERSION: Final = re.compile(r"\d{4}\.\d+\.(?P<build>\d+)(\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A build, and its package version."""

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
    for release in FAMILY.releases:
        if name == release.name and release.package is not None:
            return Wheel(release=name, version=release.package.version)
    if re.fullmatch(r"b\d+", name):
        for wheel in _on_the_registry():
            if wheel.release == name:
                return wheel
    raise ProfileError(
        f"there is no wheel of llama.cpp {name!r}; write a build such as b9713 or a version of "
        f"{PACKAGE} such as 2026.6.9713; known are {', '.join(FAMILY.real())}"
    )


def newest_wheel() -> Wheel:
    """The newest wheel of the registry."""
    return _on_the_registry()[0]


def _on_the_registry() -> tuple[Wheel, ...]:
    shapes = ((version, _VERSION.fullmatch(version)) for version in versions_of(PACKAGE))
    return tuple(
        Wheel(release=f"b{shape['build']}", version=version) for version, shape in shapes if shape
    )


def real_newest(wheel: str, *, release: str = "", workloads: int, seed: int) -> int:
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
    unknown = judge_declared(FAMILY, found.version, declared(release, found.version))
    if shown is None:
        if not unstarted:
            out.print(f"{found} is as {release}: all {requests:,} requests agree")
        return max(unknown, int(bool(unstarted)))
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
        size=sum(len(step.ids) for step in steps),
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
        taken = progress.track(kept.take(workloads), workloads, description=f"running {wheel}")
        recordings = tuple(taken)
    known = known_trials()

    def log(line: str) -> None:
        beside.print(f"  {line}")

    fit = Search(recordings, known, play_under, log).run()
    others = Recordings(wheel.release, seed=seed + ANOTHER, version=wheel.version)
    probed = probe(_open(fit, wheel, known, recordings), fit.trial, others)
    found = [each.recording for each in probed if each.recording]
    more = tuple({each.workload.name: each for each in found}.values())
    first, fit = fit, Search((*recordings, *more), known, play_under, log).run() if more else fit
    out.print(f"{wheel}: {fit.requests:,} requests in {len(recordings):,} workloads, seed {seed}")
    table = Table("rules", "as in", box=SIMPLE_HEAD)
    table.add_column("requests", justify="right")
    table.add_row(f"{fit.nearest} as it is", "", f"{fit.at_first:,}")
    for step in fit.steps:
        for change in step.changes[:-1]:
            table.add_row(str(change), ", ".join(_holding(change, known)), "")
        last = step.changes[-1]
        table.add_row(str(last), ", ".join(_holding(last, known)), f"{step.agreeing:,}")
    out.print(table)
    if probed:
        out.print(_left_open(probed, first.trial, known))
    _show_rest(out, fit, wheel)
    return 0 if not fit.differences else 1


def _holding(change: Change, known: dict[str, Trial]) -> list[str]:
    return [name for name, trial in known.items() if change.holds(trial)]


def _open(
    fit: Fit[Trial, Difference],
    wheel: Wheel,
    known: dict[str, Trial],
    recordings: Sequence[Recording],
) -> tuple[Change, ...]:
    """Rules that no request depends on; first those in which the neighbours differ."""
    others = [name for name in known if name != wheel.release]
    before = [name for name in others if int(name[1:]) < wheel.build][-1:]
    after = [name for name in others if int(name[1:]) > wheel.build][:1]
    near = [known[name] for name in (*before, *after)]
    found = open_changes(fit.trial, tuple(known.values()), recordings)
    return tuple(sorted(found, key=lambda change: not any(map(change.holds, near))))


def _left_open(probed: Sequence[Probed], trial: Trial, known: dict[str, Trial]) -> Table:
    """Rules that no workload depends on, and the results of workloads drawn for them."""
    title = "no request turned on these; others were drawn until one did"
    heads = ("rule", "found", "or", "as in", "the wheel says")
    table = Table(*heads, title=title, title_style="", box=SIMPLE_HEAD)
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
