"""A request's line is on the disk before its answer ends, and no stream holds up another client."""

import asyncio
import threading
from pathlib import Path

import pytest

from cachesim.record import session as sessions
from cachesim.record.exchange import BATCH, AnswerReader, path_kept, path_shown
from cachesim.why.explain.live import Live
from tests.dumps import read_dump
from tests.record.kit import (
    CHAT,
    HEAD,
    STREAM,
    Answer,
    Call,
    chat,
    chunk,
    delta,
    plainly,
    recorder,
    upstream,
)

aiohttp = pytest.importorskip("aiohttp", reason="the recorder's tests need the extra: .[record]")

COUNTED = b'{"usage": {"prompt_tokens": 9}, "choices": [{"message": {"content": "hi"}}]}'


def streaming(*pieces: bytes) -> Answer:
    return lambda call: call.send(STREAM, *map(chunk, pieces), b"0\r\n\r\n")


def chunked(call: Call) -> object:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    return call.send(head, chunk(COUNTED), b"0\r\n\r\n")


@pytest.mark.parametrize(
    "answer",
    [plainly(COUNTED), plainly(b"{}"), chunked, streaming(delta("a"), delta("b"))],
    ids=["of known length", "without counts", "chunked", "streamed"],
)
async def test_whoever_has_an_answer_finds_its_line(answer: Answer, tmp_path: Path) -> None:
    async with (
        upstream(answer) as fake,
        recorder(fake.url, tmp_path) as taking,
        aiohttp.ClientSession() as client,
    ):
        for count in range(1, 4):
            async with client.post(taking.url + CHAT, json=chat("hello")) as got:
                await got.read()
            assert count == len(taking.entries)  # no time passes in between


async def test_a_refusal_of_the_recorder_ends_after_its_line_too(tmp_path: Path) -> None:
    async with (
        recorder("http://127.0.0.1:9", tmp_path) as taking,
        aiohttp.ClientSession() as client,
    ):
        async with client.post(taking.url + CHAT, json=chat("hello")) as got:
            assert 502 == got.status
            await got.read()
        assert [502] == [entry["status"] for entry in taking.entries]


async def test_an_analysis_that_takes_long_is_added_to_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file then reads as if it had been there at once."""
    going, real = threading.Event(), Live.add
    conversation = [chat("one"), chat("one", "hi", "two"), chat("one", "hi", "two", "hi", "3")]

    async def lines(folder: Path) -> list[object]:
        folder.mkdir()
        async with (
            upstream(plainly(COUNTED)) as fake,
            recorder(fake.url, folder) as taking,
            aiohttp.ClientSession() as client,
        ):
            for body in conversation:
                async with client.post(taking.url + CHAT, json=body) as got:
                    await got.read()
            assert len(conversation) == len(taking.entries)
            late = not any("seen" in entry for entry in taking.entries)
            going.set()
            await taking.written(len(conversation))
        with taking.path.open("rb") as file:
            requests = read_dump("recorded", file)
        assert len(conversation) == len(requests)
        assert late == (b'"adds"' in taking.path.read_bytes())
        return [
            (request.seen, request.divergence, request.runs, request.server) for request in requests
        ]

    monkeypatch.setattr(sessions, "ANALYSIS", 60.0)
    at_once = await lines(tmp_path / "at once")
    going.clear()
    monkeypatch.setattr(sessions, "ANALYSIS", 0.0)
    monkeypatch.setattr(Live, "add", lambda *given: (going.wait(), real(*given))[1])
    assert at_once == await lines(tmp_path / "late")
    assert any(seen for seen, *_ in at_once)  # type: ignore[misc]


async def test_a_stream_that_is_parsed_for_ever_holds_up_its_own_client_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, parsing = threading.Event(), threading.Event()

    def parse(reader: AnswerReader) -> None:
        parsing.set()
        going.wait()
        AnswerReader._read_stream(reader)

    async def answer(call: Call) -> None:
        many = delta("a") * (2 * BATCH // len(delta("a")))
        is_hostile = b"hostile" in call.body
        await (streaming(many, delta("end")) if is_hostile else plainly(COUNTED))(call)

    monkeypatch.setattr(AnswerReader, "parse", parse)
    async with (
        upstream(answer) as fake,
        recorder(fake.url, tmp_path) as taking,
        aiohttp.ClientSession() as client,
    ):
        hostile = asyncio.create_task(client.post(taking.url + CHAT, json=chat("hostile")))
        await asyncio.to_thread(parsing.wait)
        async with client.post(taking.url + CHAT, json=chat("other")) as got:
            assert COUNTED == await got.read()
        assert [1] == [len(entry["reply"]) for entry in taking.entries]
        going.set()
        assert (await (await hostile).read()).endswith(delta("end"))
        assert 2 == len(taking.entries)


@pytest.mark.parametrize(
    ("path", "kept", "shown"),
    [
        ("/v1/chat/completions", "/v1/chat/completions", "/v1/chat/completions"),
        ("/sk-1/v1/chat/completions", "/*/v1/chat/completions", "/*/v1/chat/completions"),
        ("/secret/v1/messages/", "/*/v1/messages/", "/secret/v1/messages/"),
        ("/AIzaQUERY/completion", "/*/completion", "/*/completion"),
        ("/v1/other/sk-PATHSECRET2", "/v1/*/*", "/v1/other/*"),
        ("/slots/3", "/slots/3", "/slots/3"),
        ("/\x1b[2J/health", "/*/*", "/*/health"),
        ("/a%20b/props", "/*/*", "/*/props"),
    ],
)
def test_no_part_of_a_path_that_may_be_a_key_is_kept(path: str, kept: str, shown: str) -> None:
    assert (kept, shown) == (path_kept(path), path_shown(path))
