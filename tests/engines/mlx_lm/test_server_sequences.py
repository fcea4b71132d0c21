"""Whole conversations, release by release: reported counts, stored keys, and right answers."""

import pytest
from chat_kit import ATTN, HYB, MODELS, Chat, said, system, tool, user

from cachesim.engines.base import Message, Request
from cachesim.engines.mlx_lm.events import RequestDropped
from cachesim.model.presets import tiny
from cachesim.model.spec import ModelSpec
from cachesim.units import as_tokens

S = system()
OLD = ("0.30.7",)
MID = ("0.31.1",)
NEW = ("0.31.2", "0.31.3", "0.32.2")


def main_table(template: str) -> list[list[Message]]:
    a = said(template)
    u1, called = user(5, 20), tool(4, 50)
    return [
        [S, u1],
        [S, u1, a, user(7, 30)],
        [S, user(4, 40)],
        [S, u1],
        [S, u1, a, user(3, 45)],
        [S, u1, a, called],
        [S, u1, a, called, a, user(2, 60)],
    ]


DIES = "worker died: ValueError"
LOST = "no answer"

MAIN = [
    ("attn", "chatml", OLD, [0, 32, 18, 27, 32, 34, 49]),
    ("attn", "chatml", MID + NEW, [0, 32, 18, 27, 36, 34, 49]),
    ("attn", "think", OLD + MID + NEW, [0, 28, 18, 29, 36, 34, 45]),
    ("swa", "chatml", OLD, [0, 32, 0, 0, 32, 0, 49]),
    ("swa", "chatml", MID, [0, 32, 0, DIES, LOST, LOST, LOST]),
    ("swa", "chatml", NEW, [0, 32, 18, 27, 32, 32, 49]),
    ("swa", "think", OLD, [0, 0, 0, 0, 0, 0, 0]),
    ("swa", "think", MID, [0, DIES, LOST, LOST, LOST, LOST, LOST]),
    ("swa", "think", NEW, [0, 28, 18, 29, 28, 28, 28]),
    ("hyb", "chatml", OLD, [0, 32, 0, 0, 32, 0, 49]),
    ("hyb", "chatml", MID, [0, 32, 0, 27, 32, 32, 49]),
    ("hyb", "chatml", NEW, [0, 32, 18, 27, 32, 32, 49]),
    ("hyb", "think", OLD, [0, 0, 0, 0, 0, 0, 0]),
    ("hyb", "think", MID, [0, 27, 0, 27, 27, 27, 27]),
    ("hyb", "think", NEW, [0, 28, 18, 29, 28, 28, 28]),
    ("hyb", "chatml", ("0.31.1-main+1006",), [0, 32, 18, 18, 36, 32, 49]),
    ("swa", "chatml", ("0.31.1-main+999",), [0, 32, 18, 27, 36, 32, 49]),
]


@pytest.mark.parametrize(
    ("model", "template", "release", "expected"),
    [(m, t, release, expected) for m, t, releases, expected in MAIN for release in releases],
)
def test_the_main_table(model: str, template: str, release: str, expected: list[int | str]) -> None:
    chat = Chat(release, MODELS[model], template)

    assert expected == [chat.ask(*each).cached for each in main_table(template)]


@pytest.mark.parametrize(
    ("model", "template", "release"),
    [(m, t, r) for m in MODELS for t in ("chatml", "think") for r in OLD + NEW]
    + [("attn", "chatml", "0.31.1"), ("hyb", "chatml", "0.31.1")],
)
def test_requests_served_alone_are_answered_right(model: str, template: str, release: str) -> None:
    chat = Chat(release, MODELS[model], template)

    assert [True] * 7 == [chat.ask(*each).same for each in main_table(template)]


def test_a_thinking_tail_is_fed_twice_by_911() -> None:
    chat = Chat("0.31.1", HYB, "think")
    first = chat.ask(S, user(5, 20))

    assert (0, False) == (first.cached, first.same)
    assert [(27, "checkpoint"), (37, "ordinary")] == chat.inserted
    assert [(37, 39)] == chat.unsound


def test_stored_keys_after_two_turns() -> None:
    turns = [[S, user(5, 20)], [S, user(5, 20), said(), user(7, 30)]]
    attn, hyb = Chat("0.32.2", ATTN), Chat("0.32.2", HYB)
    thinking = Chat("0.32.2", HYB, "think")
    for turn in turns:
        attn.ask(*turn)
        hyb.ask(*turn)
    thinking.ask(*turns[0])
    first = thinking.inserted
    thinking.ask(S, user(5, 20), said("think"), user(7, 30))

    assert [52] == attn.stored
    assert {"system": [18], "user": [27, 47], "assistant": [32, 52]} == hyb.keys
    assert [(18, "system"), (28, "user"), (29, "assistant"), (37, "assistant")] == first
    assert [(48, "user"), (49, "assistant"), (57, "assistant")] == thinking.inserted


