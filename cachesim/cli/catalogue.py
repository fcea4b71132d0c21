"""What there is: engines, releases, patches, presets, each with a line and its upstream place."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachesim.engines.family import Family
    from cachesim.engines.release import Patch, Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One line of a list."""

    name: str
    about: str
    upstream: str = ""
    fits: tuple[str, ...] = ()
    range: str = ""  # what it fits, in words
    landed: str = ""  # between which releases it was merged
    also: tuple[str, ...] = ()  # other names of it
    facts: tuple[str, ...] = ()  # further lines where it is shown in full


def families(thing: str = "") -> "Iterable[Family[Any, Any]]":
    """The engines, or the one that the name of a thing begins with; no other one is loaded."""
    from cachesim.engines import FAMILIES

    engine = re.split(r"[@+ ]", thing, maxsplit=1)[0]
    return [FAMILIES[engine]] if engine in FAMILIES else FAMILIES.values()


def engines(thing: str = "") -> list[Item]:
    """The engines that are known."""
    return [
        Item(name=each.name, about=each.about, upstream=each.repository) for each in families(thing)
    ]


def releases(thing: str = "") -> list[Item]:
    """Every release of every engine, oldest first."""
    return [
        Item(
            name=f"{family.name}@{each.name}",
            about=each.about,
            upstream=f"{family.repository} {each.follows}",
            also=each.aliases,
            facts=tuple(_facts(family, each)),
        )
        for family in families(thing)
        for each in family.releases
    ]


def _facts(family: "Family[Any, Any]", release: "Release[Any]") -> Iterator[str]:
    if release.date:
        yield f"date: {release.date}"
    if release.aliases:
        yield f"other names: {', '.join(release.aliases)}"
    if release.package is not None:
        yield f"played for real by: {' '.join(release.package.requirements)}"
    fitting = (f"+{name}" for name in family.fitting(release.name))
    yield f"patches: {', '.join(fitting) or 'none'}"


def patches(thing: str = "") -> list[Item]:
    """Every patch, with the releases it fits."""
    return [item for family in families(thing) for item in _patches_of(family)]


def _patches_of(family: "Family[Any, Any]") -> Iterator[Item]:
    for each in family.patches:
        yield Item(
            name=f"{family.name} +{each.name}",
            about=each.about,
            upstream=family.upstream_of(each) or "our own name",
            fits=each.fits,
            range=family.range_of(each.fits),
            landed=landed(family, each),
        )


def landed(family: "Family[Any, Any]", patch: "Patch[Any]") -> str:
    """Between which releases a patch was merged; empty if it was not."""
    if not patch.landed:
        return ""
    names = family.names()
    at = names.index(patch.landed)
    return f"between {names[at - 1]} and {patch.landed}" if at else f"in {patch.landed}"


def presets(_: str = "") -> list[Item]:
    """The models by name."""
    from cachesim.model.presets import ABOUT, PRESETS

    return [
        Item(
            name=name,
            about=ABOUT[name],
            facts=tuple(f"{each.name} = {getattr(spec, each.name)!r}" for each in fields(spec)),
        )
        for name, spec in PRESETS.items()
    ]
