"""Proof of a finding on the real engine, for each engine that has one."""

import shlex
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cachesim.engines.family import FAMILIES, Profile
from cachesim.lab.real.proving import ProofResult, Prove, Prover, always
from cachesim.scenario.checks import full_profile
from cachesim.scenario.format import Scenario
from cachesim.scenario.labels import SOURCE

if TYPE_CHECKING:
    from cachesim.testing.search import Counterexample

PROVERS: Final = {
    "llama.cpp": "llama_cpp",
    "mlx-lm": "mlx_lm",
    "llama-cpp-python": "llama_cpp_python",
}
"""Engine that answers on this machine -> package of its prover."""

BY_METADATA: Final = ("vllm", "sglang")
"""Engines without a model on this machine: proof by their scheduler and model runner."""


def real_prover(engine: str) -> Prover | None:
    """The prover of an engine that answers on this machine; imported here, as it is heavy."""
    if engine not in PROVERS:
        return None
    prover: Prover = import_module(f"cachesim.lab.real.{PROVERS[engine]}.prover").PROVER
    return prover


def proof_command(
    scenario: Scenario, profile: Profile, source: str | Path, step: int | None = None
) -> str:
    """The command that shows a wrong answer on the real engine; nothing where none does.

    Real schedulers run without a model: they prove counts, and never an answer. `step` is the one
    whose answer is wrong, where it is one.
    """
    if profile.patches or profile.release not in FAMILIES[profile.engine].real():
        return ""
    prover = real_prover(profile.engine)
    if prover is None:
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
    found = real_prover(profile.engine)
    if found is not None:
        return found
    prove: Prove = _simulated
    if profile.engine in BY_METADATA and profile.release in FAMILIES[profile.engine].real():
        prove = import_module(f"cachesim.lab.real.{profile.engine}.prover").PROVE
    return Prover(
        where="the simulator",
        models=models,
        kinds=(),
        fits=always,
        shows=always,
        prove=prove,
        ready=lambda _: None,
    )


def proof_of(found: "Counterexample", profile: Profile) -> ProofResult:
    """The real engine's answer to a finding, if it can be played there."""
    prover = prover_of(profile, ())
    if prover.fits(found.scenario):
        return prover.prove(found, profile)
    return ProofResult(confirmed=False, seen=f"cannot be run on {prover.where}")


def _simulated(found: "Counterexample", _: Profile) -> ProofResult:
    return ProofResult(confirmed=True, label=SOURCE, seen=found.finding.detail)
