"""The defects that `python -m benchmarks bugs` searches for: reports with a profile that has it.

Collected from the scenarios: the profile of `before` has the defect, that of `after` does not.
A workload shows the defect where the first fails at a step and the second does not; reuse is lost
where `check --find lost` reports it of the first, and the second reuses more.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from cachesim.engines.family import Profile
from cachesim.errors import InputError
from cachesim.play.runner import run
from cachesim.scenario.files import load
from cachesim.scenario.format import Scenario, Seen
from cachesim.testing.search import trial_of
from cachesim.testing.survey import lost
from cachesim.testing.workloads import Shape

SCENARIOS: Final = Path(__file__).parent.parent / "scenarios"
SHAPE: Final = Shape(incidents=True, chats=True)
"""As `cachesim check --all` draws."""

Effect: TypeAlias = Literal["wrong", "crash", "lost"]
CRASHES: Final = ("aborted", "endless", "worker died")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A profile with a defect, and one without it."""

    name: str
    effect: Effect
    profile: Profile
    control: Profile
    model: str

    def shown(self, scenario: Scenario, number: int) -> Mapping[int, int]:
        """The steps of a workload that fail on the profile, each with its cached tokens."""
        if self.effect == "lost":
            played = run(scenario, self.profile, arithmetic="ring")
            return {step: played.steps[step].cached or 0 for _, step, _ in lost(played, scenario)}
        return dict.fromkeys(self._failed(scenario, self.profile, number), 0)

    def is_own(self, scenario: Scenario, steps: Mapping[int, int]) -> bool:
        """True if the control plays the workload too, and one of these steps better."""
        try:
            if self.effect == "lost":
                played = run(scenario, self.control, arithmetic="ring").steps
                return any((played[step].cached or 0) > cached for step, cached in steps.items())
            return bool(steps.keys() - self._failed(scenario, self.control, 0))
        except InputError:
            return False

    def _failed(self, scenario: Scenario, profile: Profile, number: int) -> set[int]:
        trial = trial_of(number, scenario, profile, arithmetic="ring", stop_early=False)
        crash = self.effect == "crash"
        return {each.step for each in trial.findings if (each.kind == "crash") == crash}


def defects(part: str = "") -> Iterator[Defect]:
    """All of them; with `part` those whose name or profile contains it."""
    for path in sorted(SCENARIOS.glob("*/*.toml")):
        found = _of(load(path))
        if found is not None and (part in found.name or part in str(found.profile)):
            yield found


def _of(scenario: Scenario) -> Defect | None:
    before, after = scenario.shows.before, scenario.shows.after
    effect = _effect(before, after)
    if effect is None or not after.profile or before.profile == after.profile:
        return None
    profile, control = (
        Profile.parse(f"{scenario.engine.name}@{each.profile}") for each in (before, after)
    )
    return Defect(
        name=scenario.name,
        effect=effect,
        profile=profile,
        control=control,
        model=scenario.model.preset or "hybrid",
    )


def _effect(before: Seen, after: Seen) -> Effect | None:
    if before.answer == "diverged":
        return "wrong"
    if before.error is not None:
        return "crash" if before.error.startswith(CRASHES) else None
    if before.cached is not None and after.cached is not None and before.cached < after.cached:
        return "lost"
    return None
