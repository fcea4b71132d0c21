"""Limits of a mutant: run or refused with a message, in ten seconds, within a gigabyte."""

import resource
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from cachesim.errors import InputError

SECONDS: Final = 10
ASLEEP: Final = 600
"""Seconds on the clock: what waits for something takes no time of its own."""
BYTES: Final = 2**30

REFUSED: Final = "refused"
PLAYED: Final = "played"
READ: Final = "read"  # accepted, and not played: too long, or nothing in it


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a mutant; `failure` is empty without one."""

    word: str
    failure: str = ""


class TooSlowError(BaseException):
    """Not an Exception: nothing that a mutant runs through may swallow it."""


def _too_slow(_: int, __: FrameType | None) -> None:
    raise TooSlowError


def limit_memory() -> None:
    """From here on this process may take a gigabyte more than it has."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    mapped = int(pages) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + BYTES, resource.RLIM_INFINITY))


def guarded(play: Callable[[Any], str | None], mutant: Any) -> Outcome:
    before = signal.signal(signal.SIGPROF, _too_slow)
    asleep = signal.signal(signal.SIGALRM, _too_slow)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of its own: other processes do not count
    signal.setitimer(signal.ITIMER_REAL, ASLEEP)
    try:
        word = play(mutant)
    except InputError as error:
        return Outcome(REFUSED, "" if str(error).strip() else "refused without a word")
    except TooSlowError:
        return Outcome("slow", f"longer than {SECONDS} s\n{traceback.format_exc(limit=-4)}")
    except MemoryError:
        return Outcome("large", f"more than {BYTES} bytes\n{traceback.format_exc(limit=-4)}")
    except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
        return Outcome("broken", traceback.format_exc(limit=-6))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGPROF, before)
        signal.signal(signal.SIGALRM, asleep)
    return Outcome(word or PLAYED)
