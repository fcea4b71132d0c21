"""A search draws chats where the server renders them, and makes them small."""

from dataclasses import replace
from itertools import islice

from cachesim.engines import Profile
from cachesim.scenario.format import Scenario
from cachesim.testing.search import shrink, workloads
from cachesim.testing.survey import survey
from cachesim.testing.workloads import Shape, turn_of, words_of

OCTOBER = Profile.parse("mlx-lm@0.32.2")
CROWDED = Shape(
    longest=12,
    alike=True,
    incidents=True,
    chats=True,
    kinds=("long reply",),
    window=16,
    fixed={"prompt_concurrency": 2, "prefill_step_size": 8},
)


def drawn(shape: Shape, count: int = 40) -> list[Scenario]:
    return list(islice(workloads(OCTOBER, "swa", shape=shape), count))


def test_some_workloads_are_chats_where_they_are_asked_for() -> None:
    chats = [bool(each.step[0].messages) for each in drawn(CROWDED)]
    plain = [bool(each.step[0].messages) for each in drawn(replace(CROWDED, chats=False))]

    assert {True, False} == set(chats)
    assert {False} == set(plain)


def test_a_chat_has_no_prompt_and_ends_with_its_user_or_the_start_of_a_reply() -> None:
    steps = [step for each in drawn(CROWDED) for step in each.step if step.messages]

    assert {None} == {step.prompt for step in steps}
    assert {"user", "assistant"} == {step.messages[-1].role for step in steps}
    assert max(len(step.messages) for step in steps) > 2


def test_a_message_is_read_as_the_tokens_that_it_was_made_of() -> None:
    assert (300, 301) == words_of(turn_of("user", (300, 301)))


def test_the_search_comes_upon_the_ring_that_has_turned() -> None:
    found = survey(OCTOBER, "swa", first=35, examples=1, shape=CROWDED)

    assert ["ring-mask"] == [count.cure for count in found.counts]


def test_a_chat_is_made_small_message_by_message() -> None:
    big = next(each for each in drawn(CROWDED) if sum(bool(s.messages) for s in each.step) > 3)
    kept = words_of(big.step[2].messages[-1])[0]

    small = shrink(
        big,
        lambda each: any(words_of(turn)[:1] == (kept,) for s in each.step for turn in s.messages),
    )

    (step,) = small.step
    assert [(kept,)] == [words_of(turn) for turn in step.messages]
