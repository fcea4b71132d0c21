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
