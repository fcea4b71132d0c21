"""The numbers of SGLang's own classes, request by request, on the engine as users start it."""

import hashlib
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cachesim.engines.base import Request
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.node import as_key
from cachesim.engines.sglang.options import SglangOptions
from cachesim.engines.sglang.pools import HostPool, Ring, Transfers, hashes_of
from cachesim.engines.sglang.rules import Rules
from cachesim.typed import there_is
from cachesim.units import as_tokens
from conformance.real.sglang.playing import play
from tests.engines.conversations import wrong
from tests.engines.sglang.workloads import Workload, server

RELEASES = ("0.5.9", "0.5.23")


def strategy(release: str, name: str) -> dict[str, Any]:
    option = "mamba_scheduler_strategy" if release == "0.5.9" else "mamba_radix_cache_strategy"
    return {option: name}


def test_drafts_and_mixed_chunks_go_together_since_0523() -> None:
    asked = SglangOptions(enable_mixed_chunk=True, speculative_algorithm="EAGLE")

    found = {release: asked.mixes(FAMILY.release(release).rules) for release in RELEASES}

    assert {"0.5.9": False, "0.5.23": True} == found


@pytest.mark.parametrize(
    ("release", "named", "options", "running"),
    [
        ("0.5.23", "extra_buffer", {}, 3),
        ("0.5.23", "no_buffer", {}, 5),
        ("0.5.9", "extra_buffer", {}, 3),
        ("0.5.9", "extra_buffer", {"speculative_algorithm": "EAGLE"}, 4),
        ("0.5.23", "extra_buffer", {"speculative_algorithm": "EAGLE"}, 3),
        ("0.5.23", "no_buffer", {"max_total_tokens": 9}, 4),
        ("0.5.9", "no_buffer", {"max_total_tokens": 9}, 5),
    ],
)
def test_states_and_tokens_bound_the_requests_that_run_at_once(
    release: str, named: str, options: dict[str, Any], running: int
) -> None:
    """Sixteen states: three a request, and one or two more where states are tracked apart."""
    options = {"max_mamba_cache_size": 16, **strategy(release, named), **options}

    assert running == server(release, "hybrid", **options).scheduler.limits.max_running


WORKLOADS = 25


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", FAMILY.names())
def test_answers_from_cache_are_the_cold_ones(release: str) -> None:
    found = {seed: len(wrong(Workload(seed, f"sglang@{release}"))) for seed in range(WORKLOADS)}
    assert {} == {seed: count for seed, count in found.items() if count}


