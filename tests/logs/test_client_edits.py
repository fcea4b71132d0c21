"""What clients do to a conversation between two requests: the cause and the place named."""

import json
from io import BytesIO
from typing import Any

import pytest

from cachesim.logs.recorded import told_of_dump
from cachesim.report.consoles import plain_text
from cachesim.report.recorded import dump_page
from tests.dumps import read_dump

Json = dict[str, Any]

SYSTEM = "You are a careful assistant that answers in short sentences. " * 12
ASK = "What does the file say about the weather in March, and who wrote it? " * 4
MORE = "And what does it say about April, in the chapter on gardens? " * 4
REPLY = "It says that March was cold. The author is not named in it. " * 3
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'iVBORw0K' * 40}"}}
OTHER_PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/bmp;base64,{'Qk02' * 80}"}}
CALL = {
    "id": "call_0a1b2c3d4e5f",
    "type": "function",
    "function": {"name": "read", "arguments": '{"a": 1, "b": 2}'},
}
OTHER_CALL = CALL | {"id": "call_9f8e7d6c5b4a"}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"To {name} a file."}}
    for name in ("read", "write", "run")
]
UUIDS = ("3f2a9c1d-77aa-4b1e-9f00-1c2d3e4f5a6b", "8b77e0aa-0c12-4d3e-8f11-aabbccddeeff")


def system(text: str = SYSTEM, role: str = "system") -> Json:
    return {"role": role, "content": text}


def user(*content: Any) -> Json:
    whole = (
        content[0] if len(content) == 1 else [text(e) if isinstance(e, str) else e for e in content]
    )
    return {"role": "user", "content": whole}


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def assistant(content: Any = REPLY, **fields: Any) -> Json:
    return {"role": "assistant", "content": content, **fields}


def tool(content: str) -> Json:
    return {"role": "tool", "content": content}


def chat(*messages: Json, tools: Any = None, reply: Any = None) -> Json:
    request: Json = {"messages": list(messages)} | ({} if tools is None else {"tools": tools})
    usage = {"prompt_tokens": 1500, "prompt_tokens_details": {"cached_tokens": 40}}
    line = {"request": request, "usage": usage}
    return line if reply is None else line | {"reply": reply}


def both(before: str, after: str) -> tuple[Json, Json]:
    """A system prompt of which one word changes, before a conversation that goes on."""
    one, other = (SYSTEM.replace("careful", word, 1) for word in (before, after))
    return (
        chat(system(one), user(ASK)),
        chat(system(other), user(ASK), assistant(), user(MORE)),
    )


HISTORY = (user(ASK), assistant(), user(MORE), assistant("April was warm. " * 9), user("Why? " * 9))
TEMPLATE = "You are one of several agents. Task: {}. " + "Report what you find in a list. " * 40

