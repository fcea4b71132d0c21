"""A reference simulator of how LLM servers keep, cut, save and reload their caches."""

from cachesim.engines import Engine, Profile, Reply, Request
from cachesim.errors import CachesimError, InputError, ScenarioError, UpstreamAbort
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.scenario import Scenario, load, run, run_scenario

__all__ = [
    "CachesimError",
    "Engine",
    "InputError",
    "ModelSpec",
    "Profile",
    "Reply",
    "Request",
    "Scenario",
    "ScenarioError",
    "UpstreamAbort",
    "load",
    "preset",
    "run",
    "run_scenario",
]
