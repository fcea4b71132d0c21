"""Requests and answers go through as they came, and what breaks breaks as it would have."""

import asyncio
import gzip
import json
import socket
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.record.kit import (
    CHAT,
    HEAD,
    STREAM,
    Call,
    chat,
    chunk,
    counted,
    delta,
    event,
    plainly,
    recorder,
    upstream,
)

aiohttp = pytest.importorskip("aiohttp", reason="the recorder's tests need the extra: .[record]")

BIG = 50 << 20


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def raw(url: str, request: bytes) -> bytes:
    """Everything that comes back on one connection."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    writer.write(request)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


def test_status_reason_headers_and_body_are_the_servers_own(tmp_path: Path) -> None:
    head = (
        b"HTTP/1.1 418 Short and stout\r\nServer: Fake/1\r\nX-One: a\r\nX-One: b\r\n"
        b"Set-Cookie: k=v\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nContent-Length: 3\r\n\r\n"
    )

    async def answer(call: Call) -> None:
        await call.send(head, b"\x00\xff\n")

    async def test() -> None:
        async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
            got = await raw(
                taking.url, b"GET /odd?a=%2F HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            )
            first, body = got.split(b"\r\n\r\n", 1)
            lines = first.split(b"\r\n")
            assert b"HTTP/1.1 418 Short and stout" == lines[0]
            expected = {b"Server: Fake/1", b"X-One: a", b"X-One: b", b"Set-Cookie: k=v"}
            assert expected | {b"Content-Length: 3", b"Connection: close"} == set(lines[1:])
            assert b"\x00\xff\n" == body
            assert "GET /odd?a=%2F HTTP/1.1" == fake.calls[0].line

    run(test)


def test_the_servers_sees_the_clients_headers_but_those_of_the_connection(tmp_path: Path) -> None:
    async def test() -> None:
        async with upstream(plainly(b"{}")) as fake, recorder(fake.url, tmp_path) as taking:
            await raw(
                taking.url,
                b"POST /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-1\r\n"
                b"TE: trailers\r\nProxy-Authorization: p\r\nConnection: close\r\n"
                b"Content-Length: 2\r\n\r\n{}",
            )
            headers = fake.calls[0].headers
            host = fake.url.removeprefix("http://")
            expected = {"host": host, "authorization": "Bearer sk-1", "content-length": "2"}
            assert expected == {k: v for k, v in headers.items() if k != "connection"}
            assert b"{}" == fake.calls[0].body

    run(test)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "DELETE"])
def test_other_methods_pass(method: str, tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        await call.send(HEAD + b"Allow: GET\r\nContent-Length: 2\r\n\r\n")
        if method != "HEAD":
            await call.send(b"{}")

    async def test() -> None:
        async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
            request = f"{method} /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            got = await raw(taking.url, request.encode())
            assert b"Content-Length: 2" in got
            assert (b"" if method == "HEAD" else b"{}") == got.split(b"\r\n\r\n", 1)[1]
            assert fake.calls[0].line.startswith(method)
        assert [] == taking.entries if taking.path.exists() else True

    run(test)


def test_a_stream_arrives_piece_by_piece(tmp_path: Path) -> None:
    async def test() -> None:
        seen = asyncio.Event()

        async def answer(call: Call) -> None:
            await call.send(STREAM, chunk(delta("one")))
            await seen.wait()  # the second piece is sent only after the first was received
            await call.send(chunk(delta("two")), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n")

        async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
            async with aiohttp.ClientSession() as session:
                answer_ = await session.post(taking.url + CHAT, json=chat("hi", stream=True))
                first = await answer_.content.readuntil(b"\n\n")
                seen.set()
                rest = await answer_.content.read()
            assert delta("one") == first
            assert delta("two") + b"data: [DONE]\n\n" == rest
            (entry,) = await taking.written(1)
            assert [6] == [each["characters"] for each in entry["reply"]]

    run(test)


def test_a_client_that_leaves_is_gone_for_the_server_too(tmp_path: Path) -> None:
    async def test() -> None:
        gone = asyncio.Event()

        async def answer(call: Call) -> None:
            await call.send(STREAM, chunk(delta("one")))
            await call.reader.read()
            gone.set()

        async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
            async with aiohttp.ClientSession() as session:
                got = await session.post(taking.url + CHAT, json=chat("hi", stream=True))
                await got.content.readuntil(b"\n\n")
                got.close()
            await gone.wait()
            (entry,) = await taking.written(1)
            assert entry["cancelled"] is True

    run(test)


@pytest.mark.parametrize(
    "last",
    [
        b"data: [DONE]\n\n",
        event({"type": "message_stop"}),
        event({"content": "", "stop": True, "stop_type": "limit"}),
    ],
    ids=["OpenAI", "Anthropic", "llama-server"],
)
def test_a_client_that_leaves_at_the_last_word_has_cancelled_nothing(
    last: bytes, tmp_path: Path
) -> None:
    async def test() -> None:
        gone = asyncio.Event()

        async def answer(call: Call) -> None:
            await call.send(STREAM, chunk(delta("one")), chunk(last))
            await call.reader.read()  # the end of the body is never sent: the client is quicker
            gone.set()

        async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
            async with aiohttp.ClientSession() as session:
                got = await session.post(taking.url + CHAT, json=chat("hi", stream=True))
                await got.content.readuntil(last)
                got.close()
            await gone.wait()
            (entry,) = await taking.written(1)
            assert entry["cancelled"] is False

    run(test)


def test_a_client_that_leaves_before_the_answer_is_gone_too(tmp_path: Path) -> None:
    async def test() -> None:
        gone = asyncio.Event()

        async def answer(call: Call) -> None:
            await call.reader.read()
            gone.set()

        async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
            async with aiohttp.ClientSession() as session:
                with pytest.raises(asyncio.TimeoutError):
                    await session.post(
                        taking.url + CHAT, json=chat("hi"), timeout=aiohttp.ClientTimeout(0.2)
                    )
            await gone.wait()
            assert [True] == [each["cancelled"] for each in await taking.written(1)]

    run(test)


def test_a_dead_server_is_a_clear_502(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

    async def test() -> None:
        async with (
            recorder(f"http://127.0.0.1:{port}", tmp_path) as taking,
            aiohttp.ClientSession() as session,
        ):
            got = await session.post(taking.url + CHAT, json=chat("hi"))
            assert 502 == got.status
            error = (await got.json())["error"]
            assert "upstream_unreachable" == error["type"]
            assert f"cachesim record: http://127.0.0.1:{port}" in error["message"]
            (entry,) = await taking.written(1)
            assert 502 == entry["status"]

    run(test)


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le"],
    ids=["closed", "no HTTP", "cut head"],
)
def test_an_answer_that_is_none_is_a_502(answer: bytes, tmp_path: Path) -> None:
    async def broken(call: Call) -> None:
        await call.send(answer)

    async def test() -> None:
        async with upstream(broken) as fake, recorder(fake.url, tmp_path) as taking:
            async with aiohttp.ClientSession() as session:
                got = await session.post(taking.url + CHAT, json=chat("hi"))
            assert 502 == got.status

    run(test)


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_the_servers_errors_are_its_own(status: int, tmp_path: Path) -> None:
    body = json.dumps({"error": {"type": "exceed_context_size_error", "message": "too long"}})
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\n".encode()

    async def test() -> None:
        async with (
            upstream(plainly(body.encode(), head)) as fake,
            recorder(fake.url, tmp_path) as taking,
            aiohttp.ClientSession() as session,
        ):
            got = await session.post(taking.url + CHAT, json=chat("hi"))
            assert (status, body) == (got.status, await got.text())
            (entry,) = await taking.written(1)
            assert (status, "exceed_context_size_error") == (entry["status"], entry["error"])
            assert "too long" not in taking.path.read_text()

    run(test)


@pytest.mark.parametrize("cut", [b"5\r\nab", b"zz\r\n", b""], ids=["cut", "no size", "no end"])
def test_a_malformed_stream_breaks_where_it_would_have(cut: bytes, tmp_path: Path) -> None:
    async def test() -> None:
        seen = asyncio.Event()

        async def answer(call: Call) -> None:
            await call.send(STREAM, chunk(delta("one")))
            await seen.wait()
            await call.send(cut)

        async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
            async with aiohttp.ClientSession() as session:
                got = await session.post(taking.url + CHAT, json=chat("hi", stream=True))
                assert 200 == got.status
                assert delta("one") == await got.content.readuntil(b"\n\n")
                seen.set()
                with pytest.raises(aiohttp.ClientError):
                    await got.content.read()
                got.close()
            (entry,) = await taking.written(1)
            assert entry["error"]

    run(test)


@pytest.mark.thorough
def test_a_body_of_50_mb_goes_through(tmp_path: Path) -> None:
    request = json.dumps(chat("x" * BIG)).encode()

    async def test() -> None:
        async with upstream(plainly(counted(9, 0))) as fake, recorder(fake.url, tmp_path) as taking:
            async with aiohttp.ClientSession() as session:
                got = await session.post(taking.url + CHAT, data=BytesIO(request))
                assert 200 == got.status
            assert fake.calls[0].body == request
            (entry,) = await taking.written(1)
            assert BIG == entry["segments"][1]["characters"]

    run(test)


def test_a_slow_client_slows_the_server_and_fills_no_memory(tmp_path: Path) -> None:
    async def test() -> None:
        sent = 0

        async def answer(call: Call) -> None:
            nonlocal sent
            await call.send(STREAM)
            for _ in range(1000):
                await call.send(chunk(b": " + b"x" * 65_000 + b"\n\n"))
                sent += 65_000

        async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
            host, _, port = taking.url.removeprefix("http://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 10)
            body = json.dumps(chat("hi", stream=True)).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await reader.readuntil(b"\r\n\r\n")
            before = -1
            while before != sent:  # until it does not get any further
                before = sent
                await asyncio.sleep(0.3)
            assert 0 < sent < 30_000_000  # what the kernel's own buffers hold, of 65 MB
            writer.close()

    run(test)


def test_packed_answers_and_requests_pass_as_they_are_and_are_read(tmp_path: Path) -> None:
    packed = gzip.compress(counted(100, 64))
    sent = gzip.compress(json.dumps(chat("hi")).encode())

    async def test() -> None:
        answer = plainly(packed, HEAD + b"Content-Encoding: gzip\r\n")
        async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
            head += f"Connection: close\r\nContent-Length: {len(sent)}\r\n\r\n"
            got = await raw(taking.url, head.encode() + sent)
            assert packed == got.split(b"\r\n\r\n", 1)[1]
            assert sent == fake.calls[0].body
            (entry,) = await taking.written(1)
            assert 100 == entry["usage"]["prompt_tokens"]
            assert 2 == len(entry["segments"])

    run(test)


def test_websockets_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with upstream(plainly(b"{}")) as fake, recorder(fake.url, tmp_path) as taking:
            got = await raw(
                taking.url,
                b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
                b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            )
            assert got.startswith(b"HTTP/1.1 501 ")
            assert b"the recorder passes no WebSockets" in got

    run(test)


def test_connections_are_kept_open(tmp_path: Path) -> None:
    async def test() -> None:
        async with upstream(plainly(b"{}")) as fake, recorder(fake.url, tmp_path) as taking:
            one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
            last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            got = await raw(taking.url, one + one + last)
            assert 3 == got.count(b"HTTP/1.1 200 OK")
            assert 3 == len(fake.calls)

    run(test)


def test_it_speaks_over_ipv6_too(tmp_path: Path) -> None:
    async def test() -> None:
        try:
            async with (
                upstream(plainly(b"{}"), "::1") as fake,
                recorder(fake.url, tmp_path) as taking,
            ):
                request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                assert (await raw(taking.url, request)).endswith(b"{}")
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")

    run(test)


def test_eight_clients_at_once_get_each_their_own(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        text = json.loads(call.body)["messages"][1]["content"]
        await call.send(STREAM)
        for index in range(20):
            await call.send(chunk(delta(f"{text}-{index} ")))
            await asyncio.sleep(0.001)
        await call.send(chunk(event({"usage": {"prompt_tokens": 5}})), b"0\r\n\r\n")

    async def one(session: Any, url: str, name: str) -> str:
        got = await session.post(url + CHAT, json=chat(name, stream=True))
        return str(await got.text())

    async def test() -> None:
        async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
            names = [f"c{index}" for index in range(8)]
            async with aiohttp.ClientSession() as session:
                texts = await asyncio.gather(*(one(session, taking.url, each) for each in names))
            tail = event({"usage": {"prompt_tokens": 5}}).decode()
            for name, text in zip(names, texts, strict=True):
                said = "".join(delta(f"{name}-{index} ").decode() for index in range(20))
                assert said + tail == text
            assert list(range(8)) == [each["number"] for each in await taking.written(8)]

    run(test)
