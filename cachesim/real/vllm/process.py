"""The real scheduler in a process of its own: a workload goes in, what it did comes back."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cachesim.errors import CachesimError
from cachesim.real.vllm.wheel import core_of

WORKER: Final = Path(__file__).with_name("scheduler_worker.py")


class RealVllmError(CachesimError):
    """The process with the real scheduler is gone, or refused a workload."""


class RealScheduler:
    """A release's scheduler, started without any package but its own files."""

    def __init__(self, release: str, version: str = "") -> None:
        core = core_of(release, version)
        core.ready()
        self.release = release
        self._process = subprocess.Popen(
            [str(core.python), "-I", "-S", str(WORKER), str(core.folder), release],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def play(self, workload: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What it did, group by group."""
        inbox, outbox = self._process.stdin, self._process.stdout
        if inbox is None or outbox is None:
            msg = f"vllm {self.release} cannot be talked to"
            raise RealVllmError(msg)
        inbox.write(json.dumps(workload) + "\n")
        inbox.flush()
        answer = outbox.readline()
        if not answer:
            msg = f"vllm {self.release} ended in the middle of {json.dumps(workload)[:300]}"
            raise RealVllmError(msg)
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
