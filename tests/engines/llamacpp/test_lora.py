"""Adapters: what empties a slot, what does not, and what forgets under which it was computed."""

import numpy as np
import pytest

from cachesim.engines.base import Engine, Request
from cachesim.errors import OptionError
from cachesim.model.adapters import Adapted, adapted_in, deltas
from cachesim.model.build import build
from cachesim.model.network import FloatNetwork
from cachesim.model.presets import preset
from cachesim.units import as_tokens
from cachesim.verify import Oracle, judge
from tests.engines.llamacpp.play import Play, run

RELEASES = ["llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549"]
every = pytest.mark.parametrize("profile", RELEASES)
OFF = {"lora": [{"id": 0, "scale": 0.0}]}
ON = {"lora": [{"id": 0, "scale": 1.0}]}
P, Q = run(range(60)), run(range(100, 160))


def answer(play: Play) -> str:
    verdict = judge(play.last, Oracle(play.engine.network)) if play.last else None
    return "" if verdict is None else verdict.answer


@every
def test_only_a_set_of_the_requests_own_that_differs_empties_the_slot(profile: str) -> None:
    """The counts are those of the real servers."""
    play = Play(profile, lora="A")

    assert (0, 60) == play.ask(P)
    assert (59, 1) == play.ask(P, options=ON)
    assert (0, 60) == play.ask(P, options=OFF)
    assert "same" == answer(play)
    assert (59, 1) == play.ask(P, options={"lora": []})  # as good as none: the server's own set
    assert "diverged" == answer(play)


@every
def test_the_prompt_cache_does_not_know_under_which_adapters_an_entry_was_computed(
    profile: str,
) -> None:
    play = Play(profile, lora="A")
    play.ask(P, options=OFF)
    play.ask(Q)

    assert (59, 1) == play.ask(P)
    assert "diverged" == answer(play)


@every
def test_a_hot_swap_empties_nothing(profile: str) -> None:
    play = Play(profile, lora="A")
    play.ask(P)
    play.engine.set_lora(OFF["lora"])
    play.engine.run()

    assert (59, 1) == play.ask(P)
    assert "diverged" == answer(play)
    assert (0.0,) == play.engine.server.lora


def test_requests_under_other_adapters_do_not_share_a_batch() -> None:
    engine = Engine.create(
        "llama.cpp@b11549",
        model=preset("dense"),
        options={"parallel": 2, "lora": "A", "ctx_size": 512},
        arithmetic="ring",
    )
    tickets = [
        engine.submit(
            Request(prompt=as_tokens(range(first, first + 9)), predict=3, options=options)
        )
        for first, options in ((300, ON), (400, OFF))
    ]
    engine.run()

    oracle = Oracle(engine.network)
    replies = [engine.reply(each) for each in tickets]
    assert [(1.0,), (0.0,)] == [each.strengths for each in replies if each]
    assert ["same", "same"] == [
        verdict.answer for each in replies if each and (verdict := judge(each, oracle))
    ]
    decoded = [each for each in engine.events if each.name() == "batch-decoded"]
    assert all(len(each.slots) == 1 for each in decoded)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([{"id": 1, "scale": 1.0}], "names adapter 1; the server has ids from 0 to 0"),
        ([{"id": 0, "scale": "much"}], "the scale of adapter 0 is 'much'; write a number"),
        ("A", "is no list of tables"),
        ([{"scale": 1.0}], "names adapter None"),
    ],
)
def test_a_set_that_means_nothing_is_refused(given: object, why: str) -> None:
    play = Play("llama.cpp@b11549", lora="A")

    with pytest.raises(OptionError, match=why):
        play.reply(P, options={"lora": given})


def test_two_adapters_of_one_name_are_refused() -> None:
    with pytest.raises(OptionError, match="'A' is named twice"):
        Play("llama.cpp@b11549", lora="A, A")


def test_an_adapter_is_a_small_delta_on_the_weights_that_feed_the_memory() -> None:
    spec = preset("dense")
    network = Adapted(build(spec), ["A", "B"])
    laid = deltas(spec, "A")
    name = "blk.0.attn_v.weight"

    half = network.under((0.5, 0.0))

    assert isinstance(half, FloatNetwork)
    plain = build(spec)
    assert isinstance(plain, FloatNetwork)
    product = laid[f"{name}.lora_b"].astype(np.float64) @ laid[f"{name}.lora_a"]
    np.testing.assert_allclose(half.weights[name], plain.weights[name] + 0.5 * product, atol=1e-6)
    assert network.under((0.0, 0.0)) is plain
    assert half is network.under((0.5, 0.0))
    assert network is adapted_in(network)
    assert not np.array_equal(deltas(spec, "B")[f"{name}.lora_a"], laid[f"{name}.lora_a"])
