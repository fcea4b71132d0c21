"""Whether an engine takes a profile and an option: asked of its family, and of a server."""

from functools import lru_cache
from typing import Any

from cachesim.engines.base import Engine
from cachesim.engines.family import family_of
from cachesim.engines.profile import Profile
from cachesim.errors import InputError, UpstreamAbort
from cachesim.model.build import build
from cachesim.model.spec import ModelSpec


def refused_profile(profile: Profile) -> str:
    """Why the engine does not take a profile; empty if it does."""
    try:
        family_of(profile.engine).rules(profile)
    except InputError as error:
        return str(error)
    return ""


def refused_option(profile: Profile, spec: ModelSpec, name: str, value: Any) -> str:  # noqa: ANN401
    """Why a profile does not take an option with this value; empty if it does."""
    try:
        family_of(profile.engine).refuse_internal(profile, {name: value})
        return _refusal(profile, spec, name, value)
    except InputError as error:
        return str(error)
    except TypeError:  # a value that cannot be a key is asked about each time
        return _refusal.__wrapped__(profile, spec, name, value)


@lru_cache(maxsize=4096, typed=True)
def _refusal(profile: Profile, spec: ModelSpec, name: str, value: Any) -> str:  # noqa: ANN401
    try:
        Engine.create(profile, model=build(spec, "ring"), options={name: value})
    except InputError as error:
        return str(error)
    except UpstreamAbort as abort:
        return f"the real server ends as it starts: {abort.where}: {abort.why}"
    return ""
