"""Runs as JSON: one object, or one line per step as it is done."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def document(runs: Sequence[Mapping[str, Any]]) -> str:
    """One object with every run."""
    return json.dumps({"format": 1, "runs": runs}, allow_nan=False)


def line(content: Mapping[str, Any]) -> str:
    """One line of JSON Lines."""
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def without_detail(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run as it is told when nobody asked for everything."""
    steps = [{key: each[key] for key in each if key != "detail"} for each in run["steps"]]
    return {key: run[key] for key in run if key != "detail"} | {"steps": steps}


def step_line(run: Mapping[str, Any], step: Mapping[str, Any]) -> str:
    """One step, with the run it belongs to."""
    return line({"scenario": run["scenario"], "profile": run["profile"], "step": step})


def end_line(run: Mapping[str, Any]) -> str:
    """The end of a run: everything but the steps."""
    return line({key: value for key, value in run.items() if key != "steps"})
