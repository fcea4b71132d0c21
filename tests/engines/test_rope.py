"""A rope behaves as the list of its tokens does."""

from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.tokens import Rope, get_common_prefix

runs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 6)), max_size=6)


@given(runs, runs, st.integers(-9, 40), st.integers(-9, 40))
def test_it_grows_is_cut_and_sliced_like_a_list(
    first: list[tuple[int, int, int]], more: list[tuple[int, int, int]], low: int, high: int
) -> None:
    rope, other = Rope(first), Rope(more)
    plain, others = list(rope), list(other)

    assert list(rope[low:high]) == plain[low:high]
    assert len(rope) == len(plain)
    rope += other
    plain += others
    assert list(rope) == plain
    del rope[low:high]
    del plain[low:high]
    assert list(rope) == plain
    rope += others
    plain += others
    assert [rope[i] for i in range(len(rope))] == plain
    start = min(max(low, 0), len(plain))
    rope[start : start + len(other)] = other
    plain[start : start + len(others)] = others
    assert list(rope) == plain


@given(runs, runs)
def test_the_common_prefix_is_that_of_the_lists(
    first: list[tuple[int, int, int]], second: list[tuple[int, int, int]]
) -> None:
    one, other = Rope(first), Rope(second)

    expected = get_common_prefix(list(one), list(other))
    assert get_common_prefix(one, other) == expected  # type: ignore[arg-type]
    assert (one == other) == (list(one) == list(other))
