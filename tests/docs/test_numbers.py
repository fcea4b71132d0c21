"""Pages written from numbers: each agrees with the numbers beside it."""

import re
from itertools import count
from types import ModuleType

import make_conversation
import make_fleet
import make_replays
import make_search_speed
import make_speed
import measured
import pytest

from benchmarks import growth, model, search
from benchmarks.model import THEIRS
from cachesim.model.presets import PRESETS
from tests.fixtures import Patch

PAGES = (make_conversation, make_fleet, make_replays, make_search_speed, make_speed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_tables_sentences_and_pictures_are_those_of_the_numbers(page: ModuleType) -> None:
    assert page.PAGE.is_current()


def test_each_measurement_names_the_commit_at_which_it_was_made() -> None:
    known, text = measured.commits(), measured.PAGE.read_text(encoding="utf-8")
    parts = [part.split() for part in text.split("<!-- written by docs/")[1:]]
    alone = [path.read_text(encoding="utf-8") for path in measured.FOLDER.glob("*.md")]

    assert {page.PAGE.name for page in PAGES} == set(known)
    assert {page.PAGE.maker for page in PAGES} == {part[0] for part in parts}
    assert [] == [part[0] for part in parts if part[2:4] != ["Measured", "at"]]
    assert all(re.search(r"Measured at `[0-9a-f]{8}`\.", each) for each in (text, *alone))
    assert all(re.fullmatch("[0-9a-f]{8}", commit) for commit in known.values())


# Mooncake's conversation trace.

CONVERSATION = make_conversation.PAGE.numbers()


def test_every_row_adds_up_to_what_was_computed_before() -> None:
    assert {1_690_631} == {row["cached"] + sum(row["lost"].values()) for row in CONVERSATION}
    assert {(12_031, 0)} == {(row["requests"], row["refused"]) for row in CONVERSATION}
    assert 5 == len(list(make_conversation.sentences(CONVERSATION)))


def test_a_sentence_that_the_rows_do_not_bear_out_is_an_error() -> None:
    other = [
        {**row, "rate": 0.5} if row["settings"].get("parallel") == 4 else row
        for row in CONVERSATION
    ]

    with pytest.raises(ValueError, match="the numbers do not bear out that"):
        list(make_conversation.sentences(other))


# Chats and agents on a fleet.

FLEET = make_fleet.PAGE.numbers()


def test_a_row_of_the_fleet_that_does_not_bear_its_sentence_out_is_an_error() -> None:
    rows = [{**row, "rate": 0.5} if row["router"] == "sticky" else row for row in FLEET["rows"]]

    assert 2 * (1 + 3 * 5) == len(rows)
    with pytest.raises(ValueError, match="stay together reuse more"):
        list(make_fleet.sentences({**FLEET, "rows": rows}))


# Growth: a cell is bounded in time.


def test_a_cell_that_would_take_too_long_is_left_out(monkeypatch: Patch) -> None:
    played: list[int] = []
    clock = count(step=20.0)  # each look at it is 20 seconds after the last
    cells = (lambda _, __, size: played.append(size), ("attention",), (100, 1000, 10000))
    monkeypatch.setattr("benchmarks.growth.AXES", {"tokens": cells})
    monkeypatch.setattr("benchmarks.growth.time.process_time", lambda: next(clock))

    row = growth.measured("tokens", "attention", "ring")

    assert {100: 20.0, 1000: None, 10000: None} == row.seconds
    assert [100, 100] == played


# Speed.

SPEED = make_speed.PAGE.numbers()


def told(preset: str, column: int, times: float) -> dict[str, object]:
    """The numbers, had float so many times llama.cpp's speed there."""
    theirs = next(r["turns"] for r in SPEED["rows"] if (r["preset"], r["side"]) == (preset, THEIRS))
    rows = []
    for row in SPEED["rows"]:
        if (row["preset"], row["side"]) == (preset, "float"):
            pairs = zip(row["turns"], theirs, strict=True)
            turns = [
                [*mine[:column], real[column] / times, *mine[column + 1 :]] for mine, real in pairs
            ]
            rows.append({**row, "turns": turns})
        else:
            rows.append(row)
    return {**SPEED, "rows": rows}


def test_every_preset_took_turns_with_the_real_server() -> None:
    sides = (THEIRS, *model.ARITHMETICS)

    assert [(preset, side) for preset in PRESETS for side in sides] == [
        (row["preset"], row["side"]) for row in SPEED["rows"]
    ]
    assert {model.REPEATS} == {len(row["turns"]) for row in SPEED["rows"]}


def test_the_benchmark_of_speed_measures_what_the_page_tells_of() -> None:
    measured = (list(model.PREFILLS), list(model.AFTER), model.DECODED)

    assert measured == (SPEED["prefills"], SPEED["after"], SPEED["decoded"])


@pytest.mark.parametrize(
    ("preset", "column", "times", "sentence"),
    [
        ("dense", 4, 0.99, "a decode after a long prompt has llama.cpp's speed where a layer"),
    ],
)
def test_a_sentence_that_the_turns_do_not_bear_out_is_an_error(
    preset: str, column: int, times: float, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        list(make_speed.sentences(told(preset, column, times)))


@pytest.mark.parametrize(
    ("preset", "column", "times", "sentence"),
    [
        ("dense", 1, 0.1, "A prefill of 1,000 tokens has 0.10 times llama.cpp's speed on dense,"),
        ("swa", 3, 0.1, "takes at most 10.00 times as long as llama.cpp's; that is on swa."),
    ],
)
def test_the_page_names_the_slowest_preset_and_how_slow_it_is(
    preset: str, column: int, times: float, sentence: str
) -> None:
    assert sentence in " ".join(make_speed.sentences(told(preset, column, times)))


# A search's speed.

SEARCH = make_search_speed.PAGE.numbers()


def test_the_benchmark_of_searches_measures_what_the_page_tells_of() -> None:
    models = [(search.PROFILES[0], model) for model in search.MODELS]
    others = [(profile, search.MODELS[0]) for profile in search.PROFILES[1:]]
    expected = [(*pair, name) for pair in (*models, *others) for name in search.COUNTS]

    rows = SEARCH["rows"]

    assert expected == [(row["profile"], row["model"], row["arithmetic"]) for row in rows]
    assert {search.RUNS} == {len(row[side]) for row in rows for side in ("whole", "searched")}