def conversation(turns: int, template: str = "chatml") -> list[list[Message]]:
    messages: list[Message] = [S]
    prompts = []
    for turn in range(turns):
        messages.append(user(5, 20 + 5 * turn))
        prompts.append(list(messages))
        messages.append(said(template))
    return prompts


def test_eviction_over_seven_turns() -> None:
    chat = Chat("0.32.2", HYB)
    turns = conversation(7)
    cached = [chat.ask(*each).cached for each in turns[:5]]
    after_five = chat.keys
    cached += [chat.ask(*each).cached for each in turns[5:]]

    assert [0, 32, 50, 68, 86, 104, 122] == cached
    assert {
        "assistant": [50, 68, 86, 104],
        "user": [27, 45, 63, 81, 99],
        "system": [18],
    } == after_five
    assert {
        "assistant": [86, 104, 122, 140],
        "user": [63, 81, 99, 117, 135],
        "system": [18],
    } == chat.keys
    assert [18, 18] == [chat.ask(S, user(4, 80)).cached, chat.ask(*turns[0]).cached]


@pytest.mark.parametrize(("model", "expected"), [(HYB, [0, 0]), (ATTN, [18, 27])])
def test_the_same_without_a_system_checkpoint(model: ModelSpec, expected: list[int]) -> None:
    chat = Chat("0.31.1", model)
    turns = conversation(7)
    for each in turns:
        chat.ask(*each)

    assert expected == [chat.ask(S, user(4, 80)).cached, chat.ask(*turns[0]).cached]


def test_eviction_over_seven_thinking_turns() -> None:
    chat = Chat("0.32.2", HYB, "think")
    turns = conversation(7, "think")
    cached = [chat.ask(*each).cached for each in turns[:4]]
    after_four = chat.keys
    cached += [chat.ask(*each).cached for each in turns[4:]]

    assert [0, 28, 46, 64, 82, 100, 118] == cached
    assert {
        "assistant": [55, 65, 73, 83, 91],
        "user": [28, 46, 64, 82],
        "system": [18],
    } == after_four
    assert [18, 18] == [chat.ask(S, user(4, 80)).cached, chat.ask(*turns[0]).cached]


@pytest.mark.parametrize(
    ("model", "size", "expected"),
    [(HYB, 3, [0, 32, 18, 18]), (HYB, 2, [0, 27, 18, 18]), (HYB, 1, [0, 18, 18, 18]),
     (ATTN, 1, [0, 32, 18, 18])],
)  # fmt: skip
def test_small_stores(model: ModelSpec, size: int, expected: list[int]) -> None:
    chat = Chat("0.32.2", model, prompt_cache_size=size)

    assert expected == [chat.ask(*each).cached for each in main_table("chatml")[:4]]


@pytest.mark.parametrize(("model", "expected"), [(ATTN, [0, 32, 18, 27]), (HYB, [0, 32, 0, 0])])
def test_a_seed_takes_the_single_path(model: ModelSpec, expected: list[int]) -> None:
    chat = Chat("0.32.2", model)

    assert expected == [chat.ask(*each, seed=1).cached for each in main_table("chatml")[:4]]


def test_the_single_path_uses_a_checkpoint_of_the_batch_path() -> None:
    chat = Chat("0.32.2", HYB)
    chat.ask(S, user(5, 20))

    assert 18 == chat.ask(S, user(4, 40), seed=1).cached


PARALLEL = [[S, user(4, 20)], [S, user(12, 30)], [S, user(8, 50)]]


@pytest.mark.parametrize("release", ["0.31.2", "0.32.2"])
def test_parallel_and_cold(release: str) -> None:
    chat = Chat(release, HYB)
    outcomes = chat.together(PARALLEL)

    assert [(0, True)] * 3 == [(each.cached, each.same) for each in outcomes]
    assert [18, 18, 18, 26, 34, 30, 31, 39, 35] == [length for length, _ in chat.inserted]
    assert [] == chat.unsound
    assert [18] == chat.keys["system"]


