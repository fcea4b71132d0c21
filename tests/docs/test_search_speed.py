"""The page on a search's speed says what the turns beside it say."""

import make_search_speed
import pytest

from benchmarks import search

TOLD = make_search_speed.PAGE.numbers()


def test_table_sentences_and_picture_are_those_of_the_turns() -> None:
    assert make_search_speed.PAGE.is_current()


def test_the_benchmark_measures_what_the_page_tells_of() -> None:
    models = [(search.PROFILES[0], model) for model in search.MODELS]
    others = [(profile, search.MODELS[0]) for profile in search.PROFILES[1:]]
    expected = [(*pair, name) for pair in (*models, *others) for name in search.COUNTS]

    rows = TOLD["rows"]

    assert expected == [(row["profile"], row["model"], row["arithmetic"]) for row in rows]
    assert {search.RUNS} == {len(row[side]) for row in rows for side in ("whole", "searched")}


@pytest.mark.parametrize(("arithmetic", "rate"), [("ring", 299.0), ("float", 59.0)])
def test_a_goal_that_the_turns_do_not_reach_is_an_error(arithmetic: str, rate: float) -> None:
    slow = make_search_speed.row_of(TOLD, arithmetic)
    rows = [row | {"searched": [rate] * 5} if row is slow else row for row in TOLD["rows"]]

    with pytest.raises(ValueError, match=f"a search in {arithmetic} judges"):
        list(make_search_speed.sentences(TOLD | {"rows": rows}))
