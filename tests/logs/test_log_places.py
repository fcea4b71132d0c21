"""Where prompts diverge over a whole log is said first; what the log leaves open stays open."""

import html
import re
from io import BytesIO
from typing import Any

import pytest

from cachesim.errors import InputError
from cachesim.logs.whole import Wanted, read_files, replays_of, why
from cachesim.report.consoles import plain_text
from cachesim.report.why import page
from cachesim.report.why_page import html_page
from cachesim.scenario.labels import SOURCE
from tests.logs.test_threads import SWA, finished, launched

JUNE = "0.10.000.000 I "
START = "0.00.001.000 I srv    load_model: loading model '/models/m.gguf'\n"


def told(lines: str, **wanted: Any) -> dict[str, Any]:
    read = read_files([("a.log", BytesIO(lines.encode()))])
    return why(read, replays_of(read, Wanted(**wanted)))


def june(task: int, *, shared: int, read: int, slot: int = 0) -> str:
    """A request of which the server says how much of it was equal, and that it helped nothing."""
    checked = (
        f"{JUNE}slot update_slots: id  {slot} | task {task} | Checking checkpoint with [900, 900] "
        f"against {shared}...\n{JUNE}slot update_slots: id  {slot} | task {task} | {SWA}\n"
        if task
        else ""
    )
    return (
        launched(task, "LRU, t_last = 7", level=JUNE, slot=slot)
        + checked
        + finished(task, read=read, said=2, held=read + 1, slot=slot)
    )


def october(task: int, *, read: int) -> str:
    return launched(task, "LRU, t_last = 7", level=JUNE) + finished(
        task, read=read, said=2, held=read + 1
    )


def in_words(found: dict[str, Any]) -> str:
    return " ".join(plain_text(page(found, worst=()), width=400).split())


def test_a_clock_in_the_system_prompt_is_one_place_for_all_that_is_reprocessed() -> None:
    log = START + "".join(june(n, shared=33, read=1000 + 50 * n) for n in range(4))
    found = told(log, model="hybrid", profile="b9538")

    (place,) = found["places"]
    assert (33, [1, 2, 3], 1050 + 1100 + 1150 - 3 * 33) == (
        place["token"], place["requests"], place["processed"],
    )  # fmt: skip
    assert (
        "3 of 4 requests diverge from what was held at the same place, token 33: the 3,201 tokens "
        "from there on were processed."
    ) in in_words(found)


def test_prompts_that_diverge_elsewhere_each_time_have_no_such_place() -> None:
    log = START + "".join(june(n, shared=33 + 200 * n, read=1000 + 50 * n) for n in range(4))

    assert [] == told(log, model="hybrid", profile="b9538")["places"]


def test_what_a_quiet_log_leaves_open_is_bounded_by_the_slot_that_was_not_chosen_for_it() -> None:
    log = START + "".join(october(n, read=1000) for n in range(3))
    found = told(log, model="hybrid", profile="b11549")

    assert [{}, {"common": [0, 100]}, {"common": [0, 100]}] == [
        each["bounds"] for each in found["requests"]
    ]
    assert "Of these 0 to 200 matched what the server held" in in_words(found)
    assert (
        "2 of 3 requests match at most 0.1 of their prompt with what a slot held, and were "
        "processed whole: 2,000 tokens."
    ) in in_words(found)


def test_a_flag_is_named_as_the_cure_only_where_one_was_played_that_helps() -> None:
    found = told(
        START + "".join(june(n, shared=33, read=1000 + 50 * n) for n in range(4)),
        model="hybrid",
        profile="b9538",
    )
    tried = {"changes": {}, "processed": 50, "peak_bytes": 0, "context_bytes": 0, "failed": 0}
    found["tuned"] = {"own": tried, "recommended": tried, "tried": [tried]}
    found["causes"][0]["tried"] = [{"flag": "--ctx-checkpoints 128", "fewer": 0, "failed": 0}]
    assert "full-reprocessing (no flag tried helps)" in in_words(found)

    found["causes"][0]["tried"][0]["fewer"] = 7
    assert "full-reprocessing (a flag)" in in_words(found)

    found["causes"][0]["tried"][0]["failed"] = 1
    assert "full-reprocessing (no flag tried helps)" in in_words(found)

    found["tuned"]["tried"].append(tried | {"changes": {"parallel": 2}, "processed": 40})
    assert "full-reprocessing (these flags do not help)" in in_words(found)


@pytest.mark.parametrize(
    ("one", "other"),
    [("qwen-1   | ", "gemma-1  | "), ("[8081] ", "[8082] "), ("box a[7]: ", "box b[8]: ")],
)
def test_lines_of_two_servers_in_one_log_are_refused(one: str, other: str) -> None:
    lines = october(0, read=100).splitlines()
    mixed = "".join(f"{one}{line}\n{other}{line}\n" for line in lines)

    with pytest.raises(InputError, match=r"a\.log: lines of several servers are mixed: .*grep -F"):
        told(mixed)


