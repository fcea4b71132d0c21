"""Chats in the toy vocabulary: drawn, sent as messages, grown from what was answered."""

from itertools import pairwise
from random import Random

from cachesim.lab.real.llama_cpp.calls import call_for, outcomes_of
from cachesim.lab.real.llama_cpp.chats import ChatTree, Message, as_messages, text_of
from cachesim.lab.real.llama_cpp.workload import Outcome
from cachesim.scenario.format import Step, Turn
from cachesim.units import as_tokens

CHAT = (
    Message(role="system", content=as_tokens([300])),
    Message(role="user", content=as_tokens([301, 302])),
)


def tree() -> ChatTree:
    return ChatTree(Random(1), words=200, longest=600)


def test_tokens_are_sent_as_their_texts() -> None:
    assert text_of(as_tokens([300, 301])) == "[300][301]"
    assert as_messages(CHAT) == (
        Turn(role="system", content="[300]"),
        Turn(role="user", content="[301][302]"),
    )


def test_chats_grow_from_what_was_answered() -> None:
    chats, seen = tree(), []
    for _ in range(80):
        messages = chats.next()
        seen.append(messages)
        chats.learn(messages, as_tokens([400, 401]))

    assert any(len(chat) >= 5 for chat in seen)
    assert any(Turn(role="assistant", content="[400][401]") in chat for chat in seen)
    assert any(Turn(role="assistant", content="[401]") in chat for chat in seen)
    assert len(set(seen)) > 40


def test_clients_ask_for_replies_to_be_continued_and_speak_in_unknown_roles() -> None:
    chats, last, roles = tree(), [], set()
    for _ in range(200):
        messages = chats.next()
        last.append(messages[-1])
        roles |= {each.role for each in messages}
        chats.learn(messages, as_tokens([400, 401]))

    continued = [each.content for each in last if each.role == "assistant"]
    assert {"", "[400]", "[400][401]"} <= set(continued)
    assert {"system", "developer", "user", "assistant", "tool", "ipython"} <= roles


def test_a_continued_reply_is_one_message_in_the_next_chat() -> None:
    chats = tree()
    for _ in range(300):
        messages = chats.next()
        roles = [each.role for each in messages]
        assert ("assistant", "assistant") not in pairwise(roles)
        chats.learn(messages, as_tokens([400]))


def test_a_refused_chat_ends_with_two_messages_of_the_assistant() -> None:
    assert ["assistant"] * 2 == [each.role for each in tree().refused()[-2:]]


def test_a_chat_step_goes_out_as_messages() -> None:
    call = call_for((Step(name="a", messages=as_messages(CHAT), predict=3),))

    assert call["path"] == "/v1/chat/completions"
    assert call["body"]["messages"] == [
        {"role": "system", "content": "[300]"},
        {"role": "user", "content": "[301][302]"},
    ]


def test_a_chat_reply_is_read_as_tokens_and_hides_its_slot() -> None:
    step = Step(name="a", messages=as_messages(CHAT))
    body = {
        "choices": [{"message": {"role": "assistant", "content": "[269][293]"}}],
        "timings": {"cache_n": 3, "prompt_n": 4, "predicted_n": 2},
    }

    (outcome,) = outcomes_of((step,), {"status": 200, "body": body})

    assert outcome.reply == as_tokens([269, 293])
    assert outcome.agrees_with(
        Outcome(cached=3, processed=4, reply=as_tokens([1, 2]), slot=2, truncated=True)
    )
    assert not outcome.agrees_with(Outcome(cached=4, processed=3, reply=as_tokens([1, 2])))


def test_a_reply_that_says_the_continued_message_again_is_what_was_generated() -> None:
    body = {
        "choices": [{"message": {"role": "assistant", "content": "[300][301][302]"}}],
        "timings": {"cache_n": 3, "prompt_n": 4, "predicted_n": 1},
    }

    (outcome,) = outcomes_of(
        (Step(name="a", messages=as_messages(CHAT)),), {"status": 200, "body": body}
    )

    assert outcome.reply == as_tokens([302])
