"""Two profiles on the same workloads: which reuses more, and which answers wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from cachesim.engines.family import Profile
from cachesim.model.arithmetic import ArithmeticName
from cachesim.scenario.format import Scenario
from cachesim.testing.search import Trial, look, playable, workloads
from cachesim.testing.workloads import DEFAULT, Shape


@dataclass(slots=True, kw_only=True)
class Side:
    """The totals of one profile."""

    profile: Profile
    cached: int = 0
    wrong: int = 0
    crashed: int = 0
    more: int = 0  # requests of which this side reused more than the other
    first_wrong: Scenario | None = None

    def add(self, scenario: Scenario, trial: Trial, other: Trial) -> None:
        """Count one workload."""
        self.cached += sum(cached or 0 for cached in trial.cached)
        self.wrong += trial.wrong
        self.crashed += trial.finding is not None and trial.finding.kind == "crash"
        pairs = zip(trial.cached, other.cached, strict=False)
        self.more += sum((mine or 0) > (theirs or 0) for mine, theirs in pairs)
        if trial.wrong and self.first_wrong is None:
            self.first_wrong = scenario


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Both sides, over the same requests."""

    one: Side
    other: Side
    workloads: int = 0
    requests: int = 0
    prompt_tokens: int = 0

    @property
    def verdict(self) -> tuple[str, str]:
        """The comparison in words: better or not, and safe or not."""
        one, other = self.one, self.other
        share = 100 * (other.cached - one.cached) / max(1, self.prompt_tokens)
        words = {True: "more", False: "less"}[share > 0]
        better = f"reuses {abs(share):.2f} % of all tokens {words}" if share else "reuses the same"
        if other.wrong == one.wrong:
            safe = f"answers wrong as often, {other.wrong} times"
        else:
            safe = f"answers wrong {other.wrong} times, the other {one.wrong}"
        return f"{other.profile} {better};", f"it {safe}."


def compare(
    one: Profile,
    other: Profile,
    model: str,
    *,
    examples: int,
    seed: int = 0,
    arithmetic: ArithmeticName = "ring",
    shape: Shape = DEFAULT,
    going: Callable[[Comparison], bool] = lambda _: True,
) -> Comparison:
    """Play the same workloads on both; one that only one of them takes is left out."""
    found = Comparison(one=Side(profile=one), other=Side(profile=other))
    for scenario in islice(workloads(one, model, seed=seed, shape=shape), examples):
        if not going(found):
            break
        if not playable(scenario, other):
            continue
        trials = [
            look(found.workloads, scenario, profile, arithmetic=arithmetic, stop_early=False)
            for profile in (one, other)
        ]
        found.workloads += 1
        found.requests += trials[0].requests
        found.prompt_tokens += sum(len(step.prompt or ()) for step in scenario.step)
        found.one.add(scenario, *trials)
        found.other.add(scenario, *reversed(trials))
    return found
