"""Chats in the toy vocabulary: rendered, read back, and grown."""

from random import Random

import pytest

from cachesim.errors import TokenError
from cachesim.real.llama_cpp.calls import call_for, outcomes_of
from cachesim.real.llama_cpp.chats import ChatTree, Said, chat_of, render, starts_of, text_of
from cachesim.real.llama_cpp.workload import Outcome, Step
from cachesim.units import as_tokens

CHAT = (
    Said(role="system", content=as_tokens([300])),
    Said(role="user", content=as_tokens([301, 302])),
)


def test_a_chat_is_rendered_as_the_template_does() -> None:
    assert text_of(render(CHAT)) == (
        "<|im_start|>system\n[300]<|im_end|>\n"
        "<|im_start|>user\n[301][302]<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_rendering_is_read_back() -> None:
    assert chat_of(render(CHAT)) == CHAT


def test_messages_start_at_their_marks() -> None:
    assert starts_of(render(CHAT)) == [
        {"role": "system", "start": 0},
        {"role": "user", "start": 6},
    ]


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_prompt_that_no_chat_renders_to_is_refused(cut: int) -> None:
    with pytest.raises(TokenError, match="not the rendering"):
        chat_of(render(CHAT)[cut:])


def test_chats_grow_from_what_was_answered() -> None:
    tree = ChatTree(Random(1), words=200, longest=600)  # noqa: S311 - nothing secret
    seen = []
    for _ in range(40):
        prompt = tree.prompt()
        seen.append(chat_of(prompt))
        tree.learn(prompt, as_tokens([400, 401]))

    assert any(len(chat) >= 5 for chat in seen)
    assert any(Said(role="assistant", content=as_tokens([400, 401])) in chat for chat in seen)
    assert any(Said(role="assistant", content=as_tokens([401])) in chat for chat in seen)
    assert len(set(seen)) > 20


def test_a_chat_step_goes_out_as_messages() -> None:
    call = call_for((Step(name="a", prompt=render(CHAT), chat=True, predict=3),))

    assert call["path"] == "/v1/chat/completions"
    assert call["body"]["messages"] == [
        {"role": "system", "content": "[300]"},
        {"role": "user", "content": "[301][302]"},
    ]


def test_a_chat_reply_is_read_as_tokens_and_hides_its_slot() -> None:
    step = Step(name="a", prompt=render(CHAT), chat=True)
    body = {
        "choices": [{"message": {"role": "assistant", "content": "[269][293]"}}],
        "timings": {"cache_n": 3, "prompt_n": 4},
    }

    (outcome,) = outcomes_of((step,), {"status": 200, "body": body})

    assert outcome.reply == as_tokens([269, 293])
    assert outcome.agrees_with(
        Outcome(cached=3, processed=4, reply=as_tokens([1, 2]), slot=2, truncated=True)
    )
    assert not outcome.agrees_with(Outcome(cached=4, processed=3, reply=as_tokens([1, 2])))
