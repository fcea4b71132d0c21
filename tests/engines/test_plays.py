"""Plays are answered as before: worked examples, oddities, reported defects, proposed patches."""

import os

import pytest

from conformance import drawn_plays
from tests.engines.plays import FOLDER, RULE, answers, cases, played

PLAYS = {file.stem: cases(file) for file in sorted(FOLDER.glob("*.jsonl"))}

if os.environ.get("CACHESIM_UPDATE_SNAPSHOTS"):
    drawn_plays.write()
    for engine, given in PLAYS.items():
        pages = (f"{RULE}\n{name}\n{played(case)}" for name, case in given.items())
        (FOLDER / f"{engine}.txt").write_text("".join(pages))

NIGHTLY = [pytest.mark.thorough, pytest.mark.nightly]
ANSWERS = {engine: answers(FOLDER / f"{engine}.txt") for engine in PLAYS}


@pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine, given in PLAYS.items() for name in given]
)
def test_a_play_is_answered_as_before(engine: str, name: str) -> None:
    assert ANSWERS[engine].get(name) == played(PLAYS[engine][name])


@pytest.mark.parametrize("share", [10, pytest.param(1, marks=NIGHTLY)])
@pytest.mark.parametrize("engine", drawn_plays.COUNT)
def test_drawn_plays_are_answered_as_before(engine: str, share: int) -> None:
    kept = drawn_plays.kept()
    numbers = [number for name, number in kept if name == engine]

    differing = [n for n in numbers[::share] if kept[engine, n] != drawn_plays.answered(engine, n)]

    assert [] == differing
    assert drawn_plays.COUNT[engine] == len(numbers)
