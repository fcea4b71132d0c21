"""Where the program begins and ends: every way out has a status, and none shows a traceback."""

import os
import sys
from concurrent.futures import BrokenExecutor

from cyclopts import CycloptsError
from rich.console import Console

from cachesim.cli.status import BROKEN_CONTRACT, INTERRUPTED, WRONG_USAGE
from cachesim.errors import CachesimError, InputError, ScenarioError

REPORT = "this is a bug in cachesim: please report it, with the command and the scenario"


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; the exit status says how it went."""
    try:
        return run(arguments)
    except BrokenPipeError:  # the reader has gone: nothing more can be said
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED


def run(arguments: list[str] | None) -> int:
    """Run a command line, and turn what it raises into words and a status."""
    errors = Console(stderr=True, highlight=False)
    try:
        from cachesim.cli.app import parse  # noqa: PLC0415 - what fails to load is told too

        status = parse(arguments, exit_on_error=False, print_error=True, error_console=errors)
        sys.stdout.flush()
    except CycloptsError:  # said by the parser itself
        return WRONG_USAGE
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:
        if os.environ.get("CACHESIM_TRACEBACK"):
            raise
        return said(error)
    return status


def said(error: Exception) -> int:
    """Put what was raised into words, and into a status."""
    if isinstance(error, ScenarioError):
        complain(*error.problems)
        return WRONG_USAGE
    if isinstance(error, InputError):
        complain(str(error))
        return WRONG_USAGE
    if isinstance(error, OSError):  # a folder that cannot be written, a full disk
        complain(f"{error.filename or 'standard output'}: {error.strerror or error}")
        return WRONG_USAGE
    if isinstance(error, BrokenExecutor):
        complain("one of its processes was ended from outside; is there enough memory for all?")
        return WRONG_USAGE
    if isinstance(error, CachesimError):
        complain(str(error), REPORT)
    else:
        complain(f"{type(error).__name__}: {error}", REPORT, "CACHESIM_TRACEBACK=1 shows where")
    return BROKEN_CONTRACT


def complain(*lines: str) -> None:
    """Say something on standard error, one line each, whatever characters it holds."""
    for line in lines:
        text = f"cachesim: {line}\n"
        sys.stderr.write(text.encode("utf-8", "backslashreplace").decode("utf-8"))


if __name__ == "__main__":
    sys.exit(main())
