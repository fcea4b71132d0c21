"""A release's own code in a process of its own: a workload goes in, its results come back."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from cachesim.errors import CachesimError
from cachesim.typed import Json, there_is

ROOT: Final = Path(__file__).resolve().parents[2]
"""Root folder from which the worker imports cachesim."""

LAST: Final = 20_000
"""Bytes at the end of standard error that are searched for an exception."""
RAISED: Final = re.compile(r"[\w.]+(Error|Exception)\b")
"""The line of an exception below its traceback."""

START: Final = (
    "import importlib, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "importlib.import_module(sys.argv.pop(1)).main()"
)
"""Starts a module of cachesim in an interpreter that knows nothing of it."""


class WorkerError(CachesimError):
    """The process with the release ended, or refused a workload."""


class JsonProcess:
    """A program that answers each line of JSON with a line of JSON."""

    def __init__(
        self, name: str, command: Sequence[str], *, variables: Mapping[str, str] | None = None
    ) -> None:
        """`variables`: more of its environment."""
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | (variables or {}),
        )

    def order(self, wanted: object) -> Json:
        inbox, outbox = there_is(self._process.stdin), there_is(self._process.stdout)
        line = json.dumps(wanted)
        try:
            inbox.write(line + "\n")
            inbox.flush()
            answer = outbox.readline()
        except OSError:
            answer = ""
        if not answer:
            raise WorkerError(f"{self.name} ended with {self._end()}, in the middle of {line[:80]}")
        return json.loads(answer)

    def _end(self) -> str:
        """Exit status and the exception on standard error; its other threads print later ones."""
        try:
            status = self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:  # its output is closed, and it runs on
            return "no answer"
        end = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, end - LAST))
        lines = self._errors.read().decode(errors="replace").splitlines()
        message = next(filter(RAISED.match, reversed(lines)), lines[-1] if lines else "no message")
        return f"status {status} ({message[:200]})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            there_is(self._process.stdin).close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:  # busy machines take their time to end a thread
            self._process.kill()
            self._process.wait()
        there_is(self._process.stdout).close()
        self._errors.close()


class ModuleProcess(JsonProcess):
    """A module's `main` in an interpreter without cachesim."""

    def __init__(self, name: str, python: Path, module: str, *given: str) -> None:
        super().__init__(name, [str(python), "-I", "-c", START, str(ROOT), module, *given])


class WorkerProcess(ModuleProcess):
    """A release's scheduler or class; a workload as input, its result as output."""

    def play(self, workload: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Results of a workload, group by group."""
        answer = self.order(workload)
        if "raised" in answer:
            return [{"error": answer["raised"]}]
        results: list[dict[str, Any]] = answer["results"]
        return results
