"""The page on speed says what the turns beside it say."""

import make_speed
import pytest

from benchmarks import model
from benchmarks.model import THEIRS
from cachesim.model.presets import PRESETS

TOLD = make_speed.PAGE.numbers()


def told(preset: str, column: int, times: float) -> dict[str, object]:
    """The numbers, had float so many times llama.cpp's speed there."""
    theirs = next(r["turns"] for r in TOLD["rows"] if (r["preset"], r["side"]) == (preset, THEIRS))
    rows = []
    for row in TOLD["rows"]:
        if (row["preset"], row["side"]) == (preset, "float"):
            pairs = zip(row["turns"], theirs, strict=True)
            turns = [
                [*mine[:column], real[column] / times, *mine[column + 1 :]] for mine, real in pairs
            ]
            rows.append({**row, "turns": turns})
        else:
            rows.append(row)
    return {**TOLD, "rows": rows}


def test_table_sentences_and_picture_are_those_of_the_turns() -> None:
    assert make_speed.PAGE.is_current()


def test_every_preset_took_turns_with_the_real_server() -> None:
    sides = (THEIRS, *model.ARITHMETICS)

    assert [(preset, side) for preset in PRESETS for side in sides] == [
        (row["preset"], row["side"]) for row in TOLD["rows"]
    ]
    assert {model.REPEATS} == {len(row["turns"]) for row in TOLD["rows"]}


def test_the_benchmark_measures_what_the_page_tells_of() -> None:
    measured = (list(model.PREFILLS), list(model.AFTER), model.DECODED)

    assert measured == (TOLD["prefills"], TOLD["after"], TOLD["decoded"])


@pytest.mark.parametrize(
    ("preset", "column", "times", "sentence"),
    [
        ("recurrent", 1, 0.79, "a prefill has 0.8 times llama.cpp's speed on every preset"),
        ("hybrid-swa", 3, 0.49, "a decode has 0.5 times llama.cpp's speed on every preset"),
        ("dense", 4, 0.99, "a decode after a long prompt has llama.cpp's speed where a layer"),
    ],
)
def test_a_sentence_that_the_turns_do_not_bear_out_is_an_error(
    preset: str, column: int, times: float, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        list(make_speed.sentences(told(preset, column, times)))
