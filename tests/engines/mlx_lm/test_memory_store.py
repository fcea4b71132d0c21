"""The prefix cache of vllm-mlx: whole entries, entries cut where they part, and none."""

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.rules import CacheRules, MemoryRules, StoreRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import Fetched
from cachesim.engines.mlx_lm.store.memory_prompt_cache import MemoryPromptCache

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


def of(found: Fetched) -> tuple[int, int, list[str]]:
    """Tokens of the entry, tokens to process, causes."""
    causes = [each.cause.id for each in found.losses]
    return len(found.key or ()), len(found.rest), causes


def test_an_entry_that_ends_in_the_prompt_is_used_as_it_is() -> None:
    assert (8, 3, []) == of(store(5, 8).fetch(MODEL, list(range(11))))


def test_an_entry_that_covers_the_prompt_is_not_used_nor_a_shorter_one() -> None:
    assert (0, 8, ["no-token-left"]) == of(store(5, 8).fetch(MODEL, list(range(8))))
    assert (0, 7, ["no-token-left"]) == of(store(5, 8).fetch(MODEL, list(range(7))))


def test_a_longer_entry_with_states_leaves_the_shorter_one() -> None:
    assert (5, 2, ["not-trimmable"]) == of(store(5, 8, states=True).fetch(MODEL, list(range(7))))


def test_an_entry_is_cut_where_it_parts_from_the_prompt() -> None:
    prompt = [*range(6), 99, 98]

    assert (8, 2, []) == of(store(8).fetch(MODEL, prompt))
    assert (0, 8, ["not-trimmable"]) == of(store(8, states=True).fetch(MODEL, prompt))


def test_few_tokens_are_no_prefix() -> None:
    assert (0, 5, ["too-short"]) == of(store(8).fetch(MODEL, [0, 1, 97, 98, 99]))
    assert (0, 3, ["too-short"]) == of(store(8).fetch(MODEL, [0, 1, 2]))


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
