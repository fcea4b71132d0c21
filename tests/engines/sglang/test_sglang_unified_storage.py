"""The third tier of 0.5.23, for models of every kind: what is asked, what comes, who waits."""

import numpy as np
import pytest

from cachesim.engines.family import Profile
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.storage_threads import Retries
from cachesim.lab.real.sglang.playing import play
from cachesim.lab.real.sglang.workloads import KINDS, draw
from tests.engines.conversations import wrong
from tests.engines.sglang.workloads import PRESETS, Workload

NEWEST = FAMILY.release("0.5.23").rules


def waiting(*numbers: int) -> list[Req]:
    return [Req.make(number, np.arange(4), 1) for number in numbers]


def test_a_miss_is_asked_for_again_some_passes_later_but_not_by_the_head_of_the_queue() -> None:
    retries, queue = Retries(interval=2, attempts=1), waiting(0, 1)
    for req in queue:
        retries.missed(req.id)

    passes = [[req.id for req, _ in retries.ready(queue)] for _ in range(4)]

    assert [[], [], [1], []] == passes


def test_who_has_asked_often_enough_asks_no_more() -> None:
    retries, queue = Retries(interval=1, attempts=1), waiting(0, 1)
    queue[1].reissues = 1
    retries.missed(1)

    assert [[], [], []] == [retries.ready(queue) for _ in range(3)]
    assert {} == retries.pending


@pytest.mark.parametrize(
    ("policy", "base", "cached"),
    [("best_effort", 0, 0), ("wait_complete", 0, 64), ("timeout", 2, 0), ("timeout", 9, 64)],
)
def test_who_waits_for_a_slow_storage(policy: str, base: float, cached: int) -> None:
    storage = {"policy": policy, "threshold": 20, "lag": 2, "timeout_base": base}
    host = {"policy": "write_through", "ratio": 2.0, "storage": storage}
    first, again = ({"prompt": p, "generate": 1, "reply": "9999"} for p in ("1-64", "1-70"))
    others = [
        [{"prompt": f"{at}-{at + 199}", "generate": 1, "reply": "9999"}]
        for at in range(1000, 7000, 1000)
    ]
    workload = {
        "config": {"kind": "full", "tokens": 400, "host": host},
        "steps": [[first], *others, [{"reset": True}], [again]],
    }

    *_, last = play(workload, NEWEST)

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
