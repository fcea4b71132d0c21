"""Environments of Transformers' releases, and of a changed copy of the library.

A copy is run with the packages of a release's environment:

    copy's interpreter: bin/python
    its site-packages:  transformers -> the copy's package folder
                        packages.pth -> the site-packages of the release

An environment's own folder is imported first, so all else is the release's.
"""

import re
import subprocess
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, Self

from cachesim.errors import OptionError
from cachesim.prove.environment import Environment
from cachesim.prove.transformers.process import Worker
from cachesim.prove.transformers.scripts import Script
from cachesim.prove.worker_process import WorkerError
from cachesim.typed import Json

NEWEST: Final = "5.24.0"
RELEASE: Final = re.compile(r"\d+\.\d+\.\d+")

OLDER: Final = (((5, 15, 0), "huggingface_hub<2"), ((5, 21, 0), "psutil"))
"""Further requirements of releases before a version; psutil: continuous batching on a CPU."""


BACKENDS: Final = ("optimum-quanto", "hqq")
"""Backends of quantised caches."""


def environment_for(release: str, *, serves: bool = False, quantises: bool = False) -> Environment:
    """The environment of a release.

    `serves`: with what `transformers serve` needs; `quantises`: with backends of quantised caches.
    """
    if not RELEASE.fullmatch(release):
        msg = f"--release {release!r} is no release of transformers; write one as {NEWEST}"
        raise OptionError(msg)
    numbers = tuple(map(int, release.split(".")))
    more = (package for first, package in OLDER if numbers < first)
    name, extra = ("transformers-serve", "[serving]") if serves else ("transformers", "")
    name = f"{name}-quantised" if quantises else name
    backends = BACKENDS if quantises else ()
    packages = ("torch==2.13.0", f"transformers{extra}=={release}", *more, *backends)
    return Environment(name=f"{name}-{release}", requirements=packages)


PACKAGE: Final = "transformers"
PLACES: Final = (".", f"src/{PACKAGE}", PACKAGE)
"""Location of the package: the folder itself, in a checkout, or in a folder of packages."""

IMPORTED: Final = ("__init__.py", "cache_utils.py", "models/auto/modeling_auto.py")
"""Files without which a folder is no package of the library."""

VERSION: Final = re.compile(r"""^__version__ = ["']([^"']+)["']""", re.MULTILINE)


class Copy(NamedTuple):
    """A package folder of the library, and the version that it states."""

    package: Path
    version: str

    @classmethod
    def at(cls, folder: Path) -> Self:
        """The copy of the library in a folder."""
        if not folder.is_dir():
            raise OptionError(f"--library {folder} is no folder")
        for place in PLACES:
            package = (folder / place).resolve()
            if all((package / each).is_file() for each in IMPORTED):
                text = (package / "__init__.py").read_text(encoding="utf-8", errors="replace")
                stated = VERSION.search(text)
                if stated:
                    return cls(package, stated[1])
                msg = f"--library {folder}: __init__.py in {package} has no __version__"
                raise OptionError(msg)
        raise OptionError(
            f"--library {folder} holds no package of transformers ({', '.join(IMPORTED)}), nor do "
            f"{' and '.join(PLACES[1:])} in it; name a checkout of the library, or a copy of the "
            "package folder of an installed release"
        )

    @property
    def release(self) -> str:
        """The release with whose packages it is run: its own, or of a branch the newest."""
        return self.version if RELEASE.fullmatch(self.version) else NEWEST

    @contextmanager
    def python(self, environment: Environment) -> Iterator[Path]:
        """An interpreter that imports the copy, and all other packages from the environment."""
        with TemporaryDirectory(prefix="cachesim-copy-") as place:
            venv.create(place, with_pip=False, symlinks=True)
            [own] = Path(place).glob("lib/python*/site-packages")
            [theirs] = environment.folder.glob("lib/python*/site-packages")
            (own / PACKAGE).symlink_to(self.package, target_is_directory=True)
            (own / "packages.pth").write_text(f"{theirs.resolve()}\n", encoding="utf-8")
            python = Path(place) / "bin" / "python"
            imports = f"import {PACKAGE}.models.auto.modeling_auto"
            command = [str(python), "-W", "ignore", "-c", imports]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                raise OptionError(
                    f"--library {self.package} cannot be imported with the packages of "
                    f"{environment.name}: {why[:300]}; --release names another release's packages"
                )
            yield python


def answered(worker: Worker, family: str, attention: str, script: Script) -> Json:
    """The answer to one script; a process that ends over it gives a verdict alone."""
    try:
        return worker.order({"family": family, "attention": attention, "scripts": [script]})
    except WorkerError:
        return {"results": [{"verdict": "ended"}]}
