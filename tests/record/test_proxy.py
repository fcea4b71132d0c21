"""Requests and answers go through as they came, and what breaks breaks as it would have."""

import asyncio
import gzip
import json
import logging
import socket
import stat
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from cachesim.errors import InputError
from cachesim.record.plan import check_no_circle, is_loopback, place_of, upstream_of
from cachesim.record.proxy import Faults
from cachesim.why.explain.live import report_of_dump
from tests.dumps import read_dump
from tests.record.kit import (
    CHAT,
    HEAD,
    STREAM,
    Call,
    Recording,
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


async def raw(url: str, request: bytes) -> bytes:
    """Everything that comes back on one connection."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    writer.write(request)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


async def test_status_reason_headers_and_body_are_the_servers_own(tmp_path: Path) -> None:
    head = (
        b"HTTP/1.1 418 Short and stout\r\nServer: Fake/1\r\nX-One: a\r\nX-One: b\r\n"
        b"Set-Cookie: k=v\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nContent-Length: 3\r\n\r\n"
    )

    async def answer(call: Call) -> None:
        await call.send(head, b"\x00\xff\n")

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


async def test_the_servers_sees_the_clients_headers_but_those_of_the_connection(
    tmp_path: Path,
) -> None:
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


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "DELETE"])
async def test_other_methods_pass(method: str, tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        await call.send(HEAD + b"Allow: GET\r\nContent-Length: 2\r\n\r\n")
        if method != "HEAD":
            await call.send(b"{}")

    async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
        request = f"{method} /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        got = await raw(taking.url, request.encode())
        assert b"Content-Length: 2" in got
        assert (b"" if method == "HEAD" else b"{}") == got.split(b"\r\n\r\n", 1)[1]
        assert fake.calls[0].line.startswith(method)
    assert [] == taking.entries if taking.path.exists() else True


async def test_a_stream_arrives_piece_by_piece(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("last", "cancelled"),
    [
        ([], True),
        ([b"data: [DONE]\n\n"], False),
        ([event({"type": "message_stop"})], False),
        ([event({"content": "", "stop": True, "stop_type": "limit"})], False),
    ],
    ids=["in the middle", "OpenAI", "Anthropic", "llama-server"],
)
async def test_a_client_that_leaves_is_gone_for_the_server_and_has_cancelled_unless_all_was_said(
    last: list[bytes], cancelled: bool, tmp_path: Path
) -> None:
    gone, pieces = asyncio.Event(), [delta("one"), *last]

    async def answer(call: Call) -> None:
        await call.send(STREAM, *map(chunk, pieces))
        await call.reader.read()  # the end of the body is never sent: the client is quicker
        gone.set()

    async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
        async with aiohttp.ClientSession() as session:
            got = await session.post(taking.url + CHAT, json=chat("hi", stream=True))
            await got.content.readuntil(pieces[-1])
            got.close()
        await gone.wait()
        assert [cancelled] == [each["cancelled"] for each in await taking.written(1)]


async def test_a_client_that_leaves_before_the_answer_is_gone_too(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("where", ["prepare", "write", "write_eof"])
async def test_a_client_that_leaves_at_any_moment_is_no_fault_of_the_server(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("aiohttp", "asyncio"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    faults, real = Faults(), getattr(aiohttp.web.StreamResponse, where)

    async def leaves(response: Any, *given: Any) -> None:
        request = given[0] if where == "prepare" else response._req
        request.transport.abort()
        await real(response, *given)

    monkeypatch.setattr(aiohttp.web.StreamResponse, where, leaves)
    async with (
        upstream(lambda call: call.send(STREAM, chunk(delta("one")), b"0\r\n\r\n")) as fake,
        recorder(fake.url, tmp_path) as taking,
    ):
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await (await session.post(taking.url + CHAT, json=chat("hi", stream=True))).read()
        (entry,) = await taking.written(1)
    before_its_line = where != "write_eof"  # the end of an answer comes after its line
    assert before_its_line == entry["cancelled"]
    assert "error" not in entry
    assert (200, [], []) == (entry["status"], [*faults.malformed], [*faults.others])


async def test_a_request_whose_client_left_before_its_end_is_not_said_to_be_no_json(
    tmp_path: Path,
) -> None:
    async with upstream(plainly(b"{}")) as fake, recorder(fake.url, tmp_path) as taking:
        port = int(taking.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST %s HTTP/1.1\r\nHost: x\r\n" % CHAT.encode())
        writer.write(b"Content-Length: 500\r\n\r\n{")
        while not taking.path.read_bytes():
            await asyncio.sleep(0.05)
            writer.close()
        (entry,) = taking.entries
    assert entry["cancelled"]
    assert "the request was not forwarded whole" == entry["unread"]


async def test_a_dead_server_is_a_clear_502(tmp_path: Path) -> None:
    # Bound and not listening: a released port may become the recorder's own.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with recorder(url, tmp_path) as taking, aiohttp.ClientSession() as session:
            got = await session.post(taking.url + CHAT, json=chat("hi"))
            assert 502 == got.status
            error = (await got.json())["error"]
            assert "upstream_unreachable" == error["type"]
            assert f"cachesim record: {url}" in error["message"]
            assert [502] == [each["status"] for each in await taking.written(1)]


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le"],
    ids=["closed", "no HTTP", "cut head"],
)
async def test_an_answer_that_is_none_is_a_502(answer: bytes, tmp_path: Path) -> None:
    async with (
        upstream(lambda call: call.send(answer)) as fake,
        recorder(fake.url, tmp_path) as taking,
        aiohttp.ClientSession() as session,
        session.post(taking.url + CHAT, json=chat("hi")) as got,
    ):
        assert 502 == got.status


@pytest.mark.parametrize("status", [400, 404, 500, 503])
async def test_the_servers_errors_are_its_own(status: int, tmp_path: Path) -> None:
    body = json.dumps({"error": {"type": "exceed_context_size_error", "message": "too long"}})
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\n".encode()

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


@pytest.mark.parametrize("cut", [b"5\r\nab", b"zz\r\n", b""], ids=["cut", "no size", "no end"])
async def test_a_malformed_stream_breaks_where_it_would_have(cut: bytes, tmp_path: Path) -> None:
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


@pytest.mark.thorough
async def test_a_body_of_50_mb_goes_through(tmp_path: Path) -> None:
    request = json.dumps(chat("x" * BIG)).encode()

    async with upstream(plainly(counted(9, 0))) as fake, recorder(fake.url, tmp_path) as taking:
        async with (
            aiohttp.ClientSession() as session,
            session.post(taking.url + CHAT, data=BytesIO(request)) as got,
        ):
            assert 200 == got.status
        assert fake.calls[0].body == request
        (entry,) = await taking.written(1)
        assert BIG == entry["segments"][1]["characters"]


async def test_a_slow_client_slows_the_server_and_fills_no_memory(tmp_path: Path) -> None:
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


async def test_packed_answers_and_requests_pass_as_they_are_and_are_read(tmp_path: Path) -> None:
    packed = gzip.compress(counted(100, 64))
    sent = gzip.compress(json.dumps(chat("hi")).encode())

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


async def test_websockets_are_refused(tmp_path: Path) -> None:
    async with upstream(plainly(b"{}")) as fake, recorder(fake.url, tmp_path) as taking:
        got = await raw(
            taking.url,
            b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        )
        assert got.startswith(b"HTTP/1.1 501 ")
        assert b"the recorder passes no WebSockets" in got


async def test_connections_are_kept_open(tmp_path: Path) -> None:
    async with upstream(plainly(b"{}")) as fake, recorder(fake.url, tmp_path) as taking:
        one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        got = await raw(taking.url, one + one + last)
        assert 3 == got.count(b"HTTP/1.1 200 OK")
        assert 3 == len(fake.calls)


async def test_it_speaks_over_ipv6_too(tmp_path: Path) -> None:
    try:
        async with upstream(plainly(b"{}"), "::1") as fake, recorder(fake.url, tmp_path) as taking:
            request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            assert (await raw(taking.url, request)).endswith(b"{}")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")


async def test_eight_clients_at_once_get_each_their_own(tmp_path: Path) -> None:
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

    async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
        names = [f"c{index}" for index in range(8)]
        async with aiohttp.ClientSession() as session:
            texts = await asyncio.gather(*(one(session, taking.url, each) for each in names))
        tail = event({"usage": {"prompt_tokens": 5}}).decode()
        for name, text in zip(names, texts, strict=True):
            said = "".join(delta(f"{name}-{index} ").decode() for index in range(20))
            assert said + tail == text
        assert list(range(8)) == [each["number"] for each in await taking.written(8)]


# What is written: whole lines without text or keys, in a file that is its owner's alone.

LONG = "You are careful and kind. " * 12


async def ask(taking: Recording, *requests: dict[str, Any], path: str = CHAT) -> None:
    """One request after the other."""
    async with aiohttp.ClientSession() as session:
        for request in requests:
            async with session.post(taking.url + path, json=request) as got:
                await got.read()


async def recorded(
    tmp_path: Path, *requests: dict[str, Any], answer: Any = None, **kept: Any
) -> list[dict[str, Any]]:
    async with (
        upstream(answer or plainly(counted(100, 0))) as fake,
        recorder(fake.url, tmp_path, **kept) as taking,
    ):
        await ask(taking, *requests)
        return await taking.written(len(requests))


async def test_no_text_and_no_key_is_in_the_file(tmp_path: Path) -> None:
    secrets = ["sk-header", "sk-query", "sk-body", "sk-meta", "hunter2", "careful", "Paris"]

    async with (
        upstream(plainly(counted(100, 0, "Paris, of course."))) as fake,
        recorder(fake.url, tmp_path) as taking,
        aiohttp.ClientSession() as session,
    ):
        request = chat("my password is hunter2", system=LONG, api_key="sk-body")
        request["metadata"] = {"key": "sk-meta"}
        headers = {"Authorization": "Bearer sk-header", "X-Api-Key": "sk-header"}
        url = f"{taking.url}{CHAT}?api_key=sk-query"
        async with session.post(url, json=request, headers=headers) as got:
            await got.read()
        await taking.written(1)
        text = taking.path.read_text()
        assert [] == [secret for secret in secrets if secret in text]
        assert "/v1/chat/completions?api_key=sk-query" in fake.calls[0].line


async def test_only_its_owner_reads_the_file(tmp_path: Path) -> None:
    await recorded(tmp_path, chat("hi"))

    assert 0o600 == stat.S_IMODE((tmp_path / "recorded.jsonl").stat().st_mode)


async def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "recorded.jsonl").write_text("mine")

    with pytest.raises(InputError, match="the file exists; name another with --output"):
        await recorded(tmp_path, chat("hi"))
    assert "mine" == (tmp_path / "recorded.jsonl").read_text()


async def test_text_is_kept_where_that_is_wanted(tmp_path: Path) -> None:
    (entry,) = await recorded(tmp_path, chat("hello", api_key="sk-body"), keep_text=True)

    assert "hello" == entry["request"]["messages"][1]["content"]
    assert [{"kind": "text", "text": "Yes."}] == entry["reply"]
    assert "sk-body" not in json.dumps(entry)


async def test_hashes_show_how_far_two_requests_are_equal_and_differ_from_file_to_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = await recorded(tmp_path / "a", chat("x" * 200), chat("x" * 130 + "y" * 70))
    (other,) = await recorded(tmp_path / "b", chat("x" * 200))

    first, second = (each["segments"][1]["hashes"] for each in (one, two))
    assert first[:2] == second[:2]
    assert not set(first[2:]) & set(second[2:])
    assert not set(first) & set(other["segments"][1]["hashes"])


async def test_the_numbers_are_the_servers(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    timings = {"cache_n": 8, "prompt_n": 4, "prompt_ms": 1.5, "predicted_n": 3}
    last = event({"usage": usage, "timings": timings, "system_fingerprint": "b11549-0abcdef1"})

    async def answer(call: Call) -> None:
        await call.send(STREAM, chunk(delta("Four.")), chunk(last), b"0\r\n\r\n")

    (entry,) = await recorded(tmp_path, chat("2+2", stream=True, cache_prompt=True), answer=answer)

    assert (usage, timings) == (entry["usage"], entry["timings"])
    assert "b11549-0abcdef1" == entry["fingerprint"]
    assert {"cache_prompt": True} == entry["sampling"]
    assert (True, 200, False) == (entry["stream"], entry["status"], entry["cancelled"])
    assert 0 < entry["first_byte_seconds"] <= entry["seconds"]


async def test_anthropics_numbers_are_added_up(tmp_path: Path) -> None:
    first = {"type": "message_start", "message": {"usage": {"input_tokens": 4}}}
    first["message"]["usage"]["cache_read_input_tokens"] = 96  # type: ignore[index]
    piece = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Yes."}}
    last = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 2}}

    async def answer(call: Call) -> None:
        events = b"".join(b"event: x\n" + event(each) for each in (first, piece, last))
        await call.send(STREAM, chunk(events), b"0\r\n\r\n")

    async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
        request = {"system": [{"type": "text", "text": "Be kind."}]} | chat("hi")
        await ask(taking, request, path="/v1/messages")
        await taking.written(1)
        (found,) = read_dump("x", BytesIO(taking.path.read_bytes()))
        assert (100, 96, 4) == (found.prompt_tokens, found.cached, found.processed)
        assert (2, "system") == (found.generated, found.segments[0].role)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_is_recorded_like_a_chat(stream: bool, tmp_path: Path) -> None:
    said = [{"type": "output_text", "text": "Four."}]
    whole = {
        "output": [{"type": "message", "content": said}],
        "usage": {"input_tokens": 35, "input_tokens_details": {"cached_tokens": 34}},
    }
    piece = {"type": "response.output_text.delta", "delta": "Four."}
    last = {"type": "response.completed", "response": whole}

    async def streamed(call: Call) -> None:
        await call.send(STREAM, chunk(event(piece) + event(last)), b"0\r\n\r\n")

    request = {
        "instructions": "Be kind.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "2+2"}]},
            {"type": "function_call", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "output": "4"},
        ],
        "stream": stream,
    }

    answer = streamed if stream else plainly(json.dumps(whole).encode())
    async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
        await ask(taking, request, path="/v1/responses")
        (entry,) = await taking.written(1)
        (found,) = read_dump("x", BytesIO(taking.path.read_bytes()))
        assert (35, 34, 1) == (found.prompt_tokens, found.cached, found.processed)
        roles = [(segment.role, segment.kind) for segment in found.segments]
        expected = [("system", "text"), ("user", "text")]
        assert [*expected, ("assistant", "tool call"), ("tool", "tool call")] == roles
        assert [("text", 5)] == [(each["kind"], each["characters"]) for each in entry["reply"]]


async def test_a_request_that_is_no_json_passes_and_is_noted(tmp_path: Path) -> None:
    async with (
        upstream(plainly(b"{}")) as fake,
        recorder(fake.url, tmp_path) as taking,
        aiohttp.ClientSession() as session,
    ):
        async with session.post(taking.url + CHAT, data=b"{nonsense") as got:
            assert 200 == got.status
        (entry,) = await taking.written(1)
        assert "the request is no JSON" == entry["unread"]
        assert [] == read_dump("x", BytesIO(taking.path.read_bytes()))


async def test_why_says_of_the_file_what_the_live_view_said(tmp_path: Path) -> None:
    requests = [
        chat("hi", system=f"It is 10:31. {LONG}"),
        chat("hi", system=f"It is 10:32. {LONG}"),
        chat("hi", "Yes.", "so", system=f"It is 10:32. {LONG}"),
    ]

    async with (
        upstream(plainly(counted(100, 6))) as fake,
        recorder(fake.url, tmp_path, profile="b11549") as taking,
    ):
        await ask(taking, *requests)
        await taking.written(3)
        while len(taking.rows) < 3:
            await asyncio.sleep(0.01)
        said = [row.why for row in taking.rows]
        sentence, before, after = said[1].splitlines()
        assert "message 1 (system) differs at character 10: `10:31` / `10:32`: a clock" == sentence
        assert [f"- It is 10:31. {LONG}"[:38], f"+ It is 10:32. {LONG}"[:38]] == [
            line.removesuffix("…") for line in (before, after)
        ]
        assert "10:31" not in taking.path.read_text()
        told = report_of_dump(read_dump("x", BytesIO(taking.path.read_bytes())), source="x")
        later = [request["why"] for request in told["requests"]]
        assert "message 1 (system) differs at character 10: a clock" == later[1]
        assert [said[0], said[2]] == [later[0], later[2]]
        assert [row.again for row in taking.rows] == [e["again"] for e in told["requests"]]


async def test_slots_that_are_saved_erased_and_restored_are_recorded(tmp_path: Path) -> None:
    first = chat("hi", system=LONG)
    second = chat("hi", "Yes.", "so", system=LONG)
    third = chat("hi", "Yes.", "so", "Yes.", "and", system=LONG)
    asked: list[tuple[str, Any]] = [
        (CHAT, first),
        ("/slots/0?action=save&key=sk-1", {"filename": "secret-name"}),
        ("/slots/0?action=erase", {}),
        (CHAT, second),
        ("/slots/0?action=restore", {"filename": "secret-name"}),
        (CHAT, third),
        ("/slots/0", {}),
        ("/slots/0?action=dance", {}),
    ]

    async def answer(call: Call) -> None:
        moved = b'{"n_saved":106}' if b"=save" in call.head else b'{"n_erased":106}'
        body = moved if b"/slots/" in call.head else counted(100, 0)
        await plainly(body)(call)

    async with (
        upstream(answer) as fake,
        recorder(fake.url, tmp_path, profile="b11549", options={"parallel": 1}) as taking,
    ):
        for path, body in asked:
            await ask(taking, body, path=path)
        written = await taking.written(6)
        while len(taking.rows) < 6:
            await asyncio.sleep(0.01)
        text = taking.path.read_text()
        acts = [each for each in written if "action" in each]

        assert ["save", "erase", "restore"] == [act["action"] for act in acts]
        assert [0, 0, 0] == [act["slot"] for act in acts]
        assert acts[0]["file"] == acts[2]["file"]
        assert 106 == acts[0]["moved"]
        assert "secret-name" not in text
        assert "sk-1" not in text
        assert ["slot 0 saved: 106 tokens", "slot 0 erased: 106 tokens"] == [
            row.why for row in taking.rows[1:3]
        ]
        said = "continues request 0: slot 0, which held it, was erased by request 2"
        assert said == taking.rows[3].why
        told = report_of_dump(read_dump("x", BytesIO(text.encode())), source="x")
        prompts = [row for row in taking.rows if row.how]
        assert [prompt.why for prompt in prompts] == [
            request["why"] for request in told["requests"]
        ]
        assert "slot-taken" == told["causes"][0]["kind"]


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("0.0.0.0:8081", "add --public"),
        ("192.168.1.5:8081", "add --public"),
        ("[::]:8081", "add --public"),
        ("localhost", "write a port"),
        ("127.0.0.1:x", "--listen 127.0.0.1:x"),
        ("127.0.0.1:99999", "--listen 127.0.0.1:99999"),
        ("", "write a port"),
    ],
)
def test_wrong_places_to_listen_are_refused(listen: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        place_of(listen, public=False)
    assert said in str(raised.value)


def test_places_to_listen_are_read() -> None:
    assert ("127.0.0.1", 8081) == place_of("8081", public=False)
    assert ("::1", 8081) == place_of("[::1]:8081", public=False)
    assert ("localhost", 1) == place_of("localhost:1", public=False)
    assert ("0.0.0.0", 8081) == place_of("0.0.0.0:8081", public=True)


@pytest.mark.parametrize(
    "upstream",
    ["ftp://x", "http://", "http://u:p@h:1", "http://h:1/?key=1", "http://h:port", "http://[::1"],
)
def test_wrong_servers_are_refused(upstream: str) -> None:
    with pytest.raises(InputError, match="--upstream"):
        upstream_of(upstream)


def test_the_recorder_does_not_ask_itself() -> None:
    assert "http://127.0.0.1:8080/v" == upstream_of("127.0.0.1:8080/v/")
    with pytest.raises(InputError, match="is where the recorder itself listens"):
        check_no_circle("http://localhost:8081", "127.0.0.1", 8081)


SPELLED = (
    "0.0.0.0", "0", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1",
    "127.000.000.001", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::1]", "[::]", "localhost",
    "LOCALHOST", "ip6-localhost", "localhost.localdomain", "here.test",
)  # fmt: skip
"""Hosts at which a server of this machine is reached."""


@pytest.mark.parametrize("host", SPELLED)
@pytest.mark.parametrize("listening", ["127.0.0.1", "localhost", "0.0.0.0", "127.1"])
def test_no_spelling_of_an_address_passes_for_another_machine(
    host: str, listening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def resolved(name: str, *more: Any, **how: Any) -> Any:
        named = {"here.test", "ip6-localhost", "localhost.localdomain"}
        return real("127.0.0.1" if name in named else name, *more, **how)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with pytest.raises(InputError, match="is where the recorder itself listens"):
        check_no_circle(f"http://{host}:8081/v1", listening, 8081)
    check_no_circle(f"http://{host}:8080/v1", listening, 8081)


def test_an_own_address_is_a_circle_if_the_recorder_listens_on_all() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        try:
            link.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but the loopback's")
        own = link.getsockname()[0]
    with pytest.raises(InputError, match="is where the recorder itself listens"):
        check_no_circle(f"http://{own}:8081", "0.0.0.0", 8081)
    check_no_circle(f"http://{own}:8081", "127.0.0.1", 8081)
    check_no_circle("http://192.0.2.1:8081", "0.0.0.0", 8081)


def test_an_address_is_local_in_every_spelling() -> None:
    for host in ("127.1", "2130706433", "0x7f.1", "::ffff:127.0.0.1", "localhost", "::1"):
        assert is_loopback(host)
    for host in ("0.0.0.0", "10.0.0.1", "::", "::ffff:10.0.0.1", "example.test", ""):
        assert not is_loopback(host)
