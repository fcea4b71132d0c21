"""What is written: whole lines without text or keys, in a file that is its owner's alone."""

import asyncio
import json
import stat
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from cachesim.errors import InputError
from cachesim.lab.logs.live import report_of_dump
from cachesim.lab.record.plan import check_no_circle, place_of, upstream_of
from tests.dumps import read_dump
from tests.record.kit import (
    CHAT,
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

LONG = "You are careful and kind. " * 12


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def ask(taking: Recording, *requests: dict[str, Any], path: str = CHAT) -> None:
    """One request after the other."""
    async with aiohttp.ClientSession() as session:
        for request in requests:
            async with session.post(taking.url + path, json=request) as got:
                await got.read()


def recorded(
    tmp_path: Path, *requests: dict[str, Any], answer: Any = None, **kept: Any
) -> list[dict[str, Any]]:
    """What is written of some requests."""
    found: list[dict[str, Any]] = []

    async def test() -> None:
        async with (
            upstream(answer or plainly(counted(100, 0))) as fake,
            recorder(fake.url, tmp_path, **kept) as taking,
        ):
            await ask(taking, *requests)
            found.extend(await taking.written(len(requests)))

    run(test)
    return found


def test_no_text_and_no_key_is_in_the_file(tmp_path: Path) -> None:
    secrets = ["sk-header", "sk-query", "sk-body", "sk-meta", "hunter2", "careful", "Paris"]

    async def test() -> None:
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
            assert [] == [each for each in secrets if each in text]
            assert "/v1/chat/completions?api_key=sk-query" in fake.calls[0].line

    run(test)


def test_only_its_owner_reads_the_file(tmp_path: Path) -> None:
    recorded(tmp_path, chat("hi"))

    assert 0o600 == stat.S_IMODE((tmp_path / "recorded.jsonl").stat().st_mode)


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "recorded.jsonl").write_text("mine")

    with pytest.raises(InputError, match="the file exists; name another with --output"):
        recorded(tmp_path, chat("hi"))
    assert "mine" == (tmp_path / "recorded.jsonl").read_text()


def test_text_is_kept_where_that_is_wanted(tmp_path: Path) -> None:
    (entry,) = recorded(tmp_path, chat("hello", api_key="sk-body"), keep_text=True)

    assert "hello" == entry["request"]["messages"][1]["content"]
    assert [{"kind": "text", "text": "Yes."}] == entry["reply"]
    assert "sk-body" not in json.dumps(entry)


def test_hashes_show_how_far_two_requests_are_equal_and_differ_from_file_to_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = recorded(tmp_path / "a", chat("x" * 200), chat("x" * 130 + "y" * 70))
    (other,) = recorded(tmp_path / "b", chat("x" * 200))

    first, second = (each["segments"][1]["hashes"] for each in (one, two))
    assert first[:2] == second[:2]
    assert not set(first[2:]) & set(second[2:])
    assert not set(first) & set(other["segments"][1]["hashes"])


