"""Cached counts that are false but possible: no simulated server explains them."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from cachesim.probe import loop
from cachesim.probe.command import Settings, run
from cachesim.probe.connection import Connection
from tests.probe.fakes import Fake, fake
from tests.probe.test_probe import PROFILES

Lie = Callable[[int, int], int]

pytestmark = pytest.mark.thorough

LIES: dict[str, Lie] = {
    "none": lambda cached, _: cached,
    "one token more": lambda cached, size: cached + (0 < cached < size - 1),
    "one block more": lambda cached, size: cached + 16 * (0 < cached < size - 16),
    "one block less": lambda cached, _: cached - 16 * (cached >= 16),
    "constant": lambda cached, _: min(cached, 4),
    "after a client left": lambda cached, _: cached - (cached > 1),
}


def lying(server: Fake, lie: Lie, begins: Callable[[], bool]) -> None:
    whole = server.model.reply

    def reply(prompt: Any, *rest: Any, **how: Any) -> Any:
        done = whole(prompt, *rest, **how)
        lies = begins() and isinstance(done, tuple)
        return (lie(done[0], len(prompt)), *done[1:]) if lies else done

    server.model.reply = reply  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "dialect", ["llama", pytest.param("vllm", marks=pytest.mark.nightly), "sglang"]
)
@pytest.mark.parametrize("name", LIES)
def test_a_false_count_is_explained_by_no_simulated_server(
    name: str, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list[str]()
    abandon = Connection.abandon

    def leaves(self: Connection, path: str, *rest: Any) -> None:
        left.append(path)
        abandon(self, path, *rest)

    monkeypatch.setattr(Connection, "abandon", leaves)
    monkeypatch.setattr(loop, "SAMPLES", 10)
    with fake(dialect, PROFILES[dialect]) as server:
        lying(server, LIES[name], lambda: bool(left) or name != "after a client left")
        result = run(Settings(url=server.url, requests=150, minutes=2.0, longest=60)).result
    said = next(line for line in result.head() if line.startswith("counts: "))
    explained = r"\d+ of \d+ simulated servers explain them after "
    if name == "after a client left":
        refused = r"request \d+, after 1 client left, reports \d+ of \d+ tokens cached; "
    else:
        refused = r"request \d+ reports \d+ of \d+ tokens cached; "
    refused = rf"none of \d+ simulated servers explains them: {refused}the simulated servers that "
    assert re.match(f"counts: {explained if name == 'none' else refused}", said), said
