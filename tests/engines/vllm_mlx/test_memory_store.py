"""The prefix cache of vllm-mlx: whole entries, entries cut where they part, and none."""

from collections.abc import Sequence

import pytest

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.rules import CacheRules, StoreRules
from cachesim.engines.vllm_mlx.memory_cache import MemoryPromptCache
from cachesim.engines.vllm_mlx.rules import MemoryRules
from tests.engines.mlx_lm.cache_kit import of

MODEL = "model"


def store(*ends: int, states: bool = False, most: int = 1000) -> MemoryPromptCache:
    """Entries of the first tokens of a prompt."""
    made = MemoryPromptCache(StoreRules(), MemoryRules(least=4, most=most, refresh=6))
    for end in ends:
        layers: list[LayerCache] = (
            [ArraysCache(CacheRules(), 2)] if states else [KVCache(CacheRules())]
        )
        made.insert_cache(MODEL, list(range(end)), layers)
    return made


@pytest.mark.parametrize(
    ("ends", "states", "prompt", "found"),
    [
        # An entry that ends in the prompt is used as it is,
        ((5, 8), False, range(11), (8, 3, [])),
        # one that covers it is not, nor a shorter one;
        ((5, 8), False, range(8), (0, 8, ["no-token-left"])),
        ((5, 8), False, range(7), (0, 7, ["no-token-left"])),
        # a longer entry with states leaves the shorter one.
        ((5, 8), True, range(7), (5, 2, ["not-trimmable"])),
        # An entry is cut where it parts from the prompt.
        ((8,), False, [*range(6), 99, 98], (8, 2, [])),
        ((8,), True, [*range(6), 99, 98], (0, 8, ["not-trimmable"])),
        # Few tokens are no prefix.
        ((8,), False, [0, 1, 97, 98, 99], (0, 5, ["too-short"])),
        ((8,), False, [0, 1, 2], (0, 3, ["too-short"])),
    ],
)
def test_what_is_found(
    ends: tuple[int, ...], states: bool, prompt: Sequence[int], found: tuple[int, int, list[str]]
) -> None:
    assert found == of(store(*ends, states=states).fetch(MODEL, list(prompt)))


def test_the_entry_that_was_used_last_stays() -> None:
    cache = store(5, 8, most=2)
    cache.fetch(MODEL, [*range(5), 99])
    cache.insert_cache(MODEL, list(range(20, 26)), [KVCache(CacheRules())])

    assert [list(range(5)), list(range(20, 26))] == [key for _, key, _ in cache.trie.items()]


def test_a_state_is_kept_first_and_again_far_beyond_a_hit() -> None:
    cache = store()
    layers: list[LayerCache] = [ArraysCache(CacheRules(), 2), KVCache(CacheRules())]

    assert cache.keeps_first(range(9), 0, layers)
    assert not cache.keeps_first(range(9), 2, layers)
    assert cache.keeps_first(range(10), 2, layers)
    assert not cache.keeps_first(range(9), 0, layers[:1])
    assert not cache.keeps_first(range(9), 0, layers[1:])
    assert not cache.keeps(range(9), layers)


def test_an_entry_replaces_those_that_it_goes_on_from() -> None:
    cache = store(5, 8)
    cache.evict_prefixes(MODEL, list(range(9)))

    assert [] == cache.trie.items()
    assert 0 == len(cache)
