"""Whatever happens to a conversation in the newest release, its answers are the cold ones.

And the other way round: every rule of an older release or a proposal that made an answer wrong, or
killed the worker, is found out by such journeys when it is put back.
"""

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.mlx_lm.caches.layer_cache import UpstreamRaise, name_of
from cachesim.engines.mlx_lm.caches.prompt_cache import BatchRotatingKVCache, RotatingKVCache
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.model.arithmetic import ArithmeticName, Network
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.model.trace import Traced
from cachesim.typed import of_kind
from tests.engines.mlx_lm.cache_journeys import ACTS, DivergedError, Journey, Step, UnsoundError
from tests.engines.mlx_lm.cache_kit import NEWEST, RULES, ring, write

WINDOW = 6
TINY: dict[str, Any] = {
    "width": 16,
    "mlp_width": 0,
    "heads": 2,
    "kv_heads": 1,
    "head_size": 8,
    "vocabulary": 96,
    "state_size": 4,
    "inner": 16,
    "groups": 1,
    "state_heads": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"layers": ("attention", "attention")},
    "swa": {"layers": ("window", "attention"), "window": WINDOW},
    "recurrent": {"layers": ("ssm", "ssm")},
    "hybrid": {"layers": ("ssm", "attention")},
    "hybrid-delta": {"layers": ("delta", "attention"), "inner": 8},
    "hybrid-swa": {"layers": ("conv", "window"), "window": WINDOW},
}

STEPS = st.lists(
    st.tuples(st.integers(0, len(ACTS) - 1), st.integers(0, 7), st.integers(0, 7)), max_size=24
)


@cache
def tiny(name: str, arithmetic: ArithmeticName = "ring") -> Network:
    return build(preset(name, **{**TINY, **MODELS[name]}), arithmetic)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
@given(steps=STEPS)
def test_every_answer_is_the_cold_one(name: str, steps: list[Step]) -> None:
    Journey(tiny(name), RULES).walk(steps)


@pytest.mark.parametrize("name", ["swa", "hybrid-delta"])
@given(steps=STEPS)
def test_every_answer_is_the_cold_one_bit_for_bit(name: str, steps: list[Step]) -> None:
    Journey(tiny(name, "float"), RULES).walk(steps)


@pytest.mark.parametrize("name", ["swa", "hybrid"])
@given(steps=STEPS)
def test_a_ledger_says_of_every_cache_that_it_holds_what_it_claims(
    name: str, steps: list[Step]
) -> None:
    Journey(Traced(tiny(name)), RULES).walk(steps)


def test_a_ledger_sees_a_wrong_state_that_no_answer_has_shown_yet() -> None:
    rules = FAMILY.release("0.31.3").rules.caches
    names = [("admit", 0, 0), ("admit", 0, 0), ("prefill", 0, 1), ("look", 0, 0)]

    with pytest.raises(UnsoundError):
        Journey(Traced(tiny("hybrid")), rules).walk(
            [(ACTS.index(name), one, two) for name, one, two in names]
        )


def test_random_journeys_go_everywhere() -> None:
    journeys = [Journey(tiny("dense"), RULES) for _ in range(20)]
    for seed, journey in enumerate(journeys):
        journey.walk(drawn(seed))

    assert 300 < sum(journey.checked for journey in journeys)


def drawn(seed: int, count: int = 40) -> list[Step]:
    random = Random(seed)
    return [
        (random.randrange(len(ACTS)), random.randrange(8), random.randrange(8))
        for _ in range(count)
    ]