def test_padding_goes_into_the_states_of_fresh_parallel_hybrids_in_0_31_3() -> None:
    chat = Chat("0.31.3", HYB)
    outcomes = chat.together(PARALLEL)

    assert [(0, False), (0, True), (0, False)] == [(each.cached, each.same) for each in outcomes]
    assert [(26, 34), (30, 34), (31, 39), (35, 39)] == chat.unsound


@pytest.mark.parametrize("release", ["0.30.7", "0.31.1"])
def test_older_releases_keep_no_system_checkpoint_but_right_states(release: str) -> None:
    chat = Chat(release, HYB)
    outcomes = chat.together(PARALLEL)

    assert [(0, True)] * 3 == [(each.cached, each.same) for each in outcomes]
    assert [] == chat.unsound
    assert 18 not in chat.stored


@pytest.mark.parametrize(
    ("release", "expected"),
    [("0.30.7", 0), ("0.31.1", 0), ("0.31.2", 18), ("0.31.3", 18), ("0.32.2", 18)],
)
def test_parallel_and_warm(release: str, expected: int) -> None:
    chat = Chat(release, HYB)
    chat.ask(S, user(5, 70))
    outcomes = chat.together(PARALLEL)

    assert [(expected, True)] * 3 == [(each.cached, each.same) for each in outcomes]


@pytest.mark.parametrize("release", ["0.31.1", "0.32.2"])
def test_a_window_of_64(release: str) -> None:
    chat = Chat(release, tiny("swa", window=64))
    prompts = [
        [S, user(5, 20)],
        [S, user(4, 40)],
        [S, user(45, 100)],
        [S, _edited(45, 100)],
        [S, user(5, 20)],
    ]

    assert [0, 18, 18, 0, 27] == [chat.ask(*each).cached for each in prompts]


def _edited(count: int, first: int) -> Message:
    other = user(count, first)
    words = other.content.split()[:40]
    return Message(role="user", content=" ".join([*words, "w200"]))


def test_text_completions() -> None:
    prompt = list(range(20, 26))
    hyb, attn = Chat("0.32.2", HYB), Chat("0.32.2", ATTN)
    hyb.complete(prompt, reply=(30, 31))
    attn.complete(prompt, reply=(30, 31))

    assert ([5, 8], [8]) == (hyb.stored, attn.stored)
    assert 4 == attn.complete(prompt[:5], reply=(30, 31)).cached
    assert DIES == hyb.complete(prompt[:5], reply=(30, 31)).cached


@pytest.mark.parametrize(
    ("release", "error"),
    [
        ("0.30.7", "worker died: ValueError"),
        ("0.31.1", "worker died: ValueError"),
        ("0.31.2", "worker died: IndexError"),
        ("0.31.3", "worker died: IndexError"),
        ("0.32.2", "worker died: ValueError"),
    ],
)
def test_an_exact_hit_ends_the_worker(release: str, error: str) -> None:
    chat = Chat(release, ATTN)
    prompt = list(range(20, 26))
    chat.complete(prompt, reply=(30, 31))

    assert error == chat.complete([*prompt, 30, 31], reply=(40, 41)).cached


def test_an_exact_hit_on_the_single_path_is_told_to_the_client_and_the_entry_stays() -> None:
    chat = Chat("0.32.2", ATTN)
    prompt = list(range(20, 26))
    chat.complete(prompt, reply=(30, 31), seed=1)

    assert "ValueError" == chat.complete([*prompt, 30, 31], reply=(40, 41), seed=1).cached
    assert [8] == chat.stored
    assert 8 == chat.complete([*prompt, 30, 31, 40], reply=(41,), seed=1).cached


def test_a_length_stop() -> None:
    chat = Chat("0.32.2", HYB)
    chat.ask(S, user(5, 20), reply=chat.reply[:1])

    assert [18, 27, 29] == chat.stored
    assert 27 == chat.ask(S, user(5, 20), reply=chat.reply[:2]).cached
    assert 30 in chat.stored


def test_a_stop_word() -> None:
    chat = Chat("0.32.2", HYB)
    chat.ask(S, user(5, 20), reply=chat.reply[:2], stop_words=["w93"])

    assert 30 in chat.stored
    assert 30 == chat.ask(S, user(5, 20), said(), user(7, 30)).cached


@pytest.mark.parametrize(("release", "expected"), [("0.30.7", [31]), ("0.31.1", [27, 31])])
def test_a_stop_word_before_1072_drops_a_reply_on_its_way(
    release: str, expected: list[int]
) -> None:
    chat = Chat(release, HYB)
    request = Request(
        prompt=(),
        messages=(S, user(5, 20)),
        predict=50,
        reply=as_tokens([100, 101, 102]),
        options={"stop_words": ["w92 w93 w94"]},
    )
    outcome = chat.outcomes([chat.engine.submit(request)])[0]

    assert outcome.same
    assert expected == chat.stored
    assert [True] == [each.stored for each in chat.events(RequestDropped)]


