"""Requests that SGLang's scheduler admits next, and those that it preempts."""

import random
from typing import Any

import numpy as np
import pytest

from cachesim.engines.base import Engine, Request, Ticket
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.schedule_policy import Shuffler
from cachesim.errors import OptionError, UpstreamEndless
from cachesim.units import as_tokens
from tests.engines.sglang.workloads import server

RELEASES = FAMILY.names()
PRIORITIES = {"enable_priority_scheduling": True, "max_running_requests": 1}


def send(engine: Engine, first: int, count: int, most: int = 2, **fields: Any) -> Ticket:
    prompt = as_tokens(list(range(first, first + count)))
    return engine.submit(Request(prompt=prompt, predict=most, options=fields))


def named(engine: Engine, name: str) -> list[int]:
    return [event.task for event in engine.events if event.name() == name]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("low_first", "order"), [(False, [1, 3, 2, 0, 4]), (True, [0, 2, 1, 3, 4])]
)
def test_the_queue_is_served_by_priority(release: str, low_first: bool, order: list[int]) -> None:
    """Equal priorities by arrival; one without any last."""
    engine = server(release, schedule_low_priority_values_first=low_first, **PRIORITIES)

    for number, priority in enumerate((0, 5, 1, 5)):
        send(engine, 100 * number, 10, priority=priority)
    send(engine, 400, 10)
    engine.run()

    assert order == named(engine, "request-finished")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("priority", "preempted"), [(10, []), (11, [0])])
def test_a_request_preempts_beyond_the_threshold(
    release: str, priority: int, preempted: list[int]
) -> None:
    """One row; the difference of the priorities must be more than ten."""
    engine = server(release, **PRIORITIES)
    send(engine, 0, 10, most=9, priority=0)
    for _ in range(3):
        engine.step()

    send(engine, 100, 10, priority=priority)
    engine.run()

    assert preempted == named(engine, "request-preempted")
    assert [1, 0] if preempted else [0, 1] == named(engine, "request-finished")


@pytest.mark.parametrize("release", RELEASES[1:])
def test_preemption_can_be_disabled(release: str) -> None:
    engine = server(release, disable_priority_preemption=True, **PRIORITIES)
    send(engine, 0, 10, most=9, priority=0)
    engine.step()

    send(engine, 100, 10, priority=99)
    engine.run()

    assert [] == named(engine, "request-preempted")


@pytest.mark.parametrize("release", RELEASES)
def test_059_forgets_whom_it_preempts_for_a_request_that_does_not_fit(release: str) -> None:
    """The second request makes room for one whose prompt is too long beside the first."""
    few = {"max_running_requests": 2, "max_total_tokens": 60}
    engine = server(release, **(PRIORITIES | few))
    send(engine, 0, 20, most=10, priority=20)
    send(engine, 100, 10, most=9, priority=0)
    for _ in range(3):
        engine.step()
    send(engine, 200, 40, most=2, priority=20)

    if release == "0.5.9":
        with pytest.raises(UpstreamEndless, match="in no queue"):
            engine.run()
    else:
        engine.run()

    assert [1] == named(engine, "request-preempted")
    assert [0, 2] == named(engine, "request-finished")[:2]


@pytest.mark.parametrize(("policy", "retracted"), [("length", [1]), ("priority", [0])])
def test_retraction_by_priority(policy: str, retracted: list[int]) -> None:
    """Both requests need 82 tokens of 79; the second has generated less."""
    few = {"max_running_requests": 2, "max_total_tokens": 79, "retraction_policy": policy}
    engine = server("0.5.23", **(PRIORITIES | few))

    send(engine, 0, 10, most=30, priority=0)
    engine.step()
    send(engine, 100, 15, most=30, priority=1)
    engine.run()

    assert retracted == named(engine, "request-retracted")


def test_retraction_by_priority_needs_priority_scheduling() -> None:
    with pytest.raises(OptionError, match="requires enable_priority_scheduling"):
        server("0.5.23", retraction_policy="priority")


@pytest.mark.parametrize("release", RELEASES)
def test_a_priority_can_be_refused(release: str) -> None:
    engine = server(release, abort_on_priority_when_disabled=True)

    refused, served = send(engine, 0, 10, priority=1), send(engine, 100, 10)
    engine.run()

    assert "priority" in engine.reply(refused).message
    assert engine.reply(served).error is None


ALIKE = 40


