"""Several completions of one prompt, with the slots and counts that the real servers gave."""

from typing import Any

import pytest

from cachesim.engines.base import Request
from cachesim.units import as_tokens
from tests.engines.llamacpp.play import Play, run

Row = tuple[int | None, int | None, int | None]

ASKED: list[tuple[list[int], int, dict[str, Any]]] = [
    (run(range(265, 365)), 5, {"completions": 2}),
    (run(range(265, 365), range(400, 406)), 3, {}),
    (run(range(300, 400)), 4, {"completions": 3}),
    (run(range(300, 400), range(450, 460)), 4, {}),
    (run(range(300, 350)), 4, {"completions": 2, "slot": 1}),
    (run(range(300, 350)), 2, {"slot": 0}),
]

FIRST: list[Row] = [(2, 0, 100), (0, 0, 100)]
ANSWERED: dict[str, list[list[Row]]] = {
    "b9538": [
        FIRST, [(2, 32, 74)], [(1, 0, 100), (0, 0, 100), (2, 0, 100)], [(1, 32, 78)],
        [(1, 32, 18), (0, 32, 18)], [(0, 0, 50)],
    ],
    "b11549": [
        FIRST, [(2, 96, 10)], [(1, 0, 100), (0, 0, 100), (2, 0, 100)], [(1, 96, 14)],
        [(1, 32, 18), (0, 32, 18)], [(0, 0, 50)],
    ],
}  # fmt: skip
ANSWERED["b9093"] = ANSWERED["b9538"]


@pytest.mark.parametrize("release", ANSWERED)
def test_parents_and_children_answer_as_on_the_real_servers(release: str) -> None:
    play = Play(f"llama.cpp@{release}", "hybrid", parallel=3, batch_size=256, ubatch_size=64)
    answered = []
    for prompt, predict, fields in ASKED:
        play.ask(prompt, predict, **fields)
        replies = play.engine.replies(play.ticket)
        answered.append([(r.slot, r.cached, r.processed) for r in replies])
        assert all(len(reply.generated) == predict for reply in replies)
    assert answered == ANSWERED[release]


def test_all_completions_have_the_same_logits_before_they_part() -> None:
    play = Play("llama.cpp@b11549", "hybrid", parallel=3)
    play.reply(run(range(300, 350)), 4, completions=3, forced=False)
    first, *others = play.engine.replies(play.ticket)
    for other in others:
        assert play.engine.network.difference(first.logits, other.logits) == 0.0
        assert (other.equal, other.losses) == (first.equal, first.losses)


def test_too_few_free_slots_make_the_whole_request_wait() -> None:
    play = Play("llama.cpp@b11549", "dense", parallel=2)
    engine = play.engine
    busy = engine.submit(Request(prompt=as_tokens(range(20)), predict=9))
    engine.step()
    twice = engine.submit(Request(prompt=as_tokens(range(100, 120)), predict=2, completions=2))
    engine.step()
    assert engine.replies(twice) == ()
    engine.run()
    assert engine.reply(busy) is not None
    assert [reply.slot for reply in engine.replies(twice)] == [0, 1]


def test_a_shared_prompt_cannot_be_shifted() -> None:
    play = Play(
        "llama.cpp@b11549", "dense", parallel=2, ctx_size=512, context_shift=True, cache_ram=0
    )
    reply = play.reply(run(range(200)), 100, completions=2)
    assert reply.error == "server_error"
    assert reply.message == "context shift cannot be used for shared prompt"
