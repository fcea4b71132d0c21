"""What the MTP head's drafts should count, without a server."""

from pathlib import Path

import numpy as np

from cachesim.lab.real.llama_cpp import logits
from cachesim.lab.real.llama_cpp.logits import (
    Drafts,
    drawn_prompt,
    expected_drafts,
    generate,
    head_guesses,
)
from cachesim.lab.real.llama_cpp.server import calls_of, drafts_of, last_call
from cachesim.lab.real.llama_cpp.simulated import swallowed
from cachesim.lab.real.llama_cpp.workload import Outcome
from cachesim.model.network import FloatNetwork
from cachesim.model.presets import tiny
from cachesim.units import as_tokens
from tests.fixtures import Patch

NETWORK = FloatNetwork(tiny("hybrid-mtp"))
PROMPT = drawn_prompt(np.random.default_rng(1), 12)


def count(monkeypatch: Patch, predict: int, right: set[int]) -> Drafts:
    """Counts when the head is right about the reply's tokens of these numbers alone."""
    reply, _ = generate(NETWORK, PROMPT, predict + 2)
    told = [*PROMPT, *reply]
    guesses = [told[i + 1] if i + 1 - len(PROMPT) in right else -1 for i in range(len(told) - 1)]
    monkeypatch.setattr(logits, "head_guesses", lambda *_: guesses)
    return expected_drafts(NETWORK, PROMPT, predict)


def test_a_head_that_is_never_right_proposes_before_every_token_but_the_last(
    monkeypatch: Patch,
) -> None:
    assert Drafts(drafted=4, accepted=0) == count(monkeypatch, 6, set())


def test_a_head_that_is_always_right_brings_two_tokens_a_turn(monkeypatch: Patch) -> None:
    assert Drafts(drafted=3, accepted=3) == count(monkeypatch, 7, set(range(10)))


def test_guesses_about_tokens_that_came_along_are_never_asked_for(monkeypatch: Patch) -> None:
    """Token 1 is a draft that was right, so token 2 came with it and nobody guesses it."""
    assert Drafts(drafted=3, accepted=1) == count(monkeypatch, 6, {1, 2})


def test_the_head_guesses_one_token_for_each_it_reads() -> None:
    guesses = head_guesses(NETWORK, PROMPT)

    assert len(PROMPT) == len(guesses)
    assert all(265 <= guess < 512 for guess in guesses)


# Drafts read from a log, and the tokens that an answer swallows.

LINES = """\
0.1 I slot launch_slot_: id  1 | task 7 | processing task, is_child = 0
0.1 I slot launch_slot_: id  0 | task 8 | processing task, is_child = 0
0.2 D  - seq_id 1, draft candidate   0, pos   0:    301 (   0.255) '[301]'
0.2 D  - seq_id 1, draft candidate   1, pos   0:    399 (   0.155) '[399]'
0.2 D  - seq_id 0, draft candidate   0, pos   0:    401 (   0.255) '[401]'
0.2 D  - seq_id 1, draft candidate   0, pos   1:    302 (   0.255) '[302]'
0.3 D slot update_batch: id  0 | task 8 | generate_draft: id=400, #tokens=7, #draft=1, pos_next=7
0.3 D slot update_batch: id  1 | task 7 | generate_draft: id=300, #tokens=9, #draft=2, pos_next=9
0.4 D  - seq_id 1, draft candidate   0, pos   0:    303 (   0.255) '[303]'
0.5 D slot update_batch: id  1 | task 7 | generate_draft: id=302, #tokens=9, #draft=1, pos_next=12
""".splitlines()


def test_drafts_belong_to_the_tasks_that_they_were_made_for() -> None:
    first, second = drafts_of(LINES)

    assert first == (as_tokens([301, 302]), as_tokens([303]))
    assert second == (as_tokens([401]),)


def test_a_step_in_which_the_companion_proposes_nothing_is_a_step() -> None:
    room = "0.2 D slot get_n_draft_: id  1 | task 7 | max possible draft: {}"
    full = "0.2 D draft: llama_decode returned 1"
    lines = [room.format(9), LINES[2], LINES[5], LINES[7], room.format(2), full, room.format(1)]

    (drafts,) = drafts_of([*lines, LINES[8], LINES[9], room.format(0)])

    assert (as_tokens([301, 302]), (), as_tokens([303])) == drafts


def test_a_draft_that_is_tried_again_is_one_step() -> None:
    room = "0.2 D slot get_n_draft_: id  1 | task 7 | max possible draft: 9"

    (drafts,) = drafts_of([room, LINES[2], LINES[5], LINES[7], room, room, LINES[8], LINES[9]])

    assert (as_tokens([301, 302]), as_tokens([303])) == drafts


def test_a_request_without_drafts_has_none() -> None:
    assert drafts_of(LINES[:1]) == [()]


def test_the_last_call_of_a_log_is_read_once_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("@@ call /completion\nold\n@@ call /completion\nnew\nall slots are idle\n")

    lines, end = last_call(log, 0)

    assert lines == ["/completion", "new", "all slots are idle"]
    assert end == log.stat().st_size


def test_tokens_accepted_behind_the_end_of_the_context_are_found_again() -> None:
    real = Outcome(
        reply=as_tokens([1, 2, 3, 9, 4]),
        drafts=(as_tokens([2, 3, 8]), as_tokens([4, 5, 6])),
        accepted=4,
    )

    assert swallowed(real) == as_tokens([5])


def test_an_answer_that_ends_with_its_draft_swallows_nothing() -> None:
    real = Outcome(reply=as_tokens([1, 2, 9]), drafts=(as_tokens([2, 8]),), accepted=1)

    assert swallowed(real) == ()


def test_a_log_is_told_call_by_call_without_times_and_addresses(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "noise\n@@ call /completion\n"
        "0.00.029.265 I srv  update:    - prompt 0x7f79: 102 tokens, checkpoints: 1\n"
        "0.00.030.000 D que  post: new task\n"
        "@@ call /slots/0\n0.1 W slot x: forcing full prompt re-processing took 0.22 ms\n"
    )

    assert calls_of(log) == [
        ["srv  update:    - prompt 0x...: 102 tokens, checkpoints: 1"],
        ["slot x: forcing full prompt re-processing took ... ms"],
    ]


def test_what_was_accepted_and_is_read_once_more_is_no_draft() -> None:
    replay = "0.3 D slot update_batch: id  1 | task 7 | generate_draft: id=9, #tokens=9, #draft=1"

    (drafts,) = drafts_of([LINES[2], LINES[5], LINES[7], replay, LINES[8], LINES[9]])

    assert (as_tokens([301, 302]), as_tokens([303])) == drafts
