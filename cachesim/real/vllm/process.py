"""vLLM's real scheduler: a few Python files out of a release's wheel, in a process of its own."""

import re
from typing import Final

from cachesim.engines.vllm.family import FAMILY
from cachesim.real.unpacked import UnpackedWheel, scheduler_of
from cachesim.real.worker_process import WorkerProcess

WORKER: Final = "cachesim.real.vllm.scheduler_worker"
KEPT: Final = re.compile(r"vllm/(v1|utils)/.*\.py|vllm/distributed/kv_events\.py")
"""What of the wheel is unpacked."""


def core_of(release: str, version: str = "") -> UnpackedWheel:
    """The folder that holds the scheduler of a release, or of another version in its place."""
    return scheduler_of(FAMILY, KEPT, release, version)


class RealScheduler(WorkerProcess):
    """A release's scheduler, started without any package but its own files."""

    def __init__(self, release: str, version: str = "") -> None:
        core = core_of(release, version)
        core.ready()
        where = str(core.folder)
        super().__init__(f"vllm {release}", core.python, "-IS", WORKER, where, release)
