"""The time limit of a script; imported by `script_worker` alone."""

import signal
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS = 25
"""Processor time of one script; ten times that on the clock, for threads that wait."""

CLOCKS = (
    (signal.ITIMER_PROF, signal.SIGPROF, SECONDS),
    (signal.ITIMER_REAL, signal.SIGALRM, 10 * SECONDS),
)


class Timeout(Exception):  # noqa: N818 - it ends a script
    """A script took too long."""


def limited(call: Callable[[], T]) -> T:
    """The result of a function that takes some seconds at most."""

    def late(*_: object) -> None:
        msg = f"not done after {SECONDS} seconds"
        raise Timeout(msg)

    for clock, sign, seconds in CLOCKS:
        signal.signal(sign, late)
        signal.setitimer(clock, seconds)
    try:
        return call()
    finally:
        for clock, *_ in CLOCKS:
            signal.setitimer(clock, 0)
