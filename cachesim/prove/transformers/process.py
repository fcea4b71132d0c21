"""A process in which models of a Transformers release answer scripts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cachesim.prove.worker_process import JsonProcess, WorkerError
from cachesim.typed import Json

WORKER: Final = Path(__file__).with_name("script_worker.py")


class Worker:
    """A release's models; a process that ended is started again."""

    def __init__(self, python: Path) -> None:
        self._command = [str(python), "-W", "ignore", str(WORKER)]
        self._process: JsonProcess | None = None

    def order(self, wanted: Mapping[str, Any]) -> Json:
        """Send an order; WorkerError if the process ends over it."""
        if self._process is None:
            # a set in an error message has the same order in each run
            variables = {"PYTHONHASHSEED": "0"}
            self._process = JsonProcess("transformers", self._command, variables=variables)
        try:
            answer = self._process.order(wanted)
        except WorkerError:
            self.close()
            raise
        if isinstance(answer, dict) and answer.get("unbuilt", "").startswith("Timeout"):
            self.close()  # the time may have ended an import, which other families share
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.__exit__(None, None, None)
            self._process = None
