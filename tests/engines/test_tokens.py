"""How many tokens two lists share at their start: one function for all engines."""

import pytest

from cachesim.engines.tokens import Rope, get_common_prefix
from cachesim.units import as_tokens


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ((), (1,), 0),
        ((1, 2), (3,), 0),
        ((1, 2, 3), (1, 2, 4, 5), 2),
        ((1, 2, 3), (1, 2, 3, 4), 3),
        ((*range(100),), (*range(57), 0, *range(58, 100)), 57),
        ((*range(2000),), (*range(700), 0, *range(701, 2000)), 700),
        ((*range(2000),), (*range(1900),), 1900),
    ],
)
def test_a_common_prefix_ends_where_the_first_token_differs(
    one: tuple[int, ...], other: tuple[int, ...], shared: int
) -> None:
    assert shared == get_common_prefix(one, other) == get_common_prefix(other, one)
    assert shared == get_common_prefix(list(one), other)


def test_ropes_are_compared_as_the_tokens_they_stand_for() -> None:
    one, other = Rope([(7, 0, 50), (9, 0, 3)]), Rope([(7, 0, 40), (8, 0, 9)])

    assert 40 == get_common_prefix(one, other)
    assert 40 == get_common_prefix(as_tokens(list(one)), as_tokens(list(other)))
