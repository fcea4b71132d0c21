"""End of a script: its time limit and its errors; imported by `script_worker` alone."""

import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PACKAGE = "site-packages/transformers/"

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


def is_clear(error: Exception) -> bool:
    """True if the library itself raises, and with a message."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    raises = (frame.line or "").startswith("raise") and PACKAGE in frame.filename
    return raises and bool(str(error))


def about(error: Exception) -> dict[str, str]:
    """The message and the line that raises; a file outside packages is named without a folder."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    _, installed, file = frame.filename.rpartition("site-packages/")
    file = file if installed else Path(file).name
    return {
        "error": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}",
        "place": f"{file}:{frame.lineno}",
    }
