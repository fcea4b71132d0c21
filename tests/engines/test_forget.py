"""A server forgets the replies that nobody asks for again, and goes on as if it had not."""

import pytest

from cachesim.engines import FAMILIES
from cachesim.engines.base import Engine, Reply, Request
from cachesim.model.presets import tiny
from cachesim.typed import there_is
from cachesim.units import Tokens, as_tokens

PROFILES = [f"{name}@{family.releases[-1].name}" for name, family in FAMILIES.items()]


def prompts() -> list[Tokens]:
    """Chats that grow, two at a time."""
    chats = [list(range(1, 40)), list(range(200, 230))]
    found = []
    for turn in range(8):
        chat = chats[turn % 2]
        chat += range(300 + 10 * turn, 309 + 10 * turn)
        found.append(as_tokens(chat))
    return found


def played(profile: str, *, forgets: bool) -> tuple[Engine, list[Reply]]:
    server = Engine.create(profile, model=tiny("dense"), arithmetic="counts")
    replies = []
    for prompt in prompts():
        ticket = server.submit(Request(prompt=prompt, predict=3, reply=as_tokens([5, 6, 7])))
        server.run()
        reply = there_is(server.reply(ticket))
        replies.append(reply)
        if forgets:
            server.forget(ticket)
            assert [] == list(server.events)
            server.check_integrity()
    return server, replies


def told(replies: list[Reply]) -> list[object]:
    return [(reply.cached, reply.equal, reply.equal_with, reply.losses) for reply in replies]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_server_that_forgets_replies_takes_the_same_decisions(profile: str) -> None:
    one, replies = played(profile, forgets=False)
    other, same = played(profile, forgets=True)

    assert told(replies) == told(same)
    assert one.snapshot() == other.snapshot()


@pytest.mark.parametrize("profile", PROFILES)
def test_an_unfinished_request_is_not_forgotten(profile: str) -> None:
    server = Engine.create(profile, model=tiny("dense"), arithmetic="counts")
    ticket = server.submit(Request(prompt=prompts()[0], predict=3, reply=as_tokens([5, 6, 7])))

    server.forget(ticket)
    server.run()

    assert server.reply(ticket) is not None
