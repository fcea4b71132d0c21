"""Workloads on which a rule turns, where the recorded ones leave it open.

The simulator plays random workloads under both values of a rule, until they part:

    drawn 0 .. drawn 41 alike, drawn 42 parts   ->   drawn 42 is played on the wheel

The wheel says other replies than the simulator, so the workload that grows on it is not quite the
same. One that tells neither value from the other any more says nothing, and the next is drawn.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cachesim.lab.real.fit.search import Change, changes
from cachesim.lab.real.llama_cpp.compare import Difference
from cachesim.lab.real.llama_cpp.fit.recordings import Recording, Recordings, play_under
from cachesim.lab.real.llama_cpp.simulated import SimulatedServer
from cachesim.lab.real.llama_cpp.trial import Trial
from cachesim.lab.real.llama_cpp.workloads import Setting, draw_setting, grow
from cachesim.typed import Value

DRAWN: Final = 400
"""So many workloads are drawn for the rules that are open."""

PLAYS: Final = 8_000
"""After so many plays on the simulator no more are drawn: a quarter of an hour or less."""

PLAYED: Final = 3
"""So many of those on which a rule turns are played on the wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A rule that was open, and what the wheel said of it."""

    change: Change  # the other value
    turned: int = 0  # workloads on which the simulator's answers depend on it
    told: Recording | None = None  # the wheel's answers on which the two values part

    def value(self, trial: Trial) -> Value | None:
        """The value that agrees with the wheel for longer; None where nothing tells them apart."""
        if self.told is None:
            return None
        ours = self.told.agreeing(play_under(self.told, trial))
        theirs = self.told.agreeing(play_under(self.told, self.change.of(trial)))
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
    """Draw workloads for open rules; play those on which one turns, until the wheel tells."""
    turned: Counter[Change] = Counter()
    told: dict[Change, Recording] = {}
    plays = 0
    for number in range(most):
        waiting = [each for each in rules if each not in told and turned[each] < PLAYED]
        if not waiting or plays > PLAYS:
            break
        drawn = _simulated(number, trial, recordings)
        turning = [each for each in waiting if parts(drawn, None, each.of(trial))]
        plays += 1 + len(waiting)
        if not turning:
            continue
        turned.update(turning)
        heard = recordings.play(number)
        ours = play_under(heard, trial)
        told |= {each: heard for each in turning if parts(heard, ours, each.of(trial))}
    return tuple(Probed(change=each, turned=turned[each], told=told.get(each)) for each in rules)


def _simulated(number: int, trial: Trial, recordings: Recordings) -> Recording:
    setting = draw_setting(recordings.seed, number, release=recordings.release)
    workload, outcomes = grow(setting, server_under(setting, trial))
    return Recording(workload=workload, outcomes=outcomes)


def server_under(setting: Setting, trial: Trial) -> SimulatedServer:
    """A fresh simulated server under rules that are tried."""
    return SimulatedServer(setting.workload(), trial=trial)
