"""A scenario on the wheels of an engine, release by release, for a bisection."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from cachesim.errors import InputError, ScenarioError
from cachesim.real.environment import EnvironmentUnavailableError
from cachesim.real.llama_cpp.scenarios import StepPlayed, play_scenario
from cachesim.scenario.bisect import Play, Played, Seen
from cachesim.scenario.format import Scenario


def on_the_wheels(scenario: Scenario) -> Play:
    """Play on the real servers; an answer far from the server's own cold one is wrong."""
    if scenario.engine.name != "llama.cpp":
        msg = f"{scenario.name}: --real plays llama.cpp; {scenario.engine.name} has no such wheels"
        raise ScenarioError(msg)

    def play(release: str, flags: Mapping[str, Any] = MappingProxyType({})) -> Played:
        options = {**flags, **scenario.engine.options}
        asked = replace(scenario, engine=replace(scenario.engine, options=options))
        try:
            steps = play_scenario(asked, release)
        except (EnvironmentUnavailableError, InputError) as error:
            return Played(profile=release, refused=str(error))
        return Played(profile=release, steps=tuple(_seen(each) for each in steps))

    return play


def _seen(played: StepPlayed) -> Seen:
    answer = None
    if played.proof is not None:
        answer = "diverged" if played.proof.wrong else "same"
    real = played.real
    return Seen(name=played.step.name, cached=real.cached, answer=answer, error=real.error)
