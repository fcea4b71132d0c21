"""The trail of a request: one event per station, with the numbers of the real log."""

from typing import Any

import pytest

from tests.engines.llamacpp.play import Play, run

JUNE, OCTOBER = "llama.cpp@b9538", "llama.cpp@b11549"


def trail(play: Play, since: int = 0) -> list[dict[str, Any]]:
    return [event.as_dict() for event in play.engine.events[since:]]


def names(play: Play, since: int = 0) -> list[str]:
    return [each["event"] for each in trail(play, since)]


def test_a_first_request_leaves_a_full_trail() -> None:
    play = Play(OCTOBER, "hybrid")
    play.ask(run(range(100)), 2)
    assert names(play) == [
        "slot-chosen-by-age",
        "prompt-cache-update-begun",
        "cache-search-begun",
        "cache-state",
        "task-launched",
        "prompt-started",
        "memory-cut",
        "batch-decoded",
        "memory-cut",
        "checkpoint-created",
        "batch-decoded",
        "batch-decoded",
        "slot-released",
    ]
    created = trail(play)[9]
    assert created.pop("size") > 0
    assert created == {
        "event": "checkpoint-created", "slot": 0, "task": 0, "index": 1, "most": 32,
        "pos_min": 95, "pos_max": 95, "n_tokens": 96,
    }  # fmt: skip
    assert trail(play)[-1] == {
        "event": "slot-released", "slot": 0, "task": 0, "n_tokens": 101, "truncated": False,
        "stop": "limit",
    }  # fmt: skip


def test_a_similar_prompt_goes_back_to_a_checkpoint() -> None:
    play = Play(OCTOBER, "hybrid")
    play.ask(run(range(100)), 2)
    since = len(play.engine.events)
    play.ask(run(range(98), range(500, 502)))
    chosen, _, _, tested, checked, restored, *_ = trail(play, since)
    assert (chosen["event"], round(chosen["similarity"], 2)) == ("slot-chosen-by-similarity", 0.98)
    assert tested == {
        "event": "depth-tested", "slot": 0, "task": 1, "n_past": 98, "slot_tokens": 101,
        "pos_min": 100, "threshold": 98, "n_swa": 0, "rule": "pos_min >= pos_min_thold",
        "numbers": "100 >= 98",
    }  # fmt: skip
    assert (checked["event"], checked["n_tokens"], checked["refused"]) == (
        "checkpoint-checked", 96, "",
    )  # fmt: skip
    assert (restored["event"], restored["n_past"]) == ("checkpoint-restored", 96)


def test_a_swap_tells_of_saving_searching_and_loading() -> None:
    play = Play(OCTOBER, "dense")
    play.ask(run(range(100)))
    play.ask(run(range(1000, 1100)))
    since = len(play.engine.events)
    play.ask(run(range(100)))
    told = {each["event"]: each for each in trail(play, since)}
    assert told["prompt-saving"]["n_tokens"] == 100
    assert told["prompt-saving"]["size"] == 8 + 4 + 4 + 100 * 12 + 16 + 8 * 12 + 100 * 8 * 64
    compared = [each for each in trail(play, since) if each["event"] == "cache-entry-compared"]
    assert [(each["lcp"], each["f_keep"]) for each in compared] == [(100, 1.0), (0, 0.0)]
    assert told["cache-entry-loaded"]["kept"] is False
    assert told["cache-state"]["entries"] == 1
    assert told["one-token-needed"]["n_past"] == 100


def test_sizes_of_a_june_blob_are_eight_bytes_smaller() -> None:
    sizes = []
    for profile in (JUNE, OCTOBER):
        play = Play(profile, "dense")
        play.ask(run(range(100)))
        play.ask(run(range(1000, 1100)))
        (parked,) = play.snapshot["prompt_cache"]
        sizes.append(parked["bytes"])
    assert sizes[1] - sizes[0] == 8


def test_a_recurrent_blob_is_as_large_as_its_rows() -> None:
    play = Play(OCTOBER, "recurrent")
    play.ask(run(range(100)))
    created = next(each for each in trail(play) if each["event"] == "checkpoint-created")
    rows = 4 * 3 * (128 + 2 * 2 * 16) + 4 * 16 * 128
    assert created["size"] == 8 + 4 + 8 + 8 + 4 * (24 + rows)


def test_a_context_shift_tells_what_was_kept_and_thrown_away() -> None:
    play = Play(OCTOBER, "dense", ctx_size=256, context_shift=True)
    play.ask(run(range(200)), 100)
    shifted = [each for each in trail(play) if each["event"] == "context-shifted"]
    assert [(each["n_keep"], each["n_left"], each["n_discard"]) for each in shifted] == [
        (0, 255, 127)
    ]


@pytest.mark.parametrize(("profile", "discarded"), [(OCTOBER, 154), (JUNE, 155)])
def test_since_october_one_token_at_least_is_left_by_a_shift(profile: str, discarded: int) -> None:
    play = Play(profile, "dense", ctx_size=256, context_shift=True)
    play.reply(run(range(200)), 60, options={"n_keep": 100, "n_discard": 155})
    shifted = next(each for each in trail(play) if each["event"] == "context-shifted")
    assert (shifted["n_left"], shifted["n_discard"]) == (155, discarded)
