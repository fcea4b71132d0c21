"""Where a replay first differs from what was recorded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The first operation or group of requests that differs; `step` counts operations, requests."""

    step: int
    expected: Mapping[str, Any]
    actual: Mapping[str, Any]
