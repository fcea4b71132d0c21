"""Recorded requests as JSON Lines: one OpenAI-style request on each line, with what came back.

    {"request": {"messages": [...], "tools": [...]}, "usage": {...}, "timings": {...}}
    {"segments": [{"part": "message 1", "role": "system", "characters": 512, "hashes": [...]}], ...}

A line has the request itself, or, where nobody wants to keep text, a hash for each 64 characters of
each of its parts. `usage` and `timings` are as the server sent them; both may be missing.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from cachesim.errors import InputError

BLOCK: Final = 64
"""Characters that one hash stands for."""

LONGEST_REQUEST: Final = 64 * 2**20
"""Bytes of one line: a request with its whole conversation."""

MOST_KEPT: Final = 2**31
"""Characters of all requests together that are kept."""

PLACES: Final = ("tools", "system", "messages", "prompt", "input_prefix", "input_suffix")
"""Keys of a request whose text is part of the prompt."""


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
        """Its characters."""
        return self.characters or len(self.text)

    @property
    def name(self) -> str:
        """How it is spoken of."""
        where = f"{self.part} ({self.role})" if self.role else self.part
        return where if self.kind in {"text", "tool"} else f"the {self.kind} of {where}"

    def same(self, other: "Segment") -> bool:
        """Whether both have the same text."""
        if self.hashes or other.hashes:
            return (self.hashes, self.length) == (other.hashes, other.length)
        return self.text == other.text and self.kind == other.kind


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of a dump."""

    number: int
    line: int
    segments: tuple[Segment, ...]
    prompt_tokens: int | None
    cached: int | None
    processed: int | None
    generated: int | None
    slot: int | None = None
    cancelled: bool = False
    model: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def characters(self) -> int:
        """Characters of all segments."""
        return sum(each.length for each in self.segments)


def is_dump(head: bytes) -> bool:
    """Whether a file begins like recorded requests, and not like a log."""
    line = head.lstrip()
    return line.startswith(b"{") and any(
        f'"{key}"'.encode() in line for key in ("request", "segments", "messages", "prompt")
    )


def read_dump(name: str, file: BinaryIO) -> list[Recorded]:
    """Every request of a dump; a line that is none is an error that names it."""
    found: list[Recorded] = []
    kept = 0
    number = 0
    while True:
        number += 1
        raw = file.readline(LONGEST_REQUEST + 1)
        if not raw:
            return found
        if not raw.strip():
            continue
        if len(raw) > LONGEST_REQUEST:
            msg = f"{name}:{number}: the line is longer than {LONGEST_REQUEST >> 20} MiB"
            raise InputError(msg)
        recorded = _recorded(name, number, raw, len(found))
        kept += recorded.characters
        if kept > MOST_KEPT:
            msg = f"{name}: more than {MOST_KEPT >> 30} GiB of text; split the file"
            raise InputError(msg)
        found.append(recorded)


def _recorded(name: str, line: int, raw: bytes, number: int) -> Recorded:
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError) as error:
        msg = f"{name}:{line}: is no JSON: {str(error)[:100]}"
        raise InputError(msg) from None
    if not isinstance(entry, dict):
        msg = f"{name}:{line}: is no JSON object; write one request on each line"
        raise InputError(msg)
    request = entry.get("request", entry)
    segments = tuple(_hashed(entry) if "segments" in entry else segments_of(request))
    if not segments:
        msg = f"{name}:{line}: has no messages and no prompt; write an OpenAI-style request"
        raise InputError(msg)
    usage, timings = _mapping(entry.get("usage")), _mapping(entry.get("timings"))
    details = _mapping(usage.get("prompt_tokens_details"))
    cached = _whole(timings.get("cache_n"), details.get("cached_tokens"), entry.get("cached"))
    processed = _whole(timings.get("prompt_n"))
    prompt = _whole(usage.get("prompt_tokens"), entry.get("prompt_tokens"))
    if prompt is None and cached is not None and processed is not None:
        prompt = cached + processed
    if processed is None and prompt is not None and cached is not None:
        processed = prompt - cached
    return Recorded(
        number=number,
        line=line,
        segments=segments,
        prompt_tokens=prompt,
        cached=cached,
        processed=processed,
        generated=_whole(usage.get("completion_tokens"), timings.get("predicted_n")),
        slot=_whole(entry.get("slot"), entry.get("id_slot")),
        cancelled=entry.get("cancelled") is True,
        model=str(_mapping(request).get("model", ""))[:200],
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(*values: object) -> int | None:
    """The first that is a number of tokens."""
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def _hashed(entry: Mapping[str, Any]) -> Iterator[Segment]:
    for each in entry["segments"] if isinstance(entry["segments"], list) else []:
        part = _mapping(each)
        hashes = part.get("hashes", [])
        yield Segment(
            part=str(part.get("part", "prompt"))[:100],
            role=str(part.get("role", ""))[:100],
            kind=str(part.get("kind", "text"))[:100],
            text="",
            hashes=tuple(map(str, hashes)) if isinstance(hashes, list) else (),
            characters=_whole(part.get("characters")) or 0,
        )


def segments_of(request: object) -> list[Segment]:
    """The parts of a request in the order in which templates put them."""
    fields = _mapping(request)
    found = []
    tools = fields.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else [], 1):
        found.append(Segment(f"tool {index}", "", "tool", _canonical(tool)))
    if isinstance(fields.get("system"), str | list):  # as in Anthropic's messages
        found += _content("message 0", "system", fields["system"])
    messages = fields.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else [], 1):
        found += _message(f"message {index}", _mapping(message))
    for key in ("input_prefix", "prompt", "input_suffix"):
        value = fields.get(key)
        if isinstance(value, list):
            value = " ".join(map(str, value))
        if isinstance(value, str):
            found.append(Segment(key, "", "text", value))
    return found


def _message(part: str, message: Mapping[str, Any]) -> Iterator[Segment]:
    role = str(message.get("role", "?"))[:40]
    for key in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(message.get(key), str) and message[key]:
            yield Segment(part, role, "reasoning", message[key])
            break
    yield from _content(part, role, message.get("content"))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        yield Segment(part, role, "tool call", _canonical(call))


def _content(part: str, role: str, content: object) -> Iterator[Segment]:
    if isinstance(content, str):
        yield Segment(part, role, "text", content)
        return
    for each in content if isinstance(content, list) else []:
        piece = _mapping(each)
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
    """JSON as it was sent: the order of keys counts, for a template prints them so."""
    return json.dumps(value, ensure_ascii=False, default=str)
