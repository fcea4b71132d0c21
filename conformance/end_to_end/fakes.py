"""Servers with other APIs: each answers in its own dialect, from one small prefix cache.

The reported cache counts are those of the real servers: vLLM and SGLang count cached tokens, bare
OpenAI-compatible servers count prompts alone or nothing, Ollama counts what it evaluated.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from conformance.end_to_end.client import Answer

Json = dict[str, Any]
PIECE: Final = re.compile(r"\[\d+\]|\w+|[^\w\s]")
REPLY: Final = ("[301]", "[302]", "[303]", "[304]")
NDJSON, EVENTS, PLAIN = "application/x-ndjson", "text/event-stream", "application/json"


@dataclass(frozen=True, slots=True)
class Counts:
    """One request's tokens."""

    prompt: int
    cached: int
    generated: int = len(REPLY)

    @property
    def processed(self) -> int:
        return self.prompt - self.cached


@dataclass(slots=True)
class PrefixCache:
    """All prompts so far; a prompt's longest equal beginning is reused, but for its last token."""

    prompts: list[list[str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, prompt: Sequence[str]) -> Counts:
        """Count a prompt, and keep it with its reply."""
        with self.lock:
            most = max((_equal(prompt, each) for each in self.prompts), default=0)
            self.prompts.append([*prompt, *REPLY])
        return Counts(len(prompt), max(0, min(most, len(prompt) - 1)))


def _equal(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


Write = Callable[[Json, Counts], list[Json]]
"""A dialect's answer: the events of a stream, or one whole answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One API: its paths, its requests, its answers."""

    name: str
    path: str
    ask: Callable[[list[Json], bool], Json]
    write: Write
    streams: str = EVENTS
    tells: bool = True
    """True where the answer says how many tokens were cached."""
    counts_prompts: bool = True
    """True where it says how many tokens a prompt had."""


def _messages(messages: list[Json], stream: bool) -> Json:
    return {"model": "toy", "messages": messages, "stream": stream, "max_tokens": 4}


def _with_usage(messages: list[Json], stream: bool) -> Json:
    more = {"stream_options": {"include_usage": True}} if stream else {}
    return _messages(messages, stream) | more


def _prompt(messages: list[Json], stream: bool) -> Json:
    return {"model": "toy", "prompt": _joined(messages), "stream": stream, "max_tokens": 4}


def _joined(messages: list[Json]) -> str:
    return "\n".join(str(message["content"]) for message in messages)


def _openai_chat(body: Json, usage: Json | None) -> list[Json]:
    base = {"id": "chatcmpl-1", "model": "toy", "created": 1}
    if not body.get("stream"):
        message = {"role": "assistant", "content": "".join(REPLY)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        whole: Json = base | {"object": "chat.completion", "choices": [choice]}
        return [whole | ({"usage": usage} if usage else {})]
    chunk = base | {"object": "chat.completion.chunk"}
    events = [
        chunk | {"choices": [{"index": 0, "delta": {"content": each}, "finish_reason": None}]}
        for each in REPLY
    ]
    events.append(chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if usage and body.get("stream_options", {}).get("include_usage"):
        events.append(chunk | {"choices": [], "usage": usage})
    return events


def _usage(counts: Counts) -> Json:
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.generated,
        "total_tokens": counts.prompt + counts.generated,
    }


def _cached_usage(counts: Counts) -> Json:
    return _usage(counts) | {"prompt_tokens_details": {"cached_tokens": counts.cached}}


def _null_usage(counts: Counts) -> Json:
    return _usage(counts) | {"prompt_tokens_details": None}


def _chat(usage: Callable[[Counts], Json | None]) -> Write:
    return lambda body, counts: _openai_chat(body, usage(counts))


def completions(body: Json, counts: Counts) -> list[Json]:
    base: Json = {"id": "cmpl-1", "object": "text_completion", "model": "toy"}
    usage = {"usage": _cached_usage(counts)}
    if not body.get("stream"):
        text = {"index": 0, "text": "".join(REPLY), "finish_reason": "stop"}
        return [base | {"choices": [text]} | usage]
    events = [base | {"choices": [{"index": 0, "text": each}]} for each in REPLY]
    return [*events, base | {"choices": []} | usage]


def responses(body: Json, counts: Counts) -> list[Json]:
    text = {"type": "output_text", "text": "".join(REPLY)}
    whole = {
        "id": "resp_1", "object": "response", "status": "completed", "model": "toy",
        "output": [{"type": "message", "role": "assistant", "content": [text]}],
        "usage": {
            "input_tokens": counts.prompt, "output_tokens": counts.generated,
            "input_tokens_details": {"cached_tokens": counts.cached},
            "total_tokens": counts.prompt + counts.generated,
        },
    }  # fmt: skip
    if not body.get("stream"):
        return [whole]
    deltas = [{"type": "response.output_text.delta", "delta": each} for each in REPLY]
    created = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
    return [created, *deltas, {"type": "response.completed", "response": whole}]


def anthropic(body: Json, counts: Counts) -> list[Json]:
    usage = {
        "input_tokens": counts.processed,
        "cache_read_input_tokens": counts.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": counts.generated,
    }
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "toy"}
    if not body.get("stream"):
        text = [{"type": "text", "text": "".join(REPLY)}]
        return [message | {"content": text, "stop_reason": "end_turn", "usage": usage}]
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": each}}
        for each in REPLY
    ]
    start = {"type": "text", "text": ""}
    return [
        {"type": "message_start", "message": message | {"content": [], "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": start},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": counts.generated}},
        {"type": "message_stop"},
    ]


def ollama_chat(body: Json, counts: Counts) -> list[Json]:
    return _ollama(body, counts, lambda text: {"message": {"role": "assistant", "content": text}})


def ollama_generate(body: Json, counts: Counts) -> list[Json]:
    return _ollama(body, counts, lambda text: {"response": text})


def _ollama(body: Json, counts: Counts, said: Callable[[str], Json]) -> list[Json]:
    """It counts the whole prompt, and nothing of its cache."""
    base = {"model": "toy", "created_at": "2026-11-22T08:00:00.000000Z"}
    end = {
        "done": True, "done_reason": "stop", "total_duration": 9_000_000,
        "load_duration": 1_000_000, "prompt_eval_count": counts.prompt,
        "prompt_eval_duration": 4_000_000, "eval_count": counts.generated,
        "eval_duration": 4_000_000,
    }  # fmt: skip
    if body.get("stream") is False:
        return [base | said("".join(REPLY)) | end]
    return [*(base | said(each) | {"done": False} for each in REPLY), base | said("") | end]


def sglang_generate(body: Json, counts: Counts) -> list[Json]:
    """Each event of a stream has the whole text so far."""
    meta = {
        "id": "1", "finish_reason": {"type": "length", "length": counts.generated},
        "prompt_tokens": counts.prompt, "completion_tokens": counts.generated,
        "cached_tokens": counts.cached, "e2e_latency": 0.1,
    }  # fmt: skip
    if not body.get("stream"):
        return [{"text": "".join(REPLY), "meta_info": meta}]
    return [
        {"text": "".join(REPLY[: at + 1]), "meta_info": meta | {"completion_tokens": at + 1}}
        for at in range(len(REPLY))
    ]


def kobold(body: Json, _counts: Counts) -> list[Json]:
    """It counts nothing."""
    if not body.get("stream"):
        return [{"results": [{"text": "".join(REPLY), "finish_reason": "stop"}]}]
    return [{"token": each, "finish_reason": None} for each in REPLY]


def lm_studio(body: Json, counts: Counts) -> list[Json]:
    """OpenAI's form with statistics of its own."""
    found = _openai_chat(body, _usage(counts))
    found[-1] |= {"stats": {"tokens_per_second": 50.0, "time_to_first_token": 0.1}}
    return found


def llama_completion(body: Json, counts: Counts) -> list[Json]:
    timings = {"cache_n": counts.cached, "prompt_n": counts.processed, "predicted_n": 4}
    end = {
        "content": "", "stop": True, "id_slot": 0, "tokens_evaluated": counts.prompt,
        "tokens_predicted": 4, "tokens_cached": counts.prompt + 3, "timings": timings,
    }  # fmt: skip
    if not body.get("stream"):
        return [end | {"content": "".join(REPLY)}]
    events: list[Json] = [{"content": each, "stop": False, "id_slot": 0} for each in REPLY]
    return [*events, end]


def _ollama_prompt(messages: list[Json], stream: bool) -> Json:
    return {"model": "toy", "prompt": _joined(messages), "stream": stream}


def _ollama_messages(messages: list[Json], stream: bool) -> Json:
    return {"model": "toy", "messages": messages, "stream": stream}


def _anthropic(messages: list[Json], stream: bool) -> Json:
    body = _messages([message for message in messages if message["role"] != "system"], stream)
    system = "\n".join(message["content"] for message in messages if message["role"] == "system")
    return body | ({"system": system} if system else {})


def _responses(messages: list[Json], stream: bool) -> Json:
    return {"model": "toy", "input": messages, "stream": stream, "max_output_tokens": 4}


def _sglang(messages: list[Json], stream: bool) -> Json:
    return {
        "text": _joined(messages),
        "sampling_params": {"max_new_tokens": 4, "temperature": 0},
        "stream": stream,
    }


def _kobold(messages: list[Json], stream: bool) -> Json:
    return {"prompt": _joined(messages), "max_length": 4, "max_context_length": 4096} | (
        {"stream": True} if stream else {}
    )


CHAT: Final = "/v1/chat/completions"
DIALECTS: Final[tuple[Dialect, ...]] = (
    Dialect(name="openai cached", path=CHAT, ask=_with_usage, write=_chat(_cached_usage)),
    Dialect(name="openai uncached", path=CHAT, ask=_with_usage, write=_chat(_usage), tells=False),
    Dialect(name="openai null", path=CHAT, ask=_with_usage, write=_chat(_null_usage), tells=False),
    Dialect(
        name="openai silent", path=CHAT, ask=_messages, write=_chat(lambda _: None), tells=False,
        counts_prompts=False,
    ),
    Dialect(name="openai text", path="/v1/completions", ask=_prompt, write=completions),
    Dialect(name="responses", path="/v1/responses", ask=_responses, write=responses),
    Dialect(name="anthropic", path="/v1/messages", ask=_anthropic, write=anthropic),
    Dialect(name="llama.cpp", path="/completion", ask=_prompt, write=llama_completion),
    Dialect(
        name="ollama chat", path="/api/chat", ask=_ollama_messages, write=ollama_chat,
        streams=NDJSON, tells=False,
    ),
    Dialect(
        name="ollama generate", path="/api/generate", ask=_ollama_prompt, write=ollama_generate,
        streams=NDJSON, tells=False,
    ),
    Dialect(name="sglang", path="/generate", ask=_sglang, write=sglang_generate),
    Dialect(
        name="koboldcpp", path="/api/v1/generate", ask=_kobold, write=kobold, tells=False,
        counts_prompts=False,
    ),
    Dialect(
        name="koboldcpp stream", path="/api/extra/generate/stream", ask=_kobold, write=kobold,
        tells=False, counts_prompts=False,
    ),
    Dialect(
        name="lm studio", path="/api/v0/chat/completions", ask=_with_usage, write=lm_studio,
        tells=False,
    ),
)  # fmt: skip


class Fake(ThreadingHTTPServer):
    """A server of one dialect, with its counts."""

    daemon_threads = True

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.dialect = dialect
        self.cache = PrefixCache()
        self.answers: list[Answer] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def read(self, body: Mapping[str, Any]) -> Counts:
        dialect = self.dialect
        said = [body.get("system", "")]
        for message in body.get("messages") or body.get("input") or ():
            said += [message["role"], str(message["content"])]
        said.append(body.get("prompt") or body.get("text") or "")
        counts = self.cache.read(PIECE.findall("\n".join(map(str, said))))
        self.answers.append(
            Answer(
                path=dialect.path,
                group=len(self.answers),
                status=200,
                prompt=counts.prompt if dialect.counts_prompts else None,
                cached=counts.cached if dialect.tells else None,
            )
        )
        return counts


class _Handler(BaseHTTPRequestHandler):
    """Answers in the dialect of its server."""

    protocol_version = "HTTP/1.1"
    server: Fake

    def do_GET(self) -> None:
        self._send(404, PLAIN, b'{"error": {"message": "not found", "code": 404}}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        dialect = self.server.dialect
        if self.path != dialect.path:
            self.do_GET()
            return
        if body.get("refuse"):
            count = len(self.server.answers)
            self.server.answers.append(Answer(path=dialect.path, group=count, status=400))
            self._send(400, PLAIN, b'{"error": {"message": "too long", "code": 400}}')
            return
        events = dialect.write(body, self.server.read(body))
        streamed = body.get("stream", dialect.streams == NDJSON)
        if not streamed:
            self._send(200, PLAIN, json.dumps(events[0]).encode())
            return
        if dialect.streams == NDJSON:
            lines = [json.dumps(event).encode() + b"\n" for event in events]
        else:
            lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
            lines += [b"data: [DONE]\n\n"] if "chat" in dialect.path else []
        self._send(200, dialect.streams, b"".join(lines))

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def fake(dialect: Dialect) -> Iterator[Fake]:
    with Fake(dialect) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
