"""Proof of a finding on the wheel of a llama.cpp release."""

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cachesim.engines.family import Profile
from cachesim.errors import CachesimError
from cachesim.lab.real.llama_cpp.flags import PRESETS, drafting
from cachesim.lab.real.llama_cpp.scenarios import ENDED, play_scenario
from cachesim.lab.real.llama_cpp.server import environment_for
from cachesim.lab.real.llama_cpp.workload import hurdle
from cachesim.lab.real.proving import ProofResult, Prover
from cachesim.scenario.format import Scenario

if TYPE_CHECKING:
    from cachesim.testing.search import Counterexample

BATCH: Final = 2048
"""Tokens that a server reads before it looks for further requests, by default."""

PATIENCE: Final = 10.0
"""Seconds after which a toy model's server is asked no more."""


def on_the_wheel(scenario: Scenario) -> bool:
    """True if the real llama-server can play a workload, and no clock decides how it ends."""
    steps = scenario.step
    if drafting(scenario.engine.options):
        return False  # drafts are the companion's own there
    if any(hurdle(scenario, number) for number in range(len(steps))):
        return False
    return all(
        step.turns == 1
        and "batch_size" not in scenario.engine.options
        and len(before.prompt or ()) > BATCH
        for before, step in pairwise(steps)
        if step.turns
    )


def _proven_on_the_wheel(found: "Counterexample", profile: Profile) -> ProofResult:
    try:
        played = play_scenario(found.scenario, profile.release, patience=PATIENCE)
    except CachesimError as error:
        return ProofResult(confirmed=False, seen=str(error))
    at = played[min(found.finding.step, len(played) - 1)]
    if at.real.error in ENDED:
        same = found.finding.kind == "crash" and at.agrees
        return ProofResult(confirmed=same, seen=f"{at.name}: {at.real.error}")
    differing = next((each for each in played if not each.agrees), None)
    if differing is not None:
        theirs, ours = differing.real.as_dict(), differing.simulated.as_dict()
        return ProofResult(confirmed=False, seen=f"{differing.name}: {theirs}, simulated {ours}")
    if found.finding.kind == "crash" or at.proof is None:
        return ProofResult(confirmed=False, seen=f"{at.name}: {at.real.error or 'answered'}")
    seen = f"{at.name}: {at.real.cached} cached, {at.proof}, noise {at.proof.noise:.0g}"
    return ProofResult(confirmed=at.proof.wrong, seen=seen)


PROVER: Final = Prover(
    where="the wheel",
    models=tuple(each for each in PRESETS if each != "hybrid-mtp"),
    kinds=("slot file", "trips", "trips"),
    chats=False,  # the server renders them itself, and keeps its slot to itself
    fits=on_the_wheel,
    shows=lambda step: not step.messages,  # a chat's reply comes without probabilities
    prove=_proven_on_the_wheel,
    ready=lambda release: environment_for(release).ready(),
)
