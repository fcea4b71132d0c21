"""An engine's predicted reuse is its reuse, and the query changes nothing."""

import random
from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.model.presets import preset
from cachesim.play.loop import Loop
from cachesim.units import Token, as_tokens

SERVERS: dict[str, dict[str, Any]] = {
    "vllm@0.33.0": {"num_gpu_blocks_override": 60},
    "vllm@0.19.1": {"num_gpu_blocks_override": 60},
    "sglang@0.5.23": {"max_total_tokens": 900},
    "sglang@0.5.9": {"max_total_tokens": 900},
}
MODELS = ("dense", "hybrid", "swa", "hybrid-swa", "recurrent")


EAGLE: dict[str, Any] = {
    "num_gpu_blocks_override": 60,
    "block_size": 32,
    "drafter_block_size": 16,
    "speculative_method": "eagle",
}
"""Lookups look a block further than the hit, also where nobody has sent those tokens."""


def draws(seed: int) -> list[tuple[list[int], list[int]]]:
    """Prompts and replies; most prompts begin as an earlier text, cut anywhere."""
    rng, texts = random.Random(seed), list[list[int]]()
    found = []
    for _ in range(30):
        begun = rng.choice(texts) if texts and rng.random() < 0.7 else []
        cut = begun[: rng.randint(0, len(begun))]
        prompt = [*cut, *(rng.randrange(300) for _ in range(rng.randint(2, 90)))][:400]
        reply = [rng.randrange(300) for _ in range(rng.randint(1, 20))]
        texts.append(prompt + reply)
        found.append((prompt, reply))
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("profile", "options", "model"),
    [
        *((profile, options, model) for profile, options in SERVERS.items() for model in MODELS),
        *(("vllm@0.33.0", EAGLE, model) for model in MODELS[1:]),  # in others blocks are equal
    ],
)
def test_what_an_engine_would_reuse_is_what_it_reuses(
    profile: str, options: dict[str, Any], model: str
) -> None:
    reused = 0
    for seed in range(3):
        asked, other = (
            Engine.create(profile, model=preset(model), options=options, arithmetic="counts")
            for _ in range(2)
        )
        for prompt, reply in draws(seed):
            request = Request(
                prompt=as_tokens(prompt), predict=len(reply), reply=tuple(map(Token, reply))
            )
            said = asked.peek(request.prompt)
            again = asked.peek(request.prompt)
            answers = [Loop(each).answer(request) for each in (asked, other)]
            assert said == again
            if said is not None:
                cached = [None if answer is None else answer.cached for answer in answers]
                assert cached == [said, said]
                reused += int(said)
        assert other.snapshot() == asked.snapshot()
    known = profile != "sglang@0.5.9" or model == "dense"
    assert known == (reused > 0)


def test_an_engine_without_a_lookup_of_its_own_says_nothing() -> None:
    engine = Engine.create("llama.cpp@b11549", model=preset("dense"), arithmetic="counts")
    assert engine.peek(as_tokens([1, 2, 3])) is None


def test_what_a_store_would_load_is_not_known() -> None:
    options = {"connector": "store"}
    engine = Engine.create(
        "vllm@0.33.0", model=preset("dense"), options=options, arithmetic="counts"
    )
    assert engine.peek(as_tokens(range(100))) is None
