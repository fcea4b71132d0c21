"""Runs as JSON: one object, or a line per finished step."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cachesim.play.result import Run


def document(runs: Sequence[Run], *, detail: bool = False) -> str:
    """An object with every run."""
    entries = [run.to_json(detail=detail) for run in runs]
    return json.dumps({"format": 1, "runs": entries}, allow_nan=False)


def lines(run: Run, *, detail: bool = False) -> Iterator[str]:
    """A line for each step, and one for the end of the run."""
    entry = run.to_json(detail=detail)
    steps = entry.pop("steps")
    for step in steps:
        yield line({"scenario": run.scenario, "profile": run.profile, "step": step})
    yield line(entry)


def line(content: Mapping[str, Any]) -> str:
    """A line of JSON Lines."""
    return json.dumps(content, allow_nan=False, separators=(",", ":"))
