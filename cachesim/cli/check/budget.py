"""How long a search may go on, and a bar that says how far it is."""

import time
from collections.abc import Callable

from rich.progress import Progress, TextColumn, TimeElapsedColumn

from cachesim.report.consoles import notes


class Budget:
    """So many minutes from now on, or no end."""

    def __init__(self, minutes: float | None) -> None:
        self._minutes = minutes
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    def left(self) -> bool:
        """Whether there is time for one more workload."""
        return self._minutes is None or self.seconds < 60 * self._minutes

    def rate(self, workloads: int) -> float:
        """Workloads a second since the start."""
        return workloads / max(self.seconds, 1e-9)


class Bar:
    """Workloads played so far, on standard error, where that is a terminal."""

    def __init__(self, title: str) -> None:
        text = TextColumn("{task.description}  {task.fields[said]}")
        self._progress = Progress(text, TimeElapsedColumn(), console=notes(), transient=True)
        self._task = self._progress.add_task(title, total=None, said="")

    def __enter__(self) -> Callable[[int, int], None]:
        self._progress.start()
        return self._advance

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _advance(self, workloads: int, requests: int) -> None:
        said = f"{workloads} workloads, {requests} requests"
        self._progress.update(self._task, said=said)
