"""Blocks on the host: what is stored, loaded and evicted, and that answers are the cold ones."""

from functools import partial
from random import Random
from typing import Any

import pytest

from cachesim.engines import base
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.host import Access, HostCache, Key, TouchedLru
from cachesim.engines.vllm.rules import OffloadRules
from cachesim.engines.vllm.server import Vllm
from cachesim.engines.vllm.vocabulary import (
    BlocksOffloaded,
    HostEvicted,
    HostFull,
    RequestAskedLater,
)
from cachesim.errors import OptionError
from cachesim.model.presets import preset
from cachesim.typed import of_kind
from cachesim.units import Token
from conformance.real.vllm.playing import play
from conformance.real.vllm.workloads import draw_offload
from tests.engines import asking

FIRST = tuple(map(Token, range(100, 200)))
OTHERS = [tuple(map(Token, range(at, at + 150))) for at in (200, 350)]
RELEASES = FAMILY.having(FAMILY.option("kv_offloading_size"))

answer = partial(asking.answer, predict=2)


def server(model: str = "dense", profile: str = "vllm@0.33.0", **options: Any) -> Vllm:
    """A server with a small pool and a host."""
    wanted = {"num_gpu_blocks_override": 14, "kv_offloading_size": 1.0} | options
    made = base.Engine.create(profile, model=preset(model), options=wanted, arithmetic="ring")
    return of_kind(Vllm, made)


def returning(engine: Vllm) -> Any:
    """The reply to a prompt whose blocks others have taken."""
    for prompt in (FIRST, *OTHERS):
        answer(engine, prompt)
    engine.run()
    return answer(engine, FIRST)


def hashed(*numbers: int) -> list[Key]:
    return [(number, 0) for number in numbers]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", ["dense", "swa", "hybrid", "hybrid-swa"])
def test_what_the_pool_has_lost_comes_back_from_the_host(model: str, release: str) -> None:
    flags = {"num_gpu_blocks_override": 24 if model in {"dense", "swa"} else 40}
    plain = server(model, f"vllm@{release}", kv_offloading_size=0.0, **flags)
    cold = answer(plain, FIRST)

    again = returning(server(model, f"vllm@{release}", **flags))

    assert again.cached == 96
    assert cold.generated == again.generated
    assert (cold.logits == again.logits).all()


@pytest.mark.parametrize("steps", [1, 3])
def test_a_request_waits_for_the_copies_of_another(steps: int) -> None:
    engine = server(copy_steps=steps)
    returning(engine)
    for prompt in OTHERS:
        answer(engine, prompt)
    asked = [engine.submit(base.Request(prompt=FIRST, predict=1)) for _ in range(2)]
    engine.run()

    waiting = [event.task for event in engine.events if isinstance(event, RequestAskedLater)]

    assert asked[1] in waiting
    assert [96, 96] == [engine.reply(each).cached for each in asked]


def test_the_host_evicts_its_oldest_chunks() -> None:
    engine = server(host_chunks_override=10)

    again = returning(engine)

    assert sum(event.chunks for event in engine.events if isinstance(event, HostEvicted)) > 0
    assert again.cached == 0


def test_a_prompt_larger_than_the_host_is_not_stored() -> None:
    engine = server(host_chunks_override=3)

    again = returning(engine)

    assert any(isinstance(event, HostFull) for event in engine.events)
    assert not any(isinstance(event, BlocksOffloaded) for event in engine.events)
    assert again.cached == 0


def test_generated_tokens_are_stored_only_where_the_flag_says_so() -> None:
    kept = []
    for prompt_only in (True, False):
        engine = server(offload_prompt_only=prompt_only)
        first = asking.answer(engine, FIRST, predict=20)
        for prompt in OTHERS:
            answer(engine, prompt)
        kept.append(answer(engine, FIRST + first.generated).cached)

    assert [96, 112] == kept


def test_a_chunk_is_stored_from_the_threshold_on() -> None:
    engine = server(store_threshold=2)

    first, second = returning(engine).cached, returning(engine).cached

    assert [0, 96] == [first, second]


