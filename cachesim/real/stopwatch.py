"""Processor time that goes into some methods of an object, whoever calls them."""

import time
from collections.abc import Iterable
from typing import Any

Real = Any  # objects of a release: known only when it runs


class Stopwatch:
    """Counts what the outermost of the named calls take."""

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
