"""The log of the last lesson: its lines, and the requests that are played once more."""

import tomllib

import pytest

from cachesim.learn.drawing import Drawn
from cachesim.learn.server_log import EXAMPLE, drawn, example, last_of
from cachesim.typed import of_kind
from tests.test_house import ROOT

COUNTS = [0, 2639, 2869, 0, 3259]
"""Reused tokens of the real server, request by request."""


@pytest.mark.thorough
def test_the_requests_played_are_those_of_the_log() -> None:
    log = example()

    assert COUNTS == [request["cached"] for request in log.report["requests"]]
    assert COUNTS == [step.cached for step in log.run().steps]


@pytest.mark.thorough
@pytest.mark.parametrize("size", [256, 768])  # what it brings: nothing, and something
def test_a_flag_brings_the_watched_run_what_it_brings_in_why(size: int) -> None:
    log = example()
    row = log.what_if(f"ubatch_size={size}")[1]
    steps = log.run(ubatch_size=size).steps

    assert row["processed"] == sum(step.processed or 0 for step in steps)


@pytest.mark.thorough
def test_a_change_of_history_moves_only_the_last_request() -> None:
    moved = example().run(upto=3, parts_at=2100).steps

    assert COUNTS[:3] == [step.cached for step in moved[:3]]
    assert 3230 == moved[3].prompt_tokens
    assert 2064 == moved[3].cached


def test_a_requests_lines_are_its_own() -> None:
    log = example()
    lines = log.lines_of(4)

    assert 5 == len(lines)
    assert lines[0].startswith("get_availabl: selected slot by LCP similarity, sim_best = 0.973")
    assert lines[-1].startswith("release: stop processing: n_tokens = 3379")
    assert all(len(log.lines_of(number)) >= 5 for number in range(5))


@pytest.mark.thorough
def test_a_long_picture_fits_a_terminal_and_names_the_writers() -> None:
    text = drawn(example().run(upto=3)).text()

    assert max(map(len, text.splitlines())) <= 76
    assert "a column is 51 tokens" in text
    assert "~" * 37 + "+" * 27 in text


@pytest.mark.thorough
def test_a_checkpoint_is_drawn_on_its_way_to_where_it_is_restored() -> None:
    run = example().run(upto=3, ubatch_size=768)

    (arrow,) = of_kind(Drawn, drawn(run)).picture.arrows
    assert "restored from 1808[1807..1807] of r0" == arrow.label
    assert 1808 == last_of(run).cached


def test_an_installed_package_carries_the_log() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = build["targets"]["wheel"]["force-include"]

    assert f"cachesim/learn/{EXAMPLE}" == included[f"docs/examples/{EXAMPLE}"]
