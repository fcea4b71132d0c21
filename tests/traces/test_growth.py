"""A replay of four times as many requests takes about four times the work, on every engine.

Work is counted in calls of functions, so the result is the same on every machine. A server that
compared each request with all that it holds would take six to twelve times the calls.
"""

import cProfile
import pstats
from collections.abc import Mapping
from typing import Any, Final

import pytest

from benchmarks.growth import ENGINES
from cachesim.traces.replay import Cell, play
from cachesim.traces.source import Source

FEW: Final = 100
MOST: Final = 4.6
"""More than 4, as the prompts of made chats grow with their number."""

FULL: Final = {"marconi@paper": {"capacity_bytes": 200_000_000, "policy": "weighed"}}
"""Sizes that make a server evict within so few requests."""


def calls(requests: int, profile: str, options: Mapping[str, Any]) -> int:
    """Calls of functions that a replay takes."""
    source, flags = Source(name=f"made:{requests}", scale=32), tuple(options.items())
    work = cProfile.Profile()
    work.runcall(play, Cell(source=source, profile=profile, model="dense", options=flags))
    return int(pstats.Stats(work).total_calls)  # type: ignore[attr-defined]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("profile", ENGINES)
def test_work_grows_as_the_requests_do(profile: str) -> None:
    options = FULL.get(profile, {})
    calls(2, profile, options)  # what is computed once
    assert calls(4 * FEW, profile, options) <= MOST * calls(FEW, profile, options)
