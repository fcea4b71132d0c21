"""The flags that a search turns: those of an engine's table that name values to try."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from cachesim.engines import Engine, Profile
from cachesim.engines.family import Corner, family_of
from cachesim.errors import InputError
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.testing.draws import Draws


@cache
def flags_of(profile: Profile) -> Mapping[str, tuple[Any, ...]]:
    """The flags and values that a profile accepts, found by asking it."""
    found = {}
    for each in family_of(profile.engine).table():
        kept = tuple(v for v in each.tried if _accepts(profile, "dense", {each.name: v}))
        if kept:
            found[each.name] = kept
    return found


def try_flags(profile: Profile, model: str, options: Mapping[str, Any]) -> None:
    """Start a server with these flags, or say why it does not take them."""
    family_of(profile.engine).refuse_internal(profile, options)
    Engine.create(profile, model=build(preset(model), "ring"), options=options)


def _accepts(profile: Profile, model: str, options: Mapping[str, Any]) -> bool:
    try:
        try_flags(profile, model, options)
    except InputError:
        return False
    return True


@cache
def drafting(profile: Profile, model: str) -> Mapping[str, Any]:
    """The flags that make a model draft; none where it has no MTP head or the release no drafts."""
    flags = family_of(profile.engine).drafting if preset(model).mtp_depth else {}
    return flags if _accepts(profile, model, flags) else {}


@cache
def corners(profile: Profile, model: str) -> tuple[Corner, ...]:
    """The corners of an engine that this release and this model have."""
    layers = frozenset(preset(model).layers)
    return tuple(
        each
        for each in family_of(profile.engine).corners
        if (not each.layers or each.layers & layers) and _accepts(profile, model, each.flags)
    )


def draw_corner(draws: Draws, profile: Profile, model: str) -> Corner:
    """One of the engine's corners, or as often none; nothing is drawn where it has none."""
    found = corners(profile, model)
    return draws.one_of(found) if found and draws.integer(0, 1) else Corner()


def draw_flags(
    draws: Draws,
    profile: Profile,
    model: str,
    given: Mapping[str, Any],
    corner: Corner | None = None,
) -> dict[str, Any]:
    """Some flags with values other than the default, which go together; often none at all.

    They go with those that are given, too, and with those of the corner, which are among them.
    """
    chosen: dict[str, Any] = {}
    if preset(model).mtp_depth and draws.integer(0, 1):
        chosen |= drafting(profile, model)
    if corner is not None:
        both = chosen | dict(corner.flags)
        if _go_together(profile, model, tuple((both | dict(given)).items())):
            chosen = both
    fixed = frozenset(chosen)
    if draws.integer(0, 3) == 0:
        return chosen
    for name, values in flags_of(profile).items():
        value = draws.one_of(values) if draws.integer(0, 2) == 2 else values[0]
        if value == values[0] or name in fixed:
            continue
        if _go_together(profile, model, tuple((chosen | {name: value} | dict(given)).items())):
            chosen[name] = value
    return chosen


@cache
def _go_together(profile: Profile, model: str, options: tuple[tuple[str, Any], ...]) -> bool:
    return _accepts(profile, model, dict(options))
