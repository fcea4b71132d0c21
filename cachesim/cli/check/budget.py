"""How long a search may go on, and a bar that says how far it is."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress, TextColumn, TimeElapsedColumn

from cachesim.engines.words import counted
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


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Workloads played so far, on standard error, where that is a terminal."""
    text = TextColumn("{task.description}  {task.fields[said]}")
    with Progress(text, TimeElapsedColumn(), console=notes(), transient=True) as shown:
        task = shown.add_task(title, total=None, said="")
        yield lambda workloads, requests: shown.update(
            task, said=f"{counted(workloads, 'workload')}, {counted(requests, 'request')}"
        )
