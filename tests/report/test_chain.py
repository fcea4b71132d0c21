"""The walk to what went wrong: from where a checkpoint was made to the answer that it spoiled."""

import tomllib

from cachesim import run_scenario
from cachesim.play.result import Run
from cachesim.report.chain import chain
from cachesim.scenario.shipped import shipped_file


def three_requests(profile: str) -> Run:
    text = shipped_file("llama.cpp-three-requests").read_text(encoding="utf-8")
    return run_scenario(tomllib.loads(text), profile=profile)


def walked(run: Run, index: int) -> list[tuple[str, str, str]]:
    return [
        (link.word, run.steps[link.step].name, run.steps[link.step].events[link.event].name())
        for link in chain(run, index)
    ]


def test_a_wrong_answer_leads_back_to_the_step_that_made_the_checkpoint() -> None:
    assert [
        ("made", "A", "checkpoint-created"),
        ("kept", "B", "checkpoint-kept"),
        ("restored", "C", "checkpoint-restored"),
        ("wrong", "C", "slot-released"),
    ] == walked(three_requests("llama.cpp@b11549"), 2)


def test_lost_reuse_leads_from_what_was_equal_to_each_event_that_took_tokens() -> None:
    run = three_requests("llama.cpp@b11549+erase-equal")
    words = [word for word, _, _ in walked(run, 2)]

    assert "match" == words[0]
    assert {"lost"} == set(words[1:-1])
    assert "answered" == words[-1]


def test_the_last_station_says_what_the_step_came_to() -> None:
    wrong = chain(three_requests("llama.cpp@b11549"), 2)[-1]
    lost = chain(three_requests("llama.cpp@b11549+erase-equal"), 2)[-1]

    assert wrong.sentence.startswith("generated token 1: token ")
    assert "0 of 40 tokens reused" == lost.sentence


def test_a_right_answer_that_lost_nothing_has_no_walk() -> None:
    assert () == chain(three_requests("llama.cpp@b11549"), 0)
