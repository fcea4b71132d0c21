"""A proxied request with its answer, which is parsed for usage, timings and the reply.

    data: {"choices": [{"delta": {"content": "Four"}}]}     the reply grows
    data: {"usage": {...}, "timings": {...}}                the numbers
    data: [DONE]

Bytes are parsed after they were forwarded, and memory stays bounded however long a stream is.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cachesim.typed import mapping
from cachesim.why.read.dump import LONGEST_REQUEST
from cachesim.why.read.segments import is_last, texts_of, usage_of
from cachesim.why.read.slot_actions import ACTIONS

MOST_REPLY: Final = 8 << 20
"""Most characters of a reply that are parsed; further ones are counted."""

MOST_AT_ONCE: Final = 16 << 20
"""Most bytes of an answer without a stream, or of a line of a stream."""

BATCH: Final = 1 << 14
"""Bytes of a stream buffered before they are parsed."""

LONGEST_PATH: Final = 200

DONE: Final = b"[DONE]"
"""End marker of OpenAI's streams; clients may disconnect after it."""

NUMBERS: Final = (
    b'"usage"', b'"timings"', b'"error"', b'"prompt_progress"', DONE, b'"stop', b'"eval_count"',
    b'"meta_info"', b'"chat.end"', b'"finish_reason"',
)  # fmt: skip
"""Keys of the lines that are still parsed when the reply is long enough."""

LAST: Final = frozenset(("message_stop", "response.completed", "response.incomplete"))
"""Last events of streams without such a word: Anthropic's messages, responses."""

EVENTS: Final = "text/event-stream"
LINES: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl")
"""Content types of streams with an object per line, such as Ollama's."""

FACTS: Final = (
    "model", "system_fingerprint", "id_slot", "tokens_evaluated", "response_id", "n_saved",
    "n_restored", "n_erased",
)  # fmt: skip
"""Recorded fields of an answer besides counts and texts."""

MOVED: Final = ("n_saved", "n_restored", "n_erased")
"""Counts in answers to `/slots/N?action=...`."""

ZLIB_OR_GZIP: Final = 47  # window bits: either header is recognised


@dataclass(slots=True)
class AnswerFields:
    """Fields of an answer."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    characters: int = 0
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    ended: bool = False  # the answer is complete


class AnswerReader:
    """Incremental parser of an answer's bytes."""

    def __init__(self) -> None:
        self.fields = AnswerFields()
        self.size = 0
        self.is_stream = False
        self._prefix = b"data:"  # of the lines of a stream that hold an object
        self.unread = ""  # why the answer was not read
        self._held: list[bytes] = []
        self._held_size = 0
        self._rest = b""
        self._skipping = False
        self._unpack: Any = None

    def opened(self, content_type: str, encoding: str) -> None:
        """Parse the head of the answer."""
        kind = content_type.lower()
        if kind.startswith(LINES):
            self._prefix = b""
        self.is_stream = kind.startswith((EVENTS, *LINES))
        encoding = encoding.strip().lower()
        if encoding in {"gzip", "deflate", "x-gzip"}:
            self._unpack = zlib.decompressobj(wbits=ZLIB_OR_GZIP)
        elif encoding not in {"", "identity"}:
            self.unread = f"the answer is packed with {encoding[:20]!r}"

    def feed(self, chunk: bytes) -> bool:
        """Hold bytes that were forwarded; True if there are enough to be parsed."""
        self.size += len(chunk)
        if self.unread:
            return False
        self._held.append(chunk)
        self._held_size += len(chunk)
        if self.is_stream:
            return self._held_size >= BATCH
        if self._held_size > MOST_AT_ONCE:
            self.unread = f"the answer is longer than {MOST_AT_ONCE >> 20} MiB"
            self._held.clear()
        return False

    def parse(self) -> None:
        """Parse what is held of a stream; it may take long, and is no work for the event loop."""
        if self.is_stream and not self.unread:
            self._read_stream()

    def close(self) -> AnswerFields:
        """Parse the rest at the end."""
        if not self.unread and self.is_stream:
            self._read_stream()
            self._take_line(self._rest)
        elif not self.unread and self._held:
            self._take(self._plain())
        self._held.clear()
        self._rest = b""
        return self.fields

    def _plain(self) -> bytes:
        data = b"".join(self._held)
        self._held.clear()
        self._held_size = 0
        if self._unpack is None:
            return data
        try:
            plain: bytes = self._unpack.decompress(data, MOST_AT_ONCE)
        except zlib.error:
            self.unread = "the answer's packing is damaged"
            return b""
        if self._unpack.unconsumed_tail:
            self.unread = f"the answer unpacks to more than {MOST_AT_ONCE >> 20} MiB"
        return plain

    def _read_stream(self) -> None:
        *lines, self._rest = (self._rest + self._plain()).split(b"\n")
        for line in lines:
            if not self._skipping:
                self._take_line(line)
            self._skipping = False
        if len(self._rest) > MOST_AT_ONCE:
            self._rest, self._skipping = b"", True

    def _take_line(self, line: bytes) -> None:
        if not line.startswith(self._prefix):
            return
        if self.fields.characters > MOST_REPLY and not any(word in line for word in NUMBERS):
            return
        self._take(line.removeprefix(self._prefix))

    def _take(self, text: bytes) -> None:
        if text.strip() == DONE:
            self.fields.ended = True
            return
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError):
            return
        for part in entry if isinstance(entry, list) else [entry]:
            if isinstance(part, dict):
                take(self.fields, part)
                self.fields.ended |= not self.is_stream or (
                    part.get("stop") is True or str(part.get("type")) in LAST or is_last(part)
                )


