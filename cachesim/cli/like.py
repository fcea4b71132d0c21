"""The requests that a search starts from: `cachesim check --like`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cachesim.cli.jobs import only_scenario
from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.model.presets import PRESETS, preset
from cachesim.probe.shapes import Shapes
from cachesim.scenario.checks import full_profile, misfits, spec_of
from cachesim.scenario.format import FORMAT, Model, Scenario, Server
from cachesim.why.infer.settings import Settings
from cachesim.why.replay.other import default_step, options_for

SIZES: Final = (1_000, 16_000)
"""Longest prompts of a log's or trace's requests, which are scaled to them."""

OWN_LAYERS: Final = "its own layers"
"""Name of a model without a preset."""

INFERRED: Final = ("assumed", "bounded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A scenario, or the requests of a log or trace, and the profiles for a search around them."""

    scenarios: tuple[Scenario, ...]
    profiles: tuple[Profile, ...]
    summary: str  # a line for the user


def scenarios_like(
    name: str, preset: str, profiles: Sequence[Profile] = (), model: str | None = None
) -> Given:
    """The requests and profiles that a search begins with.

    A log of llama-server has its own release, model and flags, unless another engine is named;
    `model` replaces its model. `preset` is the model of others.
    """
    path = Path(name)
    if path.is_fifo() or path.is_char_device():
        raise InputError(f"--like {name}: a stream cannot be read several times; save it in a file")
    if path.suffix == ".toml" or not path.is_file():
        given = only_scenario(name, "--like")
        summary = f"around {counted(len(given.step), 'step')} of {given.name}"
        if given.model.preset is None:
            summary += f", on {OWN_LAYERS}"
        return Given(scenarios=(given,), profiles=_fitting(given, profiles, name), summary=summary)
    shapes, base = Shapes.read(path, model), Scenario(format=FORMAT, name=path.stem)
    summary = f"around {counted(len(shapes.requests), 'request')} of {path.name}"
    base, log = replace(base, model=Model(preset=preset)), shapes.server
    if log is not None and {log.engine, *(profile.engine for profile in profiles)} == {FAMILY.name}:
        base = replace(base, model=_model_of(log), engine=_server_of(log, profiles))
        taken = (
            {"--model": log.preset}
            if profiles
            else {"a profile": log.release, "--model": log.preset}
        )
        words = [
            f"{setting.value} ({by} names another)"
            for by, setting in taken.items()
            if setting.how in INFERRED
        ]
        summary += "; inferred: " + ", ".join(words) if words else ""
    small, large = (tuple(shapes.workloads(longest)) for longest in SIZES)
    larger = (steps for steps, scaled in zip(large, small, strict=True) if steps != scaled)
    found = tuple(replace(base, step=steps) for steps in (*small, *larger))
    return Given(scenarios=found, profiles=_fitting(found[0], profiles, name), summary=summary)


def _model_of(log: Settings) -> Model:
    return Model(preset=str(log.preset.value), window=log.window.value or None)


def _server_of(log: Settings, profiles: Sequence[Profile]) -> Server:
    """The server of a log; flags at its release's default are not another release's."""
    own = str(log.release.value)
    releases = [str(profile).partition("@")[2] for profile in profiles] or [own]
    left_out = set[str]() if releases == [own] else default_step(log)
    options = {name: value for name, value in log.values.items() if name not in left_out}
    for release in releases:
        options = options_for(release, options)
    return Server(name=FAMILY.name, profiles=(own,), options=options)


def _fitting(given: Scenario, profiles: Sequence[Profile], name: str) -> tuple[Profile, ...]:
    """The profiles, or those of the given server; InputError for a server that they do not fit."""
    own = given.engine
    found = tuple(profiles) or tuple(full_profile(own.name, text) for text in own.profiles)
    if not found:
        msg = f"--like {name}: names no release; add one, as in: check vllm@0.33.0 --like {name}"
        raise InputError(msg)
    for profile in found if own.name else ():
        if profile.engine != own.name:
            msg = f"--like {name}: its server is {own.name}; name a release of that, not {profile}"
            raise InputError(msg)
        for problem in misfits(given, [str(profile)]):
            raise InputError(f"--like {name}: {problem}")
    return found


def nearest_preset(model: Model) -> str:
    """The model's preset, or one with the same kinds of layers, whose flags a search tries."""
    if model.preset is not None:
        return model.preset
    kinds = set(spec_of(model).layers)
    return min(PRESETS, key=lambda name: len(kinds ^ set(preset(name).layers)))
