"""What there is: engines, releases, patches, presets, each with a line and its upstream place."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cachesim.engines import FAMILIES
from cachesim.engines.family import Family
from cachesim.model.presets import ABOUT, PRESETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One line of a list."""

    name: str
    about: str
    upstream: str = ""
    fits: tuple[str, ...] = ()


def engines() -> list[Item]:
    """The engines that are known."""
    return [
        Item(name=each.name, about=each.about, upstream=each.repository)
        for each in FAMILIES.values()
    ]


def releases() -> list[Item]:
    """Every release of every engine, oldest first."""
    return [
        Item(
            name=f"{family.name}@{each.name}",
            about=each.about,
            upstream=f"{family.repository} {each.follows}",
        )
        for family in FAMILIES.values()
        for each in family.releases
    ]


def patches() -> list[Item]:
    """Every patch, with the releases it fits."""
    return [item for family in FAMILIES.values() for item in patches_of(family)]


def patches_of(family: Family[Any, Any]) -> Iterator[Item]:
    """The patches of one engine."""
    for each in family.patches:
        yield Item(
            name=f"{family.name} +{each.name}",
            about=each.about,
            upstream=family.upstream_of(each) or "our own name",
            fits=each.fits,
        )


def presets() -> list[Item]:
    """The models by name."""
    return [Item(name=name, about=ABOUT[name]) for name in PRESETS]
