"""Engines of other packages, found by the entry-point group `cachesim.engines`.

    [project.entry-points."cachesim.engines"]
    my-engine = "my_package.family:FAMILY"

They are looked up when a name is not one of cachesim's own engines, or when all engines are listed.
"""

import re
from collections.abc import MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from cachesim.engines.facts import causes_in, events_in
from cachesim.engines.family import Family

GROUP: Final = "cachesim.engines"

SHAPE: Final = re.compile(r"[\w.-]+")
"""A name that a profile can begin with."""


def discover(families: MutableMapping[str, Family[Any, Any]]) -> dict[str, str]:
    """Add every installed engine; of those that cannot be loaded, the reason by name."""
    broken = {}
    for point in sorted(
        entry_points(group=GROUP), key=lambda entry_point: (entry_point.name, entry_point.value)
    ):
        try:
            family = _loaded(point)
            if family.name in families:
                msg = f"there is an engine {family.name!r} already"
                raise ValueError(msg)  # noqa: TRY301 - told like every other reason
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a foreign module may do anything
            broken[point.name] = f"{point.value}: {type(error).__name__}: {error}"
        else:
            families[family.name] = family
    return broken


def _loaded(point: EntryPoint) -> Family[Any, Any]:
    """The family, with its causes and events loaded, which schema and pages ask for."""
    family = point.load()
    if not isinstance(family, Family):
        raise TypeError(f"it is a {type(family).__name__}, not a cachesim.engines.family.Family")
    if family.name != point.name or not SHAPE.fullmatch(family.name):
        msg = f"its Family is called {family.name!r}: write the same name of letters, digits, . _ -"
        raise ValueError(msg)
    if not family.releases:
        raise ValueError("its Family has no releases")
    causes_in(family.package)
    events_in(family.package)
    return family
