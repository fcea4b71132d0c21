"""The installed program's command lines, many in one forked process, and some as a shell runs them.

A worker imports the program once and forks before each command line, so that a command starts with
a fresh process and nothing is imported twice. Arguments, exit status, standard output and standard
error are the program's own: the child calls the entry point that the package installs.
"""

import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

PROGRAM: Final = Path(sys.executable).with_name("cachesim")

SECONDS: Final = 120
"""Processor time after which a command line is ended: bounded time is one of the laws."""

MEMORY: Final = 4 << 30
"""Bytes of address space that one command line may take."""


COMMANDS: Final = ("app", "bisect", "compare", "record", "run", "why")
"""Modules whose import takes longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Result of one command line."""

    words: tuple[str, ...]
    status: int
    out: str
    err: str
    seconds: float  # of processor time
    written: dict[str, bytes] = field(default_factory=dict)  # what the command wrote, by name

    @property
    def line(self) -> str:
        """The command line as it is typed."""
        return shlex.join(("cachesim", *self.words))


def load() -> None:
    """Import the commands' modules once, before any fork."""
    for name in COMMANDS:
        import_module(f"cachesim.cli.{name}")


def run(words: list[str], folder: Path, *, stdin: bytes = b"") -> Ran:
    """Run a command line in a forked process, in a folder."""
    with (
        tempfile.TemporaryFile() as into,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        into.write(stdin)
        into.seek(0)
        child = os.fork()
        if child == 0:
            _become(words, folder, (into.fileno(), out.fileno(), err.fileno()))
        _, left, used = os.wait4(child, 0)
        status, seconds = os.waitstatus_to_exitcode(left), used.ru_utime + used.ru_stime
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ran(words=tuple(words), status=status, out=texts[0], err=texts[1], seconds=seconds)


def _become(words: list[str], folder: Path, files: Sequence[int]) -> None:
    """Be the program, in the child: its files, its folder, its arguments; never return."""
    status = 70
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.argv = ["cachesim", *words]
        (program,) = entry_points(group="console_scripts", name="cachesim")
        status = program.load()()
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 1
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - Python itself would print it and end
        traceback.print_exc()
        sys.stderr.flush()
        status = 1
    finally:
        os._exit(status)


class Started:
    """A command that runs until it is interrupted, as `record` does."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self._words = tuple(words)
        self._files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115
        self._child = os.fork()
        if self._child == 0:
            _become(words, folder, [file.fileno() for file in self._files])

    def first_line(self, word: bytes) -> str:
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            text = os.pread(self._files[2].fileno(), 1 << 16, 0)
            for line in text.splitlines():
                if word in line:
                    return line.decode()
            time.sleep(0.005)
        raise TimeoutError(f"{self._words}: {text.decode(errors='replace')}")

    def interrupted(self) -> Ran:
        os.kill(self._child, signal.SIGINT)
        _, left, used = os.wait4(self._child, 0)
        status, seconds = os.waitstatus_to_exitcode(left), used.ru_utime + used.ru_stime
        texts = []
        for file in self._files[1:]:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        for file in self._files:
            file.close()
        return Ran(words=self._words, status=status, out=texts[0], err=texts[1], seconds=seconds)


def started(words: list[str], folder: Path) -> Started:
    return Started(words, folder)


def run_as_a_shell_does(words: list[str], folder: Path, *, stdin: bytes = b"") -> Ran:
    """Run the installed program in a process of its own."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [str(PROGRAM), *words], cwd=folder, env=clean, input=stdin, capture_output=True,
        check=False, timeout=10 * SECONDS,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(
        words=tuple(words),
        status=done.returncode,
        out=done.stdout.decode(errors="replace"),
        err=done.stderr.decode(errors="replace"),
        seconds=seconds,
    )
