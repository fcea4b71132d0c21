"""Proof of a finding on the real llama-cpp-python of a release."""

from typing import TYPE_CHECKING, Final

from cachesim.engines.family import Profile
from cachesim.errors import CachesimError
from cachesim.lab.real.llama_cpp_python import compare as python
from cachesim.lab.real.proving import ProofResult, Prover, always
from cachesim.scenario.format import Scenario

if TYPE_CHECKING:
    from cachesim.testing.search import Counterexample


def _of_an_instance(scenario: Scenario) -> bool:
    return all(
        step.do in {"complete", *python.ACTIONS} and not step.turns for step in scenario.step
    )


def _proven_on_an_instance(found: "Counterexample", profile: Profile) -> ProofResult:
    """Play it on the real `Llama`, and hold its logits against those of a fresh instance."""
    try:
        played = python.play_scenario(found.scenario, profile.release)
    except CachesimError as error:
        return ProofResult(confirmed=False, seen=str(error))
    differing = next((each for each in played if not each.agrees), None)
    if differing is not None:
        seen = f"{differing.name}: {differing.real}, simulated {differing.simulated}"
        return ProofResult(confirmed=False, seen=seen)
    at = played[min(found.finding.step, len(played) - 1)]
    cached, answer, *_ = at.cells
    return ProofResult(confirmed=bool(at.confirmed), seen=f"{at.name}: {cached} cached, {answer}")


PROVER: Final = Prover(
    where="the real package",
    models=python.DRAWN,
    kinds=("restart",),
    fits=_of_an_instance,
    prove=_proven_on_an_instance,
    shows=always,
    ready=lambda release: python.environment_for(release).ready(),
)
