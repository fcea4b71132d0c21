"""Causes that a gate lets pass: those of a file, and those that a release shows too.

    a name in the file              known
    its workload on the release     the same cause there: known, else new

The second is why a rare defect of the release fails no gate: the workload that shows it is run on
the release as well.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cachesim.engines.family import Profile
from cachesim.errors import InputError
from cachesim.files import readable
from cachesim.model.arithmetic import ArithmeticName
from cachesim.scenario.format import Scenario
from cachesim.testing.search import playable
from cachesim.testing.survey import Cause, Find, causes
from cachesim.typed import JsonObject

VERSION: Final = 1
FIRST_BYTES: Final = b'{\n "baseline"'
"""Of the file, which is replaced when a baseline is saved again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The causes of one search."""

    profile: str
    model: str
    causes: tuple[Cause, ...]

    def as_json(self) -> JsonObject:
        """The search, and each cause under its name."""
        named = {cause.name: str(cause) for cause in sorted(self.causes)}
        return {"profile": self.profile, "model": self.model, "causes": dict(named)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Names of causes, and the releases on which a workload is run to see if it shows them."""

    names: frozenset[str] = frozenset()
    releases: tuple[Profile, ...] = ()

    def knows(
        self,
        cause: Cause,
        scenario: Scenario,
        profile: Profile,
        arithmetic: ArithmeticName,
        find: Find,
    ) -> bool:
        """True for a cause of the file, and for one that the workload shows on a release too."""
        return cause.name in self.names or any(
            cause.name in {other.name for other in causes(scenario, release, arithmetic, find)}
            for release in self.releases
            if release != profile
            and release.engine == profile.engine
            and playable(scenario, release)
        )


def written(searches: Iterable[Searched]) -> str:
    """The file of a baseline."""
    told = {"baseline": VERSION, "searches": [search.as_json() for search in searches]}
    return json.dumps(told, indent=1) + "\n"


def read(path: Path) -> Baseline:
    """The baseline of a file; InputError where it is none."""
    with readable(f"--baseline {path}"):
        text = path.read_text(encoding="utf-8")
    try:
        told = json.loads(text)
        searches = told["searches"]
        names = frozenset(name for search in searches for name in search["causes"])
        releases = tuple(dict.fromkeys(Profile.parse(search["profile"]) for search in searches))
        version = told["baseline"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        msg = f"--baseline {path}: is no baseline; `cachesim check --save-baseline FILE` writes one"
        raise InputError(msg) from None
    if version != VERSION:
        raise InputError(f"--baseline {path}: has version {version}; this program reads {VERSION}")
    return Baseline(names=names, releases=releases)
