"""Totals add up, whatever a log leaves out; the kind of memory follows from the log's own lines."""

from io import BytesIO
from typing import Any

import pytest

from cachesim.logs.what_if import answers, usual
from cachesim.logs.whole import Wanted, read_files, replays_of
from cachesim.report.consoles import plain_text
from cachesim.report.recorded import totals_line
from cachesim.report.why import request, totals_in_words
from tests.logs.test_log_places import JUNE, START, in_words, told
from tests.logs.test_threads import SWA, finished, launched, may

SIMILAR = "LCP similarity, sim_best = 0.900 (> 0.100 thold), f_keep = 0.900"
FIXED = (
    "slot print_timing: id  0 | task {task} | prompt eval time = {ms:10.2f} ms / {read:5d} tokens "
    "({each:8.2f} ms per token, {rate:8.2f} tokens per second)\n"
)


def adds_up(totals: dict[str, int]) -> bool:
    return totals["prompt_tokens"] == totals["cached"] + totals["processed"] + totals["unknown"]


def test_a_refused_request_is_counted_apart_and_is_the_one_that_its_line_names() -> None:
    refused = (
        f"{JUNE}srv    send_error: task id = 3, error: request (265 tokens) exceeds the available "
        "context size (256 tokens), try increasing it\n"
    )
    found = told(
        START
        + launched(1, "LRU, t_last = -1", level=JUNE, slot=1)
        + launched(3, "LRU, t_last = -1", level=JUNE)
        + f"{JUNE}slot print_timing: id  1 | task 1 | prompt eval time = 1.00 ms / 40 tokens\n"
        + refused
        + may(3, "stop processing: n_tokens = 0, truncated = 0")
        + finished(1, read=40, said=2, held=41, slot=1),
        model="dense",
    )

    assert [False, True] == [each["refused"] for each in found["requests"]]
    assert [40, 265] == [each["prompt_tokens"] for each in found["requests"]]
    assert (40, 1, 265) == tuple(
        found["totals"][name] for name in ("prompt_tokens", "refused", "refused_tokens")
    )
    assert "1 request of 265 tokens was refused, and is not counted." in in_words(found)


def test_the_timings_of_an_empty_prompt_are_those_of_the_request_before() -> None:
    found = told(
        START
        + launched(1, "LRU, t_last = -1", level=JUNE)
        + finished(1, read=40, said=2, held=41)
        + launched(2, "LRU, t_last = 7", level=JUNE)
        + may(2, "empty prompt - releasing slot")
        + finished(2, read=40, said=2, held=0),
        model="dense",
    )

    assert [40, 0] == [each["processed"] for each in found["requests"]]
    assert adds_up(found["totals"])
    assert 40 == found["totals"]["prompt_tokens"]


@pytest.mark.parametrize(("held", "processed", "unknown"), [(30, 30, 10), (44, 40, 0)])
def test_a_client_that_goes_away_leaves_part_of_its_prompt_unread(
    held: int, processed: int, unknown: int
) -> None:
    found = told(
        START
        + launched(1, "LRU, t_last = -1", level=JUNE)
        + may(
            1,
            "new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = 40",
            "n_tokens = 0, memory_seq_rm [0, end)",
            f"stop processing: n_tokens = {held}, truncated = 0",
        ),
        model="dense",
    )

    totals = found["totals"]
    assert (40, 0, processed, unknown) == tuple(
        totals[name] for name in ("prompt_tokens", "cached", "processed", "unknown")
    )
    assert bool(unknown) == (f"{unknown} unknown" in in_words(found))


def test_an_excerpt_without_lengths_has_no_more_prompt_tokens_than_it_shows() -> None:
    found = told(
        launched(1, SIMILAR)
        + may(1, "n_tokens = 155330, memory_seq_rm [155330, end)")
        + "\n"
        + launched(2, SIMILAR, slot=1)
        + finished(2, read=74923, said=1, held=87797, slot=1),
        model="dense",
    )

    assert adds_up(found["totals"])
    shown = in_words(found)
    assert "243,127 prompt tokens: 168,204 reused, 74,923 processed." in shown
    assert "The log does not have the length of 1 prompt" in shown


def test_what_was_read_in_all_is_the_length_of_a_prompt() -> None:
    found = told(
        may(7, "prompt processing done, n_tokens = 11956, batch.n_tokens = 4")
        + "\nslot print_timing: id  0 | task 7 |\n"
        + "prompt eval time =    1289.55 ms /   173 tokens (    7.45 ms per token)\n",
        model="hybrid",
    )

    (request,) = found["requests"]
    assert (11956, 11956 - 173, 173) == (
        request["prompt_tokens"], request["cached"], request["processed"],
    )  # fmt: skip


def test_words_for_everything_that_is_left_out() -> None:
    totals = dict.fromkeys(("requests", "again", "again_at_most", "untold"), 0) | {
        "requests": 9, "prompt_tokens": 100, "cached": 10, "processed": 70, "unknown": 20,
        "without_length": 2, "refused": 3, "refused_tokens": 4000,
    }  # fmt: skip

    assert totals_in_words(totals) == (
        "100 prompt tokens: 10 reused, 70 processed, 20 unknown. Of these 0 matched what the "
        "server held, and were reprocessed anyway. The log does not have the length of 2 prompts: "
        "only what is known of them is counted. 3 requests of 4,000 tokens were refused, and are "
        "not counted."
    )


