"""The second tier: what is copied to the host, when, what comes back, and what is refused."""

from typing import Any

import pytest

from cachesim.engines.base import Engine
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.pools import HostPool, Transfers
from cachesim.engines.sglang.server import Sglang
from cachesim.model.presets import tiny
from tests.engines.conversations import wrong
from tests.engines.sglang.workloads import Workload

RELEASES = FAMILY.names()
ON = {"enable_hierarchical_cache": True}


def server(release: str, model: str = "dense", **options: Any) -> Sglang:
    made = Engine.create(
        f"sglang@{release}",
        model=tiny(model, vocabulary=4096),
        options=ON | {"max_total_tokens": 400} | options,
        arithmetic="counts",
    )
    assert isinstance(made, Sglang)
    return made


def test_a_size_in_gigabytes_is_split_like_the_devices_pools() -> None:
    engine = server("0.5.23", "hybrid", hicache_size=1, max_mamba_cache_size=40)
    host = engine.tree.shape.host
    assert host is not None

    assert abs(host.tokens / 400 - host.states / 40) < 0.1


def test_slots_are_taken_in_the_order_in_which_they_became_free() -> None:
    pool = HostPool(5)
    first, second = pool.alloc(2), pool.alloc(2)
    assert first is not None
    assert second is not None
    pool.free(second)
    pool.free(first)

    assert pool.alloc(6) is None
    whole = pool.alloc(5)
    assert whole is not None
    assert [4, 2, 3, 0, 1] == whole.tolist()


def test_a_copy_that_is_not_done_holds_up_those_behind_it() -> None:
    under = Transfers(lag=1)
    under.queued = [1, 2]
    under.submit()
    under.queued = [3]
    under.submit()

    assert [[], [1, 2], [3]] == [under.done() for _ in range(3)]


@pytest.mark.parametrize("release", RELEASES)
def test_answers_from_the_host_are_the_cold_ones(release: str) -> None:
    presets = ("dense",) if release == "0.5.9" else ("dense", "swa", "hybrid", "hybrid-swa")
    seeds = range(12)
    loaded = 0
    for seed in seeds:
        workload = Workload(seed, f"sglang@{release}", presets=presets, tiered=True)
        assert [] == wrong(workload)
        loaded += sum(event.name() == "loaded-from-host" for event in workload.engine.events)
    assert loaded


@pytest.mark.parametrize("release", RELEASES)
def test_copies_that_are_made_too_late_give_wrong_answers(release: str) -> None:
    presets = ("dense",) if release == "0.5.9" else ("dense", "hybrid")
    seeds = range(20)
    profile = f"sglang@{release}+39830"
    assert any(wrong(Workload(seed, profile, presets=presets, tiered=True)) for seed in seeds)
