"""A request's prompt as parts, in the order of templates.

[ tools ][ system ][ message 1: reasoning, text, attachment, tool calls ][ message 2 ...
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cachesim.typed import mapping

BLOCK: Final = 64
"""Characters per hash."""

PLACES: Final = (
    "tools", "system", "instructions", "messages", "input", "memory", "prompt", "text",
    "input_ids", "input_prefix", "input_suffix", "suffix", "images", "image_data",
)  # fmt: skip
"""Keys of a request whose text is part of the prompt."""

NOT_SHOWN: Final = frozenset(("cache_control",))
"""Keys of messages that steer a cache and are not printed by templates."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt: a tool, a message's text, its reasoning, an attachment."""

    part: str  # "message 3", "tool 1", "prompt"
    role: str
    kind: str  # "text", "reasoning", "tool call", "tool", "attachment"
    text: str
    hashes: tuple[str, ...] = ()
    characters: int = 0

    @property
    def length(self) -> int:
        """Number of characters."""
        return self.characters or len(self.text)

    @property
    def name(self) -> str:
        """Name for sentences."""
        where = f"{self.part} ({self.role})" if self.role else self.part
        return where if self.kind in {"text", "tool"} else f"the {self.kind} of {where}"

    @property
    def key(self) -> tuple[object, ...]:
        """Content, independent of its place."""
        return (self.kind, self.role, self.length, self.hashes or self.text)

    def same(self, other: "Segment") -> bool:
        """True if both texts are equal."""
        if self is other:
            return True
        if self.kind != other.kind or self.length != other.length:
            return False
        if self.hashes or other.hashes:
            return self.hashes == other.hashes
        return self.text == other.text


def shared(one: str, other: str) -> int:
    """Length of the common prefix of two texts, in characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


MOST: Final = 10**12
"""Upper bound of a token or character count."""


def whole(*values: object) -> int | None:
    """The first valid token count."""
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST:
            return value
    return None


def segments_of(request: object) -> list[Segment]:
    """The parts of a request in the order of templates."""
    fields = mapping(request)
    # Raise ValueError if part of the prompt is not in the request, or it has several prompts.
    if fields.get("previous_response_id"):
        raise ValueError("continues a conversation that the server keeps (previous_response_id)")
    if fields.get("context") and "prompt" in fields and "messages" not in fields:
        raise ValueError("continues tokens of an earlier answer (context), which are no text")
    for key in ("text", "input_ids"):
        value = fields.get(key)
        if isinstance(value, list) and any(isinstance(item, str | list) for item in value):
            raise ValueError(f"has several prompts in one request ({key})")
    found = []
    tools = fields.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else [], 1):
        found.append(Segment(f"tool {index}", "", "tool", _canonical(tool)))
    if isinstance(fields.get("system"), str | list):  # as in Anthropic's messages
        found += _content("message 0", "system", fields["system"])
    if isinstance(fields.get("instructions"), str):  # as in OpenAI's responses
        found += _content("message 0", "system", fields["instructions"])
    items = fields.get("input")
    if isinstance(items, str):
        found += _content("message 1", "user", items)
    for index, item in enumerate(items if isinstance(items, list) else [], 1):
        found += _item(f"message {index}", mapping(item))
    messages = fields.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else [], 1):
        found += _message(f"message {index}", mapping(message))
    for key, part in PROMPTS.items():
        value = fields.get(key)
        if isinstance(value, list):
            value = " ".join(map(str, value))
        if isinstance(value, str):
            found.append(Segment(part, "", "text", value))
    for key in ("images", "image_data"):
        found += _images("images", "", fields.get(key))
    return found


PROMPTS: Final = {
    "input_prefix": "input_prefix",
    "memory": "memory",  # KoboldCpp puts it before the prompt
    "prompt": "prompt",
    "text": "prompt",  # SGLang
    "input_ids": "prompt",
    "input_suffix": "input_suffix",
    "suffix": "suffix",
}
"""Keys of a request without messages, and the part of the prompt under each."""


def _images(part: str, role: str, images: object) -> Iterator[Segment]:
    for image in images if isinstance(images, list) else [images] if images else []:
        yield Segment(part, role, "attachment", _canonical(image))


def _message(part: str, message: Mapping[str, Any]) -> Iterator[Segment]:
    role = str(message.get("role", "?"))[:40]
    for key in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(message.get(key), str) and message[key]:
            yield Segment(part, role, "reasoning", message[key])
            break
    yield from _content(part, role, message.get("content"))
    yield from _images(part, role, message.get("images"))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        yield Segment(part, role, "tool call", _canonical(call))


def _item(part: str, item: Mapping[str, Any]) -> Iterator[Segment]:
    kind = str(item.get("type", "message"))
    if kind == "message":
        yield from _message(part, item)
    elif kind == "reasoning":
        yield from (
            replace(segment, kind="reasoning")
            for segment in _content(part, "assistant", item.get("content"))
        )
    else:
        role = "tool" if kind.endswith("_output") else "assistant"
        yield Segment(part, role, "tool call", _canonical(item))


def _content(part: str, role: str, content: object) -> Iterator[Segment]:
    if isinstance(content, str):
        yield Segment(part, role, "text", content)
        return
    for item in content if isinstance(content, list) else []:
        piece = mapping(item)
        kind = str(piece.get("type", "text"))
        if kind in {"text", "input_text", "output_text"}:
            yield Segment(part, role, "text", str(piece.get("text", "")))
        elif kind in {"thinking", "reasoning"}:
            yield Segment(part, role, "reasoning", str(piece.get("thinking", piece.get("text"))))
        elif kind in {"tool_use", "tool_result"}:
            yield Segment(part, role, "tool call", _canonical(piece))
        else:
            yield Segment(part, role, "attachment", _canonical(piece))


def _canonical(value: object) -> str:
    """JSON with its keys in the order received, as templates print them."""
    try:
        return json.dumps(_shown(value), ensure_ascii=False, default=str)
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _shown(value: object) -> object:
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items() if key not in NOT_SHOWN}
    return [_shown(item) for item in value] if isinstance(value, list) else value


# -- token counts of other APIs --------------------------------------------------------------------

#     Ollama        {"prompt_eval_count": 26, "prompt_eval_cached_count": 20, "eval_count": 9, ...}
#     SGLang        {"text": "...", "meta_info": {"prompt_tokens": 26, "cached_tokens": 20, ...}}
#     KoboldCpp     {"results": [{"text": "...", "prompt_tokens": 26, "completion_tokens": 9}]}
#     LM Studio     {"output": [...], "stats": {"input_tokens": 26, "total_output_tokens": 9}}
#
# KoboldCpp and LM Studio report no cached tokens, Ollama only in its newest releases.

NAMES: Final[Mapping[str, tuple[str, str, str]]] = {
    "": ("prompt_eval_count", "prompt_eval_cached_count", "eval_count"),
    "meta_info": ("prompt_tokens", "cached_tokens", "completion_tokens"),
    "results": ("prompt_tokens", "", "completion_tokens"),
    "stats": ("input_tokens", "", "total_output_tokens"),
}
"""Key of the counts, with the names of prompt, cached and generated tokens in it."""


def usage_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of an answer's object as OpenAI's `usage`; empty without any."""
    found: dict[str, Any] = {}
    for place, (prompt, cached, generated) in NAMES.items():
        fields = answer if not place else _first(answer.get(place))
        counts = {"prompt_tokens": fields.get(prompt), "completion_tokens": fields.get(generated)}
        found |= {key: value for key, value in counts.items() if isinstance(value, int) and value}
        if cached and isinstance(fields.get(cached), int):
            found["prompt_tokens_details"] = {"cached_tokens": fields[cached]}
    return found