def crowd(release: str, policy: str, **options: Any) -> Engine:
    """A server that has answered a prompt of 50 tokens, and one that it runs alone."""
    one = {"max_running_requests": 1, "chunked_prefill_size": 64}
    engine = server(release, schedule_policy=policy, **(one | options))
    send(engine, 0, 50)
    engine.run()
    send(engine, 900, 10, most=5, routing_key="b")
    engine.step()
    return engine


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fcfs", [2, 3, 4, 5, 6]),
        ("lpm", [4, 6, 2, 3, 5]),
        ("lof", [3, 6, 2, 4, 5]),
        ("dfs-weight", [4, 6, 2, 3, 5]),
    ],
)
def test_a_policy_orders_the_queue(release: str, policy: str, order: list[int]) -> None:
    """Requests 2 and 3 start alike, 4 and 6 with what is cached.

    Under `lpm` request 3 waits for 2 to be cached.
    """
    engine = crowd(release, policy)

    send(engine, 200, ALIKE)
    send(engine, 200, ALIKE + 1, most=9)
    send(engine, 0, 45)
    send(engine, 500, 35)
    send(engine, 0, 20, most=3)
    engine.run()

    assert order == named(engine, "request-finished")[2:]


@pytest.mark.parametrize("release", RELEASES)
def test_requests_with_the_key_of_the_running_ones_come_first(release: str) -> None:
    engine = crowd(release, "routing-key", max_running_requests=2)

    send(engine, 200, 10, most=1, routing_key="a")
    send(engine, 300, 10, most=1, routing_key="b")
    send(engine, 400, 10, most=1)
    engine.run()

    assert [3, 4, 2] == [each for each in named(engine, "request-finished") if each > 1]


@pytest.mark.parametrize(
    ("policy", "order"), [("hrrn", [3, 4, 2]), ("shortest-prefill-first", [4, 3, 2])]
)
def test_a_policy_prefers_short_prefills(policy: str, order: list[int]) -> None:
    """Each step of the one that runs counts as the ten tokens of its prompt (a trap)."""
    engine = crowd("0.5.23", policy)

    send(engine, 200, 60)
    send(engine, 300, 12)
    for _ in range(3):
        engine.step()
    send(engine, 400, 8)
    engine.run()

    assert order == named(engine, "request-finished")[2:]


def test_a_chunk_leaves_room_for_shorter_prompts() -> None:
    """Of 64 tokens 10 are left to the prompt that waits; a server without the policy takes all."""
    chunks = {}
    for policy in ("fcfs", "shortest-prefill-first"):
        engine = server("0.5.23", schedule_policy=policy, chunked_prefill_size=64)
        send(engine, 0, 200)
        engine.step()
        send(engine, 500, 10)
        engine.run()
        found = [e for e in engine.events if e.name() == "chunk-scheduled"]
        chunks[policy] = [(int(e.task or 0), e.end) for e in found][1:3]

    assert {"fcfs": [(0, 128), (0, 192)], "shortest-prefill-first": [(0, 118), (1, 10)]} == chunks


def test_no_second_request_is_chunked_beside_an_unfinished_one() -> None:
    """The chunk has room for one token of the second request, which waits instead. The numbers are
    those of the real scheduler.
    """
    flags = {"chunked_prefill_size": 32, "mamba_radix_cache_strategy": "no_buffer"}
    policy = "shortest-prefill-first"
    engine = server("0.5.23", model="hybrid", schedule_policy=policy, **flags)

    send(engine, 0, 66)
    engine.step()
    send(engine, 0, 32)
    engine.run()
    found = [e for e in engine.events if e.name() == "chunk-scheduled"]

    assert [(0, 32), (32, 63), (63, 66)] == [(e.start, e.end) for e in found if e.task == 0]
    assert [(0, 29), (29, 32)] == [(e.start, e.end) for e in found if e.task == 1]


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_the_policy_random_shuffles_as_python_does(seed: int) -> None:
    generator, own = random.Random(seed), Shuffler(seed)
    for count in (1, 2, 5, 33, 100):
        expected = list(range(count))
        shuffled = [Req.make(number, np.array([1]), 1) for number in expected]

        generator.shuffle(expected)
        own.shuffle(shuffled)

        assert expected == [req.id for req in shuffled]


def test_priorities_go_with_two_policies() -> None:
    with pytest.raises(OptionError, match="must be 'fcfs' or 'lof'"):
        server("0.5.23", schedule_policy="lpm", enable_priority_scheduling=True)


def test_a_long_queue_is_not_matched() -> None:
    """Beyond 128 requests `lpm` leaves the queue as it is."""
    first = {}
    for count in (120, 130):
        engine = crowd("0.5.23", "lpm")
        for number in range(count):
            send(engine, 1000 + 20 * number, 10, most=1)
        send(engine, 0, 45)
        engine.run()
        first[count] = named(engine, "request-finished")[2]

    assert {120: 122, 130: 2} == first
