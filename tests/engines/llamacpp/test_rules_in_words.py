"""A rule of checkpoints in words says what its test does."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.llamacpp.checkpoints import ERASURES, EXACT, LIMITS, Prefix, numbers_of

number = st.integers(0, 6)

RULES = [
    *((each.rule, each.erases) for each in ERASURES.values()),
    *(
        (each.refused_if, lambda cur, p, each=each: not each.passes(cur, p))
        for tests in (*EXACT.values(), *LIMITS.values())
        for each in tests
    ),
]
NARROWER = {
    "pos_min >= pos_min_thold": lambda c, _: c.pos_min != 0,
    "pos_max > pos_next - 1": lambda _, p: p.n_past >= p.n_prompt,
}
"""Tests that hold only under a further condition, which their words leave out."""


class SomeCheckpoint(SimpleNamespace):
    def as_dict(self) -> dict[str, int]:
        return {"pos_min": self.pos_min, "pos_max": self.pos_max, "n_tokens": self.n_tokens}


@pytest.mark.parametrize(("words", "test"), RULES, ids=[words for words, _ in RULES])
@given(numbers=st.tuples(*[number] * 9))
def test_the_words_of_a_rule_are_true_exactly_where_its_test_holds(
    words: str, test: Callable[[Any, Any], bool], numbers: tuple[int, ...]
) -> None:
    pos_min, pos_max, n_tokens, pos_end, n_past, pos_next, prefix_end, thold, n_prompt = numbers
    checkpoint = SomeCheckpoint(
        pos_min=pos_min, pos_max=pos_max, n_tokens=n_tokens, pos_end=pos_end
    )
    prefix = Prefix(
        n_past=n_past,
        pos_next=pos_next,
        prefix_end=prefix_end,
        pos_min_thold=thold,
        n_prompt=n_prompt,
    )
    claimed = eval(numbers_of(words, checkpoint, prefix), {"__builtins__": {}})
    narrower = NARROWER.get(words, lambda _c, _p: True)
    assert (claimed and narrower(checkpoint, prefix)) == test(checkpoint, prefix)
