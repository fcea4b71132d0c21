"""The real scheduler in a process of its own."""

from typing import Final

from cachesim.real.sglang.wheel import core_of
from cachesim.real.worker_process import WorkerProcess

WORKER: Final = "cachesim.real.sglang.scheduler_worker"


class RealScheduler(WorkerProcess):
    """A release's scheduler, started with NumPy and its own files."""

    def __init__(self, release: str, version: str = "") -> None:
        core = core_of(release, version)
        core.ready()
        super().__init__(f"sglang {release}", core.python, "-I", WORKER, str(core.folder), release)
