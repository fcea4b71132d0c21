"""Requests of Anthropic's API and of OpenAI's responses, as the chats that llama-server makes."""

from typing import Any

import pytest

from cachesim.record.converted import chat_of

Json = dict[str, Any]

HEADER = "x-anthropic-billing-header: cc_version=2.1; cch=a5145;You are kind."
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"ä"}'}}
SAID = {"type": "text", "text": "I look."}


def text(words: str, kind: str = "text") -> Json:
    return {"type": kind, "text": words}


def test_a_chat_is_left_as_it_is() -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "seed": 1}
    assert chat == chat_of("/v1/chat/completions", chat, normalizes=True)
    assert None is chat_of("/completion", {"prompt": "hi"}, normalizes=True)


def test_blocks_of_a_message_become_a_turn_and_a_message_for_each_result_of_a_tool() -> None:
    request = {
        "system": [text("Be "), text("kind.")],
        "messages": [
            {"role": "user", "content": "Read it."},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "a file", "signature": "s"},
                    SAID,
                    {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "ä"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [text("a"), text("b")]},
                    text("And now?"),
                ],
            },
        ],
        "tools": [{"name": "read", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
    }

    chat = chat_of("/v1/messages", request, normalizes=True)

    assert chat is not None
    assert chat["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Read it."},
        {
            "role": "assistant",
            "content": [SAID],
            "tool_calls": [CALL],
            "reasoning_content": "a file",
        },
        {"role": "user", "content": [text("And now?")]},
        {"role": "tool", "tool_call_id": "c1", "content": "ab"},
    ]
    function = {"name": "read", "description": "", "parameters": {"type": "object"}}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert chat["tool_choice"] == "required"


def test_items_of_the_assistant_join_its_message() -> None:
    request = {
        "instructions": "Be kind.",
        "input": [
            {"role": "user", "content": "Read it."},
            {"type": "reasoning", "summary": [], "content": [text("a file", "reasoning_text")]},
            {
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [text("I look.", "output_text")],
            },
            {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path":"ä"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "ab"},
        ],
        "tools": [{"type": "function", "name": "read"}, {"type": "web_search"}],
        "reasoning": {"effort": "low"},
    }

    assert chat_of("/v1/responses", request, normalizes=True) == {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [text("Read it.")]},
            {
                "role": "assistant",
                "content": [SAID],
                "reasoning_content": "a file",
                "tool_calls": [CALL],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "ab"},
        ],
        "reasoning_effort": "low",
        "tools": [{"type": "function", "function": {"strict": True, "name": "read"}}],
    }


@pytest.mark.parametrize(
    ("system", "normalizes", "expected"),
    [
        (HEADER, True, HEADER.replace("a5145", "fffff")),
        (HEADER, False, HEADER),
        (HEADER.replace("a5145", "a51"), True, HEADER.replace("a5145", "a51")),
        (HEADER.replace("cch=", ""), True, HEADER.replace("cch=", "")),
        ("Say cch=a5145; twice.", True, "Say cch=a5145; twice."),
    ],
)
def test_the_stamp_of_a_billing_header_is_overwritten_as_the_server_does(
    system: str, normalizes: bool, expected: str
) -> None:
    request = {"system": system, "messages": []}
    chat = chat_of("/v1/messages", request, normalizes=normalizes)
    assert chat == {"messages": [{"role": "system", "content": expected}]}


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("/v1/messages", {}),
        ("/v1/messages", {"messages": ["hi"]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        ("/v1/responses", {"input": 7}),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "m1"}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
    ],
)
def test_what_is_no_text_has_no_chat(path: str, request_: Json) -> None:
    assert None is chat_of(path, request_, normalizes=True)
