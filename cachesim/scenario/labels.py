"""Evidence labels: the degree to which a release's wrong answer, or its end, is confirmed.

`docs/wheels.csv` is written while scenarios are run on real engines (`make wheels`). It lists
for each scenario and release the steps whose wrong answer was confirmed there. A scenario is known
by the digest of what is run, so one with other flags, tokens or weights is not confirmed.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

from cachesim.engines.family import BESIDE_ENGINE, Profile, family_of
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import shipped_folder
from cachesim.typed import Json

Evidence: TypeAlias = Literal[
    "confirmed on the real engine",
    "derived from its runner's metadata",
    "source only, not run",
    "as on the real engine",
]

CONFIRMED: Final[Evidence] = "confirmed on the real engine"
"""The real engine gave the wrong answer, ended, or returned the counts."""

DERIVED: Final[Evidence] = "derived from its runner's metadata"
"""The real model runner reads the wrong state; no answer was computed from it."""

SOURCE: Final[Evidence] = "source only, not run"
"""Follows from the release's source; nothing of it was run."""

ALIKE: Final[Evidence] = "as on the real engine"
"""The answer is right, and what the scenario shows is what the real engine did."""

LABELS: Final = (CONFIRMED, DERIVED, SOURCE)
"""Of wrong answers, strongest first."""

TABLE: Final = "wheels.csv"

UNPLAYED: Final = ("name", "about", "kind", "source", "shows", "expect")
"""Parts of a scenario that no server receives: its story, and its expectations."""


def label_of_release(profile: Profile) -> Evidence | None:
    """The label of a claim without a real run; None for patches that are no server of their own."""
    named = (family_of(profile.engine).patch(patch.lstrip("-")) for patch in profile.patches)
    return SOURCE if not profile.patches or any(patch.server for patch in named) else None


def rules_of(engine: str) -> str:
    """Whence an engine's rules are, if it was not run beside the real one; else empty."""
    family = family_of(engine)
    beside = family.evidence == BESIDE_ENGINE
    return "" if beside else f"rules of {family.name}: {family.evidence}"


def label_of(scenario: Scenario, profile: Profile, step: str) -> Evidence | None:
    """The label of a wrong answer, or of the end of a server, in a step of a scenario."""
    if profile.engine != scenario.engine.name or profile.patches:
        return label_of_release(profile)
    steps = _confirmed().get((digest(scenario), profile.release), {})
    return steps.get(step, SOURCE)


def weakest(labels: Iterable[Evidence | None]) -> Evidence | None:
    """The weakest label of several wrong answers."""
    return max((label for label in labels if label in LABELS), key=LABELS.index, default=None)


def label_of_right(scenario: Scenario, profile: Profile, step: str) -> Evidence | None:
    """The label of a right answer: where the scenario shows it, and a real engine agreed."""
    if profile.engine != scenario.engine.name or profile.patches:
        return None
    if step not in {scenario.shows.before.step, scenario.shows.after.step}:
        return None
    return ALIKE if agrees(scenario, profile) else None


def agrees(scenario: Scenario, profile: Profile) -> bool:
    """True if every step of a scenario was on the real release as it is simulated."""
    return not profile.patches and (digest(scenario), profile.release) in _agreeing()


def digest(scenario: Scenario) -> str:
    """Digest of the parts of a scenario that are run, without story and list of releases."""
    blank = Scenario()
    played = replace(
        scenario,
        engine=replace(scenario.engine, profiles=()),
        **{field: getattr(blank, field) for field in UNPLAYED},
    )
    return hashlib.sha256(json.dumps(_stated(played), sort_keys=True).encode()).hexdigest()[:12]


def _stated(value: object) -> Json:
    """A value without default fields, so that later keys change no digest."""
    if is_dataclass(value) and not isinstance(value, type):
        blank = type(value)()
        named = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: _stated(stated) for name, stated in named if stated != getattr(blank, name)}
    if isinstance(value, Mapping):
        return {str(key): _stated(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_stated(item) for item in value]
    return value


def table(name: str = TABLE) -> Path | None:
    """A table of measurements, from the installed package or the source tree."""
    folder, docs = shipped_folder(), Path(__file__).parents[2] / "docs"
    places = (*([folder / name] if folder else []), docs / name, docs / "measurements" / name)
    return next((path for path in places if path.is_file()), None)


@cache
def _rows() -> tuple[Mapping[str, str], ...]:
    path = table()
    if path is None:
        return ()
    with path.open(newline="", encoding="utf-8") as rows:
        return tuple(csv.DictReader(rows))


def confirmed_on(profile: Profile) -> tuple[str, ...]:
    """The shipped scenarios with a wrong answer or an end that the real release showed."""
    folder = shipped_folder()
    here = folder and folder / profile.engine
    return tuple(
        row["scenario"]
        for row in _rows()
        if here and row["release"] == profile.release and row["confirmed"]
        if (here / f"{row['scenario']}.toml").is_file()
    )


@cache
def _agreeing() -> frozenset[tuple[str, str]]:
    """Scenarios, by digest, and releases on which every step was as on the real engine."""
    return frozenset((e["file"], e["release"]) for e in _rows() if e["result"] == "agrees")


@cache
def _confirmed() -> Mapping[tuple[str, str], Mapping[str, Evidence]]:
    return {
        (row["file"], row["release"]): {
            **dict.fromkeys(row["derived"].split(), DERIVED),
            **dict.fromkeys(row["confirmed"].split(), CONFIRMED),
        }
        for row in _rows()
        if row["confirmed"] or row["derived"]
    }
