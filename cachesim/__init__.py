"""A reference simulator of how LLM servers keep, cut, save and reload their caches.

Run a scenario, and look at what its last request got:

    import cachesim

    run = cachesim.run_scenario("llama.cpp-two-codes")
    run.steps[-1].cached, run.steps[-1].answer    # (7, 'diverged'): B was given A's code
    cachesim.show(run)                            # in a notebook

`cachesim.Engine` is a server that you step by hand, `cachesim.sweep` replays traces.
"""

# What is named here is loaded when it is first used: `cachesim --help` needs no NumPy.

from typing import TYPE_CHECKING, Final

from cachesim.lazily import lazily

if TYPE_CHECKING:
    from cachesim.engines import Engine, Profile, Reply, Request
    from cachesim.errors import CachesimError, InputError, ScenarioError, UpstreamAbort
    from cachesim.model.presets import preset
    from cachesim.model.spec import ModelSpec
    from cachesim.play import run, run_scenario
    from cachesim.play.result import Run, Step
    from cachesim.report.html import show
    from cachesim.scenario import Scenario, load
    from cachesim.traces.sweep import sweep

HOMES: Final = {
    "CachesimError": "errors",
    "Engine": "engines",
    "InputError": "errors",
    "ModelSpec": "model.spec",
    "Profile": "engines",
    "Reply": "engines",
    "Request": "engines",
    "Run": "play.result",
    "Scenario": "scenario",
    "ScenarioError": "errors",
    "Step": "play.result",
    "UpstreamAbort": "errors",
    "load": "scenario",
    "preset": "model.presets",
    "run": "play",
    "run_scenario": "play",
    "show": "report.html",
    "sweep": "traces.sweep",
}
"""Defining module of each public name."""


__getattr__ = lazily(__name__, HOMES)


__all__ = [
    "CachesimError", "Engine", "InputError", "ModelSpec", "Profile", "Reply", "Request", "Run",
    "Scenario", "ScenarioError", "Step", "UpstreamAbort", "load", "preset", "run",
    "run_scenario", "show", "sweep",
]  # fmt: skip
