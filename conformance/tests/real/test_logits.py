"""Logits and drafts that a comparison with the real server expects, without a server."""

import numpy as np
import pytest

from cachesim.model.arithmetic import PlainStore
from cachesim.model.network import FloatNetwork
from cachesim.model.presets import tiny
from cachesim.model.store import Ubatch
from cachesim.prove.llama_cpp.workload import Outcome
from cachesim.units import Token, as_tokens
from conformance.real.llama_cpp import logits
from conformance.real.llama_cpp.logits import (
    Agreement,
    agreement,
    distance,
    drawn_prompt,
    expected_drafts,
    generate,
    head_guesses,
)
from tests.fixtures import Patch

NETWORK = FloatNetwork(tiny("hybrid-mtp"))
PROMPT = drawn_prompt(np.random.default_rng(1), 12)


def count(monkeypatch: Patch, predict: int, right: set[int]) -> tuple[int, int]:
    """Counts when the head is right about the reply's tokens of these numbers alone."""
    reply, _ = generate(NETWORK, PROMPT, predict + 2)
    told = [*PROMPT, *reply]
    guesses = [told[i + 1] if i + 1 - len(PROMPT) in right else -1 for i in range(len(told) - 1)]
    monkeypatch.setattr(logits, "head_guesses", lambda *_: guesses)
    return expected_drafts(NETWORK, PROMPT, predict)


@pytest.mark.parametrize(
    ("predict", "right", "counts"),
    [
        (6, set(), (4, 0)),  # before every token but the last
        (7, set(range(10)), (3, 3)),  # two tokens a turn
        # Token 1 is a draft that was right, so token 2 came with it and nobody guesses it.
        (6, {1, 2}, (3, 1)),
    ],
)
def test_a_head_is_asked_before_the_tokens_that_did_not_come_along(
    predict: int, right: set[int], counts: tuple[int, int], monkeypatch: Patch
) -> None:
    assert counts == count(monkeypatch, predict, right)


def test_the_head_guesses_one_token_for_each_it_reads() -> None:
    guesses = head_guesses(NETWORK, PROMPT)

    assert len(PROMPT) == len(guesses)
    assert all(265 <= guess < 512 for guess in guesses)


def test_a_generated_reply_is_greedy_and_comes_with_its_log_probabilities() -> None:
    network = FloatNetwork(tiny("hybrid"))
    prompt = drawn_prompt(np.random.default_rng(0), 9)

    reply, rows = generate(network, prompt, 3)

    told = np.array([*prompt, *reply[:2]])
    ubatch = Ubatch(tokens=told, positions=np.arange(11), outputs=np.array([8, 9, 10]))
    logits = network.run(ubatch, PlainStore(network)).logits
    assert logits.argmax(axis=1).tolist() == list(reply)
    for row, expected in zip(rows, logits, strict=True):
        assert 1.0 == pytest.approx(np.exp(row).sum())
        assert np.allclose(expected - expected[0], row - row[0])


def test_the_distance_is_the_largest_among_the_likeliest() -> None:
    theirs = outcome([0, 1], {0: -1.25, 1: -2.0}, {1: -1.5, 0: -2.0})
    mine = outcome([0, 1], {0: -1.0, 1: -2.0, 2: -3.0}, {0: -2.0, 1: -1.0, 2: -3.0})

    assert 0.5 == distance(theirs, mine)


def test_tokens_that_one_side_does_not_name_are_not_compared() -> None:
    assert 0.25 == distance(outcome([0], {0: -1.0, 1: -9.0}), outcome([0], {0: -1.25, 2: -8.0}))


def test_after_replies_part_nothing_is_compared() -> None:
    theirs = outcome([1, 1], {1: -1.75}, {1: -9.0})

    assert 0.25 == distance(theirs, outcome([0, 1], {0: -1.0, 1: -2.0}, {0: -1.0, 1: -2.0}))


def test_a_preset_agrees_within_its_tolerance_on_99_of_100_prompts() -> None:
    def agrees(equal: int, worst: float, own: float = 0.0) -> bool:
        distances = (0.0,) * 99 + (worst,)
        return Agreement(preset="dense", equal=equal, distances=distances, own=own).agrees

    assert agrees(99, 9e-4)
    assert not agrees(98, 0.0)
    assert not agrees(100, 2e-3)
    assert agrees(100, 2e-3, own=1e-3), "the real server is as far from itself"
    assert not agrees(100, 2e-2, own=1e-3)


def test_an_agreement_counts_equal_replies_and_both_distances() -> None:
    theirs = [outcome([0], {0: -1.0}), outcome([1], {1: -1.0})]
    mine = [outcome([0], {0: -1.5}), outcome([0], {0: -1.0, 1: -1.25})]
    again = [outcome([0], {0: -1.125}), outcome([1], {1: -1.0})]

    expected = Agreement(preset="dense", equal=1, distances=(0.5, 0.25), own=0.125)
    assert expected == agreement("dense", theirs, mine, again)


def outcome(reply: list[int], *tops: dict[int, float]) -> Outcome:
    named = ({Token(token): each for token, each in top.items()} for top in tops)
    return Outcome(reply=as_tokens(reply), top=tuple(named))
