"""Requests of other APIs as the chat that llama-server makes of them before its template.

    /v1/messages     system, blocks, tool_use, tool_result
    /v1/responses    instructions, items, function calls

What holds an image, or is no valid request, has no chat: its tokens stay unknown.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from cachesim.typed import mapping

Chat = dict[str, Any]

BILLING: Final = "x-anthropic-billing-header:"
STAMP: Final = "cch="
STAMP_SIZE: Final = 5

KEPT: Final = ("chat_template_kwargs", "tool_choice", "parallel_tool_calls", "reasoning_effort")
"""Fields that both APIs share with a chat, and that a template may read."""


class NotConvertedError(Exception):
    """A part of a request that becomes no text."""


def chat_of(path: str, request: Mapping[str, Any], *, normalizes: bool) -> Chat | None:
    """The chat of a request; None for a path of another kind, or a part that is no text.

    `normalizes`: the server overwrites the stamp of Claude Code's billing header, which changes in
    every request.
    """
    try:
        if path.endswith("/chat/completions"):
            return dict(request)
        if path.endswith("/v1/messages"):
            return _of_messages(request, normalizes=normalizes)
        if path.endswith("/v1/responses"):
            return _of_responses(request)
    except NotConvertedError:
        pass
    return None


def _of_messages(request: Mapping[str, Any], *, normalizes: bool) -> Chat:
    """Follows `server_chat_convert_anthropic_to_oai`."""
    messages: list[Chat] = []
    system = request.get("system")
    if system is not None:
        texts = [system] if isinstance(system, str) else _texts(system)
        content = "".join(_unstamped(text) if normalizes else text for text in texts)
        messages.append({"role": "system", "content": content})
    for message in _mappings(request.get("messages")):
        blocks = message.get("content")
        if isinstance(blocks, list):
            messages += _turns_of(str(message.get("role", "")), _mappings(blocks))
        elif "content" in message or message.get("role") != "assistant":
            messages.append(dict(message))
    chat = {key: request[key] for key in KEPT if key in request} | {"messages": messages}
    if isinstance(request.get("tools"), list):
        chat["tools"] = [
            _function(tool, parameters=tool.get("input_schema", {}))
            for tool in _mappings(request["tools"])
        ]
    choice = mapping(chat.pop("tool_choice", None)).get("type")
    if choice in {"auto", "any", "tool"}:
        chat["tool_choice"] = "auto" if choice == "auto" else "required"
    return chat


def _turns_of(role: str, blocks: Iterable[Mapping[str, Any]]) -> Iterator[Chat]:
    """A message of blocks: its texts, thoughts and calls, then a message for each tool's result."""
    content, calls, results, thought = [], [], [], ""
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            content.append(dict(block))
        elif kind == "thinking":
            thought += str(block.get("thinking", ""))
        elif kind == "tool_use":
            arguments = json.dumps(
                block.get("input", {}), ensure_ascii=False, separators=(",", ":")
            )
            calls.append(_call(block.get("id", ""), block.get("name", ""), arguments))
        elif kind == "tool_result":
            told = block.get("content")
            text = told if isinstance(told, str) else "".join(_texts(told or []))
            results.append(
                {"role": "tool", "tool_call_id": block.get("tool_use_id", ""), "content": text}
            )
        elif kind == "image":
            raise NotConvertedError
    if content or calls or thought:
        turn: Chat = {"role": role, "content": content or ""}
        turn |= {"tool_calls": calls} if calls else {}
        yield turn | ({"reasoning_content": thought} if thought else {})
    yield from results


def _of_responses(request: Mapping[str, Any]) -> Chat:
    """Follows `server_chat_convert_responses_to_chatcmpl`."""
    messages: list[Chat] = []
    if "instructions" in request:
        messages.append({"role": "system", "content": str(request["instructions"] or "")})
    given = request.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    for item in [] if isinstance(given, str) else _mappings(given):
        before = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        _add_item(item, messages, before)
    chat = {key: request[key] for key in KEPT if key in request} | {"messages": messages}
    if effort := mapping(request.get("reasoning")).get("effort"):
        chat["reasoning_effort"] = effort
    functions = [
        {"type": "function", "function": {"strict": True} | _without(tool, "type")}
        for tool in _mappings(request.get("tools") or [])
        if tool.get("type") == "function"
    ]
    return chat | ({"tools": functions} if functions else {})


def _add_item(item: Mapping[str, Any], messages: list[Chat], before: Chat | None) -> None:
    """Add an item; one of the assistant's joins the message `before` it."""
    kind, role, content = item.get("type"), item.get("role"), item.get("content")
    if role in {"user", "system", "developer"} and content is not None:
        messages.append(_without(item, "type", "status") | {"content": _parts(content)})
    elif role == "assistant" and kind == "message":
        if before is None:
            messages.append(_without(item, "type", "status") | {"content": _parts(content or [])})
        else:
            said = before.get("content")
            before["content"] = (said if isinstance(said, list) else []) + _parts(content or [])
    elif kind == "function_call":
        call = _call(item.get("call_id", ""), item.get("name", ""), item.get("arguments", ""))
        if before is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            before.setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = item.get("output")
        text = output if isinstance(output, str) else _parts(output)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id", ""), "content": text})
    elif kind == "reasoning":
        thought = next(iter(_texts(content)), None)
        if thought is None:
            raise NotConvertedError
        if before is None:
            messages.append({"role": "assistant", "content": [], "reasoning_content": thought})
        else:
            before["reasoning_content"] = thought
    else:
        raise NotConvertedError


def _call(name: object, function: object, arguments: object) -> Chat:
    return {
        "id": name,
        "type": "function",
        "function": {"name": function, "arguments": arguments},
    }


def _function(tool: Mapping[str, Any], *, parameters: object) -> Chat:
    about = {"name": tool.get("name", ""), "description": tool.get("description", "")}
    return {"type": "function", "function": about | {"parameters": parameters}}


def _parts(content: object) -> list[Chat]:
    """A content's texts as parts of a chat's content."""
    texts = [content] if isinstance(content, str) else _texts(content)
    return [{"type": "text", "text": text} for text in texts]


def _texts(parts: object) -> list[str]:
    """The texts of parts; what is an image or a file has none."""
    texts = [part.get("text") for part in _mappings(parts)]
    if not all(isinstance(text, str) for text in texts):
        raise NotConvertedError
    return [str(text) for text in texts]


def _mappings(items: object) -> list[Mapping[str, Any]]:
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise NotConvertedError
    return items


def _without(item: Mapping[str, Any], *keys: str) -> Chat:
    return {key: value for key, value in item.items() if key not in keys}


def _unstamped(text: str) -> str:
    """Follows `normalize_anthropic_billing_header`: the stamp's five characters become `fffff`."""
    at = text.find(STAMP, len(BILLING)) + len(STAMP)
    if not text.startswith(BILLING) or at < len(STAMP):
        return text
    end = at + STAMP_SIZE
    return text[:at] + "f" * STAMP_SIZE + text[end:] if text[end : end + 1] == ";" else text