def take(fields: AnswerFields, entry: Mapping[str, Any]) -> None:
    """Extract the recorded fields from an object of an answer, in the shapes of all servers."""
    message = mapping(entry.get("message"))  # Anthropic's `message_start`
    response = mapping(entry.get("response"))  # the last event of OpenAI's responses
    result = mapping(entry.get("result"))  # the last event of LM Studio's chats
    for source in (message, response, result, entry):
        fields.usage |= mapping(source.get("usage")) | usage_of(source)
        fields.timings |= mapping(source.get("timings"))
        fields.progress |= mapping(source.get("prompt_progress"))
        for key in FACTS:
            if isinstance(source.get(key), str | int):
                fields.facts[key] = source[key]
    if "error" in entry:
        fields.error = _error_of(entry["error"])
    if "meta_info" in entry and isinstance(entry.get("text"), str):
        _replace_text(fields, entry["text"])
    for kind, text in texts(entry):
        room = MOST_REPLY - fields.characters
        fields.characters += len(text)
        if room > 0:
            pieces = {"reasoning": fields.reasoning, "tool call": fields.calls}
            pieces.get(kind, fields.text).append(text[:room])


def _replace_text(fields: AnswerFields, text: str) -> None:
    """SGLang's text: each event has the whole reply so far or, by configuration, its end."""
    so_far = "".join(fields.text)
    fields.text[:] = [(text if text.startswith(so_far) else so_far + text)[:MOST_REPLY]]
    fields.characters = len(fields.text[0])


