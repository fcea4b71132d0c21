"""Shared parts of the workers in a release's own process, which may import nothing else.

Small objects stand where the release expects somebody, lines of JSON come in and go out, and a
stopwatch counts the processor time of some methods.
"""

import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
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
    known = set(inspect.signature(made).parameters)
    return made(**{name: value for name, value in values.items() if name in known})


def own_output() -> TextIO:
    """Standard output for answers alone; the release's output is redirected to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def answer_lines(answers: TextIO, play: Callable[[Json], Json]) -> None:
    """Answer each line of JSON with a line, until the input ends."""
    for line in sys.stdin:
        try:
            answer = {"results": play(json.loads(line))}
        except Exception as error:
            answer = {"raised": words_of(error)}
        answers.write(json.dumps(answer) + "\n")


def play_groups(groups: Iterable[Json], play: Callable[[Json], Json]) -> list[Json]:
    """Results of each group, up to the first that ends in an error."""
    results: list[Json] = []
    for group in groups:
        try:
            results.append(play(group))
        except Exception as error:
            results.append({"error": words_of(error)})
        if "error" in results[-1]:
            break
    return results


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
