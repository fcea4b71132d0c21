"""Entry point of the program: every exit has a status and no traceback."""

import gc
import os
import re
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from cachesim.cli import BROKEN_CONTRACT, INTERRUPTED, UNTESTED, WRONG_USAGE

REPORT: Final = "this is a bug in cachesim: please report it, with the command and the scenario"

SELDOM: Final = (50_000, 20, 20)
"""Thresholds of the garbage collector: runs allocate many objects and few cycles, and Python's
defaults took a seventh of their time.
"""

FRAME: Final = re.compile(r'File "([^"]+)", line \d+, in ')
"""A frame of a traceback, with its file."""

LOADER: Final = "<frozen importlib._bootstrap>"
"""File name of Python's import frames."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; return the exit status.

    Without arguments it also handles signals and closed files, as the program.
    """
    if arguments is not None:
        return guarded(arguments)
    signal.signal(signal.SIGINT, interrupted)
    gc.set_threshold(*SELDOM)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - as Python does
    status = guarded(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left is Python's own end
    return status


def interrupted(_: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C; an import needs no cleanup."""
    while frame is not None:
        if frame.f_code.co_filename == LOADER:
            os.write(2, b"cachesim: interrupted\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def guarded(arguments: list[str]) -> int:
    """Run a command line; a closed pipe and an interrupt are not errors."""
    try:
        return run(arguments)
    except BrokenPipeError:  # no output is possible
        _give_up_output()
        return 0
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED


def _give_up_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(arguments: list[str]) -> int:
    """Run a command line; translate exceptions to messages and a status."""
    try:
        from cyclopts import CycloptsError

        from cachesim.cli.app import parse
        from cachesim.report.consoles import notes

        try:
            status = parse(arguments, exit_on_error=False, print_error=True, error_console=notes())
        except CycloptsError:  # printed by the parser
            return WRONG_USAGE
        sys.stdout.flush()
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:
        if os.environ.get("CACHESIM_TRACEBACK"):
            raise
        status = report_error(error)
    name_broken_engines()
    return status


def name_broken_engines() -> None:
    """Name the installed engines that could not be loaded, if any were looked for."""
    tables = sys.modules.get("cachesim.engines.family")
    for name, why in tables.FAMILIES.broken.items() if tables else ():
        complain(f"engine {name} of another package is left out: {why}")


def bug_of(error: Exception) -> str:
    """The owner of a bug: cachesim, or the engine whose module raised the exception."""
    from cachesim.engines.family import FAMILIES
    from cachesim.errors import raised_by

    files = FRAME.findall(str(error.__cause__ or ""))  # of a worker process: its traceback as text
    for name, family in FAMILIES.items():
        folders = getattr(sys.modules.get(family.package), "__path__", ())
        inside = any(Path(folder) in Path(files[-1]).parents for folder in folders if files)
        if family.package.startswith("cachesim."):
            continue
        if inside or raised_by(error, family.package):
            return f"this is a bug in the engine {name} of {family.package}, not in cachesim"
    return REPORT


def report_error(error: Exception) -> int:
    """Print an exception's message and return its status."""
    from cachesim.errors import CachesimError, InputError, ScenarioError, UntestedError

    if isinstance(error, OSError) and error.filename is None:
        _give_up_output()
    if isinstance(error, ScenarioError):
        complain(*error.problems)
        return WRONG_USAGE
    if isinstance(error, InputError):
        complain(str(error))
        return WRONG_USAGE
    if isinstance(error, UntestedError):
        complain(str(error))
        return UNTESTED
    circumstance = _circumstance(error)
    if circumstance:
        complain(circumstance)
        return WRONG_USAGE
    if isinstance(error, CachesimError):
        complain(str(error), REPORT)
    else:
        whose = bug_of(error)
        complain(f"{type(error).__name__}: {error}", whose, "CACHESIM_TRACEBACK=1 shows where")
    return BROKEN_CONTRACT


def _circumstance(error: Exception) -> str:
    from concurrent.futures import BrokenExecutor

    if isinstance(error, OSError):  # a folder that cannot be written, a full disk
        return f"{error.filename or 'standard output'}: {error.strerror or error}"
    if isinstance(error, MemoryError):
        return "there is not enough memory for this"
    if isinstance(error, EOFError):
        return "standard input ended where an answer was awaited"
    if isinstance(error, ImportError) and error.name and not error.name.startswith("cachesim"):
        return f"the package {error.name} is missing; it is installed with cachesim by pip"
    if isinstance(error, BrokenExecutor):
        return "one of its processes was ended from outside; is there enough memory for all?"
    return ""


def complain(*lines: str) -> None:
    """Print lines on standard error, whatever characters they contain."""
    from cachesim.printable import printable

    for line in lines:
        text = f"cachesim: {printable(line)}\n"
        sys.stderr.write(text.encode("utf-8", "backslashreplace").decode("utf-8"))


if __name__ == "__main__":
    sys.exit(main())
