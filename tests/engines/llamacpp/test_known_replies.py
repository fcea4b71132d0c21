"""Known replies decoded at once, as `limit_turns` allows, beside replies decoded token by token."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.llamacpp.vocabulary.events import BatchDecoded
from cachesim.model.presets import preset
from cachesim.play.loop import Loop
from cachesim.units import Token

MODELS = ("dense", "hybrid", "hybrid-delta", "recurrent", "swa", "hybrid-swa")


def played(model: str, seed: int, *, at_once: bool) -> tuple[list[Reply], Engine, int]:
    """Pairs of requests at a time on two slots; the number of decoded batches last."""
    rng = Random(f"{model} {seed}")
    options: dict[str, Any] = {"parallel": 2, "ctx_size": 400, "kv_unified": rng.random() < 0.5}
    engine = Engine.create(
        "llama.cpp@b11549", model=preset(model), options=options, arithmetic="ring"
    )
    if at_once:
        engine.limit_turns(1 << 30)
    texts = [[rng.randrange(3, 200) for _ in range(60)] for _ in range(2)]
    replies = []
    for _ in range(4):
        tickets = []
        for _ in range(2):
            prompt = [*rng.choice(texts)[: rng.randint(5, 60)], rng.randrange(3, 200)]
            reply = [rng.randrange(3, 200) for _ in range(rng.randint(1, 25))]
            texts.append([*prompt, *reply])
            tickets.append(
                engine.submit(
                    Request(
                        prompt=tuple(map(Token, prompt)),
                        predict=rng.randint(1, 25),
                        reply=tuple(map(Token, reply)),
                    )
                )
            )
        Loop(engine, most=2000).drain()
        found = [engine.reply(ticket) for ticket in tickets]
        replies += [each for each in found if each is not None]
        engine.check_integrity()
    return replies, engine, sum(isinstance(event, BatchDecoded) for event in engine.events)


@pytest.mark.parametrize("model", MODELS)
def test_replies_decoded_at_once_leave_what_replies_by_token_leave(model: str) -> None:
    for seed in range(6):
        by_token, one, batches = played(model, seed, at_once=False)
        at_once, other, fewer = played(model, seed, at_once=True)

        assert 8 == len(by_token)
        for expected, actual in zip(by_token, at_once, strict=True):
            assert (expected.prompt, expected.generated) == (actual.prompt, actual.generated)
            assert (expected.cached, expected.slot) == (actual.cached, actual.slot)
            assert np.array_equal(expected.logits, actual.logits)
        in_other_cells = replace(other.held(), cells=one.held().cells)  # two slots share them
        assert one.held() == in_other_cells
        assert (fewer < batches) == ("swa" not in model)
