"""The real scheduler in a process of its own."""

from typing import Final

from cachesim.real.vllm.wheel import core_of
from cachesim.real.worker_process import WorkerProcess

WORKER: Final = "cachesim.real.vllm.scheduler_worker"


class RealScheduler(WorkerProcess):
    """A release's scheduler, started without any package but its own files."""

    def __init__(self, release: str, version: str = "") -> None:
        core = core_of(release, version)
        core.ready()
        where = str(core.folder)
        super().__init__(f"vllm {release}", core.python, "-IS", WORKER, where, release)
