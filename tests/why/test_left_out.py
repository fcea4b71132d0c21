"""Sums of a log and of its replays count the same requests, and a sentence names the others."""

import gzip
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from cachesim.report.consoles import plain_text
from cachesim.report.why import why_report
from cachesim.why.advise.what_if import add_other_settings
from cachesim.why.explain.whole import UserSettings, read_files, replays_of, why
from tests.fixtures import Capture, output

REAL = Path(__file__).parents[2] / "conformance" / "end_to_end" / "data"


def log_of(name: str) -> str:
    text: str = json.loads(gzip.decompress((REAL / f"{name}.json.gz").read_bytes()))["log"]
    return text


def explained(text: str) -> dict[str, Any]:
    read = read_files([("server.log", BytesIO(text.encode()))])
    replays = replays_of(read, UserSettings())
    found = why(read, replays)
    add_other_settings(found, replays)
    return found


@pytest.mark.parametrize(
    ("name", "count"),
    [("b9538-lv3-36-4", 7), ("b10229-lv3-36-8", 2), ("b10809-lv3-36-10", 1)],
)
def test_what_the_log_does_not_count_is_in_no_sum_of_a_replay(name: str, count: int) -> None:
    found = explained(log_of(name))
    unknown = [request for request in found["requests"] if request["processed"] is None]
    requests = "1 request" if count == 1 else f"{count} requests"
    says = f"{requests} whose prefilled tokens the log does not have."

    assert count == len(unknown)
    assert found["totals"]["processed"] == found["what_if"][0]["processed"]
    assert found["totals"]["processed"] == found["tuned"]["own"]["processed"]
    assert found["left_out_says"].endswith(says)
    assert says in " ".join(plain_text(*why_report(found, worst=[]), width=100).split())


ANSWERED = """\
slot get_availabl: id  0 | task -1 | selected slot by LRU, t_last = -1
slot launch_slot_: id  0 | task {n} | processing task, is_child = 0
slot print_timing: id  0 | task {n} | prompt eval time = 1.0 ms / {tokens} tokens
slot print_timing: id  0 | task {n} | eval time = 1.0 ms / 4 tokens
slot release: id  0 | task {n} | stop processing: n_tokens = {held}, truncated = 0
"""


def test_processed_tokens_of_a_prompt_without_a_length_are_named() -> None:
    whole = ANSWERED.format(n=1, tokens=50, held=53)
    cut = ANSWERED.format(n=9, tokens=36, held=0).splitlines()[:3]  # the log ends here
    found = explained(whole + "\n".join(cut))

    assert (86, 50) == (found["totals"]["processed"], found["what_if"][0]["processed"])
    assert (
        "Replays are summed over 1 request, those whose replay equals the log. Left out: 1 request "
        "of 36 prefilled tokens that the replay does not reproduce." == found["left_out_says"]
    )


@pytest.mark.thorough
def test_a_sweep_says_what_its_sums_leave_out(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.write_text(log_of("b10229-lv3-36-8"))

    shown = " ".join(output(capsys, ["why", "--tune", str(file)]).split())
    assert "Left out: 2 requests whose prefilled tokens the log does not have" in shown


def test_tokens_that_were_read_beyond_the_prompts_are_no_negative_unknown() -> None:
    found = explained(ANSWERED.format(n=1, tokens=50, held=53))
    found["totals"] |= {"prompt_tokens": 50, "cached": 0, "processed": 60, "unknown": -10}

    said = " ".join(plain_text(*why_report(found, worst=[]), width=100).split())

    assert "50 prompt tokens: 0 cached, 60 prefilled, 10 more than the prompts have." in said
