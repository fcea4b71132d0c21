"""Scenario files: format, checks, spans."""

from typing import TYPE_CHECKING, Final

from cachesim.lazily import lazily

if TYPE_CHECKING:
    from cachesim.scenario.checks import full_profile, scenario_of
    from cachesim.scenario.files import load, load_stream, loads
    from cachesim.scenario.format import Scenario, Step

HOMES: Final = {
    "Scenario": "format",
    "Step": "format",
    "full_profile": "checks",
    "load": "files",
    "load_stream": "files",
    "loads": "files",
    "scenario_of": "checks",
}
"""In which module each public name is defined."""

__getattr__ = lazily(__name__, HOMES)

__all__ = ["Scenario", "Step", "full_profile", "load", "load_stream", "loads", "scenario_of"]
