"""Drafts that a log tells, and the tokens that an answer swallows, without a server."""

from pathlib import Path

import pytest

from cachesim.prove.llama_cpp.server import calls_of, drafts_of, last_call
from cachesim.prove.llama_cpp.simulated import swallowed
from cachesim.prove.llama_cpp.workload import Outcome
from cachesim.units import as_tokens

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


ROOM = "0.2 D slot get_n_draft_: id  1 | task 7 | max possible draft: {}"
FULL = "0.2 D draft: llama_decode returned 1"
REPLAY = "0.3 D slot update_batch: id  1 | task 7 | generate_draft: id=9, #tokens=9, #draft=1"
FIRST, SECOND = [LINES[2], LINES[5], LINES[7]], LINES[8:10]


@pytest.mark.parametrize(
    ("lines", "drafts"),
    [
        # A step in which the companion proposes nothing is a step;
        (
            [ROOM.format(9), *FIRST, ROOM.format(2), FULL, ROOM.format(1), *SECOND, ROOM.format(0)],
            ([301, 302], [], [303]),
        ),
        # a draft that is tried again is one step;
        ([ROOM.format(9), *FIRST, *[ROOM.format(9)] * 2, *SECOND], ([301, 302], [303])),
        # what was accepted and is read once more is no draft.
        ([*FIRST, REPLAY, *SECOND], ([301, 302], [303])),
    ],
)
def test_drafts_are_told_step_by_step(lines: list[str], drafts: tuple[list[int], ...]) -> None:
    assert [tuple(map(as_tokens, drafts))] == drafts_of(lines)


def test_a_request_without_drafts_has_none() -> None:
    assert drafts_of(LINES[:1]) == [()]


def test_the_last_call_of_a_log_is_read_once_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("@@ call /completion\nold\n@@ call /completion\nnew\nall slots are idle\n")

    lines, end = last_call(log, 0)

    assert lines == ["/completion", "new", "all slots are idle"]
    assert end == log.stat().st_size


@pytest.mark.parametrize(
    ("reply", "drafts", "accepted", "found"),
    [
        ([1, 2, 3, 9, 4], ([2, 3, 8], [4, 5, 6]), 4, [5]),  # behind the end of the context
        ([1, 2, 9], ([2, 8],), 1, []),  # an answer that ends with its draft
    ],
)
def test_accepted_tokens_that_an_answer_swallows_are_found_again(
    reply: list[int], drafts: tuple[list[int], ...], accepted: int, found: list[int]
) -> None:
    proposed = tuple(map(as_tokens, drafts))
    real = Outcome(reply=as_tokens(reply), drafts=proposed, accepted=accepted)

    assert as_tokens(found) == swallowed(real)


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
