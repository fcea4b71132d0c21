"""Servers that answer without an end, in no known form, or with numbers that cannot be."""

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from cachesim.probe.answers import Answer, Query
from cachesim.probe.connection import (
    LONGEST_ANSWER,
    BudgetError,
    Connection,
    FaultError,
    Limits,
    Meter,
)
from cachesim.probe.dialects import Dialect, LlamaServer, dialect_of
from cachesim.scenario.limits import SLOTS
from tests.probe.fakes import fake

QUERY = Query(prompt=(300, 301), reply=(302,))
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
Send = Callable[[bytes], None]
Acts = Callable[[Send], None]

GIVES_UP = 30.0
"""Seconds after which a server ends: a client that is still there has no deadline."""


@contextmanager
def raw(acts: Acts) -> Iterator[tuple[str, list[str]]]:
    """A server that reads one request and acts; how each client's connection ended."""
    ends: list[str] = []

    def one(link: socket.socket) -> None:
        with suppress(OSError):
            link.recv(1 << 16)
            try:
                acts(link.sendall)
                ends.append("answered")
            except OSError:
                ends.append("left")
        link.close()

    def serve() -> None:
        with suppress(OSError):
            while True:
                link, _ = server.accept()
                threading.Thread(target=one, args=(link,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", ends
        server.shutdown(socket.SHUT_RDWR)


def dripping(head: bytes) -> Acts:
    def acts(send: Send) -> None:
        send(head)
        end = time.monotonic() + GIVES_UP
        while time.monotonic() < end:
            send(b" ")
            time.sleep(0.02)

    return acts


def repeating(head: bytes, more: bytes) -> Acts:
    def acts(send: Send) -> None:
        send(head)
        end = time.monotonic() + GIVES_UP
        while time.monotonic() < end:
            send(more)

    return acts


ENDLESS = {
    "a byte now and then": dripping(OK % 1_000_000),
    "a byte of the head now and then": dripping(b"HTTP/1.1 200 OK\r\nX:"),
    "100 Continue": repeating(b"", 1000 * b"HTTP/1.1 100 Continue\r\n\r\n"),
    "chunks of one byte": repeating(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"
    ),
    "trailers": repeating(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: a\r\n"
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_request_ends_at_its_deadline_whatever_is_sent(name: str) -> None:
    with raw(ENDLESS[name]) as (url, ends):
        connection = Connection(url, Meter(Limits(patience=0.3)))
        with pytest.raises(FaultError, match=r"gave no answer within 0\.3 seconds"):
            connection.post("/completion", {}, 1)
        while not ends:
            time.sleep(0.02)
    assert ["left"] == ends


@pytest.mark.parametrize("name", ENDLESS)
def test_no_request_outlasts_the_run(name: str) -> None:
    with raw(ENDLESS[name]) as (url, _):
        connection = Connection(url, Meter(Limits(minutes=0.3 / 60)))
        with pytest.raises(BudgetError, match="minutes are over"):
            dialect_of(connection, (), chat=False)
        with pytest.raises(BudgetError, match="minutes are over"):
            connection.query("GET", "/props")  # none is sent any more


def test_what_a_run_leaves_behind_has_seconds_of_its_own() -> None:
    with raw(ENDLESS["a byte now and then"]) as (url, ends):
        connection = Connection(url, Meter(Limits(minutes=1e-9)))
        connection.last = time.monotonic() + 0.3
        assert connection.query("POST", "/slots/0?action=erase", {}) is None
        while not ends:
            time.sleep(0.02)
    assert ["left"] == ends


def test_a_rate_limit_ends_with_the_run() -> None:
    meter = Meter(Limits(minutes=0.2 / 60, rate=0.001))
    meter.take(1)
    with pytest.raises(BudgetError, match="minutes are over"):
        meter.take(1)


@pytest.mark.parametrize(
    "body",
    [
        200_000 * b"[",
        100 * b"[" + 100 * b"]",
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"a":' + b"9" * 100_000 + b"}",
        b'"' + LONGEST_ANSWER * b" ",
    ],
    ids=["open lists", "closed lists", "objects", "digits", "size"],
)
def test_json_beyond_the_bounds_is_no_json(body: bytes) -> None:
    with raw(lambda send: send(OK % len(body) + body)) as (url, _):
        connection = Connection(url, Meter(Limits(patience=20)))
        with pytest.raises(FaultError, match=r"answered no JSON|closed the connection"):
            connection.post("/completion", {}, 1)


class Saying:
    """A connection on which each answer is the same."""

    url = "http://there"

    def __init__(self, **answers: object) -> None:
        self.answers = answers

    def query(self, _: str, path: str, *__: object, **___: object) -> object:
        return self.answers.get(path.strip("/").partition("/")[0])

    def post(self, *_: object) -> tuple[int, object]:
        return 200, self.answers["answer"]


NUMBERS = (None, "x", "7", -1, 0, math.nan, math.inf, 10**30, [], {}, [1], True, 1e400)


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_a_number_that_cannot_be_is_not_believed(value: object) -> None:
    """Neither a size that exhausts this machine nor a value of another kind gets through."""
    answer = {"tokens": [1], "content": "", "timings": {"cache_n": 0}}
    said = Saying(
        props={"default_generation_settings": {"n_ctx": value}, "total_slots": value},
        v1={"data": [{"meta": {"n_vocab": value}}]},
        answer=answer,
    )
    dialect = LlamaServer(said)  # type: ignore[arg-type]
    assert dialect.detect()
    assert dialect.facts.context is None
    assert 1 == dialect.facts.slots
    assert 1 <= dialect.facts.parallel <= SLOTS


@pytest.mark.parametrize("key", ["cache_n", "tokens_evaluated", "id_slot", "tokens", "logprob"])
@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_an_answer_with_values_of_another_kind_is_a_fault(key: str, value: object) -> None:
    known = {"cache_n": 1, "tokens_evaluated": 5, "id_slot": 0, "tokens": [1], "logprob": -1.0}
    values = {**known, key: value}
    said = Saying(
        answer={
            "content": "",
            "tokens": values["tokens"],
            "tokens_evaluated": values["tokens_evaluated"],
            "id_slot": values["id_slot"],
            "timings": {"cache_n": values["cache_n"]},
            "completion_probabilities": [
                {"top_logprobs": [{"id": 1, "logprob": values["logprob"]}]}
            ],
        }
    )
    dialect: Dialect = LlamaServer(said)  # type: ignore[arg-type]
    answer = dialect.answer(QUERY)
    for count in (answer.cached, answer.prompt_tokens, answer.slot):
        assert count is None or type(count) is int
    assert all(
        isinstance(p, int | float) and math.isfinite(p) for r in answer.rows for p in r.values()
    )
    assert answer.fatal == bool(answer.error)


def test_a_form_of_a_known_server_that_is_not_known_is_another_server() -> None:
    with raw(lambda send: send(OK % 14 + b'{"data": 12345')) as (url, _):
        connection = Connection(url, Meter(Limits(patience=20)))
        with pytest.raises(FaultError):
            connection.post("/completion", {}, 1)
    body = json.dumps({"data": 5, "models": 7, "paths": 1, "info": []}).encode()
    with raw(lambda send: send(OK % len(body) + body)) as (url, _):
        connection = Connection(url, Meter(Limits(patience=20)))
        with pytest.raises(ValueError, match="answers as no server that is known here"):
            dialect_of(connection, (), chat=False)


def test_answers_of_a_right_server_pass_the_check() -> None:
    with fake("llama", "llama.cpp@b11549") as server:
        meter = Meter(Limits())
        dialect = dialect_of(Connection(server.url, meter), (), chat=False)
        assert not dialect.answer(QUERY).error
    assert Answer(cached=3, tokens=(1, "a"), rows=({"a": -1.0},)).checked()
