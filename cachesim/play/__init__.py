"""Scenarios on servers: the loop that runs them, `Run`, and the schemas of both."""

from typing import TYPE_CHECKING, Final

from cachesim.lazily import lazily

if TYPE_CHECKING:
    from cachesim.play.result import output_schema, scenario_schema
    from cachesim.play.runner import run, run_scenario, run_steps

HOMES: Final = {
    "output_schema": "result",
    "run": "runner",
    "run_scenario": "runner",
    "run_steps": "runner",
    "scenario_schema": "result",
}
"""In which module each public name is defined."""

__getattr__ = lazily(__name__, HOMES)

__all__ = ["output_schema", "run", "run_scenario", "run_steps", "scenario_schema"]
