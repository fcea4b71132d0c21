"""Masks that are not written out say of every column what the written ones say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.mlx_lm.caches.layer_cache import Bounds, Causal
from cachesim.units import Array

COUNTS = st.integers(1, 6)
CAUSAL = st.builds(
    Causal,
    COUNTS,
    st.integers(0, 6),
    st.none() | st.integers(1, 8),
    st.none() | st.tuples(st.integers(-2, 7), st.integers(-2, 7)),
)


def row_of(mask: Causal, row: int, columns: range) -> Array:
    """The written mask of some columns of one row."""
    written = mask.dense()
    whole = written if mask.left_padding is None else written[row, 0]
    return whole[columns.start : columns.stop]


@given(CAUSAL, st.integers(0, 1), st.data())
def test_some_columns_of_a_row_see_what_the_written_mask_shows_them(
    mask: Causal, row: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, mask.columns - 1))
    columns = range(start, data.draw(st.integers(start + 1, mask.columns)))
    written, bounds = row_of(mask, row, columns), mask.of_row(row, columns)

    assert mask.shape == mask.dense().shape
    assert written.tolist() == bounds.dense(written.shape[1]).tolist()
    assert np.flatnonzero(written.any(axis=0)).tolist() == [*range(*bounds.seen.indices(99))]


@given(CAUSAL, st.integers(0, 3), st.integers(-3, 3), st.none() | st.integers(1, 8))
def test_columns_are_shown_what_they_should_see_only_where_the_written_mask_does(
    mask: Causal, first: int, ahead: int, window: int | None
) -> None:
    columns = range(mask.columns)
    bounds, written = mask.of_row(0, columns), row_of(mask, 0, columns)
    keys = written[:, bounds.seen]
    positions = first + np.arange(keys.shape[1])
    high = first + mask.offset - bounds.seen.start + ahead + np.arange(mask.columns)
    low = np.zeros_like(high) if window is None else np.maximum(high - window + 1, 0)
    should = (positions >= low[:, None]) & (positions <= high[:, None])

    if bounds.shows(first, low, high):
        assert should.tolist() == keys.tolist()


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("left", [0, 2])
def test_columns_are_shown_what_lies_at_its_place(window: int | None, left: int) -> None:
    bounds = Causal(4, 5, window, (left,)).of_row(0, range(4))
    high = np.arange(5, 9) - left
    low = np.zeros_like(high) if window is None else np.maximum(high - window + 1, 0)

    assert bounds.shows(bounds.seen.start - left, low, high)
    assert not bounds.shows(bounds.seen.start - left + 1, low, high)


def test_what_a_layer_asks_for_is_answered_without_a_mask_of_columns_times_keys() -> None:
    bounds = Causal(2048, 1 << 40).of_row(0, range(2048))
    high = np.arange(1 << 40, (1 << 40) + 2048)

    assert Bounds(left=0, newest=1 << 40, columns=2048) == bounds
    assert bounds.shows(0, np.zeros(2048, np.int64), high)
