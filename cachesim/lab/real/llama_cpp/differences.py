"""A disagreement on the screen: a scenario to run, and what both servers did at its last step."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from rich.console import Console

from cachesim.engines.events import Event
from cachesim.lab.real.llama_cpp.compare import Difference, SideBySide
from cachesim.lab.real.llama_cpp.server_log import calls_of
from cachesim.lab.real.llama_cpp.simulated import as_scenario
from cachesim.lab.real.llama_cpp.workload import SILENT, release_of
from cachesim.play.session import ENDLESS
from cachesim.scenario.files import to_toml
from cachesim.scenario.format import Scenario

LINES_SHOWN: Final = 200
"""Of the real server's log: what a step of a few requests writes, with room."""


def show_difference(
    out: Console, difference: Difference, *, profile: str = "", version: str = ""
) -> None:
    """A workload that disagrees, and what both servers did at its last step."""
    workload = difference.workload
    step = workload.step_names[difference.step]
    out.print(f"\nfirst disagreement: {workload.name}, step {step}")
    about = f"the simulator disagrees with the real server in step {step}"
    outcomes = difference.outcomes[: difference.step + 1]
    scenario = as_scenario(workload, outcomes, profile=profile, about=about)
    out.print(to_toml(scenario), markup=False)
    for name, (real, simulated) in difference.fields.items():
        out.print(f"{name} in step {step}: real {real}, simulated {simulated}")
    out.print("the simulator's events at that step:")
    for line in _lines(difference.events):
        out.print(f"  {line}")
    if difference.real.error in {ENDLESS, SILENT}:
        out.print("the real server did not answer; a log that loops forever is not shown")
        return
    out.print("the real server's log at that step:")
    lines = real_log_of(workload, difference.step, version=version)
    for line in lines[:LINES_SHOWN]:
        out.print(f"  {line}", markup=False)
    if len(lines) > LINES_SHOWN:
        out.print(f"  ... and {len(lines) - LINES_SHOWN:,} more lines")


def _lines(events: Sequence[Event]) -> Iterator[str]:
    lines = (json.dumps(event.as_dict(), default=str) for event in events)
    for line, same in groupby(lines):
        count = len(list(same))
        yield line + (f"  (x {count})" if count > 1 else "")


def real_log_of(workload: Scenario, step: int, *, version: str = "") -> list[str]:
    """Log lines of the real server about its caches at one step of a workload."""
    with NamedTemporaryFile(suffix=".log") as file:
        log = Path(file.name)
        with SideBySide(release_of(workload), version=version, log=log) as pair:
            pair.play(workload)
        starts = (index for index, each in enumerate(workload.step) if not each.with_previous)
        calls = dict(zip(starts, calls_of(log), strict=False))
    return calls.get(max((start for start in calls if start <= step), default=0), [])