def test_a_row_is_the_logs_only_if_it_has_as_many_tokens_processed() -> None:
    found = told(
        START + launched(1, "LRU, t_last = -1", level=JUNE) + finished(1, read=40, said=2, held=41),
        model="dense",
    )
    row = {
        "name": "b9538", "asked": False, "hits": 0, "failed": 0, "peak_bytes": 0,
        "context_bytes": 0, "wrong_answers": 0, "evidence": None,
    }  # fmt: skip
    for processed, words in ((40, "b9538 (the log)"), (60, "b9538 (replayed)")):
        bounds = {"processed": processed, "processed_bounds": [processed, processed]}
        found["what_if"] = [row | bounds]
        assert words in in_words(found)


def test_a_prompt_that_takes_long_to_judge_is_not_judged_on_every_release() -> None:
    def judged(tokens: int) -> set[bool]:
        lines = launched(1, SIMILAR) + finished(1, read=tokens, said=2, held=tokens + 1)
        read = read_files([("a.log", BytesIO(lines.encode()))])
        replays = replays_of(read, Wanted(model="hybrid", profile="b9538"))
        rows = answers(replays, usual(replays[0].settings))
        return {each["wrong_answers"] is not None for each in rows}

    assert {True} == judged(100)
    assert {False} == judged(90_000)


def test_a_release_that_only_its_words_show_is_marked_as_one_of_several() -> None:
    log = launched(1, SIMILAR) + may(1, "cached n_tokens = 0, memory_seq_rm [0, end)")
    shown = in_words(told(log + finished(1, read=40, said=2, held=41), model="dense"))

    assert "llama.cpp@b9538~, dense model" in shown


RESTORED = (
    "restored context checkpoint (pos_min = {0}, pos_max = 154, n_tokens = 155, n_past = 155, "
    "size = 0.033 MiB)"
)


@pytest.mark.parametrize(
    ("message", "kind", "how"),
    [
        (RESTORED.format(154), "hybrid", "bounded"),
        (RESTORED.format(20), "swa", "bounded"),
        (SWA, "hybrid", "assumed"),
        ("failed to truncate tokens with position >= 40", "hybrid", "bounded"),
        ("n_tokens = 0, memory_seq_rm [0, end)", "dense", "assumed"),
    ],
)
def test_memory_that_cannot_go_back_is_not_that_of_a_dense_model(
    message: str, kind: str, how: str
) -> None:
    found = told(
        launched(1, SIMILAR)
        + may(1, "new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = 180", message)
        + finished(1, read=25, said=2, held=181)
    )

    model: dict[str, Any] = found["servers"][0]["model"]
    assert (kind, how) == (model["preset"], model["how"])


def test_a_dense_model_that_b9294_processes_again_is_dense() -> None:
    found = told(
        launched(1, SIMILAR)
        + may(
            1,
            "new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = 180",
            "n_past = 1, slot.prompt.tokens.size() = 123, seq_id = 0, pos_min = 0, n_swa = 0",
            SWA,
        )
        + finished(1, read=180, said=2, held=181)
    )

    assert "dense" == found["servers"][0]["model"]["preset"]


def test_lines_of_a_fixed_width_are_not_broken() -> None:
    log = START + "".join(
        launched(n, "LRU, t_last = 7")
        + FIXED.format(task=n, ms=10.5 * n, read=10 * n, each=0.5, rate=1234.5)
        + finished(n, read=10 * n, said=2, held=10 * n + 1)
        for n in range(1, 10)
    )

    assert "" == told(log, model="dense")["log"]["broken"]


@pytest.mark.parametrize(
    ("reported", "line"),
    [
        (
            {"prompt_tokens": 1, "cached": 1, "processed": 5},
            (
                "9 prompt tokens in 1 of 5 answered requests. 3 reused in 1 of 5 answered "
                "requests; 128 processed in 5 of 5."
            ),
        ),
        (
            {"prompt_tokens": 0, "cached": 0, "processed": 5},
            (
                "Prompt tokens: unknown, no answer reports them. Reused: unknown; 128 processed in "
                "5 of 5."
            ),
        ),
    ],
)
def test_each_sum_of_a_recording_names_the_requests_it_is_over(
    reported: dict[str, int], line: str
) -> None:
    totals = {"answered": 5, "reported": reported, "prompt_tokens": 9, "cached": 3}

    assert line == totals_line({**totals, "processed": 128, "again": 0})


def test_what_was_left_of_a_prompt_whose_client_left_is_unknown() -> None:
    reported = dict.fromkeys(("prompt_tokens", "cached", "processed"), 3)
    totals = {"answered": 3, "reported": reported, "prompt_tokens": 446, "cached": 126}

    assert "446 prompt tokens: 126 reused, 311 processed, 9 unknown, 3 of these reprocessed." == (
        totals_line({**totals, "processed": 311, "again": 3})
    )


@pytest.mark.parametrize(
    ("left", "heading"), [(True, "slot 0, cancelled"), (False, "slot 0, no reply in the log")]
)
def test_a_request_without_a_reply_is_cancelled_only_where_the_client_left(
    left: bool, heading: str
) -> None:
    found = told(
        START
        + launched(1, "LRU, t_last = -1", level=JUNE)
        + (f"{JUNE}srv          stop: cancel task, id_task = 1\n" if left else "")
        + may(1, "stop processing: n_tokens = 12, truncated = 0"),
        model="dense",
    )

    assert left == found["requests"][0]["cancelled"]
    assert heading in plain_text(request(found["requests"][0]))
