"""Search for a workload whose answer is wrong, or that breaks an invariant."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, islice
from typing import Final

from cachesim.engines.family import family_of
from cachesim.engines.profile import Profile
from cachesim.errors import InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.scenario.format import Expect, Scenario
from cachesim.testing.draws import Seeded
from cachesim.testing.shrink import shrink
from cachesim.testing.trial import Finding, Trial, play
from cachesim.testing.workloads import DEFAULT, Shape, draw_workload
from cachesim.verify.oracle import Oracles

WHOLE: Final = 16
"""Every so many workloads one is played on all layers: a mix-up among them shows only there."""

BYTES: Final = ("bytes", "MiB")
"""Units of flags that set how much memory there is."""

UNLIMITED: Final = (None, 0, -1)
"""Such a flag left out, nothing kept, no limit: whatever the bytes, the decisions are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A workload that shows something wrong, and the smallest one found that still does."""

    number: int
    finding: Finding
    scenario: Scenario
    arithmetic: ArithmeticName


@dataclass(slots=True, kw_only=True)
class Report:
    """What a search did."""

    profile: Profile
    model: str
    workloads: int = 0
    requests: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    exercised: Counter[str] = field(default_factory=Counter)
    counterexample: Counterexample | None = None
    rate: float = 0.0  # workloads a second, as whoever watches the clock measured it

    def add(self, scenario: Scenario, trial: Trial) -> None:
        """Count one more workload."""
        self.workloads += 1
        self.requests += trial.requests
        self.cached_tokens += sum(cached or 0 for cached in trial.cached)
        self.prompt_tokens += sum(len(step.prompt or ()) for step in scenario.step)
        self.exercised.update(trial.exercised)

    def join(self, other: "Report") -> None:
        """Count what another search did after this one."""
        self.workloads += other.workloads
        self.requests += other.requests
        self.cached_tokens += other.cached_tokens
        self.prompt_tokens += other.prompt_tokens
        self.exercised.update(other.exercised)
        self.counterexample = self.counterexample or other.counterexample


def workloads(
    profile: Profile, model: str, *, seed: int = 0, first: int = 0, shape: Shape = DEFAULT
) -> Iterator[Scenario]:
    """The workloads of a seed from a number on, one after another without end."""
    for number in count(first):
        draws = Seeded(f"{profile.engine} {model} {seed} {number}")
        yield draw_workload(draws, profile, model, shape, name=f"{model}-{seed}-{number}")


def search(
    profile: Profile,
    model: str,
    *,
    examples: int,
    seed: int = 0,
    first: int = 0,
    arithmetic: ArithmeticName = "ring",
    shape: Shape = DEFAULT,
    going: Callable[[Report], bool] = lambda _: True,
) -> Report:
    """Play workloads until one shows something wrong, all are played, or told to stop."""
    report = Report(profile=profile, model=model)
    drawn = islice(workloads(profile, model, seed=seed, first=first, shape=shape), examples)
    for number, scenario in enumerate(drawn, first):
        if not going(report):
            break
        trial = look(number, scenario, profile, arithmetic=arithmetic)
        report.add(scenario, trial)
        if trial.finding is not None:
            report.counterexample = reduced(number, scenario, trial.finding, profile, arithmetic)
            break
    return report


def look(
    number: int,
    scenario: Scenario,
    profile: Profile,
    *,
    arithmetic: ArithmeticName,
    stop_early: bool = True,
    oracles: Oracles | None = None,
) -> Trial:
    """Play a workload on one layer of each kind; what it finds has to show on all of them.

    A cache takes the same decisions for more layers of a kind, which only make the network slow.
    The replies of a workload are given, so the network has no say in what comes next.
    """
    played = partial(
        play, scenario, profile, arithmetic=arithmetic, stop_early=stop_early, oracles=oracles
    )
    if number % WHOLE and not weighs(scenario, profile):
        trial = played(thin=True)
        if trial.finding is None:
            return trial
    return played()


def weighs(scenario: Scenario, profile: Profile) -> bool:
    """Whether a flag limits memory in bytes, so that the number of layers decides too."""
    given = scenario.engine.options
    return any(given.get(name) not in UNLIMITED for name in _limits(profile.engine))


@cache
def _limits(engine: str) -> tuple[str, ...]:
    table = family_of(engine).table()
    return tuple(each.name for each in table if each.kind == "size" or each.unit in BYTES)


def reduced(
    number: int,
    scenario: Scenario,
    finding: Finding,
    profile: Profile,
    arithmetic: ArithmeticName,
) -> Counterexample:
    """The smallest workload found that shows the same kind of thing."""
    oracles = Oracles()

    def shows(candidate: Scenario) -> bool:
        try:
            trial = play(candidate, profile, arithmetic=arithmetic, oracles=oracles)
        except InputError:  # what was simplified no longer fits together
            return False
        return finding.same_kind(trial.finding)

    smallest = shrink(scenario, shows)
    whole = play(smallest, profile, arithmetic=arithmetic, stop_early=False)
    return Counterexample(
        number=number,
        finding=whole.finding or finding,
        scenario=_expecting_the_cold_answer(smallest, profile, whole),
        arithmetic=arithmetic,
    )


def _expecting_the_cold_answer(scenario: Scenario, profile: Profile, trial: Trial) -> Scenario:
    """The scenario with the cold answer as its expectation: it fails until the bug is fixed."""
    about = f"Found by search on {profile}: {trial.finding.detail if trial.finding else ''}."
    return replace(scenario, about=about, expect=(Expect(answer="same"),))
