"""A draft model: what is said is the model's, what is stored may be one token short."""

import numpy as np
import pytest

from cachesim.engines import Engine, Request
from cachesim.engines.base import Reply
from cachesim.engines.mlx_lm.engine import MlxLm
from cachesim.engines.mlx_lm.events import Insertion, RequestAdmitted
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.units import as_tokens
from cachesim.verify.oracle import cold_logits

PROMPT = as_tokens(range(10, 20))


def server(release: str = "0.32.2", preset: str = "dense", draft: str = "self") -> MlxLm:
    options = {"tokenizer": "words", "draft_model": draft, "num_draft_tokens": 2}
    engine = Engine.create(f"mlx-lm@{release}", model=tiny(preset, vocabulary=64), options=options)
    assert isinstance(engine, MlxLm)
    return engine


def ask(engine: MlxLm, request: Request) -> Reply:
    ticket = engine.submit(request)
    engine.run()
    reply = engine.reply(ticket)
    assert reply is not None
    return reply


def is_cold(engine: MlxLm, reply: Reply) -> bool:
    tokens = (*reply.prompt, *reply.generated[:-1])
    cold = cold_logits(build(engine.network.spec), tokens)[len(reply.prompt) - 1 :]
    return bool(np.array_equal(cold, reply.logits))


@pytest.mark.parametrize("release", ["0.30.7", "0.31.1", "0.31.3", "0.32.2"])
@pytest.mark.parametrize("draft", ["self", "dense", "recurrent"])
def test_the_first_answer_is_the_models_own_whatever_is_drafted(release: str, draft: str) -> None:
    engine = server(release, draft=draft)
    reply = ask(engine, Request(prompt=PROMPT, predict=7))

    assert is_cold(engine, reply)
    assert 7 == len(reply.generated)
    assert ["single"] == [e.path for e in engine.events if isinstance(e, RequestAdmitted)]


@pytest.mark.parametrize(
    ("drafts", "sound"), [(((40, 41), (42, 43)), True), (((40, 50), (42, 50)), False)]
)
def test_a_reply_that_ends_with_a_token_of_the_models_own_is_stored_without_it(
    drafts: tuple[tuple[int, ...], ...], sound: bool
) -> None:
    engine = server()
    said = as_tokens([40, 41, 44, 42, 43] if sound else [40, 41, 42, 43])
    forced = tuple(map(as_tokens, drafts))
    reply = ask(engine, Request(prompt=PROMPT, predict=len(said), reply=said, drafts=forced))
    stored = next(each for each in engine.events if isinstance(each, Insertion))
    next_turn = ask(engine, Request(prompt=(*PROMPT, *said, *PROMPT), predict=2))

    assert is_cold(engine, reply)
    assert (len(PROMPT) + len(said), sound) == (stored.length, stored.state_is_key)
    assert (len(PROMPT) + len(said), sound) == (next_turn.cached, is_cold(engine, next_turn))


@pytest.mark.parametrize(
    ("release", "error"), [("0.31.1", None), ("0.31.2", "ValueError"), ("0.32.2", "ValueError")]
)
def test_models_that_cannot_be_trimmed_are_refused_since_1109(
    release: str, error: str | None
) -> None:
    engine = server(release, "hybrid")
    drafts = (as_tokens([50, 50]),) * 3
    said = as_tokens([40, 41, 42])
    reply = ask(engine, Request(prompt=PROMPT, predict=3, reply=said, drafts=drafts))

    assert error == reply.error
    assert error is not None or not is_cold(engine, reply)
