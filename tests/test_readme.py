"""What the README shows is what the program prints."""

import re
import tomllib
from pathlib import Path

from cachesim.cli.app import COMMANDS
from cachesim.scenario import full_profile, run, scenario_of

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


def test_every_command_in_the_readme_is_one() -> None:
    named = set(re.findall(r"cachesim ([a-z]+)\b", "".join(blocks("console")))) - {"list"}

    assert named <= {*COMMANDS, "real", "check", "why", "tune", "replay", "bench"}
