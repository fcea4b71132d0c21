"""A pytest plug-in: one line of the source is another one, before anybody imports it.

`CACHESIM_MUTANT=NAME python -m pytest -p tests.mutants.plant ...` is what `suite` does.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Final

from tests.mutants.subtle import SUBTLE, Subtle

PLANTED: Final = "CACHESIM_MUTANT"


class _Loader(SourceFileLoader):
    """Compiles the changed source, and never looks at compiled files."""

    def __init__(self, name: str, path: str, subtle: Subtle) -> None:
        super().__init__(name, path)
        self.subtle = subtle

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the loader's own name
        """The code of the module with the bug in it."""
        return compile(self.subtle.changed(), self.path, "exec")


class _Finder(MetaPathFinder):
    """Knows one module, and leaves all others to those who come after."""

    def __init__(self, subtle: Subtle) -> None:
        self.subtle = subtle

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module, with another loader."""
        if fullname != self.subtle.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self.subtle)
        return spec


def plant(name: str) -> None:
    """Put a bug in place for this process."""
    subtle = next(each for each in SUBTLE if each.name == name)
    if subtle.module in sys.modules:
        msg = f"{subtle.module} is loaded already: {name} would change nothing"
        raise RuntimeError(msg)
    sys.meta_path.insert(0, _Finder(subtle))


if PLANTED in os.environ:
    plant(os.environ[PLANTED])