def _first(value: object) -> Mapping[str, Any]:
    return mapping(value[0] if isinstance(value, list) and value else value)


def texts_of(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and text that an answer's object adds to the reply.

    SGLang's `text` is not here: each event of its stream repeats all that came before.
    """
    for key, kind in (("thinking", "reasoning"), ("response", "text"), ("token", "text")):
        if isinstance(answer.get(key), str):
            yield kind, answer[key]
    results = _first(answer.get("results"))
    if isinstance(results.get("text"), str):
        yield "text", results["text"]


def is_last(answer: Mapping[str, Any]) -> bool:
    """True for the last object of a stream of Ollama, KoboldCpp or LM Studio."""
    ended = "token" in answer and bool(answer.get("finish_reason"))
    return ended or answer.get("done") is True or answer.get("type") == "chat.end"


def is_lm_studio(path: str) -> bool:
    """True for the path of LM Studio's own chat, whose conversations are kept by the server."""
    return path.rstrip("/").endswith("/api/v1/chat")


def messages_of(request: Mapping[str, Any], earlier: list[Any]) -> dict[str, Any]:
    """A request of LM Studio's own chat as messages for the template."""
    system = request.get("system_prompt")
    first: list[Any] = []
    if isinstance(system, str) and system:
        first = [{"role": "system", "content": system}]
        earlier = [message for message in earlier if message["role"] != "system"]
    given = request.get("input")
    content = [_part(message) for message in given] if isinstance(given, list) else given
    rest = {key: value for key, value in request.items() if key not in {"input", "system_prompt"}}
    return {**rest, "messages": [*first, *earlier, {"role": "user", "content": content}]}


def _part(part: object) -> Mapping[str, Any]:
    fields = mapping(part)
    if isinstance(fields.get("content"), str):
        return {"type": "text", "text": fields["content"]}
    return fields
