"""Oddities of mlx-lm's server that a careful port would repair without noticing."""

import pytest
from chat_kit import ATTN, HYB, SWA, Chat, said, system, tool, user

from cachesim.model.spec import ModelSpec

S = system()


def test_a_ring_trimmed_to_nothing_sends_the_request_down_the_fresh_branch() -> None:
    chat = Chat("0.31.1-main+999", SWA)
    chat.ask(S, user(5, 20))
    chat.ask(S, user(5, 20), said(), user(7, 30))
    outcome = chat.ask(S, user(5, 20), said(), user(3, 45))

    assert (36, False) == (outcome.cached, outcome.same)
    assert (48, 12) in chat.unsound


def test_a_fetch_does_not_protect_an_entry() -> None:
    chat = Chat("0.32.2", ATTN, prompt_cache_size=3)
    chat.complete(range(20, 40), reply=(90, 91))
    chat.complete(range(50, 60), reply=(90, 91))
    chat.complete([*range(20, 40), 70], reply=(90, 91))
    chat.complete(range(60, 70), reply=(90, 91))

    assert [12, 12, 23] == chat.stored
    assert 20 == chat.complete([*range(20, 40), 90, 91, 80], reply=(90,)).cached


@pytest.mark.parametrize(("model", "expected"), [(ATTN, 1), (HYB, 0)])
def test_an_entry_of_one_token_serves_only_if_it_can_be_trimmed(
    model: ModelSpec, expected: int
) -> None:
    chat = Chat("0.32.2", model)
    chat.complete([20, 21], reply=(90, 91))

    assert expected == chat.complete([20, 30, 31], reply=(90,)).cached


def test_turns_that_end_in_a_tool_result_leave_nothing_before_the_thinking_mark() -> None:
    chat = Chat("0.32.2", HYB, "think")
    chat.ask(S, user(5, 20))
    chat.ask(S, user(5, 20), said("think"), tool(4, 50))

    assert [(46, "assistant"), (54, "assistant")] == chat.inserted
    later = chat.ask(S, user(5, 20), said("think"), tool(4, 50), said("think"), user(2, 60))
    assert 28 == later.cached


def test_parallel_requests_store_one_system_prompt_again_and_again() -> None:
    chat = Chat("0.32.2", HYB)
    chat.together([[S, user(4, first)] for first in (20, 30, 40)])

    assert 3 == sum(kind == "system" for _, kind in chat.inserted)
    assert [18] == chat.keys["system"]


def test_a_deep_branch_hides_what_its_ancestors_hold() -> None:
    chat = Chat("0.32.2", HYB)
    chat.complete(range(20, 40), reply=(90, 91))
    chat.complete([*range(20, 25), *range(60, 75)], reply=(90, 91))
    outcome = chat.complete([*range(20, 30), 80, 81], reply=(90,))

    assert (0, True) == (outcome.cached, outcome.same)


def test_the_longest_distance_of_a_batch_cuts_every_key() -> None:
    chat = Chat("0.31.1", HYB, "think")
    chat.ask(S, user(5, 20))
    tail = [S, user(5, 20), said("think"), tool(1, 50)]
    chat.together([[S, user(4, 60)], tail])

    lengths = [length for length, kind in chat.inserted if kind == "checkpoint"]
    assert [26] == lengths


def test_a_hit_within_the_distance_leaves_keys_that_end_before_their_states() -> None:
    chat = Chat("0.31.1", ATTN, "think")
    chat.ask(S, user(5, 20))
    outcome = chat.ask(S, user(5, 20))

    assert 29 == outcome.cached
    assert not outcome.same
    assert [(27, 31), (37, 40)] == chat.unsound


def test_the_old_batch_does_not_notice_that_a_client_leaves() -> None:
    chat = Chat("0.31.1", HYB, prompt_concurrency=1, decode_concurrency=1)
    first = chat.submit(S, user(4, 20), reply=range(100, 104))
    second = chat.submit(S, user(4, 40), reply=range(100, 104))
    chat.engine.step()
    chat.engine.cancel(second)
    one, two = chat.outcomes([first, second])

    assert (True, True) == (one.same, two.same)
    assert 2 == sum(each["type"] == "ordinary" for each in chat.engine.snapshot()["prompt_cache"])
    assert [31, 31] == [each for each in chat.stored if each > 27]
