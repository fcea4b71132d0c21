"""Answers from cache that differ from a cold run: the traps that change what a user reads.

Float arithmetic; the logits of every generated token are compared with the oracle's.
"""

import pytest

from cachesim.engines.base import Reply
from cachesim.verify.oracle import cold_logits
from tests.engines.llamacpp.play import Play, run

JUNE, OCTOBER = "llama.cpp@b9538", "llama.cpp@b11549"


def difference(play: Play, reply: Reply) -> float:
    """Distance of the reply's logits from a cold run over the same tokens."""
    first = len(reply.prompt) - 1
    tokens = reply.prompt + reply.generated[:-1]
    rows = range(first, first + len(reply.generated))
    cold = cold_logits(play.engine.network, tokens, rows=rows)
    return play.engine.network.difference(reply.logits, cold)


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("llama.cpp@b9873", (32, "right")),
        ("llama.cpp@b10068", (31, "wrong")),
        (OCTOBER + "+erase-equal+search-read-again", (31, "wrong")),
        (OCTOBER + "+resume-behind", (33, "right")),
    ],
)
def test_a_window_loses_a_key_at_each_trip(profile: str, expected: tuple[int, str]) -> None:
    """A checkpoint that is saved where another one was resumed begins where that one did."""
    play = Play(profile, "swa", window=8, arithmetic="float", drop=("ctx_size", "cache_ram"))
    whole, other = run(range(1000, 1037)), run(range(2000, 2040))
    for prompt in (whole, other, whole[:34], other):
        play.reply(prompt)
    reply = play.reply(whole, 4)
    answer = "right" if difference(play, reply) == 0.0 else "wrong"
    assert expected == (reply.cached, answer)
