"""The arithmetic under ring, against plain Python integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cachesim.model.ring import Powers, fold, inverse, mix, salt

WORD = 1 << 64
words = st.integers(0, WORD - 1)
odd_words = words.map(lambda word: word | 1)


@given(odd_words)
def test_an_inverse_multiplies_to_one(word: int) -> None:
    odd = np.array([word], np.uint64)

    assert np.array_equal([1], odd * inverse(odd))


@given(odd_words, st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1))
def test_powers_are_powers(base: int, exponents: list[int]) -> None:
    expected = [pow(base, exponent, WORD) for exponent in exponents]

    assert expected == Powers(base)(np.array(exponents)).tolist()


@given(words, st.lists(st.tuples(odd_words, words), min_size=1))
def test_a_folded_chain_is_the_chain_step_by_step(start: int, steps: list[tuple[int, int]]) -> None:
    expected, state = [], start
    for gate, given_word in steps:
        state = (gate * state + given_word) % WORD
        expected.append(state)

    gates, inputs = (np.array([column], np.uint64) for column in zip(*steps, strict=True))
    assert [expected] == fold(np.array([start], np.uint64), gates, inputs).tolist()


@given(st.lists(words, unique=True))
def test_mixing_is_one_to_one(each: list[int]) -> None:
    assert len(each) == len(set(mix(np.array(each, np.uint64)).tolist()))


def test_salts_depend_on_seed_and_name_alone() -> None:
    assert salt(0, "a", 2).tolist() == salt(0, "a", 2).tolist()
    assert 6 == len(
        {*salt(0, "a", 2).tolist(), *salt(1, "a", 2).tolist(), *salt(0, "b", 2).tolist()}
    )
