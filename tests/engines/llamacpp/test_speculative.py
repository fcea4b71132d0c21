"""Speculative decoding: whatever is drafted, the reply is the one without drafts."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.errors import OptionError
from cachesim.model.build import build
from cachesim.model.presets import preset, tiny
from cachesim.units import Tokens, as_tokens
from cachesim.verify.oracle import cold_logits
from tests.engines.llamacpp.play import Play, run

JUNE, OCTOBER = "llama.cpp@b9538", "llama.cpp@b11549"
both = pytest.mark.parametrize("profile", [JUNE, OCTOBER])

COMPANIONS = [
    ("hybrid-mtp", {"spec_type": "draft-mtp"}, "cut"),
    ("dense", {"spec_type": "draft-simple", "model_draft": "hybrid"}, "abort"),
    ("dense", {"spec_type": "draft-simple", "model_draft": "swa"}, "cut"),
    ("hybrid", {"spec_type": "draft-simple", "model_draft": "dense"}, "checkpoint"),
    ("recurrent", {"spec_type": "draft-simple", "model_draft": "recurrent"}, "checkpoint"),
]


def talk(engine: Engine, prompt: list[int], predict: int = 12, **fields: Any) -> Reply:
    ticket = engine.submit(Request(prompt=as_tokens(prompt), predict=predict, **fields))
    engine.run()
    engine.check_integrity()
    reply = engine.reply(ticket)
    assert reply is not None
    return reply


def verified(engine: Engine) -> list[dict[str, Any]]:
    return [event.as_dict() for event in engine.events if event.name() == "draft-verified"]


def create(profile: str, model: str, **options: Any) -> Engine:
    return Engine.create(profile, model=preset(model), options=options, arithmetic="ring")


@both
def test_an_mtp_head_drafts_in_the_real_arithmetic(profile: str) -> None:
    play = Play(profile, "hybrid-mtp", arithmetic="float", spec_type="draft-mtp")
    reply = play.reply(run(range(300, 340)), 12, forced=False)
    rows = range(39, 39 + len(reply.generated))
    cold = cold_logits(play.engine.network, reply.prompt + reply.generated[:-1], rows=rows)
    assert play.engine.network.difference(reply.logits, cold) == 0.0
    assert verified(play.engine)


def test_a_companion_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(OptionError, match="same vocabulary"):
        create(
            OCTOBER, "dense", spec_type="draft-simple", model_draft=preset("dense", vocabulary=64)
        )


DRAFTS = st.lists(st.lists(st.integers(300, 302), max_size=5), max_size=6)


@settings(max_examples=max(10, settings.default.max_examples // 3))
@given(
    profile=st.sampled_from([JUNE + "+erase-equal", OCTOBER + "+erase-equal"]),
    companion=st.sampled_from([each for each in COMPANIONS if each[2] != "abort"]),
    prompts=st.lists(
        st.tuples(st.lists(st.integers(300, 302), min_size=1, max_size=20), DRAFTS),
        min_size=1, max_size=4,
    ),
)  # fmt: skip
def test_random_drafts_leave_answers_and_memory_as_they_would_be(
    profile: str, companion: tuple[str, dict[str, Any], str],
    prompts: list[tuple[list[int], list[list[int]]]],
) -> None:  # fmt: skip
    model, options, _ = companion
    engine = Engine.create(profile, model=build(tiny(model), "ring"), options={
        **options,
        **({"model_draft": tiny(options["model_draft"])} if "model_draft" in options else {}),
    })  # fmt: skip
    assert isinstance(engine, LlamaCpp)
    held: list[int] = []
    for letters, given_drafts in prompts:
        prompt = held[: len(letters) * 3] + letters
        drafts: tuple[Tokens, ...] = tuple(as_tokens(each) for each in given_drafts)
        forced = as_tokens([300 + (k * k) % 3 for k in range(9)])
        reply = talk(engine, prompt, 9, reply=forced, drafts=drafts)
        rows = range(len(prompt) - 1, len(prompt) + 8)
        cold = cold_logits(engine.network, reply.prompt + forced[:-1], rows=rows)
        assert engine.network.difference(reply.logits, cold) == 0.0
        held = [*prompt, *forced]
