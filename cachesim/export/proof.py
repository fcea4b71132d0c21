"""An exported test, run against a release that has the defect and one that has not."""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import copy
from typing import Final, Literal, TypeAlias

from cachesim.engines.family import Profile, family_of
from cachesim.export import stand_in
from cachesim.export.case import Case
from cachesim.prove.environment import Environment
from cachesim.prove.llama_cpp import worker
from cachesim.prove.llama_cpp.server import environment_for as llama_cpp_environment
from cachesim.prove.mlx_lm.process import environment_for as mlx_lm_environment
from cachesim.prove.vllm.files import files_of as vllm_files
from cachesim.prove.worker_process import ROOT

Result: TypeAlias = Literal["passes", "fails", "error"]

SECONDS: Final = 240
SUITE: Final = Environment(name="export-suite", requirements=("pytest", "numpy"))
"""What runs a test that talks to a server of another environment."""

FOLDER: Final = Path(stand_in.__file__).parent

HAS_FAILED: Final = 1
"""Exit status of pytest and unittest after a failed test; another one is an error of the file."""

FAILED: Final = re.compile(
    r"AssertionError|^E +assert |RemoteDisconnected|ConnectionResetError|timed out", re.MULTILINE
)
"""What a test says that fails by its own statement, or because the server ended or hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A test on a profile: its result, and the last lines that it printed."""

    profile: Profile
    result: Result
    output: str = ""


def run_llama_cpp(text: str, profile: Profile, folder: Path) -> Ran:
    """The test beside the stand-in of the suite's helpers, on the server of a release's wheel."""
    server = llama_cpp_environment(profile.release).ready()
    binary = folder / "llama-server"
    shim = FOLDER / "llama_server.py"
    binary.write_text(f'#!/bin/sh\nexec "{server}" "{shim}" "{worker.__file__}" "$@"\n')
    binary.chmod(0o755)
    copy(FOLDER / "utils.py", folder / "utils.py")
    test = folder / "test_exported.py"
    test.write_text(text, encoding="utf-8")
    command = [str(SUITE.ready()), "-m", "pytest", "-q", "-p", "no:cacheprovider", test.name]
    return _ran(profile, command, folder, {"LLAMA_SERVER_BIN_PATH": str(binary)})


def run_mlx_lm(text: str, profile: Profile, folder: Path) -> Ran:
    """The test by itself, in the environment of a release."""
    (folder / "test_exported.py").write_text(text, encoding="utf-8")
    python = mlx_lm_environment(profile.release).ready()
    return _ran(profile, [str(python), "-m", "unittest", "test_exported"], folder, {})


def run_vllm(text: str, profile: Profile, folder: Path) -> Ran:
    """The test on the Python files of a release; a strict xfail counts as the failure that it is.

    A scheduler runs no kernel, so the compiled part of the wheel stays empty.
    """
    files = vllm_files(profile.release)
    python, suite = files.ready(), SUITE
    suite.ready()
    copy(FOLDER / "vllm_conftest.py", folder / "conftest.py")
    (folder / "test_exported.py").write_text(text, encoding="utf-8")
    command = [str(python), "-m", "pytest", "-q", "--runxfail", "-p", "no:cacheprovider"]
    paths = os.pathsep.join((str(ROOT), str(suite.site)))
    variables = {"PYTHONPATH": paths, "VLLM_FILES": str(files.folder), "HF_HUB_OFFLINE": "1"}
    return _ran(profile, [*command, "test_exported.py"], folder, variables)


def _ran(profile: Profile, command: list[str], folder: Path, variables: Mapping[str, str]) -> Ran:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout if isinstance(error.stdout, str) else ""
        return Ran(profile=profile, result="error", output=f"{said}\nno end in {SECONDS} seconds")
    failed = done.returncode == HAS_FAILED and FAILED.search(done.stdout)
    result: Result = "passes" if done.returncode == 0 else "fails" if failed else "error"
    return Ran(profile=profile, result=result, output=done.stdout)


Runner: TypeAlias = Callable[[str, Profile, Path], Ran]

RUNNERS: Final[Mapping[str, Runner]] = {
    "llama.cpp": run_llama_cpp,
    "mlx-lm": run_mlx_lm,
    "vllm": run_vllm,
}
"""Engine -> what runs its tests here."""


ENVIRONMENTS: Final[Mapping[str, Callable[[str], Environment]]] = {
    "llama.cpp": llama_cpp_environment,
    "mlx-lm": mlx_lm_environment,
    "vllm": vllm_files,
}
"""Engine -> the environment of a release."""


def run_on(text: str, profile: Profile) -> Ran:
    """Run a test on an unpatched release with a package."""
    with tempfile.TemporaryDirectory(prefix="export-") as folder:
        return RUNNERS[profile.engine](text, profile, Path(folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Red and green runs of a test; None where no release could be run."""

    red: Ran | None
    green: Ran | None

    @property
    def holds(self) -> bool:
        """True if every run is as the simulation said, and there is one."""
        as_said = (self.red is None or self.red.result == "fails") and (
            self.green is None or self.green.result == "passes"
        )
        return as_said and not (self.red is None and self.green is None)

    def sentence(self, case: Case) -> str:
        """What the runs showed, in a sentence or two."""
        said = [
            _said(ran, wanted)
            for ran, wanted in ((self.red, "fails"), (self.green, "passes"))
            if ran
        ]
        return " ".join([*said, self.left_out(case)]).strip()

    def left_out(self, case: Case) -> str:
        """Why it was not seen to fail, or to pass."""
        if self.red is None and case.broken:
            return f"{case.profile} has no package: the test was not seen to fail."
        if self.green is not None:
            return ""
        if case.fixed is not None and case.fixed.patches:
            return f"{case.fixed} is a proposal, which no release has: not seen to pass."
        return "No release is known that passes: the test was not seen to pass."


def _said(ran: Ran, wanted: str) -> str:
    """A run in a sentence, with the last line of one that is not as the simulation said."""
    name = f"{ran.profile.engine} {ran.profile.release}"
    package = family_of(ran.profile.engine).release(ran.profile.release).package
    where = f"{name} ({package.name} {package.version})" if package else name
    if ran.result == wanted:
        return f"Run: {wanted} on {where}."
    last = (ran.output.strip().splitlines() or [""])[-1]
    return f"Run: should be one that {wanted} on {where}, and it does not ({ran.result}): {last}"


def can_run(case: Case) -> bool:
    """True if the environment of the accused release is there."""
    engine, release = case.profile.engine, case.profile.release
    known = engine in RUNNERS and release in case.family.real()
    return known and ENVIRONMENTS[engine](release).is_ready()


def prove(case: Case, text: str) -> Proof:
    """Run the test where the law is broken, and where it is kept."""
    profile = case.profile
    real = not profile.patches and profile.release in case.family.real()
    mine = run_on(text, profile) if real else None
    if not case.broken:
        return Proof(red=None, green=mine)
    green = case.keeping()
    return Proof(red=mine, green=None if green is None else run_on(text, green))
