"""Where prompts are cut, and how far from their end #911 and #1006 keep a state."""

import pytest
from cache_kit import system, tool, user

from cachesim.engines.base import Message
from cachesim.engines.family import Profile
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.server.request import (
    Checkpoint,
    cut,
    message_boundaries,
    prompt_checkpoint,
    system_end,
    tail_start,
    without_cached,
)
from cachesim.engines.mlx_lm.server.word_tokenizer import WordTokenizer
from cachesim.units import Token, as_tokens

PLAIN, THINKS = WordTokenizer("chatml"), WordTokenizer("think")
S = system()


def segments(tokenizer: WordTokenizer, *messages: Message) -> list[tuple[int, str]]:
    prompt = tokenizer.apply_chat_template(messages)
    return [(len(each.tokens), each.type) for each in cut(tokenizer, messages, prompt)]


@pytest.mark.parametrize(
    ("messages", "plain", "thinking"),
    [
        (
            [S, user(5, 20)],
            [(18, "system"), (10, "user")],
            [(18, "system"), (10, "user"), (2, "assistant")],
        ),
        ([user(5, 20)], [(13, "user")], [(13, "user"), (2, "assistant")]),
        ([S, user(5, 20), tool(3, 30)], [(36, "assistant")], [(38, "assistant")]),
        ([S], [(18, "assistant")], [(20, "assistant")]),
        ([S, user(0, 0)], [(23, "user")], [(23, "user"), (2, "assistant")]),
    ],
)
def test_segments_of_prompts(
    messages: list[Message], plain: list[tuple[int, str]], thinking: list[tuple[int, str]]
) -> None:
    assert plain == segments(PLAIN, *messages)
    assert thinking == segments(THINKS, *messages)


CHANNEL = WordTokenizer("channel")


def test_a_mark_of_two_tokens_opens_a_tail_from_0_31_2_on() -> None:
    messages = [S, user(5, 20)]
    prompt = CHANNEL.apply_chat_template(messages)
    rules = FAMILY.release("0.31.1").rules.server

    assert CHANNEL.encode("<|channel> thought \n") == prompt[-3:]
    assert [(18, "system"), (10, "user"), (3, "assistant")] == segments(CHANNEL, *messages)
    assert None is CHANNEL.think_start
    assert Checkpoint(store=True, position=-1) == prompt_checkpoint(
        rules, CHANNEL, messages, prompt, trimmable=False
    )


def test_half_a_mark_at_the_end_opens_nothing() -> None:
    assert 4 == tail_start(as_tokens([8, 10]), as_tokens([20, 10, 21, 8]))
    assert 1 == tail_start(as_tokens([8, 10]), as_tokens([20, 8, 10, 8]))


def test_a_closed_reasoning_part_is_a_tail_too() -> None:
    closed = THINKS.with_arguments((), {"enable_thinking": False})

    assert [(13, "user"), (4, "assistant")] == segments(closed, user(5, 20))
    assert [(13, "user"), (2, "assistant")] == segments(THINKS, user(5, 20))


def test_tools_belong_to_the_system_segment_if_there_is_one() -> None:
    tools = PLAIN.with_arguments(["w1 w2", "w3"], {})

    assert [(26, "system"), (10, "user")] == segments(tools, S, user(5, 20))
    assert [(21, "user")] == segments(tools, user(5, 20))


def test_a_text_completion_is_one_segment() -> None:
    found = cut(PLAIN, (), as_tokens([20, 21, 22]))

    assert [(3, "assistant")] == [(len(each.tokens), each.type) for each in found]


def test_the_user_header_belongs_to_the_system_segment() -> None:
    messages = [S, user(5, 20)]

    assert 18 == system_end(PLAIN, messages, PLAIN.apply_chat_template(messages))
    assert 0 == system_end(PLAIN, [user(5, 20)], PLAIN.apply_chat_template([user(5, 20)]))


def test_the_tail_begins_at_the_last_mark_near_the_end() -> None:
    mark = Token(8)
    far = as_tokens([8, *range(20, 32)])
    near = as_tokens([8, *range(20, 30)])
    twice = as_tokens([20, 8, 21, 8, 9, 22])

    assert (13, 0, 3) == tuple(tail_start((mark,), each) for each in (far, near, twice))
    assert 3 == tail_start((), as_tokens([20, 21, 22]))


@pytest.mark.parametrize(
    ("cached", "tokens", "types"),
    [
        (0, [18, 10, 2], ["system", "user", "assistant"]),
        (5, [13, 10, 2], ["system", "user", "assistant"]),
        (18, [10, 2], ["user", "assistant"]),
        (27, [1, 2], ["user", "assistant"]),
        (29, [1], ["assistant"]),
        (30, [], []),
    ],
)
def test_what_is_left_behind_a_hit(cached: int, tokens: list[int], types: list[str]) -> None:
    messages = [S, user(5, 20)]
    found = cut(THINKS, messages, THINKS.apply_chat_template(messages))
    left, kinds = without_cached(found, cached)

    assert (tokens, types) == ([len(each) for each in left], kinds)


def checkpoint(
    release: str, tokenizer: WordTokenizer, *messages: Message, trimmable: bool = False
) -> Checkpoint:
    base, _, patch = release.partition("+")
    rules = FAMILY.rules(Profile.parse(f"mlx-lm@{base}+{patch}".rstrip("+"))).server
    prompt = tokenizer.apply_chat_template(messages)
    return prompt_checkpoint(rules, tokenizer, messages, prompt, trimmable=trimmable)


def test_where_911_keeps_a_state() -> None:
    last_is_tool = checkpoint("0.31.1", PLAIN, S, user(5, 20), tool(3, 30))

    assert Checkpoint(store=True, position=-1) == checkpoint("0.31.1", PLAIN, S, user(5, 20))
    assert Checkpoint(store=True, position=-3) == checkpoint("0.31.1", THINKS, S, user(5, 20))
    assert Checkpoint(store=False, position=-1) == last_is_tool


def test_where_1006_keeps_a_state() -> None:
    release = "0.31.1-main+1006"
    of_trimmable = checkpoint(release, PLAIN, S, user(5, 20), trimmable=True)

    assert Checkpoint(store=True, position=-10) == checkpoint(release, PLAIN, S, user(5, 20))
    assert Checkpoint(store=True, position=-1) == checkpoint(release, PLAIN, user(5, 20))
    assert Checkpoint(store=True, position=-1) == of_trimmable


def test_the_ends_of_messages() -> None:
    messages = [S, user(5, 20), user(7, 30)]

    assert (15, 25) == message_boundaries(PLAIN, messages, after_every_message=False)
    assert (15, 25, 37) == message_boundaries(PLAIN, messages, after_every_message=True)