EDITS: dict[str, tuple[tuple[Json, Json], str | None, str]] = {
    # words that change in a text that stays
    "an identifier before a full stop": (
        both("session 3f2a9c1d.", "session 8b77e0aa."),
        "identifier",
        "message 1 (system) differs at character 18: `3f2a9c1d` / `8b77e0aa`",
    ),
    "a UUID before a comma": (both(f"{UUIDS[0]},", f"{UUIDS[1]},"), "identifier", "an identifier"),
    "an identifier in a path": (
        both("in /tmp/run-3f2a9c1d/out.", "in /tmp/run-8b77e0aa/out."),
        "identifier",
        "an identifier",
    ),
    "a counter before a full stop": (both("(turn 3.)", "(turn 4.)"), "counter", "`3` / `4`"),
    "a time before a full stop": (both("at 10:31.", "at 10:32."), "clock", "`10:31` / `10:32`"),
    "a date in ISO form": (
        both("2026-11-22T08:00:01Z", "2026-11-22T08:05:09Z"),
        "clock",
        "a clock",
    ),
    "a time since 1970": (both("1790000000", "1790000060"), "clock", "a clock"),
    "a version": (both("version 1.2.3.", "version 1.2.4."), "edited", "`1.2.3` / `1.2.4`"),
    "a word": (both("careful", "careless"), "edited", "`careful` / `careless`"),
    # the system prompt as a whole
    "another mode of the same conversation": (
        (chat(system(), *HISTORY), chat(system("Plan first. " * 30), *HISTORY, user("Go."))),
        "system-changed",
        "message 1 (system) is another text",
    ),
    "a title is asked for": (
        (chat(system(), *HISTORY), chat(system("Write a title. " * 9), user(ASK))),
        "side-task",
        "message 1 (system)",
    ),
    "the system prompt gets another role": (
        (
            chat(system(), user(ASK)),
            chat(system(role="developer"), user(ASK), assistant(), user(MORE)),
        ),
        "role",
        "message 1 (developer) has a different role",
    ),
    # tools
    "tools in another order": (
        (
            chat(system(), user(ASK), tools=TOOLS),
            chat(
                system(), user(ASK), assistant(), user(MORE), tools=[TOOLS[1], TOOLS[0], TOOLS[2]]
            ),
        ),
        "tools-reordered",
        "tool 1",
    ),
    "a tool more": (
        (
            chat(system(), user(ASK), tools=TOOLS[:2]),
            chat(system(), user(ASK), assistant(), user(MORE), tools=TOOLS),
        ),
        "tools-changed",
        "tool 3",
    ),
    "a tool less": (
        (
            chat(system(), user(ASK), tools=TOOLS),
            chat(system(), user(ASK), assistant(), user(MORE), tools=TOOLS[1:]),
        ),
        "tools-changed",
        "tool 1",
    ),
    # the assistant's part
    "a prefill that grows": (
        (
            chat(system(), user(ASK), assistant("It says")),
            chat(system(), user(ASK), assistant("It says that March was cold.")),
        ),
        None,
        "continues request 0",
    ),
    "a prefill with its reply, and the next question": (
        (
            chat(system(), user(ASK), assistant("It says"), reply=" that March was cold."),
            chat(system(), user(ASK), assistant("It says that March was cold."), user(MORE)),
        ),
        None,
        "continues request 0",
    ),
    "a prefill that grows otherwise than its reply": (
        (
            chat(system(), user(ASK), assistant("It says"), reply=" that March was cold."),
            chat(system(), user(ASK), assistant("It says so, and")),
        ),
        None,
        "continues request 0",
    ),
    "a prefill whose reply was changed": (
        (
            chat(system(), user(ASK), assistant("It says"), reply=" that March was cold."),
            chat(system(), user(ASK), assistant("It says that May was cold."), user(MORE)),
        ),
        "edited",
        "message 3 (assistant) differs at character 15: `March` / `May`",
    ),
    "a reply as it came": (
        (
            chat(system(), user(ASK), reply=REPLY),
            chat(system(), user(ASK), assistant(), user(MORE)),
        ),
        None,
        "continues request 0",
    ),
    "a reply without the blank at its end": (
        (
            chat(system(), user(ASK), reply=f"{REPLY}\n\n"),
            chat(system(), user(ASK), assistant(REPLY), user(MORE)),
        ),
        "whitespace",
        "message 3 (assistant)",
    ),
    "a reply without its reasoning": (
        (
            chat(
                system(),
                user(ASK),
                reply=[{"kind": "reasoning", "text": "Hm. " * 20}, {"kind": "text", "text": REPLY}],
            ),
            chat(system(), user(ASK), assistant(), user(MORE)),
        ),
        "reasoning-dropped",
        "the reasoning of message 3 (assistant) is gone",
    ),
    "old reasoning dropped from the history": (
        (
            chat(system(), user(ASK), assistant(reasoning_content="Hm. " * 20), user(MORE)),
            chat(system(), user(ASK), assistant(), user(MORE), assistant("Yes."), user("So?")),
        ),
        "reasoning-dropped",
        "the reasoning of message 3 (assistant) is gone",
    ),
    "arguments formatted anew": (
        (
            chat(system(), user(ASK), assistant(None, tool_calls=[CALL]), tool("1")),
            chat(
                system(),
                user(ASK),
                assistant(
                    None,
                    tool_calls=[
                        {**CALL, "function": {"name": "read", "arguments": '{"a":1,"b":2}'}}
                    ],
                ),
                tool("1"),
                user(MORE),
            ),
        ),
        "reserialised",
        "the tool call of message 3 (assistant)",
    ),
    "calls with identifiers drawn anew": (
        (
            chat(system(), user(ASK), assistant(None, tool_calls=[CALL]), tool("1")),
            chat(
                system(), user(ASK), assistant(None, tool_calls=[OTHER_CALL]), tool("1"), user("?")
            ),
        ),
        "identifier",
        "the tool call of message 3 (assistant)",
    ),
    "a tool result with its keys in another order": (
        (
            chat(system(), user(ASK), assistant(), tool('{"a": 1, "b": [2, 3]}'), user(MORE)),
            chat(system(), user(ASK), assistant(), tool('{"b": [2, 3], "a": 1}'), user(MORE)),
        ),
        "keys-reordered",
        "message 4 (tool)",
    ),
    "a tool result printed in lines": (
        (
            chat(system(), user(ASK), assistant(), tool('{"a": 1, "b": [2, 3]}'), user(MORE)),
            chat(
                system(), user(ASK), assistant(), tool('{\n  "a": 1,\n  "b": [2, 3]}'), user(MORE)
            ),
        ),
        "whitespace",
        "message 4 (tool)",
    ),
    # messages
    "the last question edited": (
        (chat(system(), *HISTORY), chat(system(), *HISTORY[:-1], user("Why not in May? " * 4))),
        "edited",
        "message 6 (user)",
    ),
    "the reply asked for once more": (
        (chat(system(), *HISTORY), chat(system(), *HISTORY)),
        None,
        "continues request 0",
    ),
    "a branch from an earlier message": (
        (chat(system(), *HISTORY), chat(system(), *HISTORY[:3])),
        None,
        "continues request 0",
    ),
    "the oldest turn dropped": (
        (chat(system(), *HISTORY), chat(system(), *HISTORY[2:], assistant("So."), user("And?"))),
        "history-truncated",
        "several messages before message 2 (user) are gone",
    ),
    "one message dropped": (
        (chat(system(), *HISTORY), chat(system(), *HISTORY[:1], *HISTORY[2:], user("And?"))),
        "message-removed",
        "a message before message 3 (user) is gone",
    ),
    "the history as a summary": (
        (
            chat(system(), *HISTORY),
            chat(
                system(), user("A summary of the previous conversation: March. " * 5), user("And?")
            ),
        ),
        "compacted",
        "message 2 (user)",
    ),
    "line ends as on another system": (
        (
            chat(system(), user(ASK.replace("? ", "?\n")), assistant(), user(MORE)),
            chat(system(), user(ASK.replace("? ", "?\r\n")), assistant(), user(MORE), user("So?")),
        ),
        "whitespace",
        "message 2 (user)",
    ),
    "another Unicode form": (
        (
            chat(system(), user(f"Caf\u00e9 {ASK}"), assistant(), user(MORE)),
            chat(system(), user(f"Cafe\u0301 {ASK}"), assistant(), user(MORE), user("So?")),
        ),
        "unicode",
        "message 2 (user)",
    ),
    "an old tool result cut": (
        (
            chat(system(), user(ASK), assistant(), tool(MORE * 9), user("And?")),
            chat(system(), user(ASK), assistant(), tool(MORE * 6), user("And?"), user("So?")),
        ),
        "truncated",
        "message 4 (tool)",
    ),
    # attachments
    "an attachment dropped from an old message": (
        (
            chat(system(), user(ASK, PICTURE), assistant(), user(MORE)),
            chat(system(), user(ASK), assistant(), user(MORE), assistant(), user("So?")),
        ),
        "attachment-dropped",
        "the attachment of message 2 (user) is gone",
    ),
    "one of two attachments dropped": (
        (
            chat(system(), user(ASK, PICTURE, OTHER_PICTURE), assistant(), user(MORE)),
            chat(system(), user(ASK, OTHER_PICTURE), assistant(), user(MORE), user("So?")),
        ),
        "attachment-dropped",
        "the attachment of message 2 (user) is gone",
    ),
    "an attachment moved to the newest message": (
        (
            chat(system(), user(ASK, PICTURE), assistant(), user(MORE)),
            chat(
                system(),
                user(ASK),
                assistant(),
                user(MORE),
                assistant("Yes."),
                user("So?", PICTURE),
            ),
        ),
        "attachment-moved",
        "the attachment of message 2 (user) moved to message 6 (user)",
    ),
    "an attachment added to an old message": (
        (
            chat(system(), user(ASK), assistant(), user(MORE)),
            chat(system(), user(ASK, PICTURE), assistant(), user(MORE), assistant(), user("So?")),
        ),
        "attachment-added",
        "the attachment of message 2 (user) was not there before",
    ),
    "an attachment encoded anew": (
        (
            chat(system(), user(ASK, PICTURE), assistant(), user(MORE)),
            chat(system(), user(ASK, OTHER_PICTURE), assistant(), user(MORE), user("So?")),
        ),
        "attachment-changed",
        "the attachment of message 2 (user)",
    ),
    # other conversations
    "agents from one template": (
        (
            chat(system(), user(TEMPLATE.format("the tests")), reply=REPLY),
            chat(system(), user(TEMPLATE.format("the docs"))),
        ),
        "same-template",
        "message 2 (user) differs at character 41",
    ),
    "a new conversation after the same system prompt": (
        (chat(system(), *HISTORY), chat(system(), user("Name three birds. " * 5))),
        "other-conversation",
        "from message 2 (user) on",
    ),
    # prompts without messages
    "a prompt that lost its beginning": (
        ({"prompt": f"{ASK}{REPLY}{MORE}"}, {"prompt": f"{REPLY}{MORE}And so on. "}),
        "beginning-cut",
        f"the first {len(ASK)} characters of prompt are cut",
    ),
}


