"""Former names of shipped scenarios: whatever takes a scenario's name takes these as well."""

import pytest

from cachesim import run_scenario
from cachesim.cli.main import main
from cachesim.scenario.former import FORMER
from cachesim.scenario.shipped import shipped_files
from tests.fixtures import Capture

FORMERLY, NOW = "llama.cpp-stale-neighbour", "llama.cpp-erasure-off-by-one"
COMMANDS = (
    "run {} --arithmetic ring",
    "run {}.toml --arithmetic ring --explain",
    "why {} --tune",
    "check -p llama.cpp@b11549 --like {} --examples 1",
    "compare {} --arithmetic counts",
    "bisect {}",
    "export {} --to issue",
    "list {} --raw",
    "new mine --from {}",
)


def test_a_former_name_leads_to_a_scenario_and_is_none_itself() -> None:
    names = {file.stem for file in shipped_files()}

    assert set() == set(FORMER.values()) - names
    assert set() == names & FORMER.keys()
    assert len(FORMER) == len(set(FORMER.values()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_a_former_name_and_prints_the_name_of_today(
    command: str, capsys: Capture
) -> None:
    assert main(command.format(FORMERLY).split()) in {0, 1}

    repeats_the_argument = "--from" in command or "--tune" in command
    assert repeats_the_argument != (NOW in capsys.readouterr().out)


def test_the_python_api_takes_a_former_name() -> None:
    assert NOW == run_scenario(FORMERLY).scenario
