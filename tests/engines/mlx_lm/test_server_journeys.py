"""Random workloads, parallel ones too: what is right, what is wrong, and where it says so."""

from collections import Counter
from random import Random

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from journeys import Journey, Watch, play, play_staggered

from cachesim.prove.playing import Workload
from conformance.real.mlx_lm.server_workloads import PLAYED, draw_workload, drawn_drafts, played_at

RELEASES = ("0.30.7", "0.31.1", "0.31.3", "0.32.2")
NUMBERS = st.integers(0, 10**6)


RIGHT = ("llama", "qwen3_next", "qwen3_5", "granitemoehybrid", "mamba2", "lfm2", "falcon_h1")
"""Families of which the newest release spoils no state."""


def drawn(release: str, family: str, number: int) -> Workload:
    """The workload of that number, for one family; what a draft model spoils is told elsewhere."""
    workload = with_drafts(release, family, number)
    workload["options"].pop("draft_model", None)
    workload["options"].pop("num_draft_tokens", None)
    for request in (each for group in workload["steps"] for each in group):
        request.pop("drafts", None)
    return workload


def with_drafts(release: str, family: str, number: int) -> Workload:
    """The same with a draft model, where one was drawn."""
    played = played_at(release)
    workload = draw_workload(release, seed=1, number=len(played) * number + played.index(family))
    assert family == workload["model"]["family"]
    return workload


def losses_add_up(journey: Journey) -> bool:
    return all(
        answer.reply.equal - answer.reply.cached
        == sum(loss.before - loss.after for loss in answer.reply.losses)
        for answer in journey.answers
        if answer.reply.cached is not None
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", RIGHT)
@settings(max_examples=4)
@given(number=NUMBERS)
def test_the_newest_release_is_right(family: str, number: int) -> None:
    journey = play(drawn("0.32.2", family, number))

    assert (0, 0) == (journey.wrong, journey.unsound)
    assert losses_add_up(journey)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", RIGHT)
@settings(max_examples=3)
@given(number=NUMBERS, pauses=st.lists(st.sampled_from([0, 1, 2, 3, 8]), min_size=1, max_size=6))
def test_the_newest_release_is_right_whoever_joins_when(
    family: str, number: int, pauses: list[int]
) -> None:
    journey = play_staggered(drawn("0.32.2", family, number), pauses)

    assert (0, 0) == (journey.wrong, journey.unsound)
    assert losses_add_up(journey)


def drafted(family: str, number: int, drafts: int) -> Workload:
    """The workload of that number with a draft model, and a window that no reply crosses."""
    workload, random = drawn("0.32.2", family, number), Random(number)
    kept = {name: value for name, value in workload["options"].items() if "kv_" not in name}
    draft = {"draft_model": random.choice(("self", "dense")), "num_draft_tokens": drafts}
    for request in (each for group in workload["steps"] for each in group):
        request["drafts"] = drawn_drafts(random, request, drafts)
    model = workload["model"] | ({"window": 4096} if "window" in workload["model"] else {})
    return workload | {"options": kept | draft, "model": model}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "llama4"])
@settings(max_examples=5)
@given(number=NUMBERS, drafts=st.integers(1, 3))
def test_a_draft_model_spoils_nothing_where_keys_end_with_their_states(
    family: str, number: int, drafts: int
) -> None:
    journey = play(drafted(family, number, drafts), patches=("draft-key",))

    assert (0, 0) == (journey.wrong, journey.unsound)
    assert losses_add_up(journey)


def test_without_the_cure_a_draft_model_spoils_states() -> None:
    journeys = [play(drafted("llama", number, 2)) for number in range(6)]

    assert 0 < sum(journey.unsound for journey in journeys)


@pytest.mark.thorough
@settings(max_examples=6)
@given(number=NUMBERS)
def test_windows_are_right_where_requests_come_one_by_one(number: int) -> None:
    workload = drawn("0.32.2", "gemma3_text", number)
    workload["steps"] = [[request] for group in workload["steps"] for request in group]
    journey = play(workload)

    assert (0, 0) == (journey.wrong, journey.unsound)
    assert losses_add_up(journey)


