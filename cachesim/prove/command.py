"""The command that shows a wrong answer on the real engine.

Every `cachesim run` with a wrong answer prints it, so nothing of the engines' servers is imported.
"""

import shlex
from importlib import import_module
from pathlib import Path
from typing import Final

from cachesim.engines.family import FAMILIES, Profile
from cachesim.prove import workbench
from cachesim.scenario.checks import full_profile
from cachesim.scenario.format import Scenario

ANSWERING: Final = {
    "llama.cpp": "llama_cpp",
    "mlx-lm": "mlx_lm",
    "llama-cpp-python": "llama_cpp_python",
}
"""Engine that answers on this machine -> package with what fits there, and what plays it."""


BINARY: Final = "YOUR-LLAMA-SERVER-OF-{release}"
"""A path in a printed command: ik_llama.cpp has no package, so its server is built by hand."""


def plays_on_a_binary(scenario: Scenario) -> bool:
    """True if `cachesim real ik_llama.cpp` plays a scenario: plain requests, a model that loads."""
    if scenario.engine.name != "ik_llama.cpp":
        return False
    return (
        scenario.model.preset in FAMILIES[scenario.engine.name].loads
        and scenario.engine.options.get("companion", "none") != "strict_tail"
        and not any(
            step.messages or step.leaves or step.drafts or "cancel_after_ubatches" in step.options
            for step in scenario.step
        )
    )


def proof_command(
    scenario: Scenario, profile: Profile, source: str | Path, step: int | None = None
) -> str:
    """The command that shows a wrong answer on the real engine; nothing where none does.

    Real schedulers run without a model: they prove counts, and never an answer. `step` is the one
    whose answer is wrong, where it is one.
    """
    if profile.engine == "ik_llama.cpp" and not profile.patches and plays_on_a_binary(scenario):
        # Servers without a package are the workbench's: a wheel cannot run the command.
        if profile.engine not in workbench.added(workbench.COMMANDS):
            return ""
        words = ["--binary", BINARY.format(release=profile.release), "--scenario", str(source)]
        words += ["--release", profile.release]
        return shlex.join(["cachesim", "real", profile.engine, *words])
    if profile.patches or profile.release not in FAMILIES[profile.engine].real():
        return ""
    if scenario.engine.name != profile.engine:
        return ""  # its flags are another engine's
    if profile.engine not in ANSWERING:
        return ""
    real = import_module(f"cachesim.prove.{ANSWERING[profile.engine]}.fitting")
    if not real.fits(scenario) or (step is not None and not real.shows(scenario.step[step])):
        return ""
    listed = [full_profile(scenario.engine.name, text) for text in scenario.engine.profiles]
    release = [] if profile in listed else ["--release", profile.release]
    return shlex.join(["cachesim", "real", profile.engine, "--scenario", str(source), *release])
