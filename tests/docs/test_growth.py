"""The page on growth says what the cells beside it say, and a cell is bounded in time."""

from itertools import count

import make_growth
import pytest

from benchmarks import growth

TOLD = make_growth.PAGE.numbers()


def test_table_sentences_and_pictures_are_those_of_the_cells() -> None:
    assert make_growth.PAGE.is_current()


def test_every_row_of_the_benchmark_is_there() -> None:
    rows = {
        (axis, model, arithmetic)
        for axis, (_, models, _) in growth.AXES.items()
        for model in models
        for arithmetic in growth.ARITHMETICS
    }

    assert rows == {(row["axis"], row["model"], row["arithmetic"]) for row in TOLD["rows"]}
    assert (growth.PROFILE, growth.LIMIT) == (TOLD["profile"], TOLD["limit"])


def test_a_sentence_that_the_cells_do_not_bear_out_is_an_error() -> None:
    steep = {size: float(size) ** 2 for size in ("100", "1000", "10000", "100000")}
    rows = [
        {**row, "seconds": steep} if row["model"] == "recurrent" else row for row in TOLD["rows"]
    ]

    with pytest.raises(
        ValueError, match="the numbers do not bear out that windows and states are linear"
    ):
        list(make_growth.sentences({**TOLD, "rows": rows}))


def test_a_cell_that_would_take_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def play(_: str, __: str, size: int) -> None:
        played.append(size)

    clock = count(step=20.0)  # each look at it is 20 seconds after the last
    cells = (play, ("attention",), (100, 1000, 10000))
    monkeypatch.setattr("benchmarks.growth.AXES", {"tokens": cells})
    monkeypatch.setattr("benchmarks.growth.time.process_time", lambda: next(clock))

    row = growth.measured("tokens", "attention", "ring")

    assert {100: 20.0, 1000: None, 10000: None} == row.seconds
    assert [100, 100] == played
