"""Whether the ordinary suite notices a subtle bug: one of its tests, in a process of its own."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.hunt import How
from tests.mutants.plant import PLANTED
from tests.mutants.subtle import TESTS, Subtle

ROOT: Final = Path(__file__).parents[2]
FAILED: Final = re.compile(r"^FAILED .+?(?: - (?P<why>.*))?$", re.MULTILINE)
COMPARED: Final = re.compile(r"assert|AssertionError|Failed: DID NOT|hypothesis")
"""Reasons of a test that compared something; any other error is a crash."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """What a test said with a bug in place."""

    how: How
    why: str


def run(tests: list[str], *, planted: str = "") -> subprocess.CompletedProcess[str]:
    """Some tests of the suite, with a bug or without."""
    environment = {name: value for name, value in os.environ.items() if name != PLANTED}
    environment |= {"COLUMNS": "300"} | ({PLANTED: planted} if planted else {})
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-rf", "--tb=no", "-p", "no:cacheprovider",
         "-p", "tests.mutants.plant", *tests],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def noticed(subtle: Subtle) -> Noticed | None:
    """What its test says with the bug; None where it passes all the same."""
    done = run([f"{TESTS}/{subtle.test}"], planted=subtle.name)
    if done.returncode == 0:
        return None
    failed = FAILED.search(done.stdout)
    if done.returncode != 1 or failed is None:
        msg = f"{subtle.name}: pytest ended with {done.returncode}: {done.stdout[-400:]}"
        raise RuntimeError(msg)
    why = failed["why"] or ""
    return Noticed("wrong answer" if COMPARED.search(why) else "crash", why)


def passes_without(subtles: list[Subtle]) -> bool:
    """The control: the same tests with no bug in place."""
    tests = sorted({f"{TESTS}/{each.test}" for each in subtles})
    return run(tests).returncode == 0
