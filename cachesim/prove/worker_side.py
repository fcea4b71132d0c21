"""Shared parts of the workers in a release's own process, which may import nothing else.

Stub objects, lines of JSON in and out, and a stopwatch for the processor time of some methods. An
unpacked wheel lacks imports of its scheduler (kernels, web servers, the rest of the release): a
finder supplies stub modules.
"""

import importlib.abc
import importlib.machinery
import inspect
import json
import os
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

Json = Any
Real = Any  # modules, classes and objects of the release: known only when it runs


class Stub:
    """An object with some attributes; others are None."""

    def __init__(self, **values: Real) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Real:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class NoOp(Stub):
    """An object whose methods ignore every call."""

    def __getattr__(self, name: str) -> Real:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def fitting(made: Real, **values: Real) -> Real:
    """Call with the arguments that this release accepts."""
    known = _parameters(made)
    return made(**{name: value for name, value in values.items() if name in known})


@lru_cache(maxsize=64)
def _parameters(made: Real) -> frozenset[str]:
    return frozenset(inspect.signature(made).parameters)


def folder_of(models: Mapping[str, Json]) -> "tempfile.TemporaryDirectory[str]":
    """A folder with the `config.json` of each model."""
    folder = tempfile.TemporaryDirectory()
    for name, model in models.items():
        place = Path(folder.name, name)
        place.mkdir()
        place.joinpath("config.json").write_text(json.dumps(model))
    return folder


def unpinned(made: Real) -> Real:
    """A function that makes tensors, without memory that a GPU's driver pins."""

    def make(*given: Real, **named: Real) -> Real:
        named.pop("pin_memory", None)
        return made(*given, **named)

    return make


def own_output() -> TextIO:
    """Standard output for answers alone; the release's output is redirected to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def answer_each(answers: TextIO, answer: Callable[[Json], Json]) -> None:
    """Answer each line of JSON with a line, until the input ends."""
    answers.writelines(json.dumps(answer(json.loads(line))) + "\n" for line in sys.stdin)


def answer_lines(answers: TextIO, play: Callable[[Json], Json]) -> None:
    """Answer each workload with its results, or with what was raised."""

    def answer(wanted: Json) -> Json:
        try:
            return {"results": play(wanted)}
        except Exception as error:
            return {"raised": words_of(error)}

    answer_each(answers, answer)


def play_groups(groups: Iterable[Json], play: Callable[[Json], Json]) -> list[Json]:
    """Results of each group, up to the first that ends in an error."""

    def result(group: Json) -> Json:
        try:
            return play(group)
        except Exception as error:
            return {"error": words_of(error)}

    return until_error(map(result, groups))


def until_error(results: Iterable[Json]) -> list[Json]:
    """Results up to the first that is an error."""
    outcomes: list[Json] = []
    for result in results:
        outcomes.append(result)
        if "error" in result:
            break
    return outcomes


def differences(started: Json, used: Json) -> list[list[str]]:
    """Rows of the settings that differ: name, as a server starts, as it is compared."""
    return [
        [name, str(started.get(name, "-")), str(used.get(name, "-"))]
        for name in sorted(started.keys() | used.keys())
        if started.get(name, "-") != used.get(name, "-")
    ]


def words_of(error: Exception) -> str:
    """An exception in one short line."""
    return f"{type(error).__name__}: {error}"[:300]


class Stopwatch:
    """Measures the time of the outermost of the named calls."""

    def __init__(self, watched: Real, names: Iterable[str]) -> None:
        self.seconds = 0.0
        self._depth = 0
        for name in names:
            if hasattr(watched, name):
                setattr(watched, name, self._timed(getattr(watched, name)))

    def _timed(self, inner: Real) -> Real:
        def timed(*given: Real, **named: Real) -> Real:
            if self._depth:
                return inner(*given, **named)
            self._depth = 1
            begun = time.process_time()
            try:
                return inner(*given, **named)
            finally:
                self.seconds += time.process_time() - begun
                self._depth = 0

        return timed


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