def test_the_numbers_are_the_servers(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    timings = {"cache_n": 8, "prompt_n": 4, "prompt_ms": 1.5, "predicted_n": 3}

    async def answer(call: Call) -> None:
        last = event({"usage": usage, "timings": timings, "system_fingerprint": "b11549-0abcdef1"})
        await call.send(STREAM, chunk(delta("Four.")), chunk(last), b"0\r\n\r\n")

    (entry,) = recorded(tmp_path, chat("2+2", stream=True, cache_prompt=True), answer=answer)

    assert (usage, timings) == (entry["usage"], entry["timings"])
    assert "b11549-0abcdef1" == entry["fingerprint"]
    assert {"cache_prompt": True} == entry["sampling"]
    assert (True, 200, False) == (entry["stream"], entry["status"], entry["cancelled"])
    assert 0 < entry["first_byte_seconds"] <= entry["seconds"]


def test_anthropics_numbers_are_added_up(tmp_path: Path) -> None:
    first = {"type": "message_start", "message": {"usage": {"input_tokens": 4}}}
    first["message"]["usage"]["cache_read_input_tokens"] = 96  # type: ignore[index]
    piece = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Yes."}}
    last = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 2}}

    async def answer(call: Call) -> None:
        events = b"".join(b"event: x\n" + event(each) for each in (first, piece, last))
        await call.send(STREAM, chunk(events), b"0\r\n\r\n")

    async def test() -> None:
        async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
            request = {"system": [{"type": "text", "text": "Be kind."}]} | chat("hi")
            await ask(taking, request, path="/v1/messages")
            await taking.written(1)
            (found,) = read_dump("x", BytesIO(taking.path.read_bytes()))
            assert (100, 96, 4) == (found.prompt_tokens, found.cached, found.processed)
            assert (2, "system") == (found.generated, found.segments[0].role)

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_response_is_recorded_like_a_chat(stream: bool, tmp_path: Path) -> None:
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

    async def test() -> None:
        answer = streamed if stream else plainly(json.dumps(whole).encode())
        async with upstream(answer) as fake, recorder(fake.url, tmp_path) as taking:
            await ask(taking, request, path="/v1/responses")
            (entry,) = await taking.written(1)
            (found,) = read_dump("x", BytesIO(taking.path.read_bytes()))
            assert (35, 34, 1) == (found.prompt_tokens, found.cached, found.processed)
            roles = [(each.role, each.kind) for each in found.segments]
            expected = [("system", "text"), ("user", "text")]
            assert [*expected, ("assistant", "tool call"), ("tool", "tool call")] == roles
            assert [("text", 5)] == [(each["kind"], each["characters"]) for each in entry["reply"]]

    run(test)


def test_a_request_that_is_no_json_passes_and_is_noted(tmp_path: Path) -> None:
    async def test() -> None:
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

    run(test)


def test_why_says_of_the_file_what_the_live_view_said(tmp_path: Path) -> None:
    requests = [
        chat("hi", system=f"It is 10:31. {LONG}"),
        chat("hi", system=f"It is 10:32. {LONG}"),
        chat("hi", "Yes.", "so", system=f"It is 10:32. {LONG}"),
    ]

    async def test() -> None:
        async with (
            upstream(plainly(counted(100, 6))) as fake,
            recorder(fake.url, tmp_path, profile="b11549") as taking,
        ):
            await ask(taking, *requests)
            await taking.written(3)
            while len(taking.rows) < 3:
                await asyncio.sleep(0.01)
            said = [each.why for each in taking.rows]
            assert (
                "message 1 (system) differs at character 10: `10:31` / `10:32`: a clock"
                == (said[1])
            )
            told = report_of_dump(read_dump("x", BytesIO(taking.path.read_bytes())), source="x")
            later = [each["why"] for each in told["requests"]]
            assert "message 1 (system) differs at character 10: a clock" == later[1]
            assert [said[0], said[2]] == [later[0], later[2]]
            assert [each.again for each in taking.rows] == [e["again"] for e in told["requests"]]

    run(test)


def test_slots_that_are_saved_erased_and_restored_are_recorded(tmp_path: Path) -> None:
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

    async def test() -> None:
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

            assert ["save", "erase", "restore"] == [each["action"] for each in acts]
            assert [0, 0, 0] == [each["slot"] for each in acts]
            assert acts[0]["file"] == acts[2]["file"]
            assert 106 == acts[0]["moved"]
            assert "secret-name" not in text
            assert "sk-1" not in text
            assert ["slot 0 saved: 106 tokens", "slot 0 erased: 106 tokens"] == [
                each.why for each in taking.rows[1:3]
            ]
            said = "continues request 0: slot 0, which held it, was erased by request 2"
            assert said == taking.rows[3].why
            told = report_of_dump(read_dump("x", BytesIO(text.encode())), source="x")
            prompts = [row for row in taking.rows if row.how]
            assert [each.why for each in prompts] == [each["why"] for each in told["requests"]]
            assert "slot-taken" == told["causes"][0]["kind"]

    run(test)


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