@pytest.mark.parametrize(
    ("release", "said"),
    [("0.30.7", 128), ("0.31.3", 1), ("0.32.0", "worker died: ValueError"), ("0.32.2", "refused")],
)
def test_a_request_for_no_tokens_at_all(release: str, said: int | str) -> None:
    chat = Chat(release, ATTN)
    ticket = chat.engine.submit(Request(prompt=(), messages=(S, user(5, 20)), predict=0))
    chat.engine.run()
    reply = chat.engine.reply(ticket)
    assert reply is not None
    refused = reply.error == "ValueError" and chat.engine.snapshot()["worker"] == "alive"

    assert said == ("refused" if refused else reply.error or len(reply.generated))


@pytest.mark.parametrize(
    ("release", "error"), [("0.31.3", "UnboundLocalError"), ("0.32.0", "ValueError")]
)
def test_a_seeded_request_for_no_tokens_at_all(release: str, error: str) -> None:
    chat = Chat(release, ATTN)
    ticket = chat.engine.submit(
        Request(prompt=(), messages=(S, user(5, 20)), predict=0, options={"seed": 1})
    )
    chat.engine.run()
    reply = chat.engine.reply(ticket)
    assert reply is not None

    assert (error, "alive", []) == (reply.error, chat.engine.snapshot()["worker"], chat.stored)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user(5, 20)], [(12, "user"), (17, "assistant")]),
        ([system(), system(3, 80), user(5, 20)], [(26, "system"), (35, "user"), (40, "assistant")]),
        ([system(), user(0, 0)], [(22, "user"), (27, "assistant")]),
        (
            [system(), said(), user(5, 20)],
            [(16, "system"), (35, "user"), (40, "assistant")],
        ),
    ],
)
def test_segments(messages: list[Message], expected: list[tuple[int, str]]) -> None:
    chat = Chat("0.32.2", HYB)
    chat.ask(*messages)

    assert expected == chat.inserted


def test_prefill_in_steps_of_four() -> None:
    chat = Chat("0.32.2", HYB, prefill_step_size=4)
    chat.ask(S, user(5, 20))
    prefill = [columns for _, columns in chat.calls[:9]]

    assert [4, 4, 4, 4, 2, 4, 4, 1, 1] == prefill
    assert [(done, 28) for done in (4, 8, 12, 16, 18, 22, 26, 27, 28)] == chat.progress
    assert [18, 27, 32] == chat.stored


def test_progress_before_1072_and_on_the_single_path() -> None:
    old, single = Chat("0.31.1", ATTN, prefill_step_size=16), Chat("0.32.2", ATTN)
    old.ask(S, user(5, 20))
    single.ask(S, user(5, 20), seed=1)

    assert [(16, 28), (27, 28)] == old.progress
    assert [(0, 28), (27, 28), (28, 28)] == single.progress


@pytest.mark.parametrize(
    ("release", "expected"), [("0.30.7", [78]), ("0.31.1", [27, 78]), ("0.32.2", [18, 27])]
)
def test_a_client_that_goes_after_three_tokens(release: str, expected: list[int]) -> None:
    chat = Chat(release, HYB)
    ticket = chat.submit(S, user(5, 20), reply=range(100, 150))
    while len(chat.said_so_far) < 2:
        chat.engine.step()
    chat.engine.cancel(ticket)
    outcome = chat.outcomes([ticket])[0]

    assert outcome.same
    assert expected == chat.stored


def test_the_byte_limit_holds_at_admission_only() -> None:
    chat = Chat("0.32.2", HYB, prompt_cache_bytes=3000)
    one = 12 * 32 + 704 + 17 * 32 + 704
    sizes = []
    for first in (20, 30, 40):
        chat.ask(user(5, first))
        sizes.append(chat.engine.server.store.cache.nbytes)

    assert [one, 2 * one, 2 * one] == sizes


def test_the_copy_that_was_served_counts_against_its_own_source() -> None:
    chat = Chat("0.32.2", ATTN, prompt_cache_bytes=1500)
    chat.ask(user(5, 20))

    assert 3 == chat.ask(user(5, 30)).cached
    assert [17] == chat.stored
    assert 17 * 64 == chat.engine.server.store.cache.nbytes
