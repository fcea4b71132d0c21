"""What the README shows is what the program prints."""

import re
import tomllib
from pathlib import Path

import pytest

from cachesim.cli.app import COMMANDS
from cachesim.cli.main import main
from cachesim.scenario import full_profile, run, scenario_of
from cachesim.scenario.shipped import shipped_file

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_first_screen_is_what_the_command_prints() -> None:
    page = (ROOT / "tests" / "report" / "snapshots" / "first-screen.txt").read_text()

    shown = next(
        each
        for each in blocks("console")
        if each.startswith("$ cachesim run llama.cpp-three-requests\n")
    )

    assert page == f"{shown}exit 0\n"


def test_the_scenario_in_the_readme_runs_as_it_expects() -> None:
    scenario = scenario_of(tomllib.loads(blocks("toml")[0]))

    runs = [
        run(scenario, full_profile("llama.cpp", each), arithmetic="ring")
        for each in scenario.engine.profiles
    ]

    assert [entry.mismatches for entry in runs] == [(), ()]
    assert [entry.steps[1].cached for entry in runs] == [0, 596]


@pytest.mark.parametrize(
    ("expected", "profile", "status"),
    [("diverged", "b11549", 0), ("same", "b11549", 1), (None, "b11549", 1)],
)
def test_the_exit_status_is_that_of_the_readme(
    expected: str | None, profile: str, status: int, tmp_path: Path
) -> None:
    text = shipped_file("llama.cpp-three-requests").read_text()
    text = text.split("[[expect]]")[0]
    if expected is not None:
        text += f'[[expect]]\nprofile = "{profile}"\nanswer = ["same", "same", "{expected}"]\n'
    file = tmp_path / "three.toml"
    file.write_text(text)

    assert status == main(["run", str(file), "-p", profile, "--arithmetic", "ring"])


def test_the_long_description_points_at_nothing_that_an_index_does_not_have() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    text = README
    for each in settings["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"][
        "substitutions"
    ]:
        text = re.sub(each["pattern"], each["replacement"], text)
    pointed = re.findall(r"\]\(([^)]*)\)", text)

    assert [] == [each for each in pointed if not each.startswith("https://")]
    assert "docs/images/three-requests.svg" in README
    assert "[CONTRIBUTING.md]" not in text
    assert "CONTRIBUTING.md says" in text


def test_every_command_in_the_readme_is_one() -> None:
    named = set(re.findall(r"cachesim ([a-z]+)\b", "".join(blocks("console")))) - {"list"}

    assert named <= {*COMMANDS, "real", "check", "why", "tune", "replay", "bench"}
