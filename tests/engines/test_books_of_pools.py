"""Books of the pools and trees of vLLM and SGLang that do not agree."""

from collections.abc import Callable
from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.errors import ContractError
from cachesim.model.presets import preset
from cachesim.units import as_tokens


def served(profile: str) -> Any:
    engine = Engine.create(profile, model=preset("hybrid"))
    engine.submit(Request(prompt=as_tokens(range(1, 100)), predict=3))
    engine.run()
    engine.check_integrity()
    return engine


def _repeats_a_state(engine: Any) -> None:
    free = engine.tree.states.free_slots
    free.put(free.take(2)[:1].repeat(2))


def _forgets_a_use(engine: Any) -> None:
    engine.tree.state_lru.remove(next(iter(engine.tree.state_lru)))


@pytest.mark.parametrize(
    ("profile", "change", "why"),
    [
        ("sglang@0.5.23", _repeats_a_state, "states are free twice"),
        ("sglang@0.5.23", _forgets_a_use, "state_lru has 0 nodes"),
        ("sglang@0.5.23", lambda engine: engine.tree.leaves.clear(), "0 leaves may be evicted"),
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
