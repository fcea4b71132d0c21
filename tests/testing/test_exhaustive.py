"""The small scope, whole. A count that changes means that the model of a server has changed."""

import pytest

from cachesim.engines import Engine, Profile, Request
from cachesim.model.build import build
from cachesim.model.presets import PRESETS, preset
from cachesim.units import as_tokens
from tests.testing.exhaustive import copied, explore, fingerprint, prompts_over_two_tokens

SHORT = prompts_over_two_tokens(1, 2)
FIVE = (as_tokens([265] * 5), as_tokens([266] * 5))

# Four requests, two slots, prompts of one and two tokens: states reached, requests asked.
WALKS = {
    "dense": (127, 366),
    "swa": (127, 366),
    "recurrent": (243, 546),
    "hybrid": (243, 546),
    "hybrid-delta": (243, 546),
    "hybrid-swa": (127, 366),
    "hybrid-mtp": (243, 546),
}


@pytest.mark.thorough
@pytest.mark.parametrize("model", WALKS)
def test_all_workloads_of_four_requests_over_two_tokens_answer_cold(model: str) -> None:
    seen = explore("llama.cpp@b11549", model, prompts=SHORT, options={"parallel": 2})

    assert WALKS[model] == (seen.states, seen.requests)
    assert [] == seen.wrong


def test_every_preset_is_walked() -> None:
    assert PRESETS.keys() == WALKS.keys()


def test_three_requests_to_one_slot_reach_the_wrong_answer_in_five_ways() -> None:
    seen = explore("llama.cpp@b11549", "hybrid", prompts=SHORT + FIVE, requests=3)

    assert 5 == len(seen.wrong)
    assert {5} == {len(way[0]) for way in seen.wrong}


def test_the_mended_erasure_leaves_no_way() -> None:
    profile = "llama.cpp@b11549+erase-equal"

    assert [] == explore(profile, "hybrid", prompts=SHORT + FIVE, requests=3).wrong


def test_a_copied_server_goes_on_apart() -> None:
    network = build(preset("hybrid"), "ring")
    one = Engine.create(Profile.parse("llama.cpp@b9538"), model=network)
    before = fingerprint(one)
    other = copied(one, network)
    other.submit(Request(prompt=FIVE[0], predict=1))
    other.run()

    assert before == fingerprint(one)
    assert before != fingerprint(other)