FOUND = {
    "no-37836": ("hybrid", "recurrent", "hybrid-delta"),
    "no-29368": ("hybrid", "recurrent"),
    "24221": ("hybrid", "recurrent"),
    "24380": ("hybrid", "recurrent"),
    "31486": ("swa",),
    "shared-state": ("hybrid", "recurrent"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("patch", FOUND)
@pytest.mark.parametrize("release", FAMILY.names())
def test_a_defect_that_moves_states_wrongly_gives_a_wrong_answer(release: str, patch: str) -> None:
    seeds = range(80)
    profile = f"sglang@{release}+{patch}"
    assert any(wrong(Workload(seed, profile, presets=FOUND[patch])) for seed in seeds)


HOST_RELEASES = FAMILY.names()
ON = {"enable_hierarchical_cache": True}


def test_a_size_in_gigabytes_is_split_like_the_devices_pools() -> None:
    sizes = {"hicache_size": 1, "max_mamba_cache_size": 40, "max_total_tokens": 400}
    host = there_is(server("0.5.23", "hybrid", **ON, **sizes).tree.shape.host)

    assert abs(host.tokens / 400 - host.states / 40) < 0.1


def test_slots_are_taken_in_the_order_in_which_they_became_free() -> None:
    pool = HostPool(5)
    first, second = there_is(pool.alloc(2)), there_is(pool.alloc(2))
    pool.free(second)
    pool.free(first)

    assert pool.alloc(6) is None
    assert [4, 2, 3, 0, 1] == there_is(pool.alloc(5)).tolist()


def test_a_copy_that_is_not_done_holds_up_those_behind_it() -> None:
    under = Transfers(lag=1)
    under.queued = [1, 2]
    under.submit()
    under.queued = [3]
    under.submit()

    assert [[], [1, 2], [3]] == [under.done() for _ in range(3)]


@pytest.mark.parametrize("release", HOST_RELEASES)
def test_a_request_waits_for_the_copies_that_lock_what_it_needs(release: str) -> None:
    """Steps without a batch are no endless loop while a copy to the host is under way."""
    options = {"hicache_copy_steps": 20, "max_total_tokens": 100, "page_size": 1}
    engine = server(release, "dense", "ring", **ON, **options)
    prompts = (range(300, 360), range(400, 460))

    tickets = [engine.submit(Request(prompt=as_tokens(prompt), predict=1)) for prompt in prompts]
    steps = sum(1 for _ in iter(engine.step, False))

    assert [0, 0] == [there_is(engine.reply(ticket)).cached for ticket in tickets]
    assert steps > 20


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", HOST_RELEASES)
def test_answers_from_the_host_are_the_cold_ones(release: str) -> None:
    presets = ("dense",) if release == "0.5.9" else ("dense", "swa", "hybrid", "hybrid-swa")
    seeds = range(12)
    loaded = 0
    for seed in seeds:
        workload = Workload(seed, f"sglang@{release}", presets=presets, tiered=True)
        assert [] == wrong(workload)
        loaded += sum(event.name() == "loaded-from-host" for event in workload.engine.events)
    assert loaded


@pytest.mark.parametrize("release", HOST_RELEASES)
def test_copies_that_are_made_too_late_give_wrong_answers(release: str) -> None:
    presets = ("dense",) if release == "0.5.9" else ("dense", "hybrid")
    seeds = range(20)
    profile = f"sglang@{release}+39830"
    assert any(wrong(Workload(seed, profile, presets=presets, tiered=True)) for seed in seeds)


def test_of_a_pair_both_tokens_count_in_the_key_of_a_page() -> None:
    """`get_hash_str`: every token as four bytes, after the key of the page before."""
    for last in (3, 4):
        pairs = as_key(np.array([1, 2, last]), bigrams=True)
        plain = np.array([1, 2, 2, last], "<u4").tobytes()
        assert hashlib.sha256(plain).digest() == hashes_of(pairs, None, 3, bigrams=True)[0]
        assert hashlib.sha256(b"x" + plain).digest() == hashes_of(pairs, b"x", 3, bigrams=True)[0]
    tokens = np.array([1, 2, 3])
    whole = np.array([1, 2, 3], "<u4").tobytes()
    assert hashlib.sha256(whole).digest() == hashes_of(tokens, None, 3, bigrams=False)[0]


def test_a_ring_grows_beyond_what_there_was_and_keeps_its_order() -> None:
    """Slots that are freed twice are there twice."""
    for seed in range(40):
        rng, ring = random.Random(seed), Ring(1, 5)
        plain = [1, 2, 3, 4, 5]
        for number in range(30):
            count = rng.randint(0, 4)
            if rng.random() < 0.4 and count <= len(plain):
                assert plain[:count] == ring.take(count).tolist()
                del plain[:count]
            else:
                more = np.arange(100 + number, 100 + number + count)
                ring.put(more)
                plain += more.tolist()
            assert len(plain) == ring.count
        assert plain == ring.take(len(plain)).tolist()


def test_a_client_that_leaves_is_answered_at_once_and_its_slots_are_free() -> None:
    engine = server("0.5.23")
    ticket = engine.submit(Request(prompt=as_tokens(range(50)), predict=40))
    for _ in range(4):
        engine.step()
    engine.cancel(ticket)
    reply = there_is(engine.reply(ticket))
    assert "cancelled" == reply.error
    engine.run()
    assert len(reply.generated) < 40
    again = engine.submit(Request(prompt=as_tokens(range(50)), predict=1))
    engine.run()
    second = there_is(engine.reply(again))
    assert 49 == second.cached
    engine.cancel(again)
    assert second == engine.reply(again)


# What 0.5.22 decides otherwise than 0.5.23, each by one rule, in the shortest workload found.

OLD, NEW = (FAMILY.release(release).rules for release in ("0.5.22", "0.5.23"))


def asked(prompt: str, generate: int = 1, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "generate": generate, "reply": "9000-9099"} | more


def played(rules: Rules, config: dict[str, Any], *steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The last step of a workload."""
    return play({"config": config, "steps": list(steps)}, rules)[-1]


def chunks(told: dict[str, Any]) -> list[Any]:
    return [request["chunks"] for request in told["requests"]]


def test_rows_that_the_batch_holds_are_not_free() -> None:
    """The last piece of a prompt leaves half a chunk, and one row is free beside its own."""
    config = {"kind": "full", "chunk": 8, "max_running": 2, "tokens": 400}
    group = [asked("1-20"), asked("101-110")]

    old, new = (chunks(played(rules, config, group)) for rules in (OLD, NEW))

    assert [[0, 8], [8, 10]] == old[1]
    assert [[0, 4], [4, 10]] == new[1]


def test_a_finished_request_leaves_the_running_batch_when_it_decodes() -> None:
    """The second request is there for one pass only: the one in which the first has just ended."""
    config = {"kind": "full", "max_running": 1, "tokens": 400}
    group = [asked("1-20", 4), asked("101-110", arrives=4, aborted=5)]

    old, new = (chunks(played(rules, config, group)) for rules in (OLD, NEW))

    assert ([], [[0, 10]]) == (old[1], new[1])


def test_a_chunk_that_is_spent_is_seen_after_the_first_waiting_request() -> None:
    config = {"kind": "mamba", "strategy": "extra_buffer", "states": 9, "tokens": 92}
    config |= {"chunk": 2, "max_running": 3}
    group = [asked("1-24", 2), asked("1-24", 2), asked("1-39"), asked("101-136")]

    old, new = (chunks(played(rules, config, group)) for rules in (OLD, NEW))

    assert ([0, 1], [0, 2]) == (old[3][0], new[3][0])


WINDOWS = {"kind": "window", "page": 16, "tokens": 160, "window": 40, "window_tokens": 128}


def test_of_a_window_as_many_tokens_are_kept_and_no_whole_pages() -> None:
    old, new = (played(rules, WINDOWS | {"chunk": 64}, [asked("1-81")]) for rules in (OLD, NEW))

    assert [[0, 16, 16, 0], [0, 64, 48, 1], [0, 80, 16, 1]] == old["tree"]
    assert [[0, 16, 16, 1], [0, 64, 48, 1], [0, 80, 16, 1]] == new["tree"]


def test_a_match_that_ends_before_what_was_inserted_frees_the_slots_of_the_tree() -> None:
    """The last page's window is short of the model's: the request goes on with slots of its own,
    and the next insertion takes the tree's for duplicates.
    """
    config = WINDOWS | {"chunk": 64, "max_prefill": 57, "tokens": 320, "window_tokens": 256}
    rules = replace(OLD, tree=replace(OLD.tree, holds_what_it_inserts=True))
    group = [asked("500-556", 5), asked("1-127")]

    assert "pool memory leak detected" == played(OLD, config, group)["error"]
    assert "error" not in played(rules, config, group)
    assert "error" not in played(NEW, config, group)


@pytest.mark.thorough
def test_write_back_copies_windows_that_came_after_their_node_was_copied() -> None:
    config = {"kind": "window", "tokens": 192, "window": 8, "window_tokens": 40, "chunk": 1}
    config |= {"host": {"policy": "write_back", "ratio": 1.0}}
    steps = [asked("1-180")], [asked("1-90 1001-1009")]

    old, new = (played(rules, config, *steps)["tree"] for rules in (OLD, NEW))

    assert [31, 0] == [sum(row[-2:] == [1, 1] for row in tree) for tree in (old, new)]
