"""A reference simulator of how LLM servers keep, cut, save and reload their caches."""

from typing import TYPE_CHECKING

from cachesim.engines import Engine, Profile, Reply, Request
from cachesim.errors import CachesimError, InputError, ScenarioError, UpstreamAbort
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.scenario import Scenario, load, run, run_scenario

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from cachesim.report.notebook import Shown


def show(runs: "Mapping[str, Any] | Sequence[Mapping[str, Any]]") -> "Shown":
    """What `run_scenario` returned, one or several, in a form that notebooks show."""
    from cachesim.report import notebook  # noqa: PLC0415 - scripts do without

    return notebook.show(runs)


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
    "show",
]
