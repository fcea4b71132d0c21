"""Random workloads: what a sound profile answers from cache is what a cold run answers.

Ring arithmetic, where a wrong position, a missing cell or a foreign state changes the answer.
Tokens come from a small alphabet, so that prompts share prefixes by chance and on purpose.
"""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.units import as_tokens
from cachesim.verify.oracle import Oracle

FEWER = settings(max_examples=max(10, settings.default.max_examples // 3))
"""Each test here runs for many profiles."""

LETTERS = st.integers(300, 302)
PIECE = st.lists(LETTERS, min_size=1, max_size=24)


@dataclass(frozen=True)
class Turn:
    """One request: a cut of an earlier conversation and something new."""

    base: int
    keep: int
    more: list[int]
    predict: int
    slot: int
    cache_prompt: bool
    waits: bool  # the next request is queued before this one runs


TURNS = st.lists(
    st.builds(
        Turn,
        base=st.integers(0, 5),
        keep=st.integers(0, 60),
        more=PIECE,
        predict=st.integers(1, 5),
        slot=st.sampled_from([-1, -1, -1, 0, 1]),
        cache_prompt=st.sampled_from([True, True, True, True, False]),
        waits=st.sampled_from([False, False, True]),
    ),
    min_size=2,
    max_size=7,
)

OPTIONS = st.fixed_dictionaries(
    {
        "ctx_size": st.sampled_from([256, 512]),
        "parallel": st.sampled_from([1, 1, 2, 3]),
        "kv_unified": st.booleans(),
        "batch_size": st.sampled_from([8, 16, 64, 2048]),
        "ubatch_size": st.sampled_from([4, 8, 16, 512]),
        "ctx_checkpoints": st.sampled_from([1, 2, 3, 32]),
        "slot_prompt_similarity": st.sampled_from([0.0, 0.1, 0.5]),
        "cache_ram": st.sampled_from([0, 1, 100]),
    }
)

MOVED = st.fixed_dictionaries(
    {"cache_reuse": st.sampled_from([0, 0, 4]), "context_shift": st.booleans()}
)

SOUND = [
    *((f"llama.cpp@{release}", "dense") for release in ("b9093", "b9538", "b11549")),
    *(
        (f"llama.cpp@{release}+erase-equal", model)
        for release in ("b9093", "b9538", "b11549")
        for model in ("recurrent", "hybrid")
    ),
    ("llama.cpp@b11549+erase-equal", "swa"),
    ("llama.cpp@b11549+erase-equal+search-read-again+resume-behind", "swa"),
    ("llama.cpp@b11549+24035", "hybrid"),
    ("llama.cpp@b11549+24035-lcp", "hybrid"),
    ("llama.cpp@b11549+25592", "hybrid"),
    ("llama.cpp@b11549+24143+erase-equal", "hybrid"),
]


def engine_of(profile: str, model: str, options: dict[str, Any]) -> LlamaCpp:
    engine = Engine.create(profile, model=build(tiny(model), "ring"), options=options)
    assert isinstance(engine, LlamaCpp)
    return engine


def play(engine: LlamaCpp, turns: list[Turn]) -> list[Reply]:
    """Each prompt begins like a conversation held before; replies are forced, from the alphabet.

    Nothing is pinned while others wait: b11549 swaps conversations into a slot that is at work, so
    that answers are wrong and the process may end (trap 1, which has tests of its own).
    """
    held: list[list[int]] = [[]]
    tickets = []
    idle = True
    for number, turn in enumerate(turns):
        prompt = held[turn.base % len(held)][: turn.keep] + turn.more
        forced = [300 + (number + k) % 3 for k in range(turn.predict)]
        held.append([*prompt, *forced])
        tickets.append(
            engine.submit(
                Request(
                    prompt=as_tokens(prompt),
                    predict=turn.predict,
                    reply=as_tokens(forced),
                    slot=turn.slot if idle else -1,
                    cache_prompt=turn.cache_prompt,
                )
            )
        )
        idle = not turn.waits
        if idle:
            engine.run()
            engine.check_integrity()
    engine.run()
    engine.check_integrity()
    replies = [engine.reply(ticket) for ticket in tickets]
    return [reply for reply in replies if reply is not None]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("profile", "model"), SOUND)
@FEWER
@given(options=OPTIONS, turns=TURNS)
def test_an_answer_from_cache_is_the_cold_answer(
    profile: str, model: str, options: dict[str, Any], turns: list[Turn]
) -> None:
    engine = engine_of(profile, model, options)
    oracle = Oracle(engine.network)
    for reply in play(engine, turns):
        if reply.error is None:
            cold = oracle.logits(reply.prompt, reply.generated)
            assert engine.network.difference(reply.logits, cold) == 0.0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", ["b9093", "b9538", "b11549"])
@pytest.mark.parametrize("model", ["dense", "swa", "recurrent", "hybrid"])
@FEWER
@given(options=OPTIONS, moved=MOVED, turns=TURNS)
def test_losses_add_up_from_what_was_equal_to_what_was_cached(
    release: str, model: str, options: dict[str, Any], moved: dict[str, Any], turns: list[Turn]
) -> None:
    options = {**options, **moved}
    replies = play(engine_of(f"llama.cpp@{release}", model, options), turns)
    assert len(replies) == len(turns)
    for reply in replies:
        lost = sum(loss.before - loss.after for loss in reply.losses)
        assert reply.equal - (reply.cached or 0) == lost
        if reply.error is None:
            assert reply.cached is not None
            assert reply.processed is not None
            assert reply.cached + reply.processed == len(reply.prompt)
        for before, after in zip(reply.losses, reply.losses[1:], strict=False):
            assert before.after == after.before
