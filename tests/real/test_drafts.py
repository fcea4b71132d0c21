"""What the MTP head's drafts should count, without a server."""

import numpy as np
import pytest

from cachesim.lab.real.llama_cpp import logits
from cachesim.lab.real.llama_cpp.logits import (
    Drafts,
    drawn_prompt,
    expected_drafts,
    generate,
    head_guesses,
)
from cachesim.model.network import FloatNetwork
from cachesim.model.presets import tiny

NETWORK = FloatNetwork(tiny("hybrid-mtp"))
PROMPT = drawn_prompt(np.random.default_rng(1), 12)


def count(monkeypatch: pytest.MonkeyPatch, predict: int, right: set[int]) -> Drafts:
    """Counts when the head is right about the reply's tokens of these numbers alone."""
    reply, _ = generate(NETWORK, PROMPT, predict + 2)
    told = [*PROMPT, *reply]
    guesses = [told[i + 1] if i + 1 - len(PROMPT) in right else -1 for i in range(len(told) - 1)]
    monkeypatch.setattr(logits, "head_guesses", lambda *_: guesses)
    return expected_drafts(NETWORK, PROMPT, predict)


def test_a_head_that_is_never_right_proposes_before_every_token_but_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Drafts(drafted=4, accepted=0) == count(monkeypatch, 6, set())


def test_a_head_that_is_always_right_brings_two_tokens_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Drafts(drafted=3, accepted=3) == count(monkeypatch, 7, set(range(10)))


def test_guesses_about_tokens_that_came_along_are_never_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Token 1 is a draft that was right, so token 2 came with it and nobody guesses it."""
    assert Drafts(drafted=3, accepted=1) == count(monkeypatch, 6, {1, 2})


def test_the_head_guesses_one_token_for_each_it_reads() -> None:
    guesses = head_guesses(NETWORK, PROMPT)

    assert len(PROMPT) == len(guesses)
    assert all(265 <= guess < 512 for guess in guesses)
