"""Tests that touch each dependency, with the lowest versions that pyproject.toml allows.

`python -m conformance.lowest` installs exactly these versions into an environment of their own.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from cachesim.prove.environment import Environment

ROOT = Path(__file__).parents[1]
TOUCHING: Final = {
    "numpy": ("tests/model/test_network.py", "tests/model/test_ring.py"),
    "rich": ("tests/report/test_snapshots.py", "tests/report/test_tables.py"),
    "hypothesis": ("tests/model/test_weights.py", "tests/testing/test_machine.py"),
    "cattrs": (
        "tests/scenario/test_reading.py", "tests/scenario/test_schema.py",
        "tests/scenario/test_prompts.py", "tests/scenario/test_runner.py",
    ),
    "cyclopts": (
        "tests/cli/test_main.py", "tests/cli/test_options.py", "tests/cli/test_outputs.py",
        "tests/cli/test_watch.py",
    ),
    "aiohttp": ("tests/record",),
    "distributed": ("tests/traces/test_cluster.py",),
    "pyarrow": ("tests/traces/test_other_forms.py",),
    "pytest": ("tests/test_pytest_plugin.py",),
}  # fmt: skip
"""The tests that use each dependency most."""

WITHOUT: Final = frozenset({"pytest-xdist"})
"""What runs tests side by side is needed by none."""


def lowest(requirements: Sequence[str]) -> tuple[str, ...]:
    """`numpy>=1.26` as `numpy==1.26`: a bound that is the only one, and stands first."""
    return tuple(
        re.sub(r"^([\w.-]+)>=([\w.]+)$", r"\1==\2", requirement) for requirement in requirements
    )


def wanted(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """What the program, its extras and its tests need, each at its lowest version."""
    project = settings["project"]
    return lowest(
        [
            *project["dependencies"],
            *chain.from_iterable(project["optional-dependencies"].values()),
            *settings["dependency-groups"]["test"],
        ]
    )


def main() -> int:
    """Install, and run the tests; the exit status is pytest's."""
    requirements = wanted(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    python = Environment(name="lowest-versions", requirements=requirements).ready()
    sys.stderr.write(f"lowest versions: {', '.join(requirements)}\n")
    # The workbench's commands are entry points: they need its metadata, which the checkout has not.
    workbench = ["install", "--quiet", "--no-deps", "--editable", str(ROOT / "conformance")]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *workbench], check=True)
    command = [
        str(python),
        "-m",
        "pytest",
        "-p",
        "_cachesim_pytest",
        *chain.from_iterable(TOUCHING.values()),
    ]
    found_here = os.environ | {"PYTHONPATH": str(ROOT)}  # the checkout is not installed there
    return subprocess.run(command, check=False, cwd=ROOT, env=found_here).returncode


if __name__ == "__main__":
    sys.exit(main())