def second(lines: tuple[Json, Json]) -> Json:
    dump = "\n".join(map(json.dumps, lines)).encode()
    told = told_of_dump(read_dump("dump.jsonl", BytesIO(dump)), source="dump.jsonl")
    return dict(told["requests"][-1])


@pytest.mark.parametrize("name", EDITS)
def test_the_cause_and_the_place_are_named(name: str) -> None:
    lines, kind, words = EDITS[name]
    found = second(lines)
    parting = found["parting"]

    assert (kind, words) == (
        None if parting is None else parting["kind"],
        words if words in found["why"] else found["why"],
    )


def test_agents_from_one_template_lose_nothing_of_their_own() -> None:
    found = second(EDITS["agents from one template"][0])

    assert found["again"] <= found["equal"]


@pytest.mark.parametrize("at", [30, 100])
def test_no_cell_of_a_table_has_a_line_break_of_the_prompt(at: int) -> None:
    lines = both("careful\nassistant", "careful assistant")
    dump = "\n".join(map(json.dumps, lines)).encode()
    told = told_of_dump(read_dump("dump.jsonl", BytesIO(dump)), source="dump.jsonl")

    assert "\n" not in told["causes"][0]["example"]
    assert "`careful\\n`" in plain_text(dump_page(told, worst=1), width=at * 10)