def test_a_server_that_was_started_again_is_not_mixed_with_itself() -> None:
    before = "".join(f"box llama[7]: {line}\n" for line in october(0, read=100).splitlines())
    after = before.replace("[7]", "[8]")

    assert 2 == len(told(before + after, model="dense")["requests"])


def test_a_clock_that_goes_back_again_and_again_is_told() -> None:
    later = october(1, read=100).replace("0.10.", "5.00.")
    found = told(4 * (later + october(2, read=100)), model="dense", profile="b11549")

    assert "The server's clock goes back 4 times" in in_words(found)


def test_a_log_that_a_terminal_has_broken_is_told() -> None:
    whole = START + "".join(june(n, shared=33, read=1000 + 50 * n) for n in range(4))
    broken = "".join(
        f"{line[at : at + 60]}\n" for line in whole.splitlines() for at in range(0, len(line), 60)
    )

    found = told(broken, model="dense")
    words, page = in_words(found), html_page(found)

    assert words.index("No line is longer than 60 characters") < words.index("llama.cpp@")
    assert page.index("No line is longer than 60 characters") < page.index("llama.cpp@")
    assert "No line is longer" not in in_words(told(whole, model="dense"))


def test_a_log_without_any_count_says_so_and_plays_nothing_elsewhere() -> None:
    found = told(launched(1, "LRU, t_last = 7", level=JUNE), model="dense", profile="b9538")
    found["what_if"] = [{"name": "never shown"}]

    assert "No line says how many tokens a prompt had" in in_words(found)
    assert "what if" not in in_words(found)


def test_the_page_has_the_place_the_same_rows_as_the_terminal_and_flags_as_code() -> None:
    found = told(
        START + "".join(june(n, shared=33, read=1000 + 50 * n) for n in range(4)),
        model="hybrid",
        profile="b9538",
    )
    row = {
        "asked": False,
        "hits": 0,
        "failed": 0,
        "peak_bytes": 0,
        "context_bytes": 0,
        "wrong_answers": 0,
        "evidence": None,
        "processed_bounds": [7, 7],
    }
    found["what_if"] = [
        row | {"name": "b9538", "processed": 7},
        row | {"name": "b9713", "processed": 9, "processed_bounds": [8, 9]},
        row | {"name": "b9873", "processed": 9, "processed_bounds": [8, 9]},
    ]
    text = html_page(found)

    assert "diverge from what was held at the same place, token 33" in text
    assert "raise <code>--ctx-checkpoints</code>" in text
    assert "<td>b9713 to b9873</td>" in re.sub(" data-head='[^']*'", "", text)
    assert "<td class='n'>9 (8 to 9)</td>" in re.sub(" data-head='[^']*'", "", text)


@pytest.mark.parametrize(
    ("own", "others", "says"),
    [
        (0, [1, 0], "Evidence of wrong answers: source only, not run."),
        (None, [0, 0], ""),
        (1, [2, 1], "In the replay 1 answer differs from a cold run's: the server may have"),
        (2, [1, 0], "With b9873 none does."),
    ],
)
def test_a_wrong_answer_in_the_replay_is_said_and_where_there_is_none(
    own: int | None, others: list[int], says: str
) -> None:
    found = told(
        START + "".join(june(n, shared=33, read=1000 + 50 * n) for n in range(4)),
        model="hybrid",
        profile="b9538",
    )
    row = {
        "asked": False,
        "hits": 0,
        "failed": 0,
        "peak_bytes": 0,
        "context_bytes": 0,
        "processed_bounds": [7, 7],
        "processed": 7,
    }
    counts = zip(("b9538", "b9713", "b9873"), (own, *others), strict=True)
    found["what_if"] = [
        row | {"name": name, "wrong_answers": wrong, "evidence": SOURCE if wrong else None}
        for name, wrong in counts
    ]

    for text in (in_words(found), html.unescape(html_page(found))):
        assert says in text
        assert bool(own) == ("In the replay" in text)
        assert bool(says) == (f"Evidence of wrong answers: {SOURCE}" in text)


def test_a_cut_in_mid_prompt_is_not_what_was_reused_where_the_launch_is_missing() -> None:
    lines = (
        "slot update_slots: id  0 | task 6 | n_tokens = 1905, memory_seq_rm [1905, end)\n"
        + finished(6, read=1909, said=80, held=1988)
    )
    (request,) = told(lines, model="hybrid", profile="b9093")["requests"]

    assert (1909, 0, 1909) == (
        request["prompt_tokens"], request["cached"], request["processed"],
    )  # fmt: skip


def test_a_resumed_foreign_state_is_printed_with_its_evidence() -> None:
    found = told(
        START + "".join(june(n, shared=33, read=1000 + 50 * n) for n in range(4)),
        model="hybrid",
        profile="b9538",
    )
    stale = found["requests"][2]
    stale["stale"] = "kept"

    for text in (in_words(found), html.unescape(html_page(found))):
        assert f"wrong answers are possible: request {stale['number']}" in text.lower()
        assert f"Evidence: {SOURCE}." in " ".join(text.split())
