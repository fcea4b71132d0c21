"""The first three sentences of `why`, the line of each request, and what a log lacks."""

import json
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.why.explain import answer
from tests.fixtures import Capture, output
from tests.why.test_log_report import JUNE, LOG, RECORDED, finished, launched

CUT = (
    "slot print_timing: id  0 | task 7 | prompt processing, n_tokens = 8192, progress = 0.085\n" * 2
)


def found_in(capsys: Capture, *words: str) -> dict[str, Any]:
    found = json.loads(output(capsys, ["why", *words, "--no-tune", "--format", "json"]))
    assert isinstance(found, dict)
    return found


def test_a_log_answers_how_many_who_and_how_sure(capsys: Capture) -> None:
    found = found_in(capsys, LOG)
    tokens, change, sure = found["answer"]["says"]

    assert tokens.startswith("1,900 of the 6,253 prefilled tokens (30 %) were prefilled again")
    assert "up to 1,210 more after a change in the prompt" in tokens
    assert change.startswith("The client can change it: have it send its history unchanged.")
    assert "Request 3 departs from it at token 1,900 of 3,110" in change
    assert sure == "Sure: the replay reproduces 5 of 5 requests to the token."
    assert {"client": 1900 + 1210} == found["answer"]["by"]


def test_a_recording_answers_in_the_same_words(capsys: Capture) -> None:
    found = found_in(capsys, RECORDED)
    totals, (tokens, change, _) = found["totals"], found["answer"]["says"]

    assert tokens.startswith("5,493 of the 7,397 prefilled tokens (74 %) were prefilled again")
    assert "5,342 of them because the client had changed the prompt" in tokens
    assert (5493, 5342) == (totals["again"], totals["again_changed"])
    assert "a clock. Put the time at the end" in change


@pytest.mark.parametrize("name", [LOG, RECORDED])
def test_each_request_has_a_line_whose_numbers_add_up(name: str, capsys: Capture) -> None:
    printed = output(capsys, ["why", name, "--no-tune", "--worst", "0"])

    for request in found_in(capsys, name)["requests"]:
        assert request["prompt_tokens"] == request["cached"] + request["processed"]
        start = f"{request['number']} "
        (line,) = (line for line in printed.splitlines() if line.startswith(start))
        number, turn, shared, new, cached, prefilled, *rest = line.split()
        assert (number, turn) == (str(request["number"]), request["turn"])
        values = [int(each.replace(",", "")) for each in (shared, new, cached, prefilled)]
        assert sum(values[:2]) == sum(values[2:]) == request["prompt_tokens"]
        assert "exact" in rest


def test_nothing_else_is_tried_on_request(capsys: Capture) -> None:
    assert ([], None) == tuple(found_in(capsys, LOG)[key] for key in ("what_if", "tuned"))
    assert [] == found_in(capsys, RECORDED)["what_if"]


@pytest.mark.thorough
def test_a_long_search_is_announced_after_the_answer(capsys: Capture, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(
        launched(n, "LRU, t_last = 7", level=JUNE) + finished(n, read=40, said=2, held=41)
        for n in range(41)
    ))  # fmt: skip
    assert main(["why", str(log), "--profile", "b9538", "--model", "dense"]) == 0
    told = capsys.readouterr()
    first = " ".join(told.out.split("\n\n")[0].split())
    assert first.split(".")[0] == " ".join(told.err.split()).split(".")[0]
    assert "The search of settings continues" in told.err


def test_what_no_line_says_is_not_none(capsys: Capture, tmp_path: Path) -> None:
    log = tmp_path / "cut.log"
    log.write_text(CUT)
    tokens, change, sure = found_in(capsys, str(log))["answer"]["says"]

    assert "does not say how many" in tokens
    assert "the log is cut: it lacks the start of request 0" in change
    assert sure.startswith("Not sure")
    printed = output(capsys, ["why", str(log), "--no-tune"])
    assert "unknown\n" not in printed.replace("Who can change it is unknown", "")


def test_a_flag_is_the_answer_only_where_no_client_changed_its_history(
    capsys: Capture, tmp_path: Path
) -> None:
    log = tmp_path / "parked.log"
    log.write_text(
        launched(1, "LRU, t_last = -1", level=JUNE)
        + finished(1, read=40, said=2, held=41)
        + launched(
            2, "LCP similarity, sim_best = 1.000 (> 0.100 thold), f_keep = 0.976", level=JUNE
        )
        + finished(2, read=1, said=2, held=41)
    )
    found = found_in(capsys, str(log), "--profile", "b9538", "--model", "dense")

    assert ["design"] == list(found["answer"]["by"])
    assert found["answer"]["says"][1].startswith("Nobody can change it, as the server is designed")


def test_the_doctor_names_what_is_missing_and_the_lines_to_change(
    capsys: Capture, tmp_path: Path
) -> None:
    log = tmp_path / "cut.log"
    log.write_text(CUT)
    found = json.loads(output(capsys, ["why", "--doctor", str(log), "--format", "json"]))
    missing = {each["what"] for each in found["findings"] if each["known"] < each["of"]}
    start, record, again = found["commands"]

    assert {"the server's start", "cached tokens", "checkpoints and memory"} <= missing
    assert "-lv 4 --log-file server.log" in start
    assert record.startswith("cachesim record --upstream")
    assert str(log) in again
    assert output(capsys, again.split()[1:])  # it runs as printed


def test_the_doctor_finds_a_whole_recording_well(capsys: Capture) -> None:
    found = json.loads(output(capsys, ["why", "--doctor", RECORDED, "--format", "json"]))

    assert found["says"].startswith("0 of 5 facts")
    assert found["commands"] == []


def test_without_a_log_the_doctor_has_a_command_for_each_server(capsys: Capture) -> None:
    shown = output(capsys, ["why", "--doctor"])

    assert {"# llama.cpp", "# mlx-lm", "# SGLang", "# vLLM"} <= {
        f"# {line.partition('  # ')[2]}" for line in shown.splitlines()
    }


@pytest.mark.parametrize(("agreeing", "named"), [(5, "b11549"), (4, ""), (0, "")])
def test_a_release_is_named_only_where_the_replay_equals_the_log(agreeing: int, named: str) -> None:
    rows = [
        {"name": name, "processed": processed, "failed": 0, "wrong_answers": 0}
        for name, processed in (("b9538", 1000), ("b10566", 900), ("b11549", 800))
    ]
    agreement = {"comparable": 5 if agreeing else 0, "agreeing": agreeing}
    told = answer._release({"what_if": rows, "agreement": agreement})
    assert named == told.partition(" ")[0]


def test_no_page_is_sure_of_what_it_says_is_unknown() -> None:
    pages = Path(__file__).with_name("excerpts.txt").read_text("utf-8").split("=" * 100)
    heads = [" ".join(page.split("\n\n", maxsplit=1)[0].split()) for page in pages]
    open_ones = [head for head in heads if "Who can change it is unknown" in head]

    assert len(open_ones) > 9
    assert [] == [head for head in open_ones if "Sure:" in head]
