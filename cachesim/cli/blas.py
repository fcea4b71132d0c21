"""The kernels that NumPy's BLAS takes, on processors that OpenBLAS does not know.

OpenBLAS chooses by the family of the processor. Until its #6033 (September 2026) it did not know
AMD's Zen 5, and took kernels for AVX2 on a processor that has AVX-512.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

CHOICE: Final = "OPENBLAS_CORETYPE"
"""What OpenBLAS reads when it is loaded; a choice that is made already stays."""

KERNELS: Final = "SkylakeX"
"""Its kernels for AVX-512."""

UNKNOWN: Final = {"vendor_id": "AuthenticAMD", "cpu family": "26"}
"""Zen 5, as Linux names it."""

NEEDED: Final = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
"""What those kernels use; Linux lists what the processor has and the system allows."""

ENOUGH: Final = 1 << 14
"""Bytes in which the first processor's lines end."""


def tell_openblas(
    environment: MutableMapping[str, str] = os.environ, cpuinfo: Path = Path("/proc/cpuinfo")
) -> None:
    """Name the kernels, before NumPy is loaded, where OpenBLAS mistakes the processor."""
    if CHOICE not in environment and is_mistaken(cpuinfo):
        environment[CHOICE] = KERNELS


def is_mistaken(cpuinfo: Path) -> bool:
    """Whether the first processor that Linux lists is one that OpenBLAS takes for an older one."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            first = lines.read(ENOUGH).partition("\n\n")[0]
    except OSError:  # another system
        return False
    pairs = (line.partition(":") for line in first.splitlines())
    told = {name.strip(): value.strip() for name, _, value in pairs}
    known = any(told.get(name) != value for name, value in UNKNOWN.items())
    return not known and set(told.get("flags", "").split()) >= NEEDED
