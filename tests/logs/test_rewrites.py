"""What clients do to their history, told apart by its shape; and what is no rewrite at all."""

import json
from io import BytesIO
from typing import Any

import pytest

from cachesim.logs.recorded import told_of_dump
from tests.dumps import read_dump

SYSTEM = "You are a careful assistant. " * 20
LONG = "What does the file say about all of this? " * 8
REMINDER = "<system-reminder>be brief</system-reminder>"
COUNTS = {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 10}}


def chat(*texts: str, system: str = SYSTEM) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": system}]
    messages += [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"request": {"messages": messages}, "usage": COUNTS}


def users(*texts: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}]
    messages += [{"role": "user", "content": text} for text in texts]
    return {"request": {"messages": messages}, "usage": COUNTS}


def second(*lines: dict[str, Any]) -> dict[str, Any]:
    text = "\n".join(map(json.dumps, lines)).encode()
    requests = read_dump("dump.jsonl", BytesIO(text))
    return dict(told_of_dump(requests, source="dump.jsonl")["requests"][-1])


REWRITES = [
    ("side-task", chat(LONG, "b"), chat(LONG, system="Write a title for this conversation.")),
    ("history-truncated", chat("a", "b", f"{LONG}1", "c", "d"), chat(f"{LONG}1", "c", "d")),
    ("message-removed", users("a", LONG, "c"), users(LONG, "c")),
    ("message-inserted", users(LONG, "c"), users("a", LONG, "c")),
    ("messages-reordered", users(LONG, "c"), users("c", LONG)),
    ("messages-joined", users(LONG, "and then", "c"), users(f"{LONG}\nand then", "c")),
    ("reminder-added", chat(LONG, "b", "c"), chat(LONG + REMINDER, "b", "c")),
    ("reminder-moved", chat(LONG + REMINDER, "b"), chat(LONG, "b", f"c{REMINDER}")),
    ("cleared", chat(LONG, "b", "c"), chat("[old result cleared]", "b", "c")),
    ("compacted", chat("a", LONG, "c", "d", "e"), chat("A summary of the conversation: all well.")),
    ("other-conversation", chat(LONG, "b"), chat("Something else, about birds.")),
]


@pytest.mark.parametrize(("kind", "one", "other"), REWRITES)
def test_a_rewrite_is_named(kind: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert kind == second(one, other)["parting"]["kind"]


def test_a_reply_that_comes_back_as_it_was_is_no_rewrite() -> None:
    first = chat(LONG) | {"reply": [{"kind": "text", "text": "Yes."}]}

    found = second(first, chat(LONG, "Yes.", "so"))

    assert (None, 0) == (found["parting"], found["continues"])


def test_a_reply_without_its_reasoning_is_one() -> None:
    parts = [{"kind": "reasoning", "text": "Well."}, {"kind": "text", "text": "Yes."}]

    found = second(chat(LONG) | {"reply": parts}, chat(LONG, "Yes.", "so"))

    assert "the reasoning of message 3 (assistant) is gone" == found["parting"]["sentence"]


def test_a_prompt_that_goes_on_is_no_rewrite() -> None:
    one = {"request": {"prompt": LONG}, "usage": COUNTS, "reply": "Yes."}
    two = {"request": {"prompt": f"{LONG}Yes. And so on"}, "usage": COUNTS}

    found = second(one, two)

    assert (None, len(LONG) + 4) == (found["parting"], found["equal_characters"])


def test_another_conversation_costs_nothing_that_was_its_own() -> None:
    found = second(chat(LONG, "b"), chat("Something else, about birds."))

    assert found["again"] < 1000 - 10
