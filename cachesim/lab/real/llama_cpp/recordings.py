"""Answers of a wheel's servers to random workloads, kept on disk and run once.

A recording is a line of JSON. It is used again as long as the generator still sends what was sent
then; from the first workload on that it would ask otherwise, the wheel is run again. Rules that
the recorded workloads leave open are decided by others, on which the simulator's answers under
both values part:

    drawn 0 .. drawn 41 alike, drawn 42 parts   ->   drawn 42 is run on the wheel

The wheel replies otherwise than the simulator, so the workload that grows on it is not quite the
same; where it no longer parts the two values, the next is drawn.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cachesim.errors import CachesimError
from cachesim.lab.real.environment import environments_folder
from cachesim.lab.real.fit import Change, changes
from cachesim.lab.real.llama_cpp.compare import Difference, SideBySide, first_difference
from cachesim.lab.real.llama_cpp.simulated import SimulatedServer, Trial
from cachesim.lab.real.llama_cpp.workload import Outcome, Release
from cachesim.lab.real.llama_cpp.workloads import Setting, draw_setting, grow
from cachesim.scenario.checks import read
from cachesim.scenario.files import to_toml
from cachesim.scenario.format import Scenario, Step
from cachesim.typed import Value, there_is
from cachesim.units import as_tokens

UNRECORDED: Final = frozenset({"top", "prompt_seconds", "reply_seconds"})
"""Fields of an outcome that no comparison reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A workload with the answers of the wheel's server."""

    workload: Scenario
    outcomes: tuple[Outcome, ...]

    @classmethod
    def from_line(cls, line: str) -> "Recording":
        plain = json.loads(line)
        outcomes = tuple(_outcome(each) for each in plain["outcomes"])
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
            {name: value for name, value in asdict(each).items() if name not in UNRECORDED}
            for each in self.outcomes
        ]
        return json.dumps({"workload": to_toml(self.workload), "outcomes": outcomes})


def _outcome(plain: dict[str, Any]) -> Outcome:
    drafts = plain.pop("drafts")
    reply = as_tokens(plain.pop("reply"))
    proposed = None if drafts is None else tuple(as_tokens(each) for each in drafts)
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
        with (
            SideBySide(self.release, version=self.version) as pair,
            self.file.open("a") as file,
        ):
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
    except (CachesimError, ArithmeticError, LookupError, AssertionError) as error:
        # Rules that no server ever had together may contradict one another.
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
    played = [(each, play_under(each, trial)) for each in recordings]
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
        waiting = [each for each in rules if each not in decisive and turned[each] < PLAYED]
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
    found = ((each, turned[each], decisive.get(each)) for each in rules)
    return tuple(Probed(change=c, turned=n, recording=recording) for c, n, recording in found)


def server_under(setting: Setting, trial: Trial) -> SimulatedServer:
    """A fresh simulated server under rules that are tried."""
    return SimulatedServer(setting.workload(), trial=trial)
