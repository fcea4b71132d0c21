"""The third tier of 0.5.23, for models of every kind: what is asked, what comes, who waits."""

from typing import Any

import numpy as np
import pytest

from cachesim.engines.family import Profile
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.server import Sglang
from cachesim.engines.sglang.storage_threads import Retries
from cachesim.errors import ContractError
from cachesim.typed import of_kind, there_is
from conformance.real.sglang.playing import play
from conformance.real.sglang.workloads import KINDS, draw
from tests.engines.conversations import wrong
from tests.engines.sglang.test_sglang_overlap import send, server
from tests.engines.sglang.workloads import PRESETS, Workload

NEWEST = FAMILY.release("0.5.23").rules


def waiting(*numbers: int) -> list[Req]:
    return [Req.make(number, np.arange(4), 1) for number in numbers]


def test_a_miss_is_asked_for_again_some_passes_later_but_not_by_the_head_of_the_queue() -> None:
    retries, queue = Retries(interval=2, attempts=1), waiting(0, 1)
    for req in queue:
        retries.missed(req.id)

    assert [[], [], [1], []] == [[req.id for req, _ in retries.ready(queue)] for _ in range(4)]


def test_who_has_asked_often_enough_asks_no_more() -> None:
    retries, queue = Retries(interval=1, attempts=1), waiting(0, 1)
    queue[1].reissues = 1
    retries.missed(1)

    assert [[], [], []] == [retries.ready(queue) for _ in range(3)]
    assert {} == retries.pending


@pytest.mark.parametrize("reissues", [-1, 9])
def test_a_request_that_queried_more_often_than_allowed_is_found(reissues: int) -> None:
    engine = of_kind(Sglang, server("0.5.23", model="hybrid"))
    send(engine, [*range(100, 120)])
    engine.step()
    [job] = engine._jobs
    there_is(job.req).reissues = reissues

    with pytest.raises(ContractError, match=f"has queried {reissues} times again"):
        engine.check_integrity()


@pytest.mark.parametrize(
    ("release", "storage", "cached"),
    [
        ("0.5.9", {"policy": "best_effort", "lag": 3, "timeout_base": 0}, 0),
        ("0.5.9", {"policy": "wait_complete", "lag": 3, "timeout_base": 0}, 64),
        ("0.5.9", {"policy": "timeout", "lag": 3, "timeout_base": 2}, 0),
        ("0.5.9", {"policy": "timeout", "lag": 3, "timeout_base": 5}, 64),
        ("0.5.23", {"policy": "best_effort", "timeout_base": 0}, 0),
        ("0.5.23", {"policy": "wait_complete", "timeout_base": 0}, 64),
        ("0.5.23", {"policy": "timeout", "timeout_base": 2}, 0),
        ("0.5.23", {"policy": "timeout", "timeout_base": 9}, 64),
        # A check for each token: 70 from the first check, or none until the storage has answered.
        ("0.5.22", {"policy": "timeout", "timeout_base": 0, "timeout_per_ki_token": 1024.0}, 0),
        ("0.5.23", {"policy": "timeout", "timeout_base": 0, "timeout_per_ki_token": 1024.0}, 64),
    ],
)
def test_who_waits_for_a_slow_storage(release: str, storage: dict[str, Any], cached: int) -> None:
    host = {"policy": "write_through", "ratio": 2.0}
    host["storage"] = {"threshold": 20, "lag": 2, **storage}
    prompts = ["1-64", *(f"{at}-{at + 199}" for at in range(1000, 7000, 1000)), "1-70"]
    groups = [[{"prompt": prompt, "generate": 1, "reply": "9999"}] for prompt in prompts]
    reset = [] if release == "0.5.9" else [[{"reset": True}]]
    config = {"kind": "full", "tokens": 400, "host": host}
    workload = {"config": config, "steps": [*groups[:-1], *reset, groups[-1]]}

    *_, last = play(workload, FAMILY.release(release).rules)

    assert cached == last["requests"][0]["cached"]


def test_a_server_waits_for_its_storage_by_default_since_0522() -> None:
    policies = [
        FAMILY.read(Profile("sglang", release), {}).hicache_storage_prefetch_policy
        for release in FAMILY.names()
    ]

    assert ["best_effort", "timeout", "timeout"] == policies


@pytest.mark.sampled(3)
@pytest.mark.thorough
@pytest.mark.parametrize("preset", PRESETS)
def test_answers_from_the_storage_are_those_of_a_cold_run(preset: str) -> None:
    for seed in range(8):
        assert [] == wrong(Workload(seed, "sglang@0.5.23", presets=(preset,), stored=True))


@pytest.mark.thorough
def test_such_workloads_fetch_attention_windows_and_states() -> None:
    parts: set[str] = set()
    for seed in range(30):
        workload = Workload(seed, "sglang@0.5.23", stored=True)
        wrong(workload)
        parts |= {event.part for event in workload.engine.events if "fetched" in event.name()}
    assert {"attention", "window", "state"} == parts


def test_storage_workloads_are_drawn_for_every_kind_of_model() -> None:
    numbers = range(KINDS.index("storage"), 40 * len(KINDS), len(KINDS))
    drawn = [draw(0, number, NEWEST) for number in numbers]

    assert {"full", "window", "mamba", "window-mamba"} == {d["config"]["kind"] for d in drawn}
    assert any("reset" in group[0] for each in drawn for group in each["steps"])
