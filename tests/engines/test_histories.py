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
    # Marconi's are an artifact and a paper, of which none came after the other; the others are
    # rules of a server over one release of mlx-lm, whose history has what came between.
    apart = {"marconi", "lm-studio", "ollama", "vllm-mlx"}

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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vllm@0.33.0-lookahead-hash", "no vllm patch .*; did you mean 'lookahead-hashes'?"),
        ("vllm@0.33.0-44410", "no vllm patch '44410'; did you mean '44409'?"),
        ("mlx-lm@0.31.1-man", "no mlx-lm release .*; did you mean '0.31.1-main'?"),
        ("mlx-lm@0.32.2-738", "738 cannot be taken back here: take back 1072 first"),
        ("vllm@0.23.0-44409", "does not have '44409' to take back; it landed in 0.24.0"),
        ("vllm@0.24.0+44409", "has '44409' already: it landed in 0.24.0"),
    ],
)
def test_a_change_that_cannot_be_taken_back_is_refused_with_the_reason(
    text: str, says: str
) -> None:
    profile = Profile.parse(text)

    with pytest.raises(ProfileError, match=says):
        FAMILIES[profile.engine].rules(profile)


def test_a_change_of_the_engine_below_is_named_by_its_own_pull_request() -> None:
    below = FAMILIES["mlx-lm"]
    above = [family for family in FAMILIES.values() if below.name in family.kin]
    shared = [
        (family, patch)
        for family in above
        for patch in family.patches
        if patch.pull and patch.name in {own.name for own in below.patches}
    ]

    assert {family.name for family in above} == {family.name for family, _ in shared}
    assert [] == [
        (family.name, patch.name)
        for family, patch in shared
        if family.upstream_of(patch) != below.upstream_of(below.patch(patch.name))
    ]
