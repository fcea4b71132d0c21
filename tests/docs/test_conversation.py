"""The page of the conversation trace says what the rows beside it say."""

import make_conversation
import pytest

ROWS = make_conversation.PAGE.numbers()


def test_table_sentences_and_picture_are_those_of_the_rows() -> None:
    assert make_conversation.PAGE.is_current()
    assert 5 == len(list(make_conversation.sentences(ROWS)))


def test_every_row_adds_up_to_what_was_computed_before() -> None:
    assert {1_690_631} == {row["cached"] + sum(row["lost"].values()) for row in ROWS}
    assert {(12_031, 0)} == {(row["requests"], row["refused"]) for row in ROWS}


def test_a_sentence_that_the_rows_do_not_bear_out_is_an_error() -> None:
    other = [{**row, "rate": 0.5} if row["settings"].get("parallel") == 4 else row for row in ROWS]

    with pytest.raises(ValueError, match="the numbers do not bear out that"):
        list(make_conversation.sentences(other))
