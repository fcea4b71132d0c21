"""Scenario files in, runs out: loading, spans, the runner, the schemas."""

from cachesim.scenario.checks import full_profile, scenario_of
from cachesim.scenario.format import Scenario, Step
from cachesim.scenario.load import load, load_stream, loads
from cachesim.scenario.runner import run, run_scenario, run_steps
from cachesim.scenario.schema import output_schema, scenario_schema

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