def texts(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and text that an object adds to the first reply."""
    choices = entry.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        fields = mapping(choice)
        if fields.get("index", 0) != 0:
            continue
        if isinstance(fields.get("text"), str):
            yield "text", fields["text"]
        yield from _of_message(mapping(fields.get("delta") or fields.get("message")))
    if "done" in entry:  # Ollama's chat
        yield from _of_message(mapping(entry.get("message")))
    yield from texts_of(entry)
    content = entry.get("content")
    if isinstance(content, str):  # llama-server's `/completion` and `/infill`, LM Studio's events
        yield "reasoning" if entry.get("type") == "reasoning.delta" else "text", content
    for block in content if isinstance(content, list) else []:
        yield from _of_block(mapping(block))
    yield from _of_block(mapping(entry.get("delta")))
    yield from _of_response(entry)


PIECES: Final = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.function_call_arguments.delta": "tool call",
}
"""Events with a part of a response."""


def _of_response(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A part of a streamed response, or the items of a whole one."""
    kind = PIECES.get(str(entry.get("type")))
    if kind is not None and isinstance(entry.get("delta"), str):
        yield kind, entry["delta"]
    items = entry.get("output")
    for item in map(mapping, items if isinstance(items, list) else []):
        content = item.get("content")
        blocks = [{"text": content}] if isinstance(content, str) else content
        for block in map(mapping, blocks if isinstance(blocks, list) else []):
            if isinstance(block.get("text"), str):
                yield "reasoning" if item.get("type") == "reasoning" else "text", block["text"]
        for key in ("name", "arguments"):
            if isinstance(item.get(key), str):
                yield "tool call", item[key]


def _of_message(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(message.get(key), str):
            yield "reasoning", message[key]
            break
    if isinstance(message.get("content"), str):
        yield "text", message["content"]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = mapping(mapping(call).get("function"))
        for key in ("name", "arguments"):
            if isinstance(function.get(key), str):
                yield "tool call", function[key]
        if isinstance(function.get("arguments"), dict):  # Ollama's
            yield "tool call", json.dumps(function["arguments"])


def _of_block(block: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, kind in (("thinking", "reasoning"), ("text", "text"), ("partial_json", "tool call")):
        if isinstance(block.get(key), str):
            yield kind, block[key]


def _error_of(error: object) -> str:
    fields = mapping(error)
    for key in ("type", "code"):
        if isinstance(fields.get(key), str | int):
            return str(fields[key])[:80]
    return "error"


RECORDED: Final = (
    "/chat/completions",
    "/completions",
    "/completion",
    "/infill",
    "/v1/messages",
    "/v1/responses",
    "/api/chat",  # Ollama
    "/generate",  # Ollama, SGLang, KoboldCpp
    "/generate/stream",  # KoboldCpp
    "/api/v1/chat",  # LM Studio
)
"""Ends of paths whose requests hold a prompt."""

NAMED: Final = frozenset(part for path in RECORDED for part in path.split("/") if part) | frozenset(
    ("v0", "v1", "v2", "v3", "v4", "api", "openai", "anthropic", "latest", "extra", "slots")
)
"""Parts of paths that APIs have; any other one may be a key, a user's name or a machine's."""

SHORT: Final = re.compile(r"\d{0,4}")
"""A slot's number, or nothing between two slashes."""

WORDS: Final = re.compile(r"v\d{1,2}|\d{1,4}|[a-z]{2,16}([_-][a-z]{2,16}){0,2}")
"""Parts of paths that are shown on the terminal, where no file keeps them."""


def path_kept(path: str) -> str:
    """The path of a recorded request: parts that no API names are masked, as keys may stand there.

    /sk-1234/v1/chat/completions      /*/v1/chat/completions
    """
    parts = path[:LONGEST_PATH].split("/")
    return "/".join(part if part in NAMED or SHORT.fullmatch(part) else "*" for part in parts)


def path_shown(path: str) -> str:
    """A printable path: without a query, and without parts that may be secret."""
    parts = path[:LONGEST_PATH].split("/")
    return "/".join(part if WORDS.fullmatch(part) or not part else "*" for part in parts)


SLOT: Final = re.compile(r"/slots/(\d{1,4})/?$")


def holds_prompt(method: str, path: str) -> bool:
    """True if a call is recorded; others are only forwarded."""
    return method == "POST" and path.rstrip("/").endswith(RECORDED)


def slot_action(method: str, path: str, query: Mapping[str, str]) -> tuple[str, int] | None:
    """Action and slot of a call of llama-server's `/slots/N?action=...`."""
    found = SLOT.search(path) if method == "POST" else None
    action = query.get("action", "")
    return None if found is None or action not in ACTIONS else (action, int(found[1]))


@dataclass(slots=True)
class Body:
    """The bytes of a request, up to the longest that is recorded."""

    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    encoding: str = ""
    ended: bool = False  # all of it was forwarded

    def add(self, chunk: bytes) -> None:
        """Add forwarded bytes."""
        self.size += len(chunk)
        if self.size <= LONGEST_REQUEST:
            self.chunks.append(chunk)
        else:
            self.chunks.clear()

    @property
    def is_whole(self) -> bool:
        return self.size <= LONGEST_REQUEST


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request and its answer; times are seconds, `began` since 1970, the others since then."""

    number: int
    path: str  # without what may be a key
    client: str
    began: float
    body: Body
    answer: AnswerReader
    action: tuple[str, int] | None = None  # on which slot, where it is no request with a prompt
    status: int | None = None
    first_byte: float | None = None
    seconds: float | None = None
    cancelled: bool = False  # the client disconnected before the end of the answer
    broken: str = ""  # what went wrong between server and recorder
    on_disk: Callable[[], object] | None = None  # called once its line is written

    def add_chunk(self, chunk: bytes, seconds: float) -> bool:
        """Record a forwarded chunk of the answer; True if there is enough to be parsed."""
        if self.first_byte is None:
            self.first_byte = seconds
        return self.answer.feed(chunk)
