"""Stub modules with empty attributes, for a release that runs without the packages.

An unpacked wheel brings its scheduler and not what that imports: kernels, web servers, the rest of
the release. A finder puts these modules there. Runs in the workers: the standard library is all
that is needed.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Real = Any  # modules, classes and objects of the release: known only when it runs


class Kind(type):
    """The class of `Nothing`: it can be subscripted, joined, and used as a decorator."""

    def __getattr__(cls, name: str) -> Real:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing

    def __getitem__(cls, _key: object) -> Real:
        return cls

    def __or__(cls, _other: object) -> Real:
        return cls

    __ror__ = __or__

    def __instancecheck__(cls, instance: object) -> bool:
        return cls is not Nothing and type.__instancecheck__(cls, instance)

    def __iter__(cls) -> Iterator[Real]:
        return iter(())

    def __call__(cls, *given: Real, **named: Real) -> Real:
        empty = cls is Nothing or cls.__dict__.get("stands_in", False)
        if empty and len(given) == 1 and not named and callable(given[0]):
            return given[0]
        return type.__call__(cls, *given, **named)


class Nothing(metaclass=Kind):
    """A stub with empty attributes."""

    def __init_subclass__(cls, **_: Real) -> None:
        """Any option of a base class that is not there."""

    def __init__(self, *_given: Real, **named: Real) -> None:
        self.__dict__.update(named)

    def __getattr__(self, name: str) -> Real:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *given: Real, **named: Real) -> Real:
        decorates = len(given) == 1 and not named and callable(given[0])
        return given[0] if decorates else Nothing()

    def __getitem__(self, _key: object) -> Real:
        return Nothing()

    def __iter__(self) -> Iterator[Real]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> Real:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __hash__(self) -> int:
        return 0

    def __index__(self) -> int:
        return 1


class EmptyModule(types.ModuleType):
    """A module of which every name is an empty class of its own: a class may inherit several."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Real:
        if name.startswith("__"):
            raise AttributeError(name)
        made = Kind(name, (Nothing,), {"stands_in": True})
        setattr(self, name, made)
        return made


class EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import hook that finds a stub for every missing module."""

    def __init__(self, is_missing: Callable[[str], bool]) -> None:
        self.is_missing = is_missing

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a stub; None for an installed module."""
        del path, target
        if self.is_missing(fullname):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: a stub has no code."""


def bare_packages(root: Path, names: Iterable[str]) -> None:
    """Packages of the release that only lead to others; their own `__init__` is not run."""
    for name in names:
        module = types.ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], last, module)
