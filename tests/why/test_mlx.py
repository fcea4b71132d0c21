"""mlx-lm's logs: at INFO what was processed, at DEBUG the requests themselves."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from cachesim.why.explain.whole import UserSettings, read_files, replays_of, why
from cachesim.why.read.mlx_debug import as_dump, has_bodies
from tests.fixtures import Capture, output

POST = '127.0.0.1 - - [20/Nov/2026 21:49:12] "POST /v1/chat/completions HTTP/1.1" {status} -\n'
STARTED = "2026-11-20 21:49:11,429 - INFO - Starting httpd at 127.0.0.1 on port 8080...\n"


def at(level: str, message: str) -> str:
    return f"2026-11-20 21:49:12,453 - {level} - {message}\n"


def post(status: int = 200) -> str:
    return POST.replace("{status}", str(status))


def progress(*steps: str) -> str:
    return "".join(at("INFO", f"Prompt processing progress: {step}") for step in steps)


def body(message: str, content: dict[str, Any]) -> str:
    return at("DEBUG", f"{message}: {json.dumps(content, indent=chr(9))}")


def asked(*texts: str, stream: bool = False) -> str:
    messages = [{"role": "user", "content": text} for text in texts]
    return body("Incoming Request Body", {"messages": messages, "stream": stream})


def replied(prompt: int, cached: int) -> str:
    details = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
    return body("Outgoing Response", {"choices": [], "usage": details})


def entries(text: str) -> list[tuple[int | None, Any]]:
    lines = [json.loads(line) for line in as_dump(BytesIO(text.encode())).read().splitlines()]
    return [(line.get("timings", {}).get("prompt_n"), line.get("usage")) for line in lines]


def test_what_was_processed_is_told_and_what_was_cached_is_not_known() -> None:
    two_at_once = progress("64/107", "64/106", "106/107", "105/106", "107/107", "106/106")
    text = STARTED + post() + progress("64/165", "165/165") + post() + post() + two_at_once
    read = read_files([("mlx.log", BytesIO(text.encode()))])
    found = why(read, replays_of(read, UserSettings()))

    assert [request["processed"] for request in found["requests"]] == [165, 107, 106]
    assert {request["known"]["cached"] for request in found["requests"]} == {"unknown"}
    assert (None, 378) == (found["totals"]["cached"], found["totals"]["processed"])
    assert {request["slot"] for request in found["requests"]} == {None}
    assert found["servers"][0]["profile"].startswith("mlx-lm@")
    assert "--log-level DEBUG" in found["servers"][0]["missing"][0]


def test_totals_do_not_count_what_the_log_does_not_say(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "mlx.log"
    file.write_text(STARTED + post() + progress("165/165"))

    shown = output(capsys, ["why", str(file)])
    assert "165 tokens were prefilled; how many were cached, the log does not say." in shown
    assert "prompt tokens" not in shown


def test_requests_and_usage_are_paired_by_what_was_processed() -> None:
    log = (
        STARTED + asked("one") + post() + asked("two") + post()
        + progress("64/107", "107/107", "106/106") + replied(196, 90) + replied(107, 0)
    )  # fmt: skip

    assert has_bodies(log.encode())
    (first, first_usage), (second, second_usage) = entries(log)
    assert (first, first_usage["prompt_tokens"]) == (107, 107)
    assert (second, second_usage["prompt_tokens"]) == (106, 196)


def test_a_streamed_answer_has_no_usage_and_a_refused_request_is_left_out() -> None:
    log = (
        asked("one", stream=True) + post() + progress("9/9")
        + asked("broken") + post(404) + asked("two") + post() + progress("5/5") + replied(14, 9)
    )  # fmt: skip

    assert [entry[0] for entry in entries(log)] == [9, 5]
    assert entries(log)[0][1] is None


def test_a_body_that_is_cut_is_left_out() -> None:
    log = asked("one") + post() + progress("7/7") + replied(7, 0)

    assert entries(log + asked("two")[:60]) == entries(log)
    assert entries(log.replace("}", "", 1)) == []


@pytest.mark.parametrize(
    "dress",
    [
        "Jun 02 10:11:12 host mlx_lm.server[812]: LINE",
        "mlx-1  | LINE",
        "2026-06-02T10:11:12.345678Z stderr F LINE",
        "\x1b[32mLINE\x1b[0m",
        "LINE\r",
        "docker",
        "journald",
        "loki",
        "google",
        "google, structured",
        "elastic",
        "gcloud",
    ],
)
def test_requests_behind_a_prefix_of_a_supervisor_are_read(dress: str) -> None:
    log = STARTED + asked("one", "\t}") + post() + progress("64/107") + replied(196, 89)

    def dressed(line: str) -> str:
        objects: dict[str, Any] = {
            "docker": {"log": f"{line}\n"},
            "journald": {"MESSAGE": line},
            "loki": {"labels": {"app": "mlx"}, "line": line, "timestamp": "2026-06-02T10:11:12Z"},
            "google": {"insertId": "a1", "resource": {"type": "k8s"}, "textPayload": line},
            "google, structured": {"jsonPayload": {"message": line, "pid": 7}},
            "elastic": {"@timestamp": "2026-06-02T10:11:12Z", "message": line},
        }
        if dress == "gcloud":
            return f'  {{\n    "textPayload": {json.dumps(line)},\n    "insertId": "a1"\n  }},'
        return json.dumps(objects[dress]) if dress in objects else dress.replace("LINE", line)

    text = "".join(f"{dressed(line)}\n" for line in log.splitlines())

    assert has_bodies(text.encode())
    assert entries(log) == entries(text)
    assert [107] == [processed for processed, _ in entries(text)]


def test_a_whole_body_in_one_object_of_a_collector_is_read() -> None:
    messages = (asked("one"), post(), progress("64/107"), replied(196, 89))
    text = "".join(json.dumps({"textPayload": message.rstrip("\n")}) + "\n" for message in messages)

    assert entries("".join(messages)) == entries(text)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_requests_in_utf_16_are_read(encoding: str, capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "mlx.log"
    log = STARTED + asked("ein Döner") + post() + progress("20/20") + replied(20, 0)
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    file.write_bytes((mark + log.replace("\n", "\r\n")).encode(encoding))

    (request,) = json.loads(output(capsys, ["why", str(file), "--format", "json"]))["requests"]
    assert (20, 0) == (request["prompt_tokens"], request["cached"])


def test_the_requests_of_a_debug_log_are_told_as_recorded_ones(
    capsys: Capture, tmp_path: Path
) -> None:
    file = tmp_path / "mlx.log"
    file.write_text(
        STARTED + asked("be brief", "first") + post() + progress("20/20") + replied(20, 0)
        + asked("be brief", "second") + post() + progress("4/4") + replied(20, 16)
    )  # fmt: skip

    requests = json.loads(output(capsys, ["why", str(file), "--format", "json"]))["requests"]
    assert [request["cached"] for request in requests] == [0, 16]
    assert "message 2" in requests[1]["parting"]["part"]


def test_requests_behind_a_long_start_are_read(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "mlx.log"
    loading = at("DEBUG", 'https://huggingface.co:443 "HEAD /model/config.json HTTP/1.1" 200 0')
    file.write_text(
        3_000 * loading + STARTED + asked("one") + post() + progress("20/20") + replied(20, 0)
    )

    (request,) = json.loads(output(capsys, ["why", str(file), "--format", "json"]))["requests"]
    assert 20 == request["prompt_tokens"]
