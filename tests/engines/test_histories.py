"""Histories of releases: what every engine's merged changes have in common."""

from importlib import import_module
from typing import Any

import pytest

from cachesim.engines import FAMILIES
from cachesim.engines.family import Family, Patch, Profile
from cachesim.engines.history import History
from cachesim.errors import ProfileError

AnyFamily = Family[Any, Any]

ENGINES = tuple(
    name
    for name, family in FAMILIES.items()
    if hasattr(import_module(f"{family.package}.releases"), "HISTORY")
)
"""Engines with a history."""

MERGED = [
    pytest.param(family, patch, id=f"{family.name}-{patch.name}")
    for family in map(FAMILIES.__getitem__, ENGINES)
    for patch in family.patches
    if patch.back is not None
]
PATCHES = [
    pytest.param(family, patch, id=f"{family.name}+{patch.name}")
    for family in FAMILIES.values()
    for patch in family.patches
]


def history_of(engine: str) -> History[Any]:
    package = FAMILIES[engine].package
    history: History[Any] = import_module(f"{package}.releases").HISTORY
    return history


def test_an_engine_of_several_releases_has_a_history() -> None:
    apart = {"marconi"}  # an artifact and a paper, of which none came after the other

    assert set(ENGINES) == {
        name for name, family in FAMILIES.items() if len(family.releases) > 1 and name not in apart
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_changes_stand_in_the_order_in_which_they_landed(engine: str) -> None:
    history = history_of(engine)
    landed = [history.names.index(merged.landed) for merged in history.merged]

    assert sorted(landed) == landed
    assert FAMILIES[engine].names() == history.names


@pytest.mark.parametrize("engine", ENGINES)
def test_every_change_changes_what_the_releases_before_it_had(engine: str) -> None:
    history = history_of(engine)
    rules = history.oldest
    for merged in history.merged:
        then = rules
        for path, value in merged.sets.items():
            rules = merged.laid(then)
            alone = type(merged)(about="", landed=merged.landed, sets={path: value}, name="one")
            assert alone.laid(then) != then, (merged.title, path)
    assert rules == history.rules(history.names[-1])


@pytest.mark.parametrize(("family", "patch"), PATCHES)
def test_every_patch_changes_the_rules_of_each_release_it_fits(
    family: AnyFamily, patch: Patch[Any]
) -> None:
    for release in patch.fits:
        plain = family.release(release).rules
        assert family.rules(Profile(family.name, release, (patch.name,))) != plain
        assert family.rules(Profile(family.name, release)) == plain


@pytest.mark.parametrize(("family", "patch"), MERGED)
def test_a_change_that_is_taken_back_and_laid_again_leaves_the_release(
    family: AnyFamily, patch: Patch[Any]
) -> None:
    taken_back = 0
    for release in family.since(patch.landed):
        profile = Profile.parse(f"{family.name}@{release}-{patch.name}")
        assert (f"-{patch.name}",) == profile.patches
        plain = family.release(release).rules
        try:
            without = family.rules(profile)
        except ProfileError:  # a later change depends on it
            continue
        assert without != plain
        assert patch.lay(without) == plain
        taken_back += 1
    assert taken_back


@pytest.mark.parametrize(
    ("text", "patches"),
    [
        ("llama.cpp@b11549-28302-25472", ("-28302", "-25472")),
        ("llama.cpp@b11549+24143-rank-in-pieces-28302", ("24143", "-rank-in-pieces", "-28302")),
        ("llama.cpp@b11549-cut-between-images-fails", ("-cut-between-images-fails",)),
        ("llama.cpp@b9294+22673-early", ("22673-early",)),
        ("mlx-lm@0.31.1-main-741", ("-741",)),
        ("vllm@0.33.0+no-29387", ("no-29387",)),
        ("llama.cpp@b11549-99999", ("-99999",)),
    ],
)
def test_a_change_is_taken_back_by_its_number_or_its_name(
    text: str, patches: tuple[str, ...]
) -> None:
    assert patches == Profile.parse(text).patches
    assert text == str(Profile.parse(text))
