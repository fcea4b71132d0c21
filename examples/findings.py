"""Prints what holds and what was found, for one cache after another."""

import time
from collections.abc import Callable
from typing import Any

from cachesim.testing import BrokenLawError, check_live_cache


def check(name: str, make: Callable[..., Any], **told: Any) -> str:
    """Check a cache; print a line, and the steps where a law is broken. Returns the law or ""."""
    start = time.monotonic()
    try:
        report = check_live_cache(make, **told)
    except BrokenLawError as error:
        print(f"{name}: {time.monotonic() - start:.1f} s, {error}", flush=True)
        return error.law
    print(f"{name}: {time.monotonic() - start:.1f} s, all laws hold: {report}", flush=True)
    return ""
