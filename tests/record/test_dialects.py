"""Servers with an API of their own, played by fakes: two turns, whole and streamed."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cachesim.why.explain.live import report_of_dump
from tests.dumps import read_dump
from tests.record.kit import HEAD, Call, chunk, plainly, recorder, upstream

Json = dict[str, Any]
SYSTEM = "Answer in one word. " * 12
FIRST, REPLY, SECOND = "What is the capital of France? " * 4, "Paris, of course.", "And of Italy?"
EVENTS, LINES = "text/event-stream", "application/x-ndjson"


def pieces() -> list[str]:
    return [REPLY[:5], REPLY[5:9], REPLY[9:]]


def chat(*texts: str) -> list[Json]:
    roles = ("system", "user", "assistant", "user")
    return [{"role": r, "content": t} for r, t in zip(roles, (SYSTEM, *texts), strict=False)]


def ollama(prompt: int, cached: int | None) -> Json:
    found = {"prompt_eval_count": prompt, "eval_count": 4, "total_duration": 5}
    return found | ({} if cached is None else {"prompt_eval_cached_count": cached})


def ollama_chat(prompt: int, cached: int | None, *, stream: bool) -> list[Json]:
    texts = pieces() if stream else [REPLY]
    parts = [{"message": {"role": "assistant", "content": t}, "done": False} for t in texts]
    if not stream:
        return [parts[0] | {"done": True} | ollama(prompt, cached)]
    return [*parts, {"message": {"content": ""}, "done": True, **ollama(prompt, cached)}]


def ollama_generate(prompt: int, cached: int | None, *, stream: bool) -> list[Json]:
    if not stream:
        return [{"response": REPLY, "done": True, "context": [1, 2], **ollama(prompt, cached)}]
    parts = [{"response": text, "done": False} for text in pieces()]
    return [*parts, {"response": "", "done": True, **ollama(prompt, cached)}]


def sglang(prompt: int, cached: int | None, *, stream: bool) -> list[Json]:
    meta = {"prompt_tokens": prompt, "completion_tokens": 4, "cached_tokens": cached}
    ends = [5, 9, len(REPLY)] if stream else [len(REPLY)]
    return [{"text": REPLY[:end], "meta_info": meta} for end in ends]


def kobold(prompt: int, _: int | None, *, stream: bool) -> list[Json]:
    if not stream:
        counts = {"prompt_tokens": prompt, "completion_tokens": 4}
        return [{"results": [{"text": REPLY, "finish_reason": "stop", **counts}]}]
    parts: list[Json] = [{"token": text, "finish_reason": None} for text in pieces()]
    return [*parts, {"token": "", "finish_reason": "stop"}]


def lm_studio(prompt: int, _: int | None, *, stream: bool) -> list[Json]:
    output = [{"type": "reasoning", "content": "Easy."}, {"type": "message", "content": REPLY}]
    stats = {"input_tokens": prompt, "total_output_tokens": 4, "tokens_per_second": 9.5}
    result = {"output": output, "stats": stats, "response_id": f"resp_{prompt}"}
    if not stream:
        return [result]
    parts = [{"type": "message.delta", "content": text} for text in pieces()]
    first = [{"type": "chat.start"}, {"type": "reasoning.delta", "content": "Easy."}]
    return [*first, *parts, {"type": "chat.end", "result": result}]


def lm_studio_v0(prompt: int, _: int | None, *, stream: bool) -> list[Json]:
    counts = {"prompt_tokens": prompt, "completion_tokens": 4}
    if not stream:
        message = {"role": "assistant", "content": REPLY}
        return [{"choices": [{"index": 0, "message": message}], "usage": counts, "stats": {}}]
    deltas: list[Json] = [{"choices": [{"index": 0, "delta": {"content": t}}]} for t in pieces()]
    return [*deltas, {"choices": [], "usage": counts}]


@dataclass(frozen=True)
class Dialect:
    path: str
    turns: tuple[Json, Json]
    answer: Callable[..., list[Json]]
    streams_as: str = EVENTS
    reports_cached: bool = True
    reports_streamed: bool = True
    ends: bytes = b""


PLAIN = {"prompt": f"{SYSTEM}{FIRST}"}, {"prompt": f"{SYSTEM}{FIRST}{REPLY}{SECOND}"}
DIALECTS = {
    "ollama-chat": Dialect(
        "/api/chat",
        ({"messages": chat(FIRST)}, {"messages": chat(FIRST, REPLY, SECOND)}),
        ollama_chat,
        LINES,
    ),
    "ollama-generate": Dialect("/api/generate", PLAIN, ollama_generate, LINES),
    "sglang": Dialect(
        "/generate",
        ({"text": PLAIN[0]["prompt"]}, {"text": PLAIN[1]["prompt"]}),
        sglang,
        ends=b"data: [DONE]\n\n",
    ),
    "kobold": Dialect(
        "/api/v1/generate", PLAIN, kobold, reports_cached=False, reports_streamed=False
    ),
    "kobold-latest": Dialect(
        "/api/latest/generate/", PLAIN, kobold, reports_cached=False, reports_streamed=False
    ),
    "kobold-stream": Dialect(
        "/api/extra/generate/stream", PLAIN, kobold, reports_cached=False, reports_streamed=False
    ),
    "lm-studio": Dialect(
        "/api/v1/chat",
        (
            {"system_prompt": SYSTEM, "input": FIRST},
            {"system_prompt": SYSTEM, "input": SECOND, "previous_response_id": "resp_100"},
        ),
        lm_studio,
        reports_cached=False,
    ),
    "lm-studio-v0": Dialect(
        "/api/v0/chat/completions",
        ({"messages": chat(FIRST)}, {"messages": chat(FIRST, REPLY, SECOND)}),
        lm_studio_v0,
        reports_cached=False,
    ),
}


def whole(answer: list[Json]) -> bytes:
    body = json.dumps(answer[0]).encode()
    return HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def streamed(answer: list[Json], kind: str, end: bytes) -> bytes:
    """A stream in pieces that end in the middle of lines."""
    prefix, gap = (b"", b"\n") if kind == LINES else (b"event: message\ndata: ", b"\n\n")
    text = b"".join(prefix + json.dumps(each).encode() + gap for each in answer) + end
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
    cut = [chunk(text[at : at + 37]) for at in range(0, len(text), 37)]
    return head.encode() + b"".join(cut) + b"0\r\n\r\n"


async def recorded(
    dialect: Dialect, folder: Path, *, stream: bool, keep_text: bool = False
) -> list[Json]:
    calls = 0

    async def answer(call: Call) -> None:
        nonlocal calls
        calls += 1
        counts = (100, 0) if calls == 1 else (160, 90)
        found = dialect.answer(*counts, stream=stream)
        kind = dialect.streams_as
        await call.send(streamed(found, kind, dialect.ends) if stream else whole(found))

    async with (
        upstream(answer) as server,
        recorder(server.url, folder, keep_text=keep_text) as found,
        aiohttp.ClientSession() as client,
    ):
        for turn in dialect.turns:
            url = f"{found.url}{dialect.path}"
            async with client.post(url, json=turn | {"model": "m", "stream": stream}) as got:
                assert 200 == got.status
                await got.read()
        return await found.written(2)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", DIALECTS)
async def test_two_turns_are_recorded(name: str, stream: bool, tmp_path: Path) -> None:
    dialect = DIALECTS[name]
    first, second = await recorded(dialect, tmp_path, stream=stream)
    with (tmp_path / "recorded.jsonl").open("rb") as file:
        found = report_of_dump(read_dump("recorded.jsonl", file), source="recorded.jsonl")

    known = dialect.reports_streamed or not stream
    reply = {each["kind"]: each["characters"] for each in first["reply"]}
    assert len(REPLY) == reply["text"]
    assert "unread" not in first | second
    assert [False, False] == [each["cancelled"] for each in (first, second)]
    assert [100, 160] == [request["prompt_tokens"] for request in found["requests"]] or not known
    cached = [0, 90] if dialect.reports_cached else [None, None]
    assert cached == [request["cached"] for request in found["requests"]]
    assert [None, 0] == [request["continues"] for request in found["requests"]]
    assert [None, None] == [request["parting"] for request in found["requests"]]
    assert SYSTEM not in (tmp_path / "recorded.jsonl").read_text()


@pytest.mark.parametrize("name", DIALECTS)
async def test_kept_texts_are_the_same_prompts(name: str, tmp_path: Path) -> None:
    await recorded(DIALECTS[name], tmp_path, stream=False, keep_text=True)
    with (tmp_path / "recorded.jsonl").open("rb") as file:
        requests = read_dump("recorded.jsonl", file)

    for request, texts in zip(
        requests, ([SYSTEM, FIRST], [SYSTEM, FIRST, REPLY, SECOND]), strict=True
    ):
        kept = [segment.text for segment in request.segments if segment.kind == "text"]
        assert "".join(texts) == "".join(kept)


@pytest.mark.parametrize(
    ("path", "asked", "why"),
    [
        ("/api/generate", {"prompt": "and?", "context": [1, 2]}, "continues tokens of an earlier"),
        ("/v1/responses", {"input": "and?", "previous_response_id": "r"}, "that the server keeps"),
        ("/api/v1/chat", {"input": "and?", "previous_response_id": "r"}, "that the server keeps"),
        ("/generate", {"text": ["one", "two"]}, "has several prompts in one request (text)"),
        ("/api/chat", {"model": "loads it", "messages": []}, "has no messages and no prompt"),
        ("/generate", {"inputs": "an API that is not known"}, "has no messages and no prompt"),
    ],
)
async def test_a_prompt_that_is_not_in_the_request_is_named(
    path: str, asked: Json, why: str, tmp_path: Path
) -> None:
    async with (
        upstream(plainly(b'{"done": true}')) as server,
        recorder(server.url, tmp_path) as found,
        aiohttp.ClientSession() as client,
    ):
        await (await client.post(f"{found.url}{path}", json=asked)).read()
        (entry,) = await found.written(1)

    assert why in entry["unread"]
    assert [] == entry["segments"]


async def test_images_beside_a_text_are_attachments(tmp_path: Path) -> None:
    turn = {"messages": [{"role": "user", "content": "What is it?", "images": ["aGVsbG8="]}]}
    dialect = Dialect("/api/chat", (turn, turn), ollama_chat, LINES)

    first, _ = await recorded(dialect, tmp_path, stream=True)

    assert ["text", "attachment"] == [segment["kind"] for segment in first["segments"]]


async def test_a_stream_of_sglang_may_bring_only_what_is_new(tmp_path: Path) -> None:
    def parts(prompt: int, cached: int, *, stream: bool) -> list[Json]:
        del stream
        meta = {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": 4}
        return [{"text": text, "meta_info": meta} for text in pieces()]

    dialect = Dialect("/generate", DIALECTS["sglang"].turns, parts)
    first, _ = await recorded(dialect, tmp_path, stream=True)

    assert [len(REPLY)] == [each["characters"] for each in first["reply"]]
