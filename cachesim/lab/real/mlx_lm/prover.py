"""Proof of a finding on the real mlx-lm of a release."""

from typing import TYPE_CHECKING, Final

from cachesim.engines.family import Profile
from cachesim.errors import CachesimError, InputError
from cachesim.lab.real.mlx_lm.process import environment_for
from cachesim.lab.real.mlx_lm.scenarios import play_mlx_scenario, playable_families
from cachesim.lab.real.proving import ProofResult, Prover, always
from cachesim.scenario.format import Scenario

if TYPE_CHECKING:
    from cachesim.testing.search import Counterexample


def _on_the_package(scenario: Scenario) -> bool:
    try:
        playable_families(scenario)
    except InputError:
        return False
    return True


def _proven_on_the_package(found: "Counterexample", profile: Profile) -> ProofResult:
    """Play it on mlx-lm's own server, and hold its answer against a cold one of the same model."""
    try:
        played = play_mlx_scenario(found.scenario, profile.release)
    except CachesimError as error:
        return ProofResult(confirmed=False, seen=str(error))
    at = played[min(found.finding.step, len(played) - 1)]
    cached, answer, refusal = at.real
    wrong = answer == "diverged" or (found.finding.kind == "crash" and refusal is not None)
    seen = f"{at.name}: {refusal or f'{cached} cached, {answer}'}"
    return ProofResult(confirmed=wrong and at.agrees, seen=seen)


PROVER: Final = Prover(
    where="the real package",
    models=("swa", "recurrent", "hybrid", "hybrid-delta"),
    kinds=("long reply",),
    sizes=((16, 12), (8, 80), (16, 12)),
    fits=_on_the_package,
    shows=always,
    prove=_proven_on_the_package,
    ready=lambda release: environment_for(release).ready(),
)
