"""One event as one line: what is said of it, and what is not worth saying."""

from typing import Any

import pytest

from cachesim.report.events import event_line


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"n_tokens": 0, "kept": False}, "x happened  n_tokens 0  kept no"),
        ({"reason": "", "sound": None, "segments": [], "held": {}}, "x happened"),
        ({"checkpoint": [True, -10], "f_sim": 0.25}, "x happened  checkpoint yes -10  f_sim 0.25"),
        ({"key": list(range(9)), "layers": [{}]}, "x happened  key (9)  layers (1)"),
        ({"n_tokens": 5, "pos_min": 1, "pos_max": 4}, "x happened  n_tokens 5[1..4]"),
        ({"slot": 0, "task": 3, "size": 9}, "x happened"),
    ],
)
def test_a_line_says_what_there_is(values: dict[str, Any], expected: str) -> None:
    assert expected == event_line({"event": "x-happened", **values}).plain
