"""The page of chats and agents on a fleet says what the rows beside it say."""

import make_fleet
import pytest

TOLD = make_fleet.PAGE.numbers()


def test_its_table_sentences_and_picture_are_those_of_the_rows() -> None:
    assert make_fleet.PAGE.is_current()
    assert 2 * (1 + 3 * 5) == len(TOLD["rows"])


def test_a_row_that_does_not_bear_its_sentence_out_is_an_error() -> None:
    rows = [{**row, "rate": 0.5} if row["router"] == "sticky" else row for row in TOLD["rows"]]

    with pytest.raises(ValueError, match="stay together reuse more"):
        list(make_fleet.sentences({**TOLD, "rows": rows}))
