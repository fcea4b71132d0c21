"""Rounding and errors: the distance of answers, the limit, the bound on false alarms."""

import math
from random import Random

import pytest

from cachesim.probe.answers import Answer, distance
from cachesim.probe.judging import (
    FLOOR,
    MATERIAL,
    STAKES,
    Judge,
    Noise,
    SequentialTest,
    upper_bound,
)


def answer(*rows: dict[int, float], tokens: tuple[int, ...] = ()) -> Answer:
    return Answer(tokens=tokens or (7,) * len(rows), rows=rows)


def test_the_distance_is_that_of_the_likely_tokens() -> None:
    assert 0.25 == pytest.approx(distance(answer({1: -1.0, 2: -9}), answer({1: -1.25, 2: -20})))


def test_a_token_that_one_truncated_row_lacks_is_at_most_as_likely_as_its_last() -> None:
    assert 2.0 == distance(answer({1: -1.0, 2: -3}), answer({3: -3.0, 2: -3}))


def test_rows_are_compared_up_to_where_the_replies_part() -> None:
    one = answer({1: -1.0}, {1: -1.0}, tokens=(1, 2))
    assert 0.0 == distance(one, answer({1: -1.0}, {1: -6.0}, tokens=(5, 2)))


def test_an_answer_without_a_finite_probability_is_infinitely_far_from_one_that_has_some() -> None:
    assert math.inf == distance(answer({1: -1.0}), answer({}))
    assert 0.0 == distance(answer({}), answer({}))


def test_texts_without_probabilities_are_equal_or_infinitely_far() -> None:
    assert 0.0 == distance(answer(tokens=(1, 2)), answer(tokens=(1, 2)))
    assert math.inf == distance(answer(tokens=(1, 2)), answer(tokens=(1, 3)))


def test_a_wrong_answer_among_the_noise_does_not_widen_the_limit() -> None:
    noise = Noise(alone=[0.0, 0.01], reuse=[0.02, 3.0, math.inf])
    assert 0.08 == pytest.approx(noise.limit)
    assert Noise().limit == MATERIAL


@pytest.mark.parametrize(
    ("hits", "trials", "bound"), [(0, 30, 0.0950), (1, 20, 0.2161), (5, 10, 0.7776), (3, 3, 1.0)]
)
def test_the_upper_bound_is_clopper_and_pearsons(hits: int, trials: int, bound: float) -> None:
    assert bound == pytest.approx(upper_bound(hits, trials, 0.05), abs=2e-4)


def test_a_right_server_passes_the_threshold_as_seldom_as_promised() -> None:
    chance, passed = Random(1), 0
    for _ in range(4000):
        test = SequentialTest(0.1)
        while test.replays < 60 and test.value < 20:
            test.add(hit=chance.random() < 0.1)
        passed += test.value >= 20
    assert 0 < passed <= 4000 / 20


def test_each_stake_is_fair() -> None:
    gains = [0.1 * (1 + s * (1 / 0.1 - 1)) + 0.9 * (1 - s) for s in STAKES]
    assert [1.0] * len(STAKES) == pytest.approx(gains)


def test_a_fault_in_every_replay_is_found_by_a_few() -> None:
    judge = Judge(Noise(alone=[0.0] * 30, reuse=[0.0] * 30), alpha=1e-3)
    assert judge.add(0.1)
    test, threshold = judge.next_test()
    while test.value < threshold:
        test.add(hit=True)
    assert test.replays <= 10


def test_a_wrong_server_does_not_spoil_the_measurement_of_its_rounding() -> None:
    judge = Judge(Noise(alone=[0.0] * 30, reuse=[0.0, 3.0] * 30), alpha=1e-3)
    assert all(judge.add(2.0) for _ in range(50))
    assert 0.2 > judge.next_test()[0].chance


def test_a_race_in_one_of_four_replays_is_found() -> None:
    judge, chance = Judge(Noise(alone=[0.0] * 30, reuse=[0.0] * 300), alpha=1e-3), Random(2)
    judge.add(2.0)
    test, threshold = judge.next_test()
    assert test.chance == FLOOR
    while test.value < threshold and test.replays < 100:
        test.add(hit=chance.random() < 0.25)
    assert test.value >= threshold


def test_the_shares_of_all_suspicions_add_up_to_the_alpha_of_the_run() -> None:
    judge = Judge(Noise(reuse=[0.0] * 30), alpha=1e-3)
    shares = [1 / judge.next_test()[1] for _ in range(2000)]
    assert 0.9e-3 == pytest.approx(sum(shares), rel=1e-3)


@pytest.mark.thorough
@pytest.mark.nightly
def test_the_stated_power_is_that_of_replayed_suspicions() -> None:
    """One of so many replays is wrong: nearly every suspicion is confirmed, of rarer ones fewer."""
    judge, chance = Judge(Noise(alone=[0.0] * 30, reuse=[0.0] * 300), alpha=1e-3), Random(3)
    replays, confirmed = judge.rarest(), []
    for rate in (1 / replays, 1 / (replays + 1)):
        runs = 400
        for _ in range(runs):
            test, threshold = Judge(judge.noise, alpha=1e-3).next_test()
            while test.value < threshold and not test.dropped:
                test.add(hit=chance.random() < rate)
            runs -= test.value < threshold
        confirmed.append(runs / 400)
    assert confirmed[0] > 0.92 > confirmed[1]
