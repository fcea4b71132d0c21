"""A server that does what a test tells it to, and a recorder in front of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the recorder's tests need the extra: .[record]")

from cachesim.record.plan import Plan, RecordFile
from cachesim.record.proxy import running
from cachesim.record.session import Row, Session
from cachesim.record.tokenizer import ServerTokenizer
from cachesim.why.explain.live import Live
from cachesim.why.explain.schema import requests_schema
from cachesim.why.explain.whole import UserSettings
from tests.schemas import fits, strict

HEAD = b"HTTP/1.1 200 OK\r\nServer: Fake\r\nContent-Type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHAT = "/v1/chat/completions"


@dataclass
class Call:
    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n")[0].decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {k.lower(): v for k, _, v in (line.partition(": ") for line in lines) if k}

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()


Answer = Callable[[Call], Awaitable[None]]


@dataclass
class Upstream:
    """A server on the loopback that answers each connection once."""

    answer: Answer
    url: str = ""
    calls: list[Call] = field(default_factory=list)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            call = Call(head, b"", reader, writer)
            call.body = await _body(call)
            self.calls.append(call)
            await self.answer(call)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _body(call: Call) -> bytes:
    if "content-length" in call.headers:
        return await call.reader.readexactly(int(call.headers["content-length"]))
    body = b""
    while call.headers.get("transfer-encoding") == "chunked":
        size = int((await call.reader.readline()).strip(), 16)
        body += (await call.reader.readexactly(size + 2))[:-2]
        if not size:
            break
    return body


@asynccontextmanager
async def upstream(answer: Answer, host: str = "127.0.0.1") -> AsyncIterator[Upstream]:
    fake = Upstream(answer)
    server = await asyncio.start_server(fake.take, host, 0, limit=1 << 20)
    port = server.sockets[0].getsockname()[1]
    fake.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    try:
        yield fake
    finally:
        server.close()


@dataclass
class Recording:
    """A recorder at work, and what it has written and shown."""

    url: str
    path: Path
    rows: list[Row]
    complaints: list[str]

    @property
    def entries(self) -> list[dict[str, Any]]:
        text = self.path.read_text()
        # A long line is written in parts: the end of the file may be half of one.
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        whole = {line["number"]: line for line in lines if "adds" not in line}
        for line in lines:
            whole[line["number"]] |= line.get("adds", {})
        for entry in whole.values():
            assert fits(entry, strict(requests_schema())), entry
        return list(whole.values())

    async def written(self, count: int) -> list[dict[str, Any]]:
        """The lines, as soon as there are so many."""
        while len(self.entries) < count or not all(
            "seen" in entry for entry in self.entries if entry.get("segments") or "request" in entry
        ):
            await asyncio.sleep(0.02)
        return self.entries


@asynccontextmanager
async def recorder(
    url: str, folder: Path, *, keep_text: bool = False, tokenize: bool = False, **about: Any
) -> AsyncIterator[Recording]:
    path = folder / "recorded.jsonl"
    rows: list[Row] = []
    complaints: list[str] = []
    host = "::1" if "[" in url else "127.0.0.1"
    plan = Plan(
        upstream=url, host=host, port=0, output=path, keep_text=keep_text, tokenize=tokenize
    )
    file = RecordFile(path)

    def opened(proxy: Any, loop: asyncio.AbstractEventLoop) -> Session:
        return Session(
            file,
            keep_text=keep_text,
            tokenizer=ServerTokenizer(url, proxy.session, loop) if tokenize else None,
            live=Live(UserSettings(**about), forgets=True),
            view=rows.append,
            complain=complaints.append,
        )

    async with running(plan, opened) as address:
        yield Recording(address, path, rows, complaints)


def plainly(body: bytes, head: bytes = HEAD) -> Answer:

    async def answer(call: Call) -> None:
        size = f"Content-Length: {len(body)}\r\n\r\n".encode()
        await call.send(head + size + body)

    return answer


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(entry: Any) -> bytes:
    return b"data: " + json.dumps(entry).encode() + b"\n\n"


def delta(text: str) -> bytes:
    """A piece of a reply."""
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


def chat(*texts: str, system: str = "Be kind.", **fields: Any) -> dict[str, Any]:
    """A chat: a system prompt, then user and assistant in turn."""
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": system}]
    messages += [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"messages": messages, **fields}


def counted(prompt: int, cached: int, text: str = "Yes.") -> bytes:
    """An answer that says what was reused."""
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    return json.dumps({"choices": [choice], "usage": usage}).encode()
