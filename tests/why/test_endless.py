"""A server that reads a busy slot without end: named, and its lines read in bounded time.

`endless.log`: a real b11549 with `-lv 4`. Request 1 has 3,000 tokens; another one named its slot,
and 5,000 were loaded there. Of 59,199 equal lines 40 are left.
"""

from io import BytesIO
from pathlib import Path

from cachesim.why.explain.whole import UserSettings, read_files, replays_of, why
from cachesim.why.explain.wrong import STATE, avoided_by
from cachesim.why.read.lines import TURNS, Tally, lines_of

LOG = Path(__file__).with_name("endless.log").read_bytes()
LOOP = next(
    line for line in LOG.splitlines(keepends=True) if b"task 5 | cached n_tokens = 5" in line
)
TIMES = 1_000


def test_a_request_that_is_read_without_end_is_named() -> None:
    read = read_files([("server.log", BytesIO(LOG))])

    found = why(read, replays_of(read, UserSettings(profile="b11549", model="dense")))
    (wrong,) = found["wrong"]

    assert ([1], "loop") == (wrong["requests"], wrong["kind"])
    assert "llama.cpp-pinned-loops-forever" == wrong["scenario"]
    assert "confirmed on the real engine" == wrong["evidence"]
    assert (
        "No token can be saved, but the endless loop can be avoided: leave `id_slot` out, or wait "
        "for the answer; or use b9538, which does not do it."
    ) == found["answer"]["says"][1]


def test_what_is_wrong_is_no_reason_to_change_nothing() -> None:
    nameless = {"scenario": "", "says": "got another answer", "kind": "wrong answer"}

    assert "" == avoided_by([])
    assert "wrong answers are possible" == avoided_by([nameless])
    assert "wrong answers are possible" == avoided_by([{**nameless, "scenario": STATE}])


def test_lines_without_end_are_counted_and_a_few_are_read() -> None:
    tally, other = Tally(), b"0.05.602.300 I srv  update_slots: all slots are idle\n"
    long = LOOP * TIMES + other + LOOP

    found = [*lines_of(BytesIO(long), tally)]

    assert TIMES + 2 == tally.lines
    assert TURNS + 2 == len(found)
    assert [TIMES + 1, TIMES + 2] == [line.number for line in found[-2:]]
