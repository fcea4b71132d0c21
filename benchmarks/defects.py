"""The defects that `python -m benchmarks bugs` searches for: reports with a profile that has it.

Collected from the scenarios: the profile of `before` has the defect, that of `after` does not.
A workload shows the defect where the first fails at a step and the second does not:

    wrong, crash   as `check --all` reports it of the first
    lost           as `check --find lost` reports it of the first, and the second reuses more
    less           the second reuses more, as `check --against` compares: of these engines' states
                   `--find lost` knows nothing
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, Literal, TypeAlias

from cachesim.engines.family import Profile
from cachesim.errors import InputError
from cachesim.play.runner import run
from cachesim.play.session import Session
from cachesim.scenario.files import load
from cachesim.scenario.format import Scenario, Seen
from cachesim.testing.search import trial_of
from cachesim.testing.survey import lost
from cachesim.testing.workloads import Shape

SCENARIOS: Final = Path(__file__).parent.parent / "scenarios"
SHAPE: Final = Shape(incidents=True, chats=True)
"""As `cachesim check --all` draws."""

Effect: TypeAlias = Literal["wrong", "crash", "lost", "less"]
LISTING: Final = ("llama.cpp", "ik_llama.cpp")
"""Engines that list their checkpoints."""

CRASHES: Final = ("aborted", "endless", "worker died", "server_error")


BEYOND: Final = {"omlx-2812-state-of-one-array": "prompts beyond 4,096 tokens, with convolutions"}
"""Defects that no drawn workload can show, and the reason."""

RARE: Final = {
    "mlx-lm-1494-chunk-cut-short": "by earlier searches",
    "omlx-3699-no-boundary-snapshot": "prompts beyond 4,096 tokens",
    "mlx-lm-rotated-ring-hides-the-first-token": "three chats of certain lengths together",
    "sglang-34760-state-beyond-its-node": "two flags, prompts beyond both together",
    "sglang-34870-eagle-window-counted-in-tokens": "EAGLE beside windows",
    "sglang-35694-state-beyond-its-key": "drafts beside two flags",
    "sglang-40680-state-not-written-back": "an inner state evicted under `write_back`",
    "sglang-39436-too-few-states": "six long prompts, few states",
    "sglang-state-of-an-earlier-match": "a match evicted while its request waits",
    "vllm-44409-load-overwrites-its-own-hit": "a store beside a nearly full pool",
    "vllm-53505-drafts-beside-a-store": "four flags at once",
    "vllm-57266-empty-slice-ends-the-engine": "two flags at once",
    "vllm-57266-state-of-another-length": "two flags at once",
    "vllm-57580-withdrawn-before-it-ran": "a block needed in the step that takes the last",
    "vllm-57661-ring-cut-off": "two flags at once",
}
"""Defects that a search is slow to find, and what it has to draw for them."""


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
        if self.effect == "less":
            return self._cached(scenario, self.profile)
        return dict.fromkeys(self._failed(scenario, self.profile, number), 0)

    def is_own(self, scenario: Scenario, steps: Mapping[int, int]) -> bool:
        """True if the control plays the workload too, and one of these steps better."""
        try:
            if self.effect in {"lost", "less"}:
                control = self._cached(scenario, self.control)
                return any(control.get(step, 0) > cached for step, cached in steps.items())
            return bool(steps.keys() - self._failed(scenario, self.control, 0))
        except InputError:
            return False

    def _cached(self, scenario: Scenario, profile: Profile) -> dict[int, int]:
        records = Session(scenario, profile, arithmetic="ring", reads_state=False, thin=True).run()
        replies = ((record.index, record.reply) for record in records)
        return {at: reply.cached for at, reply in replies if reply and reply.cached is not None}

    def _failed(self, scenario: Scenario, profile: Profile, number: int) -> set[int]:
        trial = trial_of(number, scenario, profile, arithmetic="ring", stop_early=False)
        ends = self.effect == "crash"
        return {e.step for e in trial.findings if (e.kind in {"crash", "refusal"}) == ends}


REPORTED: Final = (
    ("mlx-lm-983", "mlx-lm@0.31.1", "mlx-lm@0.32.2", "swa"),
    ("mlx-lm-1129", "mlx-lm@0.31.2", "mlx-lm@0.32.2", "hybrid-delta"),
    ("vllm-45407", "vllm@0.19.1", "vllm@0.33.0", "hybrid"),
)
"""Crashes that were reported, and are not in a scenario."""


def defects(part: str = "") -> Iterator[Defect]:
    """All of them; with `part` those whose name or profile contains it."""
    scenarios = (_of(load(path)) for path in sorted(SCENARIOS.glob("*/*.toml")))
    reported = (
        Defect(
            name=name,
            effect="crash",
            profile=Profile.parse(profile),
            control=Profile.parse(control),
            model=model,
        )
        for name, profile, control, model in REPORTED
    )
    for found in chain(scenarios, reported):
        if found is not None and (part in found.name or part in str(found.profile)):
            yield found


def _of(scenario: Scenario) -> Defect | None:
    before, after = scenario.shows.before, scenario.shows.after
    effect = _effect(before, after)
    if effect == "lost" and scenario.engine.name not in LISTING:
        effect = "less"
    if effect is None or not after.profile or before.profile == after.profile:
        return None
    if scenario.images:  # no search draws them
        return None
    profile, control = (
        Profile.parse(f"{scenario.engine.name}@{seen.profile}") for seen in (before, after)
    )
    return Defect(
        name=scenario.name,
        effect=effect,
        profile=profile,
        control=control,
        model=scenario.model.preset or "swa",
    )


def _effect(before: Seen, after: Seen) -> Effect | None:
    if before.answer == "diverged":
        return "wrong"
    if before.error is not None:
        return "crash" if before.error.startswith(CRASHES) else None
    if before.cached is not None and after.cached is not None and before.cached < after.cached:
        return "lost"
    return None
