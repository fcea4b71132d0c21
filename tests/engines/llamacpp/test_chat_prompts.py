"""What llama-server makes of a chat before the template: prompt lengths as the wheels gave them."""

from typing import Final

import pytest

from cachesim.engines.base import Message, Request
from tests.engines.llamacpp.play import Play

WORDS: Final = "[300][301][302]"
MAY, JUNE, OCTOBER = ALL = ("llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549")

LENGTHS: Final = {
    "user": 11,
    "system user": 19,
    "developer user": 19,
    "user developer": 19,
    "Developer user": 27,
    "user assistant": 14,
    "system user assistant": 22,
    "assistant": 6,
    "assistant user": 19,
    "user assistant assistant user": 35,
    "user tool": 22,
    "user function": 26,
    "foo user": 21,
    "user Assistant": 27,
    "system": 11,
}
"""Roles, three tokens each -> the tokens that all three releases read."""


def chat(roles: str, content: str = WORDS) -> tuple[Message, ...]:
    return tuple(Message(role=role, content=content) for role in roles.split())


def tokens_read(profile: str, *messages: Message) -> int:
    play = Play(profile, "dense")
    ticket = play.engine.submit(Request(prompt=(), messages=messages, predict=1))
    play.engine.run()
    reply = play.engine.reply(ticket)
    assert reply is not None
    assert reply.error is None
    return len(reply.prompt)


@pytest.mark.parametrize("profile", ALL)
@pytest.mark.parametrize("roles", LENGTHS)
def test_a_chat_is_read_as_on_the_real_servers(profile: str, roles: str) -> None:
    assert LENGTHS[roles] == tokens_read(profile, *chat(roles))


@pytest.mark.parametrize("profile", ALL)
@pytest.mark.parametrize(("content", "length"), [(" ", 14), ("\n", 12), ("\n" + WORDS, 15)])
def test_the_reply_goes_on_from_what_the_assistant_said(
    profile: str, content: str, length: int
) -> None:
    said = Message(role="assistant", content=content)
    assert length == tokens_read(profile, *chat("user"), said)


@pytest.mark.parametrize(("profile", "length"), [(MAY, 11), (JUNE, 8), (OCTOBER, 8)])
def test_an_empty_message_of_the_assistant_leaves_newer_replies_unopened(
    profile: str, length: int
) -> None:
    said = Message(role="assistant", content="")
    assert length == tokens_read(profile, *chat("user"), said)


def test_a_chat_of_one_empty_message_of_the_assistant_is_an_empty_prompt() -> None:
    assert 0 == tokens_read(OCTOBER, Message(role="assistant", content=""))


@pytest.mark.parametrize("profile", ALL)
@pytest.mark.parametrize("roles", ["user assistant assistant", "assistant assistant"])
def test_two_messages_of_the_assistant_at_the_end_are_refused(profile: str, roles: str) -> None:
    play = Play(profile, "dense")
    reply = play.reply([], messages=chat(roles))
    assert reply.error == "invalid_request_error"
    assert "2 or more assistant messages" in reply.message
    assert play.tokens() == 0


def test_a_message_to_go_on_from_still_ends_the_users_turn() -> None:
    """Where the last user message begins is cut and saved, prefill or not."""
    long = Message(role="user", content=WORDS * 20)
    play = Play(OCTOBER, "hybrid")
    play.reply([], messages=(long, *chat("assistant user assistant")))
    assert 73 in play.checkpoints()
