"""#923 and #929: where snapshots are made, and that they hold states the model never had."""

import numpy as np
import pytest

from cachesim.engines.mlx_lm.caches.layer_cache import UpstreamKeyError
from cachesim.engines.mlx_lm.caches.prompt_cache import ArraysCache, KVCache, LayerCache
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.rules import SnapshotRules
from cachesim.engines.mlx_lm.store.snapshot_prompt_cache import SnapshotPromptCache
from conformance.real.mlx_lm.players import feed

RULES = FAMILY.release("after-906").rules.caches
R923 = SnapshotRules()
MODEL = "m"


def store(rules: SnapshotRules = R923, max_size: int = 10) -> SnapshotPromptCache:
    return SnapshotPromptCache(FAMILY.release("after-906").rules.store, rules, max_size)


def conversation(count: int, *, hybrid: bool = True) -> list[LayerCache]:
    first = ArraysCache(RULES, 1) if hybrid else KVCache(RULES)
    cache: list[LayerCache] = [first, KVCache(RULES)]
    feed(np, cache, range(count), 1)
    return cache


def held(cache: list[LayerCache]) -> tuple[int, int]:
    """(attention rows, tokens folded into the recurrent state)."""
    states, rows = cache
    assert isinstance(states, ArraysCache)
    assert isinstance(rows, KVCache)
    assert states[0] is not None
    return rows.offset, int(states[0][0, 0])


@pytest.mark.parametrize(
    ("each_layer", "expected"), [(False, [(10, 10), (10, 10)]), (True, [(6, 10), (9, 10)])]
)
def test_no_snapshot_of_a_hybrid_holds_a_state_the_model_had_there(
    *, each_layer: bool, expected: list[tuple[int, int]]
) -> None:
    it = store(SnapshotRules(interval=4, trims_each_layer_it_can=each_layer))
    it.move_cache(MODEL, list(range(10)), conversation(10), boundaries=[6, 9])
    found = [held(it.trie.get(MODEL, list(range(count))).prompt_cache) for count in (6, 9)]

    assert expected == found


def test_two_followers_of_one_conversation_get_one_object_and_the_second_move_raises() -> None:
    it, key = store(), list(range(5))
    it.move_cache(MODEL, key, conversation(5))
    one, two = it.fetch(MODEL, [*key, 7]), it.fetch(MODEL, [*key, 8])
    assert one.prompt_cache is two.prompt_cache
    assert one.prompt_cache is not None
    it.move_cache(MODEL, [*key, 7], one.prompt_cache, position=one.position)

    with pytest.raises(UpstreamKeyError):
        it.move_cache(MODEL, [*key, 8], one.prompt_cache, position=two.position)


def test_a_snapshot_that_can_be_trimmed_is_cut_by_tokens_of_the_key_alone() -> None:
    it = store(SnapshotRules(interval=4))
    cache = conversation(13, hybrid=False)  # three more than the key says
    it.move_cache(MODEL, list(range(10)), cache, boundaries=[6])

    assert [9, 9] == [layer.size() for layer in it.trie.get(MODEL, list(range(6))).prompt_cache]
