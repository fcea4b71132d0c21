"""The scenarios that are shipped: every one is right, sourced, and as it expects to be."""

import tomllib
from functools import cache
from pathlib import Path

import pytest

from cachesim.engines.family import Profile
from cachesim.play import run
from cachesim.play.result import CLAIMS
from cachesim.scenario import full_profile, limits, load
from cachesim.scenario.labels import LABELS, label_of_release
from cachesim.scenario.shipped import load_all, shipped_file, shipped_files
from conformance.hashes import digest_of, formerly, kept

FILES = shipped_files()
loaded = cache(load)
DIGESTS = kept()


def runs() -> list[tuple[Path, Profile]]:
    """Each scenario with each of its profiles: a file is checked where its test loads it."""
    found = []
    for file in FILES:
        engine = tomllib.loads(file.read_text(encoding="utf-8"))["engine"]
        found += [(file, full_profile(engine["name"], text)) for text in engine["profiles"]]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_scenario_says_what_it_is_about_and_where_it_comes_from(file: Path) -> None:
    scenario = loaded(file)

    assert file.stem == scenario.name
    assert file.parent.name == scenario.engine.name
    assert len(scenario.about.split()) > 8
    assert scenario.kind is not None
    assert scenario.source.issue or scenario.source.upstream
    assert scenario.engine.profiles
    assert scenario.expect
    assert len(scenario.shows.symptom.split()) > 4
    assert scenario.shows.before.profile


@pytest.mark.parametrize(
    ("file", "profile"), runs(), ids=lambda each: getattr(each, "stem", None) or str(each)
)
def test_a_scenario_shows_what_it_expects_and_all_else_as_before(
    file: Path, profile: Profile
) -> None:
    """`python -m conformance.hashes --accept` writes the digests anew."""
    entry = run(loaded(file), profile, arithmetic="ring")

    assert entry.mismatches == ()
    assert DIGESTS.get(f"run {file.stem} {formerly().get(str(profile), profile)}") == digest_of(
        entry
    )
    for step in entry.steps:
        claims = step.finding.fate in CLAIMS and label_of_release(profile) is not None
        assert claims == (step.evidence in LABELS), "a claim about a release or server has a label"


def test_the_touchstones_are_there() -> None:
    names = {file.stem for file in FILES}

    for number in ("24143", "24035", "24411", "28302", "26557", "28139", "28276", "25913"):
        assert any(f"llama.cpp-{number}" in name for name in names), number


def test_a_scenario_is_called_what_finds_it_again(tmp_path: Path) -> None:
    name = "llama.cpp-three-requests"
    file = shipped_file(name)
    copy = tmp_path / "mine.toml"
    copy.write_bytes(file.read_bytes())

    for told, expected in {
        name: name,
        f"{name}.toml": name,
        str(file): str(file),
        str(tmp_path): str(copy),
    }.items():
        ((called, scenario),) = load_all([told])
        assert (expected, name) == (called, scenario.name)
        assert [(called, scenario)] == load_all([called])


# The page on the scenario file names the limits that hold.

PAGE = (Path(__file__).parents[2] / "docs" / "scenario-format.md").read_text()


def test_the_limits_on_the_page_are_those_that_hold() -> None:
    for number in (
        limits.STEPS, limits.SPANS, limits.PROMPT_TOKENS, limits.TOTAL_TOKENS, limits.CONTEXT,
        limits.SLOTS,
    ):  # fmt: skip
        assert f"{number:,}" in PAGE

    assert limits.FILE_BYTES == 4 * 2**20
    assert limits.MEMORY == 4 * 2**30
