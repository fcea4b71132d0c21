"""The second tier: what is copied to the host, when, what comes back, and what is refused."""

from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.host_pool import HostPool, Transfers
from cachesim.engines.sglang.server import Sglang
from cachesim.errors import OptionError
from cachesim.model.presets import tiny
from cachesim.units import Tokens, as_tokens
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


def send(engine: Sglang, *prompts: Tokens) -> list[int]:
    """What is reused of each, one after the other, with one generated token."""
    found = []
    for prompt in prompts:
        ticket = engine.submit(Request(prompt=prompt, predict=1, reply=prompt[:1]))
        engine.run()
        answer = engine.reply(ticket)
        assert answer is not None
        found.append(int(answer.cached or 0))
        engine.check_integrity()
    return found


def told(engine: Sglang, name: str) -> list[str]:
    return [event.sentence for event in engine.events if event.name() == name]


def fresh(first: int, count: int) -> Tokens:
    return as_tokens(range(first, first + count))


A, B, C = fresh(0, 200), fresh(1000, 200), fresh(2000, 190)


@pytest.mark.parametrize("release", RELEASES)
def test_what_the_device_has_evicted_comes_back_from_the_host(release: str) -> None:
    engine = server(release)

    assert [0, 0, 0, 199] == send(engine, A, B, C, A)
    assert "tokens 0 to 199 of request 0 are loaded back from the host" in told(
        engine, "loaded-from-host"
    )


@pytest.mark.parametrize("release", RELEASES)
def test_without_a_host_it_is_gone(release: str) -> None:
    assert [0, 0, 0, 0] == send(server(release, enable_hierarchical_cache=False), A, B, C, A)


@pytest.mark.parametrize("release", RELEASES)
def test_write_through_selective_copies_what_is_used_twice(release: str) -> None:
    engine = server(release, hicache_write_policy="write_through_selective")

    send(engine, A)
    once = told(engine, "copied-to-host")
    send(engine, A)

    assert [] == once
    assert "tokens 0 to 199 of request 0 are copied to the host" in told(engine, "copied-to-host")


@pytest.mark.parametrize("release", RELEASES)
def test_write_back_copies_what_the_device_gives_up(release: str) -> None:
    engine = server(release, hicache_write_policy="write_back")

    send(engine, A)
    before = told(engine, "copied-to-host")
    found = send(engine, B, C, A)

    assert [] == before
    assert [0, 0, 199] == found
    assert told(engine, "copied-to-host")


@pytest.mark.parametrize("release", RELEASES)
def test_fewer_than_ten_tokens_are_computed_again(release: str) -> None:
    engine = server(release, max_total_tokens=60)
    short = fresh(3000, 9)

    send(engine, short, fresh(0, 55))
    ticket = engine.submit(Request(prompt=short, predict=1, reply=short[:1]))
    engine.run()
    reply = engine.reply(ticket)

    assert reply is not None
    assert (0, ["last-token", "not-loaded-back"]) == (
        reply.cached,
        [loss.rule for loss in reply.losses],
    )


def test_states_and_windows_come_back_with_their_tokens() -> None:
    for model, cached in (("hybrid", 192), ("swa", 199), ("hybrid-swa", 192)):
        engine = server("0.5.23", model)
        assert [0, 0, 0, cached] == send(engine, A, B, C, A)
        parts = {event.as_dict()["part"] for event in engine.events if "loaded" in event.name()}
        assert {"hybrid": 2, "swa": 2, "hybrid-swa": 3}[model] == len(parts)


def test_the_picture_shows_what_the_host_has() -> None:
    engine = server("0.5.23", "hybrid")
    send(engine, A, B)

    parked = engine.held().entries

    assert [("host", 192, 1), ("host", 192, 1)] == [
        (each.kind, len(each.tokens), each.checkpoints) for each in parked
    ]
    assert parked[0].tokens == A[:192]


@pytest.mark.parametrize("model", ["swa", "hybrid", "recurrent"])
def test_059_has_a_host_beside_full_attention_only(model: str) -> None:
    with pytest.raises(OptionError, match="HiRadixCache supports MHA and MLA"):
        server("0.5.9", model)


def test_059_asserts_that_the_host_holds_more_than_the_device() -> None:
    with pytest.raises(OptionError, match="write a hicache_ratio of 1 or more"):
        server("0.5.9", hicache_ratio=0.5)
    assert [0] == send(server("0.5.23", hicache_ratio=0.5), A)


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
