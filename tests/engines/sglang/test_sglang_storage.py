"""The third tier of 0.5.9: what is copied to the storage, what a waiting request gets of it."""

from typing import Any

import numpy as np
import pytest

from cachesim.engines.base import Request
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.pools import LEAST_PRIORITY, DelayQueue, Storage, hashes_of
from cachesim.engines.sglang.server import Sglang
from cachesim.model import ArithmeticName
from cachesim.typed import there_is
from cachesim.units import Integers, Tokens, as_tokens
from conformance.real.sglang.workloads import KINDS, draw
from tests.engines.asking import answer
from tests.engines.conversations import wrong
from tests.engines.sglang.workloads import Workload
from tests.engines.sglang.workloads import server as opened

OLD = FAMILY.release("0.5.9").rules
ON = {
    "enable_hierarchical_cache": True,
    "hicache_storage_backend": "file",
    "prefetch_threshold": 20,
    "max_total_tokens": 400,
}


def server(arithmetic: ArithmeticName = "counts", **options: Any) -> Sglang:
    return opened("0.5.9", "dense", arithmetic, **ON | options)


def send(engine: Sglang, prompt: Tokens, key: str | None = None) -> tuple[int | None, list[str]]:
    """Reused tokens of a prompt, and the cause; its reply is one token."""
    options = {"extra_key": key} if key else {}
    reply = answer(engine, prompt, 1, reply=prompt[:1], options=options)
    lost = sum(loss.before - loss.after for loss in reply.losses)
    assert reply.equal - there_is(reply.cached) == lost
    return reply.cached, [loss.rule for loss in reply.losses]


def fresh(first: int, count: int = 200) -> Tokens:
    return as_tokens(range(first, first + count))


A, OTHERS = fresh(0), tuple(fresh(first) for first in (1000, 1500, 2000, 2500, 3000))


def stored_and_forgotten(**options: Any) -> Sglang:
    """A was served, went to the storage, and left the device and the host."""
    engine = server(**options)
    for prompt in (A, *OTHERS):
        send(engine, prompt)
    engine.flush_cache()
    return engine


def test_a_node_fetched_below_the_root_has_the_root_s_priority() -> None:
    """The least there is, so that it goes first where `priority` says who goes."""
    engine = stored_and_forgotten()
    engine.submit(Request(prompt=A, predict=1, reply=A[:1]))
    engine.tree.poll()
    engine.tree.fetched(engine.scheduler.waiting[0])

    assert [LEAST_PRIORITY] == [node.priority for node in engine.tree.nodes()]


def numbers(tokens: list[int]) -> Integers:
    return np.array(tokens, np.int64)


def test_pages_are_found_by_all_tokens_up_to_their_end() -> None:
    storage = Storage()
    for key in hashes_of(numbers([1, 2, 3, 4]), None, 2, bigrams=False):
        storage.put(key)

    assert [2, 1, 0] == [
        storage.known(hashes_of(numbers(tokens), None, 2, bigrams=False))
        for tokens in ([1, 2, 3, 4], [1, 2, 9, 4], [9, 2, 3, 4])
    ]


def test_an_operation_is_done_after_so_many_looks() -> None:
    line: DelayQueue[str] = DelayQueue(lag=2)
    line.put("backup")

    assert [[], [], ["backup"], []] == [line.due() for _ in range(4)]


@pytest.mark.thorough
def test_answers_from_the_storage_are_those_of_a_cold_run() -> None:
    for seed in range(40):
        assert [] == wrong(Workload(seed, "sglang@0.5.9", presets=("dense",), stored=True))


@pytest.mark.thorough
def test_what_such_workloads_ask_for_is_fetched() -> None:
    fetched = 0
    for seed in range(10):
        workload = Workload(seed, "sglang@0.5.9", presets=("dense",), stored=True)
        wrong(workload)
        names = [event.name() for event in workload.engine.events]
        fetched += names.count("fetched-from-storage")
    assert fetched


def test_workloads_with_a_storage_are_drawn_for_the_comparison() -> None:
    ids = range(KINDS.index("storage"), 12 * len(KINDS), len(KINDS))
    drawn = [draw(0, number, OLD)["config"]["host"] for number in ids]

    assert {"best_effort", "wait_complete", "timeout"} == {
        each["storage"]["policy"] for each in drawn
    }
