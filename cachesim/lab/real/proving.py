"""Proof of a finding: by a real server, or by a scheduler and its model runner."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cachesim.engines.family import Profile
from cachesim.errors import InputError
from cachesim.lab.real.agreement import Difference
from cachesim.lab.real.playing import StepPlayed
from cachesim.scenario.format import Scenario, Step
from cachesim.scenario.labels import CONFIRMED, DERIVED, SOURCE, Evidence

if TYPE_CHECKING:  # a command that prints the line of a proof searches for nothing
    from cachesim.testing.search import Counterexample


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResult:
    """The result of a proof: confirmed or not, and the real engine's answer."""

    confirmed: bool
    seen: str
    label: Evidence = CONFIRMED  # of a confirmed finding

    @property
    def evidence(self) -> Evidence:
        """The label of the finding."""
        return self.label if self.confirmed else SOURCE


Prove: TypeAlias = "Callable[[Counterexample, Profile], ProofResult]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prover:
    """The proof of an engine's findings."""

    where: str
    models: tuple[str, ...]  # that the real engine loads
    kinds: tuple[str, ...]  # incidents that can be played there
    fits: Callable[[Scenario], bool]  # whether a workload can be
    prove: Prove
    shows: Callable[[Step], bool]  # whether the answer to a step can be held against a cold one
    ready: Callable[[str], object]  # set the release's environment up
    chats: bool = True  # whether requests may be chats
    sizes: tuple[tuple[int, int], ...] = ((8, 80), (8, 80), (16, 80))
    """In turn: the window of models that have one, small, so that short prompts cross it, and the
    longest prompt. Where ten short ones show a defect that needs long ones seldom, ten are drawn.
    """


def by_metadata(
    play: Callable[[Scenario, str], Sequence[StepPlayed]],
    differs_in: Callable[[Scenario, str], Difference | None],
) -> Prove:
    """Proof by a release's scheduler and its model runner's metadata; no kernel runs."""

    def prove(found: "Counterexample", profile: Profile) -> ProofResult:
        seen = found.finding.detail
        try:
            played = play(found.scenario, profile.release)
            differing = next((each for each in played if not each.agrees), None)
            if differing is not None:
                seen = f"{differing.name}: {differing.real}, simulated {differing.simulated}"
                return ProofResult(confirmed=False, seen=seen)
            if played[min(found.finding.step, len(played) - 1)].confirmed:
                return ProofResult(confirmed=True, seen=seen)
            difference = differs_in(found.scenario, profile.release)
        except InputError:  # a workload that they are not given
            return ProofResult(confirmed=True, label=SOURCE, seen=seen)
        if difference is not None:
            seen = f"step {difference.step} of the model runner differs from the simulated one"
            return ProofResult(confirmed=False, seen=seen)
        return ProofResult(confirmed=True, label=DERIVED, seen=seen)

    return prove


def always(_: object) -> bool:
    """True: any workload, or any step."""
    return True
