"""Proof of a finding on the real engine, for each engine that has one."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

from cachesim.engines.family import FAMILIES, Profile
from cachesim.engines.llama_cpp_python.family import FAMILY as PYTHON
from cachesim.engines.llamacpp.family import FAMILY as LLAMA_CPP
from cachesim.engines.mlx_lm.family import FAMILY as MLX_LM
from cachesim.engines.sglang.family import FAMILY as SGLANG
from cachesim.engines.vllm.family import FAMILY as VLLM
from cachesim.errors import CachesimError, InputError
from cachesim.lab.real.agreement import Difference
from cachesim.lab.real.llama_cpp.flags import PRESETS, drafting
from cachesim.lab.real.llama_cpp.scenarios import ENDED, play_scenario
from cachesim.lab.real.llama_cpp.server import environment_for as llama_environment
from cachesim.lab.real.llama_cpp.workload import hurdle
from cachesim.lab.real.llama_cpp_python import compare as python
from cachesim.lab.real.mlx_lm.process import environment_for as mlx_environment
from cachesim.lab.real.mlx_lm.scenarios import play_mlx_scenario, playable_family
from cachesim.lab.real.playing import StepPlayed
from cachesim.lab.real.sglang.rows import differs_in as sglang_differs_in
from cachesim.lab.real.sglang.scheduler import SCHEDULER as SGLANG_SCHEDULER
from cachesim.lab.real.vllm.scheduler import SCHEDULER as VLLM_SCHEDULER
from cachesim.lab.real.vllm.steps import differs_in as vllm_differs_in
from cachesim.scenario.checks import full_profile
from cachesim.scenario.format import Scenario, Step
from cachesim.scenario.labels import CONFIRMED, DERIVED, SOURCE, Evidence
from cachesim.testing.search import Counterexample

BATCH: Final = 2048
"""Tokens that a server reads before it looks for further requests, by default."""

PATIENCE: Final = 10.0
"""Seconds after which a toy model's server is asked no more."""


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


Prove: TypeAlias = Callable[[Counterexample, Profile], ProofResult]


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


def _proven_on_the_wheel(found: Counterexample, profile: Profile) -> ProofResult:
    """Play it on the release's wheel: the answer against a cold one, or the process's end."""
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


def _on_the_package(scenario: Scenario) -> bool:
    try:
        playable_family(scenario)
    except InputError:
        return False
    return True


def _proven_on_the_package(found: Counterexample, profile: Profile) -> ProofResult:
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


def _of_an_instance(scenario: Scenario) -> bool:
    return all(
        step.do in {"complete", *python.ACTIONS} and not step.turns for step in scenario.step
    )


def _proven_on_an_instance(found: Counterexample, profile: Profile) -> ProofResult:
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


def by_metadata(
    play: Callable[[Scenario, str], Sequence[StepPlayed]],
    differs_in: Callable[[Scenario, str], Difference | None],
) -> Prove:
    """Proof by a release's scheduler and its model runner's metadata; no kernel runs."""

    def prove(found: Counterexample, profile: Profile) -> ProofResult:
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


def _always(_: object) -> bool:
    return True


PROVERS: Final[dict[str, Prover]] = {
    LLAMA_CPP.name: Prover(
        where="the wheel",
        models=tuple(each for each in PRESETS if each != "hybrid-mtp"),
        kinds=("slot file", "trips", "trips"),
        chats=False,  # the server renders them itself, and keeps its slot to itself
        fits=on_the_wheel,
        shows=lambda step: not step.messages,  # a chat's reply comes without probabilities
        prove=_proven_on_the_wheel,
        ready=lambda release: llama_environment(release).ready(),
    ),
    MLX_LM.name: Prover(
        where="the real package",
        models=("swa", "recurrent", "hybrid", "hybrid-delta"),
        kinds=("long reply",),
        sizes=((16, 12), (8, 80), (16, 12)),
        fits=_on_the_package,
        shows=_always,
        prove=_proven_on_the_package,
        ready=lambda release: mlx_environment(release).ready(),
    ),
    PYTHON.name: Prover(
        where="the real package",
        models=python.DRAWN,
        kinds=("restart",),
        fits=_of_an_instance,
        prove=_proven_on_an_instance,
        shows=_always,
        ready=lambda release: python.environment_for(release).ready(),
    ),
}
"""Engine -> its prover; of any other engine the simulator plays the workloads."""

BY_METADATA: Final[Mapping[str, Prove]] = {
    VLLM.name: by_metadata(VLLM_SCHEDULER.play_scenario, vllm_differs_in),
    SGLANG.name: by_metadata(SGLANG_SCHEDULER.play_scenario, sglang_differs_in),
}
"""Engine without a model on this machine -> proof by its scheduler and model runner."""


def proof_command(
    scenario: Scenario, profile: Profile, source: str | Path, step: int | None = None
) -> str:
    """The command that shows a wrong answer on the real engine; nothing where none does.

    Real schedulers run without a model: they prove counts, and never an answer. `step` is the one
    whose answer is wrong, where it is one.
    """
    prover = PROVERS.get(profile.engine)
    if prover is None or profile.patches or profile.release not in FAMILIES[profile.engine].real():
        return ""
    if not prover.fits(scenario) or (step is not None and not prover.shows(scenario.step[step])):
        return ""
    if scenario.engine.name != profile.engine:
        return ""  # its flags are another engine's
    listed = [full_profile(scenario.engine.name, each) for each in scenario.engine.profiles]
    release = [] if profile in listed else ["--release", profile.release]
    return shlex.join(["cachesim", "real", profile.engine, "--scenario", str(source), *release])


def prover_of(profile: Profile, models: tuple[str, ...]) -> Prover:
    """The engine's prover, or one whose workloads are played on the simulator."""
    found = PROVERS.get(profile.engine)
    if found is not None:
        return found
    released = profile.release in FAMILIES[profile.engine].real()
    return Prover(
        where="the simulator",
        models=models,
        kinds=(),
        fits=_always,
        shows=_always,
        prove=BY_METADATA.get(profile.engine, _simulated) if released else _simulated,
        ready=lambda _: None,
    )


def proof_of(found: Counterexample, profile: Profile) -> ProofResult:
    """The real engine's answer to a finding, if it can be played there."""
    prover = prover_of(profile, ())
    if prover.fits(found.scenario):
        return prover.prove(found, profile)
    return ProofResult(confirmed=False, seen=f"cannot be played on {prover.where}")


def _simulated(found: Counterexample, _: Profile) -> ProofResult:
    return ProofResult(confirmed=True, label=SOURCE, seen=found.finding.detail)
