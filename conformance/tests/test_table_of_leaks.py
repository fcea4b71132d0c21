"""The table of leaks: its scenarios are those shipped, and its rows come out again."""

from dataclasses import replace

import pytest

from cachesim.scenario import load
from cachesim.scenario.labels import digest
from cachesim.scenario.shipped import shipped_files
from conformance.leaks import Place, Row, again, read

ROWS = read()
SAMPLE = [*{(row.engine, row.outcome): row for row in ROWS}.values()]


def known(row: Row) -> tuple[str, str, str]:
    return row.outcome, row.reply, row.cold


def played(row: Row) -> tuple[str, str, str]:
    outcome = again(row)
    return outcome.word, outcome.reply, outcome.cold


def test_every_scenario_that_expects_a_wrong_answer_has_a_row() -> None:
    scenarios = {file.stem: load(file) for file in shipped_files()}
    wrong = {
        (name, digest(scenario))
        for name, scenario in scenarios.items()
        if "diverged" in str(scenario.expect)
    }
    assert {(row.scenario, row.file) for row in ROWS} == wrong


@pytest.mark.sampled(3)
@pytest.mark.parametrize("row", SAMPLE, ids=str)
def test_a_row_comes_out_again(row: Row) -> None:
    assert played(row) == known(row)


@pytest.mark.sampled(3)
@pytest.mark.thorough
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_row_comes_out_again(row: Row) -> None:
    assert played(row) == known(row)


def test_a_fact_at_another_position_leaks_nothing() -> None:
    leak = next(row for row in ROWS if row.scenario == "llama.cpp-leaked-code")
    first = replace(leak, place=str(Place(model="recall-hybrid-delta", value=1)))
    assert [again(leak).word, again(first).word] == ["leak", "unchanged"]