def after_a_reply(cached: int) -> Json:
    """A request whose prompt and reply of 400 and 50 tokens come back, and what was reused."""
    counts = {"prompt_tokens": 400, "completion_tokens": 50}
    first = chat(system(), user(ASK), reply=REPLY) | {
        "number": 0,
        "tokens": {"runs": [[0, 0, 400]]},
        "usage": counts | {"prompt_tokens_details": {"cached_tokens": 0}},
    }
    later = chat(system(), user(ASK), assistant(), user(MORE)) | {
        "number": 1,
        "tokens": {"runs": [[0, 0, 400], [1, 0, 50], [2, 450, 500]]},
        "usage": {"prompt_tokens": 500, "prompt_tokens_details": {"cached_tokens": cached}},
    }
    return second((first, later))


def test_reuse_that_ends_inside_a_reply_is_not_blamed_on_the_client() -> None:
    """The same text may be other tokens than those that were sampled."""
    found = after_a_reply(412)

    assert (None, 37) == (found["parting"], found["again"])
    assert "reuse ends after 12 tokens of the reply of request 0" in found["why"]


def test_the_last_token_of_a_reply_was_never_computed_and_is_no_loss() -> None:
    found = after_a_reply(449)

    assert (0, "continues request 0") == (found["again"], found["why"])


def test_where_nothing_was_replayed_no_replay_is_spoken_of() -> None:
    found = after_a_reply(400)

    assert found["why"].endswith(
        "49 tokens were processed again, and no replay shows by which rule"
    )
