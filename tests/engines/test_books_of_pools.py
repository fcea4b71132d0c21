"""Books of llama.cpp's slots, and of the pools and trees of vLLM and SGLang, that do not agree."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.sglang.account import States
from cachesim.engines.sglang.node import HOST
from cachesim.engines.tokens import PrefixTree
from cachesim.errors import ContractError
from cachesim.model.presets import preset
from cachesim.units import as_tokens


def served(profile: str) -> Any:
    engine = Engine.create(profile, model=preset("hybrid"))
    engine.submit(Request(prompt=as_tokens(range(1, 100)), predict=3))
    engine.run()
    engine.check_integrity()
    return engine


def _keeps_a_checkpoint_twice(engine: Any) -> None:
    held = engine._server.slots[0].prompt.checkpoints
    held.append(held[-1])


def _repeats_a_state(engine: Any) -> None:
    free = engine.tree.states.free_slots
    free.put(free.take(2)[:1].repeat(2))


def _forgets_a_use(engine: Any) -> None:
    engine.tree.state_lru.remove(next(iter(engine.tree.state_lru)))


def _forgets_what_was_kept(engine: Any) -> None:
    engine.account.kept = PrefixTree()


def _forgets_states(engine: Any) -> None:
    engine.account.states = States()


@pytest.mark.parametrize(
    ("profile", "change", "why"),
    [
        ("sglang@0.5.23", _repeats_a_state, "states are free twice"),
        ("sglang@0.5.23", _forgets_a_use, "state_lru has 0 nodes"),
        ("sglang@0.5.23", lambda engine: engine.tree.leaves.clear(), "0 leaves may be evicted"),
        ("sglang@0.5.23", _forgets_what_was_kept, "no record of 64 tokens"),
        ("sglang@0.5.23", _forgets_states, "no record of the state after 64 tokens"),
        ("llama.cpp@b11549", _keeps_a_checkpoint_twice, "two checkpoints of one length"),
        ("vllm@0.33.0", lambda engine: engine.manager.pins.update({9: []}), "kept of request 9"),
        ("vllm@0.33.0", lambda engine: engine.manager.pool.cached.clear(), "not cached"),
    ],
)
def test_books_that_disagree_are_found(
    profile: str, change: Callable[[Any], object], why: str
) -> None:
    engine = served(profile)

    change(engine)

    with pytest.raises(ContractError, match=why):
        engine.check_integrity()


def _frees_its_last_page(engine: Any, req: Any) -> None:
    pool = engine.tree.pool
    pool.free_pages.take(1)
    pool.free_pages.put(req.row[req.allocated - 1 : req.allocated] // pool.page)


def _tracks_in_a_third_slot(_: Any, req: Any) -> None:
    req.next_track = 2


def _loses_a_page(engine: Any, _: Any) -> None:
    engine.tree.pool.free_pages.take(1)


def _loses_a_state(engine: Any, _: Any) -> None:
    engine.tree.states.free_slots.take(1)


def _unlocks_twice(engine: Any, _: Any) -> None:
    next(engine.tree.nodes()).locks[HOST] -= 1


def _takes_its_state(engine: Any, req: Any) -> None:
    engine.tree.states.free_slots.take(1)
    engine.tree.states.free_slots.put(np.array([req.state], np.int64))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_frees_its_last_page, "slots of a running request are free"),
        (_loses_a_page, "slots are free and"),
        (_loses_a_state, "free states and 4 in use"),
        (_unlocks_twice, "of the device and the host"),
        (_takes_its_state, "states of a running request are free"),
        (_tracks_in_a_third_slot, "in slot 2 of at most two"),
    ],
)
def test_books_of_a_running_request_that_disagree_are_found(
    change: Callable[[Any, Any], object], why: str
) -> None:
    engine: Any = Engine.create("sglang@0.5.23", model=preset("hybrid"))
    engine.submit(Request(prompt=as_tokens(range(1, 100)), predict=30))
    for _ in range(8):
        engine.step()
    engine.check_integrity()
    (req,) = engine.scheduler.running.reqs

    change(engine, req)

    with pytest.raises(ContractError, match=why):
        engine.check_integrity()


def test_a_window_that_the_hosts_list_lacks_is_found() -> None:
    options = {"enable_hierarchical_cache": True, "max_total_tokens": 200, "hicache_ratio": 2.0}
    engine: Any = Engine.create("sglang@0.5.23", model=preset("swa"), options=options)
    for first in (1, 150, 300):
        engine.submit(Request(prompt=as_tokens(range(first, first + 120)), predict=3))
        engine.run()
    engine.check_integrity()
    listed = engine.tree.tier.window_lru

    listed.remove(next(iter(listed)))

    with pytest.raises(ContractError, match="the host's list"):
        engine.check_integrity()


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_a_wrong_count_of_prefetched_tokens_is_found(release: str) -> None:
    options = {"enable_hierarchical_cache": True, "hicache_storage_backend": "file"}
    engine: Any = Engine.create(f"sglang@{release}", model=preset("dense"), options=options)
    engine.check_integrity()

    engine.tree.occupied += 1

    with pytest.raises(ContractError, match="0 tokens are prefetched, 1 count"):
        engine.check_integrity()
