"""Proposed patches, each by what it changes; the mends of wrong answers stand in their own file."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.checkpoints import (
    ERASURES,
    EXACT,
    FROM_START,
    LIMITS,
    Prefix,
    numbers_of,
)
from cachesim.engines.llamacpp.family import FAMILY

MAY, JUNE, OCTOBER = "llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549"


def test_patches_are_laid_in_order() -> None:
    both = FAMILY.rules(Profile.parse(OCTOBER + "+24143+erase-equal"))
    assert not both.cache.load_consumes
    assert both.reuse.erasure == "equal"


def test_a_change_whose_pull_request_is_not_known_says_what_may_have_been_it() -> None:
    unknown = [patch for patch in FAMILY.patches if patch.landed and not patch.pull]

    assert {each.name: FAMILY.upstream_of(each) for each in unknown} == {
        "counts-checked": "no pull request confirmed",
        "cut-between-images": "no pull request confirmed",
        "cut-between-images-fails": "no pull request confirmed",
        "empty-batches-turn": "no pull request confirmed (perhaps #24843)",
        "refusals-abort": "no pull request confirmed (perhaps #22838)",
        "mtp-f16": "no pull request confirmed",
        "outputs-reserved": "no pull request confirmed",
        "processed-reset": "no pull request confirmed",
        "rank-in-pieces": "no pull request confirmed",
        "sequence-header": "no pull request confirmed",
        "short-ubatch-keeps": "no pull request confirmed",
        "convolutions-roll-back": "no pull request confirmed",
        "positions-once": "no pull request confirmed",
        "shared-state-stays": "no pull request confirmed",
        "wider-positions": "no pull request confirmed",
        "unseen-before-b11549": "no pull request confirmed (perhaps #24843 or #26221)",
    }
    assert FAMILY.upstream_of(FAMILY.patch("erase-equal")) == ""


number = st.integers(0, 6)

RULES = [
    *((erasure.rule, erasure.erases) for erasure in ERASURES.values()),
    *(
        (each.refused_if, lambda cur, p, each=each: not each.passes(cur, p))
        for tests in (*EXACT.values(), *LIMITS.values(), (FROM_START,))
        for each in tests
    ),
]


class SomeCheckpoint(SimpleNamespace):
    def as_dict(self) -> dict[str, int]:
        return {"pos_min": self.pos_min, "pos_max": self.pos_max, "n_tokens": self.n_tokens}


@pytest.mark.sampled(3)
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
    assert claimed == test(checkpoint, prefix)
