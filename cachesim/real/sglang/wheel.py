"""The scheduler of an SGLang release: the Python files of its wheel, nothing installed."""

import re
from typing import Final

from cachesim.engines.sglang.family import FAMILY
from cachesim.real.unpacked import UnpackedWheel, scheduler_of

KEPT: Final = re.compile(r"sglang/(srt/(?!models/|multimodal/).*|[a-z_]+)\.py")
"""What of the wheel is unpacked."""


def core_of(release: str, version: str = "") -> UnpackedWheel:
    """The folder that holds the scheduler of a release, or of another version in its place."""
    return scheduler_of(FAMILY, KEPT, release, version)
