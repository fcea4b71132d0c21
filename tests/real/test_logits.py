"""Comparing logits with the real server: the arithmetic of the comparison, without a server."""

import numpy as np
import pytest

from cachesim.model.network import FloatNetwork
from cachesim.model.plain import PlainStore
from cachesim.model.presets import preset, tiny
from cachesim.model.store import Ubatch
from cachesim.real.llama_cpp.greedy import drawn_prompt, generate
from cachesim.real.llama_cpp.logits import Agreement, distance
from cachesim.real.llama_cpp.workload import Outcome
from cachesim.units import Token, as_tokens


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
    rows = [np.array([-1.0, -2.0, -3.0]), np.array([-2.0, -1.0, -3.0])]
    top = ({Token(0): -1.25, Token(1): -2.0}, {Token(1): -1.5, Token(0): -2.0})
    outcome = Outcome(reply=as_tokens([0, 1]), top=top)

    assert 0.5 == distance(outcome, as_tokens([0, 1]), rows)


def test_after_replies_part_nothing_is_compared() -> None:
    rows = [np.array([-1.0, -2.0]), np.array([-2.0, -1.0])]
    outcome = Outcome(reply=as_tokens([1, 1]), top=({Token(1): -1.75}, {Token(1): -9.0}))

    assert 0.25 == distance(outcome, as_tokens([0, 1]), rows)


def test_a_preset_agrees_within_its_tolerance_on_99_of_100_prompts() -> None:
    def agreement(preset: str, equal: int, worst: float) -> bool:
        return Agreement(preset=preset, equal=equal, distances=(0.0,) * 99 + (worst,)).agrees

    assert agreement("dense", 99, 9e-4)
    assert not agreement("dense", 98, 0.0)
    assert not agreement("dense", 100, 2e-3)
    assert agreement("swa", 100, 2e-2), "ggml looks GELU up in a coarse table"
    assert "gelu" == preset("swa").activation
