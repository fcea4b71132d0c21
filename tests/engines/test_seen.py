"""What was computed before is known, or as much of it as is to be remembered."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.tokens import Seen

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=40)


def known(sequences: list[list[int]], wanted: list[int]) -> int:
    """The longest prefix of a sequence that another one begins with."""
    return max(
        next((at for at in range(len(wanted)) if each[at : at + 1] != wanted[at : at + 1]), 9)
        for each in sequences
    )


@given(SEQUENCES)
def test_the_longest_prefix_of_all_is_found_with_the_request_that_came_first(
    sequences: list[list[int]],
) -> None:
    seen = Seen()
    for by, each in enumerate(sequences[:-1]):
        for end in range(1, len(each) + 1):  # a reply, token by token
            seen.learn(np.array(each[:end], np.int64), None, by)
    wanted = sequences[-1]

    count, by = seen.find(np.array(wanted, np.int64), None)

    assert min(known([[], *sequences[:-1]], wanted), len(wanted)) == count
    assert by == next(
        (at for at, each in enumerate(sequences[:-1]) if count and each[:count] == wanted[:count]),
        -1,
    )


def test_as_many_sequences_are_known_as_are_to_be_remembered_and_no_more_than_twice_as_many() -> (
    None
):
    seen = Seen()
    seen.remember(10)
    for number in range(100):
        seen.learn(np.array([number, 1], np.int64), None, number)

    found = [seen.find(np.array([number, 1], np.int64), None)[0] for number in range(100)]

    assert [2] * 10 == found[90:]
    assert 20 >= sum(found) // 2
