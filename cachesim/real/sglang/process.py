"""SGLang's real scheduler: the Python files of a release's wheel, in a process of its own."""

import re
from typing import Final

from cachesim.engines.sglang.family import FAMILY
from cachesim.real.unpacked import UnpackedWheel, scheduler_of
from cachesim.real.worker_process import WorkerProcess

WORKER: Final = "cachesim.real.sglang.scheduler_worker"
KEPT: Final = re.compile(r"sglang/(srt/(?!models/|multimodal/).*|[a-z_]+)\.py")
"""What of the wheel is unpacked."""


def core_of(release: str, version: str = "") -> UnpackedWheel:
    """The folder that holds the scheduler of a release, or of another version in its place."""
    return scheduler_of(FAMILY, KEPT, release, version)


class RealScheduler(WorkerProcess):
    """A release's scheduler, started with NumPy and its own files."""

    def __init__(self, release: str, version: str = "") -> None:
        core = core_of(release, version)
        core.ready()
        super().__init__(f"sglang {release}", core.python, "-I", WORKER, str(core.folder), release)
