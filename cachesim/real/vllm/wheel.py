"""The scheduler core of a vLLM release: a few Python files out of its wheel, nothing installed."""

import re
from typing import Final

from cachesim.engines.vllm.family import FAMILY
from cachesim.real.unpacked import UnpackedWheel, scheduler_of

KEPT: Final = re.compile(r"vllm/(v1|utils)/.*\.py|vllm/distributed/kv_events\.py")
"""What of the wheel is unpacked."""


def core_of(release: str, version: str = "") -> UnpackedWheel:
    """The folder that holds the scheduler of a release, or of another version in its place."""
    return scheduler_of(FAMILY, KEPT, release, version)
