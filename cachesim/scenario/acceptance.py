"""Profiles and options that an engine takes: asked of its family, and of a server."""

from collections.abc import Mapping
from functools import lru_cache

from cachesim.engines.base import Engine
from cachesim.engines.family import FAMILIES, Profile, family_of
from cachesim.errors import InputError, UpstreamAbort
from cachesim.model.build import build
from cachesim.model.spec import ModelSpec


def full_profile(engine: str, text: str) -> Profile:
    """A profile written in full, or as its release and patches within one engine."""
    return Profile.parse(text if "@" in text else f"{engine}@{text}")


def wrong_profile(engine: str, text: str) -> str:
    """The reason why a profile, written either way, cannot be played; empty if it can."""
    try:
        profile = full_profile(engine, text)
    except InputError as error:
        return str(error)
    return refused_profile(profile) if profile.engine in FAMILIES else ""


def refused_profile(profile: Profile) -> str:
    """The engine's reason for refusing a profile; empty if it takes it."""
    try:
        family_of(profile.engine).rules(profile)
    except InputError as error:
        return str(error)
    return ""


def refused_option(profile: Profile, spec: ModelSpec, name: str, value: object) -> str:
    """The reason why a profile does not take an option with this value; empty if it does."""
    try:
        family_of(profile.engine).refuse_internal(profile, {name: value})
        return _refusal(profile, spec, name, value)
    except InputError as error:
        return str(error)
    except TypeError:  # a value that cannot be a key is asked about each time
        return _refusal.__wrapped__(profile, spec, name, value)


def partner_of(profile: Profile, spec: ModelSpec, options: Mapping[str, object], name: str) -> str:
    """The option beside which another one is taken that is refused alone; empty if there is none.

    `spec_type = "draft-simple"` and `model_draft` need each other.
    """
    for other in options.keys() - {name}:
        pair = {name: options[name], other: options[other]}
        try:
            family_of(profile.engine).refuse_internal(profile, pair)
            Engine.create(profile, model=build(spec, "ring"), options=pair)
        except (InputError, UpstreamAbort):
            continue
        return other
    return ""


@lru_cache(maxsize=4096, typed=True)
def _refusal(profile: Profile, spec: ModelSpec, name: str, value: object) -> str:
    try:
        Engine.create(profile, model=build(spec, "ring"), options={name: value})
    except InputError as error:
        return str(error)
    except UpstreamAbort as abort:
        return f"the real server ends as it starts: {abort.where}: {abort.why}"
    return ""
