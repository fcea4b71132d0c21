"""The README's output is the program's."""

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from types import ModuleType

import pytest

from cachesim.cli.main import main
from cachesim.engines import FAMILIES
from cachesim.learn import lessons
from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_file, shipped_files
from cachesim.typed import there_is

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
POINTED = re.compile(r"\]\(([^)]*)\)")
NUMBERS = {11: "eleven", 12: "twelve", 13: "thirteen"}


def letters(text: str) -> str:
    """`LM Studio` is `lm-studio`."""
    return re.sub(r"[\W_]+", "", text).lower()


def test_the_readme_has_at_most_seven_hundred_words() -> None:
    assert len(README.split()) <= 700


def test_the_readme_counts_what_is_there() -> None:
    served = [family for name, family in FAMILIES.items() if name != "marconi"]

    told = letters(README)
    names = [{each.name, each.repository.rpartition("/")[2]} for each in served]
    assert all(any(letters(name) in told for name in own) for own in names)
    assert "more than 50 releases" in README
    assert 50 < sum(len(each.releases) for each in served)
    assert "More than 200 of them are included, most of them from" in README
    reported = [file for file in shipped_files() if load(file).source.issue]
    assert 200 < len(shipped_files()) < 2 * len(reported)
    assert f"{NUMBERS[len(lessons())]} lessons" in README


@pytest.mark.parametrize(("expected", "status"), [("diverged", 0), ("same", 1), (None, 1)])
def test_the_exit_status_is_that_of_the_guide(
    expected: str | None, status: int, tmp_path: Path
) -> None:
    text = shipped_file("llama.cpp-three-requests").read_text()
    text = text.split("[[expect]]")[0]
    if expected is not None:
        text += f'[[expect]]\nprofile = "b11549"\nanswer = ["same", "same", "{expected}"]\n'
    file = tmp_path / "three.toml"
    file.write_text(text)

    assert status == main(["run", str(file), "-p", "b11549", "--arithmetic", "ring"])


@pytest.fixture
def long_description(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], str]:
    """The function of the build, with a stand-in for hatchling, which is not installed here."""
    module = ModuleType("hatchling.metadata.plugin.interface")
    monkeypatch.setattr(module, "MetadataHookInterface", object, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return run_path(str(ROOT / "hatch_build.py"))["long_description"]


def test_the_long_description_points_at_nothing_that_an_index_does_not_have(
    long_description: Callable[[str, str, str], str],
) -> None:
    text = long_description(README, "", "0.1.0")

    assert [] == [each for each in POINTED.findall(text) if not each.startswith("https://")]
    assert "docs/images/two-codes.svg" in README
    assert "[CONTRIBUTING.md]" not in text
    assert "CONTRIBUTING.md explains" in text


def test_with_an_address_every_link_and_picture_of_it_is_absolute(
    long_description: Callable[[str, str, str], str],
) -> None:
    text = long_description(README, "https://example.org/c", "0.1.0")

    assert len(POINTED.findall(README)) == len(POINTED.findall(text))
    assert [] == [each for each in POINTED.findall(text) if not each.startswith("https://")]
    assert "](https://example.org/c/raw/v0.1.0/docs/images/two-codes.svg)" in text
    assert "git clone https://example.org/c\ncd c\nmake run\nmake test" in text
    assert "[CONTRIBUTING.md](https://example.org/c/blob/v0.1.0/CONTRIBUTING.md) explains" in text


def test_the_start_of_the_readme_is_the_two_targets_and_names_no_place_to_fill_in() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    commands = [line for page in pages for line in page.read_text().splitlines() if "git" in line]

    assert "```text\nmake run\nmake test\n```" in README.split("\n## ")[1]
    assert [] == [line for line in commands if re.search(r"\b(clone|git\+)\s*[A-Z]{4,}", line)]


def test_the_extras_of_the_install_page_are_those_of_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "install.md").read_text()

    assert set(settings["optional-dependencies"]) == set(re.findall(r"\.\[(\w+)\]", page))
    assert f"Python {settings['requires-python'].removeprefix('>=')} or newer" in page
    packages = {re.split(r"\W", dependency)[0] for dependency in settings["dependencies"]}
    named = there_is(re.search(r"installs (.*?)\.", page))
    assert packages == set(re.findall(r"\w+", named[1].lower())) - {"and"}
