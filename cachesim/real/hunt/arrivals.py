"""Workloads in which a request arrives while a server reads another one's prompt, as scenarios."""

from collections.abc import Iterator, Sequence
from typing import Final

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.profile import Profile
from cachesim.real.llama_cpp.arrivals import draw_arrival, draw_pinned
from cachesim.real.llama_cpp.as_scenario import step_of
from cachesim.scenario.format import FORMAT, Model, Scenario, Server
from cachesim.units import as_tokens

SAID: Final = as_tokens([300, 301, 302, 303])
"""What every reply begins with: nothing quotes it."""


def arrival_workloads(
    profile: Profile, models: Sequence[str], seed: int, numbers: range
) -> Iterator[tuple[int, Scenario]]:
    """Such workloads of the numbers, for servers whose clock is known; none for others."""
    if profile.engine != FAMILY.name:
        return
    for number in numbers:
        draw = draw_arrival if number % 2 else draw_pinned
        drawn = draw(seed, number, release=profile.release, presets=tuple(models))
        yield (
            number,
            Scenario(
                format=FORMAT,
                name=drawn.name,
                about=f"Drawn for {profile}.",
                model=Model(preset=drawn.preset, window=drawn.window or None),
                engine=Server(
                    name=profile.engine, profiles=(profile.release,), options=dict(drawn.options)
                ),
                step=tuple(step_of(step, SAID[: step.predict]) for step in drawn.steps),
            ),
        )
