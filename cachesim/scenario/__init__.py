"""Scenario files in, runs out: loading, spans, the runner, the schemas."""

from typing import TYPE_CHECKING, Final

from cachesim.lazily import lazily

if TYPE_CHECKING:
    from cachesim.scenario.acceptance import full_profile
    from cachesim.scenario.checks import scenario_of
    from cachesim.scenario.files import load, load_stream, loads
    from cachesim.scenario.format import Scenario, Step
    from cachesim.scenario.runner import run, run_scenario, run_steps
    from cachesim.scenario.schema import output_schema, scenario_schema

HOMES: Final = {
    "Scenario": "format",
    "Step": "format",
    "full_profile": "acceptance",
    "load": "files",
    "load_stream": "files",
    "loads": "files",
    "output_schema": "schema",
    "run": "runner",
    "run_scenario": "runner",
    "run_steps": "runner",
    "scenario_of": "checks",
    "scenario_schema": "schema",
}
"""In which module each public name is defined."""

__getattr__ = lazily(__name__, HOMES)

__all__ = [
    "Scenario",
    "Step",
    "full_profile",
    "load",
    "load_stream",
    "loads",
    "output_schema",
    "run",
    "run_scenario",
    "run_steps",
    "scenario_of",
    "scenario_schema",
]
