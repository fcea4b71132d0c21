"""Trap 1: a request pinned to a busy slot swaps its conversation before it is deferred.

The slot at work then holds another conversation than the one it reads. Found by search; the
smallest ways to the end of the process, and to its never ending, are kept here.
"""

import pytest

from cachesim.engines.base import Engine, Request, Ticket
from cachesim.errors import UpstreamAbort, UpstreamEndless
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.units import as_tokens

OPTIONS = {
    "ctx_size": 256,
    "parallel": 2,
    "batch_size": 8,
    "ubatch_size": 4,
    "ctx_checkpoints": 1,
    "cache_ram": 1,
}


def server(profile: str) -> Engine:
    return Engine.create(profile, model=build(tiny("recurrent"), "ring"), options=OPTIONS)


def ask(engine: Engine, prompt: list[int], predict: int, slot: int = -1) -> Ticket:
    reply = as_tokens([300] * predict)
    return engine.submit(Request(prompt=as_tokens(prompt), predict=predict, reply=reply, slot=slot))


def warm_up(engine: Engine, longest: list[int]) -> None:
    for _ in range(3):
        ask(engine, [300], 1)
        engine.run()
    ask(engine, longest, 5)
    engine.run()


def pin_to_a_busy_slot(engine: Engine) -> None:
    ask(engine, [300] * 5, 1)
    ask(engine, [301, 300], 1, slot=1)
    ask(engine, [300], 1)
    engine.run()


def test_the_process_ends_when_the_slot_suddenly_holds_all_of_the_prompt() -> None:
    engine = server("llama.cpp@b11549")
    warm_up(engine, [301])

    with pytest.raises(UpstreamAbort, match=r"aborts here: batch\.n_tokens > 0"):
        pin_to_a_busy_slot(engine)


@pytest.mark.parametrize("release", ["b9873", "b10068", "b10566", "b11063", "b11549"])
def test_the_server_turns_for_ever_when_the_slot_suddenly_holds_more_than_the_prompt(
    release: str,
) -> None:
    """Seen on these real servers; the rule that ends older ones after four turns has gone."""
    engine = server(f"llama.cpp@{release}")
    warm_up(engine, [301, 300])

    with pytest.raises(UpstreamEndless, match="loops forever here"):
        pin_to_a_busy_slot(engine)


@pytest.mark.parametrize("profile", ["llama.cpp@b9093", "llama.cpp@b9538"])
def test_older_releases_only_make_the_request_wait(profile: str) -> None:
    engine = server(profile)
    warm_up(engine, [301, 300])
    pin_to_a_busy_slot(engine)

    engine.check_integrity()