def outcomes(name: str, rules: CacheRules, journeys: int, enough: set[str]) -> set[str]:
    """Cases that random journeys reached, until enough."""
    found: set[str] = set()
    for seed in range(journeys):
        if enough and enough <= found:
            break
        try:
            Journey(tiny(name), rules).walk(drawn(seed))
        except DivergedError:
            found.add("diverged")
        except UpstreamRaise as error:
            found.add(name_of(error))
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("hybrid", {"lengths_beside_left_padding": False}, {"diverged"}),
        ("hybrid", {"arrays_extend": "skipped"}, {"diverged", "ValueError"}),
        ("hybrid", {"arrays_merge_of_empties": "unpadded"}, {"ValueError"}),
        ("hybrid", {"arrays_merge_of_empties": "raises"}, {"StopIteration"}),
        ("hybrid", {"arrays_extend": "raises"}, {"TypeError"}),
        ("hybrid", {"filter_keeps_left_padding": False}, {"ValueError"}),
        ("hybrid", {"filter_accepts_empty": False}, {"TypeError"}),
        ("dense", {"batch_extend": "other-side"}, {"diverged", "ValueError"}),
        ("dense", {"batch_extend": "raises"}, {"AttributeError"}),
        ("dense", {"merge_of_empties": False}, {"ValueError"}),
        ("swa", {"rotating_extract": "from-the-end"}, {"ValueError"}),
        ("swa", {"rotating_merge": "by-index"}, {"ValueError"}),
        ("swa", {"rotating_unrolls_on_trim": True}, {"diverged"}),
        ("hybrid", {"arrays_trim_resets": True}, {"diverged"}),
    ],
)
def test_a_bug_that_is_put_back_is_found_out(
    name: str, changes: dict[str, Any], expected: set[str]
) -> None:
    assert expected <= outcomes(name, replace(RULES, **changes), 80, expected)


def test_0_31_3_is_wrong_about_fresh_hybrids_of_unequal_length_and_about_nothing_else() -> None:
    rules = FAMILY.release("0.31.3").rules.caches

    assert {"diverged"} == outcomes("hybrid", rules, 12, set())
    assert set() == outcomes("dense", rules, 12, set()) | outcomes("swa", rules, 12, set())


TURNED: list[Step] = [
    (ACTS.index(name), one, two)
    for name, one, two in (
        ("begin", 5, 0),
        ("admit", 0, 1),
        ("admit", 0, 0),
        ("prefill", 0, 0),
        ("prefill", 0, 1),
    )
]
"""Six tokens and a fresh row in a batch; one column for both, then one and two."""


def test_turned_rings_hide_the_first_token_of_a_padded_row() -> None:
    """Found by these journeys in 0.31.2 to 0.32.2, and seen on the real classes and on Gemma 3.

    A ring that single columns have turned is asked for the mask of several columns. The mask takes
    `_idx` for the number of rows, but `_idx` stands in the middle of the ring: it does not notice
    that the oldest row will be dropped, and hides one row too many of every padded sequence.
    """
    journey = Journey(tiny("swa"), RULES, avoids_turned_rings=False)
    names = [
        ("begin", 5, 0),
        ("admit", 0, 1),
        ("admit", 0, 0),
        ("prefill", 0, 0),
        ("prefill", 0, 1),
    ]

    with pytest.raises(DivergedError):
        journey.walk([(ACTS.index(name), one, two) for name, one, two in names])


@given(steps=STEPS)
def test_with_the_mask_mended_turned_rings_hide_nothing(steps: list[Step]) -> None:
    rules = FAMILY.patch("ring-mask").lay(NEWEST).caches

    Journey(tiny("swa"), rules, avoids_turned_rings=False).walk(steps)


def test_the_found_journey_is_right_with_the_mask_mended() -> None:
    rules = FAMILY.patch("ring-mask").lay(NEWEST).caches
    journey = Journey(tiny("swa"), rules, avoids_turned_rings=False)
    journey.walk(TURNED)

    assert 2 < journey.checked


def test_the_mask_of_a_turned_ring_counts_a_row_too_many_as_padding() -> None:
    batch = of_kind(BatchRotatingKVCache, RotatingKVCache.merge([ring(WINDOW, 1, 2, 3, 4, 5, 6)]))
    batch.extend(RotatingKVCache.merge([ring(WINDOW)]))
    write(batch, [7], [10])
    mask = batch.make_mask(2)

    assert [[3, 4, 5, 6, 7, 8, 9], [0, 0, 0, 0, 10, 11, 12]] == write(batch, [8, 9], [11, 12])
    assert isinstance(mask, np.ndarray)
    assert [[False] * 5 + [True, False], [False] * 5 + [True, True]] == mask[1, 0].tolist()
    assert [0, 4] == [max(0, int(each)) for each in batch.left_padding]
