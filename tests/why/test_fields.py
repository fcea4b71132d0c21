"""A wrong field of a recorded request: the file, the line, the field, and what to write instead."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import Capture, complaint, output

GOOD: dict[str, Any] = {
    "request": {"messages": [{"role": "user", "content": "hello there"}]},
    "usage": {"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": 0}},
}


def with_server(**server: object) -> dict[str, Any]:
    return {**GOOD, "server": server}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"messages": "hello"}, "field messages is 'hello'; write a list of messages like"),
        ({"request": {"messages": [5]}}, "field request.messages[0] is 5; write a list of"),
        (
            {"body": {"messages": [{"role": "user", "content": 5}]}},
            "field body.messages[0].content is 5; write a text, or a list of parts",
        ),
        ({"prompt": 5}, "field prompt is 5; write a text or a list of token ids"),
        ({"request": [1]}, "field request is [1]; write an object like"),
        ({"segments": "all"}, "field segments is 'all'; write a list of parts like"),
        (
            {"request": {"messages": GOOD["request"]["messages"], "tools": ["search"]}},
            "field request.tools[0] is 'search'; write a list of tools like",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_line(
    line: dict[str, Any], said: str, capsys: Capture, tmp_path: Path
) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join(map(json.dumps, (GOOD, line, GOOD))))

    assert f"{file}:2: {said}" in complaint(capsys, ["why", str(file)])


@pytest.mark.parametrize("more", [{"server": "uvicorn"}, {"body": "..."}, {"messages": "[]"}])
def test_further_fields_of_other_recorders_may_have_any_form(
    more: dict[str, Any], capsys: Capture, tmp_path: Path
) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join(map(json.dumps, (GOOD, {**GOOD, **more}))))

    assert "40 prompt tokens" in output(capsys, ["why", str(file)])


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"profile": "llama.cpp@b1"}, "field server.profile: there is no llama.cpp release 'b1'"),
        ({"profile": "foo@1"}, "field server.profile: there is no engine 'foo'"),
        (
            {"profile": "b9538", "options": {"parallel": -7}},
            "field server.options.parallel: option 'parallel' is -7; write a whole number from -1",
        ),
        ({"profile": "b9538", "slots": 1_000}, "field server.slots: option 'parallel' is 1000;"),
    ],
)
def test_a_wrong_field_of_the_server_is_named_with_its_line(
    server: dict[str, Any], said: str, capsys: Capture, tmp_path: Path
) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join(map(json.dumps, (with_server(**server), GOOD))))

    assert f"{file}:1: {said}" in complaint(capsys, ["why", str(file)])


def of_two_at_once(number: int, at: float, length: int, cached: int) -> dict[str, Any]:
    """A request to a server of four slots, each with a context of 1,000 tokens or all with one."""
    return {
        "format": 1, "number": number, "path": "/completion", "status": 200, "seconds": 2.0,
        "time": f"2026-11-29T23:15:{28 + at:09.6f}+00:00", "sampling": {"n_predict": 2},
        "timings": {"prompt_n": length - cached, "predicted_n": 2, "cache_n": cached},
        "server": {"slots": 4, "n_ctx": 1024, "model": "dense", "profile": "b11549"},
        "tokens": {"runs": [[number % 2, 0, length]], "user_starts": []},
        "segments": [{"part": "prompt", "role": "", "kind": "text", "characters": length,
                      "hashes": [str(number % 2)]}],
    }  # fmt: skip


def test_four_slots_that_hold_more_than_one_context_do_not_share_it(
    capsys: Capture, tmp_path: Path
) -> None:
    lines = [
        of_two_at_once(0, 0.0, 800, 0), of_two_at_once(1, 0.5, 700, 0),
        of_two_at_once(2, 5.0, 900, 800), of_two_at_once(3, 5.5, 800, 700),
    ]  # fmt: skip
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))

    found = json.loads(output(capsys, ["why", str(file), "--format", "json", "--no-tune"]))
    shared = ["--set", "kv_unified=true", "--set", "ctx_size=1024"]
    told = json.loads(output(capsys, ["why", str(file), *shared, "--format", "json", "--no-tune"]))
    assert found["agreement"]["agreeing"] == found["agreement"]["comparable"] == 4
    assert told["agreement"]["agreeing"] < 4