@pytest.mark.thorough
@pytest.mark.parametrize("release", RELEASES)
@settings(max_examples=12)
@given(number=NUMBERS, family=st.sampled_from(PLAYED))
@example(number=4572, family="llama")
def test_what_the_ledger_says_of_a_state_is_what_its_numbers_say(
    release: str, family: str, number: int
) -> None:
    assume(family in played_at(release))
    workload = with_drafts(release, family, number)
    if release == "0.30.7":
        workload["options"].pop("prompt_cache_size", None)
    watch = Watch()
    journey = play(workload, watch=watch)

    assert watch.by_numbers == [insertion.state_is_key for insertion in journey.insertions]
    assert losses_add_up(journey)


def found(release: str, family: str, count: int = 12) -> Counter[str]:
    """The number of answers, and of wrong ones."""
    tally: Counter[str] = Counter()
    for number in range(count):
        journey = play(drawn(release, family, number), provenance=False)
        tally["answered"] += sum(answer.same is not None for answer in journey.answers)
        tally["wrong"] += journey.wrong
        tally["wrong alone"] += sum(
            answer.alone and answer.same is False for answer in journey.answers
        )
    return tally


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("release", "family"),
    [
        ("0.31.1", "llama"),
        ("0.31.1", "gemma3_text"),
        ("0.31.1", "qwen3_next"),
        ("0.31.3", "qwen3_next"),
        ("0.31.3", "granitemoehybrid"),
        ("0.32.2", "nemotron_h"),
    ],
)
def test_a_search_finds_the_wrong_answers_of_a_release(release: str, family: str) -> None:
    tally = found(release, family)

    assert tally["wrong"] > 0
    assert tally["answered"] > tally["wrong"]


def test_a_search_finds_none_with_attention_in_0_31_3() -> None:
    assert 0 == found("0.31.3", "llama")["wrong"]


SHORTEST = {
    "id": "shrunk",
    "version": "0.31.3",
    "model": {"family": "qwen3_next"},
    "template": "chatml",
    "options": {},
    "steps": [
        [
            {"text": "w1 w2 w3 w4", "max_tokens": 1, "reply": [30]},
            {"text": "w5 w6", "max_tokens": 1, "reply": [30]},
        ]
    ],
}
"""The shortest workload that 0.31.3 answers wrongly: two fresh prompts of different length."""


@pytest.mark.parametrize(("release", "wrong"), [("0.31.2", 0), ("0.31.3", 1), ("0.32.2", 0)])
def test_the_shortest_workload_that_0_31_3_gets_wrong(release: str, wrong: int) -> None:
    journey = play(SHORTEST | {"version": release})

    assert wrong == journey.wrong
    assert [True, wrong == 0] == [answer.same for answer in journey.answers]


@pytest.mark.parametrize(("release", "wrong"), [("0.30.7", 0), ("0.31.1", 1), ("0.31.2", 0)])
def test_the_shortest_workload_that_0_31_1_gets_wrong(release: str, wrong: int) -> None:
    chat = {"messages": [{"role": "user", "content": "w1"}], "max_tokens": 1, "reply": [30]}
    journey = play(SHORTEST | {"version": release, "template": "think", "steps": [[chat]]})

    assert wrong == journey.wrong


NEIGHBOURS = {
    "steps": [
        [{"text": "w1 w2", "max_tokens": 1, "reply": [30]}],
        [{"text": "w5 w6", "max_tokens": 1, "reply": [30]}],
    ]
}
"""The shortest case of a row that goes on from its neighbour's state, one turn apart."""


@pytest.mark.parametrize(
    ("release", "expected"),
    [("0.31.2", [True, False]), ("0.31.3", [True, True]), ("0.32.2", [True, True])],
)
def test_a_row_that_joins_at_the_wrong_moment(release: str, expected: list[bool]) -> None:
    journey = play_staggered(SHORTEST | NEIGHBOURS | {"version": release}, [1])

    assert expected == [answer.same for answer in journey.answers]
