"""`cachesim check` on the command line: arguments, refusals, output."""

import re
import shlex
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path

import pytest

from cachesim.cli.findings import NOTHING_RUN, print_comparison
from cachesim.cli.jobs import processes
from cachesim.cli.main import main
from cachesim.engines import Profile
from cachesim.errors import InputError
from cachesim.testing.search import Comparison, Side, workloads
from cachesim.testing.workloads import Shape
from tests.fixtures import Capture, Patch, output

SOUND = "llama.cpp@b11549+erase-equal"
OTHER = "llama.cpp@b9538"
WITHOUT = ("--set", "lora=")
"""Adapters of a request show a defect of this release."""


def test_every_server_has_what_was_set(capsys: Capture) -> None:
    shape = Shape(fixed={"parallel": 2, "cache_reuse": 0})

    drawn = islice(workloads(Profile.parse(SOUND), "hybrid", shape=shape), 9)

    assert all(shape.fixed.items() <= each.engine.options.items() for each in drawn)
    said = output(capsys, ["check", SOUND, "--examples", "40", "--set", "cache_reuse=0", *WITHOUT])
    assert "nothing wrong was found" in said
    assert "shift" in said.partition("never exercised")[2], "no chunk was moved"


@pytest.mark.parametrize(
    "more", [(), ("--all",), ("--scope", "2"), ("--against", OTHER)], ids=" ".join
)
def test_a_check_whose_time_ends_before_a_workload_fails(
    more: tuple[str, ...], capsys: Capture
) -> None:
    printed = output(capsys, ["check", SOUND, "--minutes", "0.000001", *more], 1)
    assert NOTHING_RUN in printed
    assert "nothing wrong was found" not in printed


def test_a_profile_and_a_model_given_twice_are_searched_once(capsys: Capture) -> None:
    twice = ["--model", "dense", "--model", "dense", "--examples", "3", *WITHOUT]

    assert output(capsys, ["check", SOUND, SOUND, *twice]).count(f"{SOUND}, dense: ") == 1


def test_the_commands_of_a_finding_are_whole_lines_that_run(
    capsys: Capture, tmp_path: Path
) -> None:
    folder = tmp_path / "a folder-with-a-name-that-no-terminal-of-80-columns-has-room-for"
    words = ["check", "llama.cpp@b11549", "--emit", str(folder), "--jobs", "1"]

    said = output(capsys, words, 1)
    (again,) = re.findall(r"to run it again: cachesim (.*)", said)
    assert "WRONG" in output(capsys, shlex.split(again), 1)
    (real,) = re.findall(r"on the real server: cachesim (.*)", said)
    assert shlex.split(again)[1] == shlex.split(real)[-1]


@pytest.mark.thorough
def test_several_processes_say_what_one_says(capsys: Capture) -> None:
    said = []
    for jobs in ("1", "2"):
        command = ["check", SOUND, "--examples", "60", "--model", "dense", "--jobs", jobs]
        said.append(output(capsys, [*command, *WITHOUT, "--seed", "5"]).splitlines()[1:])

    assert said[0] == said[1]


@pytest.mark.thorough
def test_processes_start_once_for_all_profiles(monkeypatch: Patch) -> None:
    begun = []

    def counted(count: int) -> AbstractContextManager[Executor]:
        begun.append(count)
        return processes(count)

    monkeypatch.setattr("cachesim.cli.check.processes", counted)
    main(["check", SOUND, "llama.cpp@b9538", "--examples", "60", "--model", "dense", "--jobs", "2"])

    assert [2] == begun


def test_a_comparison_of_nothing_is_no_success() -> None:
    sides = [Side(profile=Profile.parse(f"llama.cpp@{each}")) for each in ("b9538", "b11549")]

    with pytest.raises(InputError, match="no workload could be run on both"):
        print_comparison(Comparison(one=sides[0], other=sides[1]), [])


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_comparison_counts_the_wrong_answers_of_each_profile(wrong: int, capsys: Capture) -> None:
    sides = [Side(profile=Profile.parse(f"llama.cpp@{each}")) for each in ("b9538", "b11549")]
    sides[wrong].wrong, sides[wrong].cached = 2, 3
    found = Comparison(one=sides[0], other=sides[1], workloads=1, prompt_tokens=90_000)

    assert 0 == print_comparison(found, []), "the search for new causes fails, not a count"
    said = " ".join(capsys.readouterr().out.split())
    assert f"llama.cpp@b11549 reuses 3 tokens {('fewer', 'more')[wrong]} (0.00 % of all)." in said
    counts = ("2 from llama.cpp@b9538, 0 from", "0 from llama.cpp@b9538, 2 from")[wrong]
    assert f"Wrong answers: {counts} llama.cpp@b11549." in said


def test_a_plain_search_gives_some_requests_up(capsys: Capture) -> None:
    command = ["check", SOUND, "--examples", "30", "--jobs", "1", "--require", "cancel"]
    assert "cancel" in output(capsys, [*command, *WITHOUT]).partition("never exercised")[0]


@pytest.mark.thorough
def test_a_server_without_recurrent_states_is_searched_on_a_dense_model(capsys: Capture) -> None:
    room = ("--set", "num_blocks=320", "--set", "page_size=32")  # a prompt beyond the pool is fatal
    command = ["check", "transformers@5.23.0", "--examples", "80", *room]
    assert main([*command, "--require", "reuse", "--require", "eviction"]) == 0
    assert "dense" in capsys.readouterr().out.splitlines()[0]