def test_a_slot_keeps_half_of_a_chunk_until_0320() -> None:
    flags = {
        "block_size": 4,
        "num_gpu_blocks_override": 40,
        "max_num_batched_tokens": 16,
        "prefix_cache_retention_interval": 16,
        "host_chunks_override": 12,
        "blocks_per_chunk": 2,
    }
    right = []
    for release in RELEASES:
        engine = server("swa", f"vllm@{release}", **flags)
        long, other = FIRST[:56], FIRST[:26] + OTHERS[0][:24]
        for prompt, count in ((long, 1), (long[:37], 2), (other, 32)):
            asking.answer(engine, prompt, predict=count)
        engine.run()
        reply = asking.answer(engine, long[:9], predict=1)
        cold = asking.answer(server("swa", f"vllm@{release}", **flags), long[:9], predict=1)
        assert reply.cached == 8
        right.append(bool((reply.logits == cold.logits).all()))

    assert [release in FAMILY.since("0.33.0") for release in RELEASES] == right


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"connector": "store"}, "not simulated beside connector"),
        ({"speculative_method": "eagle"}, "not simulated beside speculative_method"),
        ({"kv_offloading_backend": "lmcache"}, "write one of native"),
    ],
)
def test_what_is_not_simulated_beside_a_host_is_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        server(**options)


def test_an_interval_of_parts_of_chunks_is_refused_as_by_the_release() -> None:
    with pytest.raises(OptionError, match="a multiple of the chunks of 48 tokens"):
        server("swa", prefix_cache_retention_interval=16, blocks_per_chunk=3)


@pytest.mark.parametrize("release", RELEASES)
def test_drawn_workloads_load_and_evict(release: str) -> None:
    rules = FAMILY.release(release).rules
    played = [play(draw_offload(1, number, rules), rules) for number in range(14)]

    groups = [each for group in played for each in group]

    assert not [group for group in groups if "error" in group]
    assert any(not stores for group in groups for _, stores, *_ in group["jobs"])
    assert any(group["host_evicted"] for group in groups)


def stored(host: HostCache, keys: list[Key], access: Access) -> None:
    access.positions |= {key: at for at, key in enumerate(keys)}
    answer = host.prepare_store(keys, access)
    assert answer is not None
    host.complete_store([key for key, _ in answer[0]])


def test_the_end_of_a_prompt_is_evicted_before_its_start() -> None:
    host = HostCache(4, "lru", 0, OffloadRules())
    first = Access()
    stored(host, hashed(1, 2, 3), first)
    host.on_request_finished(first)

    late = Access(positions=dict.fromkeys(hashed(4, 5), 1))
    answer = host.prepare_store(hashed(4, 5), late)

    assert answer is not None
    assert hashed(3) == answer[1]


def test_a_look_up_keeps_chunks_on_the_host_until_0300() -> None:
    host = HostCache(3, "lru", 0, OffloadRules(recency="touched"))
    stored(host, hashed(1, 2, 3), Access())
    assert isinstance(host.policy, TouchedLru)
    host.touch(hashed(1))

    answer = host.prepare_store(hashed(4), Access())

    assert answer is not None
    assert hashed(2) == answer[1]


def test_arc_evicts_what_was_used_once_before_what_was_used_again() -> None:
    host = HostCache(3, "arc", 0, OffloadRules())
    for _ in range(2):
        access = Access()
        stored(host, hashed(1), access)
        host.on_request_finished(access)
    stored(host, hashed(2, 3), Access())

    answer = host.prepare_store(hashed(4), Access(positions=dict.fromkeys(hashed(4), 1)))

    assert answer is not None
    assert hashed(2) == answer[1]


@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("recency", ["touched", "request", "position"])
def test_slots_are_never_shared_nor_lost(policy: str, recency: Any) -> None:
    rng, host = Random(policy + recency), HostCache(6, policy, 0, OffloadRules(recency=recency))
    for number in range(300):
        keys = hashed(*rng.sample(range(12), rng.randint(1, 6)))
        access = Access(positions={key: at for at, key in enumerate(keys)})
        ready = [key for key in keys if (slot := host.lookup(key)) is not None and slot.ready]
        if ready and number % 2:
            host.prepare_load(ready, access)
            host.complete_load(ready)
        else:
            answer = host.prepare_store(keys, access)
            host.complete_store([key for key, _ in answer[0]] if answer else [])
        host.on_request_finished(access)
        used = [slot.number for _, slot in host.policy.slots()]

        assert sorted({*used, *host.free}) == list(range(host.allocated))
        assert len(used) + len(host.free) == host.allocated <= 6
        assert host.idle == len(used)
