"""Versions of a real engine's package in the registry, as pip sees it from here."""

import re
import subprocess
import sys
from typing import Final

from cachesim.lab.real.environment import EnvironmentUnavailableError

SECONDS: Final = 120
_LIST: Final = re.compile(r"^Available versions: (?P<versions>.+)$", re.MULTILINE)


def versions_of(project: str) -> tuple[str, ...]:
    """Every version that could be installed here, the newest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", project]
    try:
        done = subprocess.run(
            [*command, "--disable-pip-version-check"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"cannot look up the versions of {project}: no answer after {SECONDS} seconds"
        raise EnvironmentUnavailableError(msg) from error
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        msg = f"cannot look up the versions of {project}: {said.strip().splitlines()[-1]}"
        raise EnvironmentUnavailableError(msg) from error
    return read_versions(project, done.stdout)


def read_versions(project: str, said: str) -> tuple[str, ...]:
    """The versions in what pip said."""
    found = _LIST.search(said)
    if found is None:
        msg = f"cannot look up the versions of {project}: pip named none"
        raise EnvironmentUnavailableError(msg)
    return tuple(version.strip() for version in found["versions"].split(","))
