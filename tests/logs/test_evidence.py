"""What a printed number stands for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cachesim.lab.logs.evidence import Interval, counts_of


@given(st.integers(1, 300_000), st.data())
def test_a_ratio_of_three_decimals_leaves_the_count_within_its_bounds(
    whole: int, data: st.DataObject
) -> None:
    part = data.draw(st.integers(0, whole))
    printed = f"{float(np.float32(part) / np.float32(whole)):.3f}"

    found = counts_of(printed, whole)
    assert found is not None
    assert part in found
    assert found.high - found.low <= whole / 1000 + 1


def test_what_is_no_ratio_says_nothing() -> None:
    assert [counts_of(text, 100) for text in ("nan", "-1.000", "17", "", None)] == [None] * 5
    assert counts_of("0.500", None) is None
    assert Interval(3, 5).meet(Interval(6, 9)) is None
