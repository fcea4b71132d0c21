"""The lines for a shell that `cachesim real llama.cpp --scenario` prints for a leak."""

from pathlib import Path

import pytest

from cachesim.prove.hunt.report import commands
from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_file
from conformance.end_to_end.shell import run_lines


@pytest.mark.wheel
def test_a_server_replies_with_the_code_of_another_conversation(tmp_path: Path) -> None:
    scenario = load(shipped_file("llama.cpp-leaked-code"))
    shell = run_lines([*commands(scenario, "b11549", 3)], "b11549", tmp_path)
    assert [answer["content"] for answer in shell.answers[-2:]] == [" 7413 .", " 2361 ."]
