"""Cold requests: where the last prompt alone is held, and where a slot was named."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cachesim.probe.answers import Answer, Query
from cachesim.probe.connection import Limits, Meter
from cachesim.probe.dialects import Facts, PythonServer, TextServer
from cachesim.probe.target import Target
from tests.probe.fakes import fake

OPENAPI = {"info": {"title": "🦙 llama.cpp Python API", "version": "0.3.36"}}


class Starts:
    """A process that counts its starts."""

    starts = 0

    def start(self) -> None:
        self.starts += 1


class Replying(PythonServer):
    """A server that keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[Query] = []
        self.facts = Facts(words=("a", "b", "c"), counts=False)

    def answer(self, query: Query, *, cold: bool = False) -> Answer:
        self.sent.append(query)
        return Answer(tokens=query.reply)


@pytest.mark.parametrize(("alone", "sent", "starts"), [(True, ["b", "a"], 0), (False, ["a"], 1)])
def test_an_unrelated_prompt_comes_first_instead_of_a_restart(
    alone: bool, sent: list[str], starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replying, "one_sequence", alone)
    target: Any = Target.__new__(Target)
    target.dialect, target._cold, target._cold_process = None, Replying(), Starts()
    target._pool, target.faults = ThreadPoolExecutor(1), Counter[str]()

    target.cold(Query(prompt=("a", "c"), reply=("b",)))

    assert sent == [each.prompt[0] for each in target._cold.sent]
    assert starts == target._cold_process.starts


@pytest.mark.parametrize(("info", "expected"), [(OPENAPI, "0.3.36"), ({"info": {}}, None)])
def test_the_server_is_known_by_its_description(
    info: dict[str, Any], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def detect(server: TextServer) -> bool:
        server.facts = Facts(words=("a",))
        return True

    class Connection:
        def query(self, *_: str) -> dict[str, Any]:
            return info

    monkeypatch.setattr(TextServer, "detect", detect)
    server: Any = PythonServer(Connection())

    assert (expected is not None) == server.detect()
    assert (expected or "") == server.facts.version


def test_a_cold_request_is_remembered_without_the_slot_that_it_does_not_name() -> None:
    query = Query(prompt=(300, 301), reply=(302,), slot=2)
    with fake("llama", "llama.cpp@b11549", parallel=4) as server:
        target = Target(Meter(Limits()), server.url)
        target.together([query])
        target.cold(query)
        target.close()
    assert [(True, 2), (False, -1)] == [(q.cache_prompt, q.slot) for (q,) in target.sent]
    assert [2, None] == [body.get("id_slot") for body in server.bodies[-2:]]
