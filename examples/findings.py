"""Prints the laws that hold and the findings, cache by cache."""

import sys
import time
from collections.abc import Callable
from typing import Any, Final

from cachesim.testing import BrokenLawError, check_live_cache

KNOWN: Final = {
    "LMCache 0.5.6, adapters": "adapter in the key",
    "LMCache 0.5.6, salts": "salts apart",
    "LMCache 0.5.0, images": "image in the key",
    "LMCache 0.5.6, daemon, vLLM, adapters": "adapter in the key",
    "LMCache 0.5.6, daemon, SGLang 0.5.18, adapters": "adapter in the key",
    "LMCache 0.5.6, daemon, SGLang 0.5.18, salts": "salts apart",
    "SGLang 0.5.23, data types": "dtype in the key",
    "SGLang 0.5.18, adapters": "adapter in the key",
    "SGLang 0.5.18, salts": "salts apart",
    "SGLang 0.5.18, data types": "dtype in the key",
    "vLLM 0.28.0, Mooncake, hybrid": "true contents",
    "vLLM 0.33.0, files, scaling of positions": "rope in the key",
}
"""The laws that are broken; everything else that is checked holds."""


def check(name: str, make: Callable[..., Any], **told: Any) -> None:
    """Check a cache; print a line, and the steps where a law is broken. Exit if that is new."""
    start, law = time.monotonic(), ""
    try:
        # The laws of room and of several lookups at once were not run on all of these yet.
        report = check_live_cache(make, **{"keeps": False, "outstanding": 1} | told)
        found = f"all laws hold: {report}"
    except BrokenLawError as error:
        found, law = str(error), error.law
    print(f"{name}: {time.monotonic() - start:.1f} s, {found}", flush=True)
    if law != KNOWN.get(name, ""):
        sys.exit(f"{name}: expected {KNOWN.get(name, 'no broken law')}, found {law or 'none'}")
