"""A release's own code in a process of its own: a workload goes in, what it did comes back."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cachesim.errors import CachesimError

ROOT: Final = Path(__file__).resolve().parents[2]
"""Where the worker finds cachesim itself."""

START: Final = (
    "import importlib, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "importlib.import_module(sys.argv.pop(1)).main()"
)
"""Starts a module of cachesim in an interpreter that knows nothing of it."""


class WorkerError(CachesimError):
    """The process with the release is gone, or refused a workload."""


class WorkerProcess:
    """A module's `main`, isolated; one line of JSON in, one line out."""

    def __init__(self, name: str, python: Path, flags: str, module: str, *given: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [str(python), flags, "-c", START, str(ROOT), module, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def play(self, workload: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What it did, group by group."""
        inbox, outbox = self._process.stdin, self._process.stdout
        if inbox is None or outbox is None:
            msg = f"{self.name} cannot be talked to"
            raise WorkerError(msg)
        try:
            inbox.write(json.dumps(workload) + "\n")
            inbox.flush()
            answer = outbox.readline()
        except OSError:
            answer = ""
        if not answer:
            msg = f"{self.name} ended in the middle of {json.dumps(workload)[:300]}"
            raise WorkerError(msg)
        told = json.loads(answer)
        if "raised" in told:
            return [{"error": told["raised"]}]
        results: list[dict[str, Any]] = told["results"]
        return results

    def __enter__(self) -> Self:
        """The process itself."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End the worker by ending its input."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)
