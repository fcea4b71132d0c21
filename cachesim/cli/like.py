"""The requests that a search starts from: `cachesim check --like`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from cachesim.cli.jobs import only_scenario
from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.errors import InputError
from cachesim.lab.logs.other import options_for
from cachesim.lab.probe.shapes import Shapes
from cachesim.scenario.checks import full_profile, misfits
from cachesim.scenario.format import FORMAT, Model, Scenario, Server

SIZES: Final = (1_000, 16_000)
"""Longest prompts of a log's or trace's requests, which are scaled to them."""


def scenarios_like(
    name: str, preset: str, profiles: Sequence[Profile] = ()
) -> tuple[tuple[Scenario, ...], tuple[Profile, ...]]:
    """A scenario, or the requests of a log or trace, and the profiles for a search around them.

    A log of llama-server has its own release, model and flags, unless another engine is named.
    `preset` is the model of others.
    """
    found = _requests_of(name, preset, {FAMILY.name, *(each.engine for each in profiles)})
    return found, _fitting(found[0], profiles, name)


def _requests_of(name: str, preset: str, engines: set[str]) -> tuple[Scenario, ...]:
    path = Path(name)
    if path.suffix == ".toml" or not path.is_file():
        return (only_scenario(name, "--like"),)
    shapes, model, server = Shapes.read(path), Model(preset=preset), Server()
    origin = shapes.origin
    if origin is not None and {Profile.parse(origin.profile).engine} == engines:
        release = Profile.parse(origin.profile).release
        options = options_for(release, origin.options)
        model = Model(preset=origin.preset, window=origin.window)
        server = Server(name=FAMILY.name, profiles=(release,), options=options)
    small, large = (tuple(shapes.workloads(longest)) for longest in SIZES)
    larger = (steps for steps, scaled in zip(large, small, strict=True) if steps != scaled)
    base = Scenario(format=FORMAT, name=path.stem, model=model, engine=server)
    return tuple(replace(base, step=steps) for steps in (*small, *larger))


def _fitting(given: Scenario, profiles: Sequence[Profile], name: str) -> tuple[Profile, ...]:
    """The profiles, or those of the given server; InputError for a server that they do not fit."""
    own = given.engine
    found = tuple(profiles) or tuple(full_profile(own.name, each) for each in own.profiles)
    for profile in found if own.name else ():
        if profile.engine != own.name:
            msg = f"--like {name}: its server is {own.name}; name a release of that, not {profile}"
            raise InputError(msg)
        for problem in misfits(given, [str(profile)]):
            msg = f"--like {name}: {problem}"
            raise InputError(msg)
    if given.model.preset is None:
        msg = f"--like {name}: its model has layers of its own; name a preset in it"
        raise InputError(msg)
    return found
