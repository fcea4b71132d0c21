"""The prefix cache of Rapid-MLX: entries that are cut, taken whole, or left out as too many."""

from collections.abc import Sequence

import pytest

from cachesim.engines.chat import ByteTokenizer, Message
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache, RotatingKVCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.rules import CacheRules, StoreRules
from cachesim.engines.rapid_mlx.memory_cache import RapidPromptCache, stable_end
from cachesim.engines.rapid_mlx.rules import UNLISTED, RapidRules
from cachesim.typed import there_is
from tests.engines.mlx_lm.cache_kit import of

MODEL = "model"
STATES = {"states": True}


def ring(offset: int, size: int = 8) -> RotatingKVCache:
    """A window's layer with so many tokens; from `size` on it cannot be cut."""
    made = RotatingKVCache(CacheRules(), size)
    made.offset = offset
    return made


def rows(offset: int) -> KVCache:
    made = KVCache(CacheRules())
    made.offset = offset
    return made


def store(
    *ends: int, states: bool = False, window: int = 0, uncut: int = 8, most: int = 1000
) -> RapidPromptCache:
    """Entries of the first tokens of a prompt."""
    made = RapidPromptCache(StoreRules(), RapidRules(uncut=uncut, most=most))
    for end in ends:
        layers: list[LayerCache] = [ArraysCache(CacheRules(), 2)] if states else [rows(end)]
        layers += [ring(end, window)] if window else []
        made.insert_cache(MODEL, list(range(end)), layers)
    return made


@pytest.mark.parametrize(
    ("ends", "kind", "prompt", "found"),
    [
        # A whole prompt is reused but for its last token.
        ((5, 8), {}, range(8), (8, 1, ["one-token-is-fed"])),
        ((5, 8), {}, range(7), (8, 1, ["one-token-is-fed"])),
        # A state of the whole prompt is not used, but a shorter one is.
        ((7, 8), STATES, range(8), (7, 1, ["not-trimmable"])),
        ((8,), STATES, range(8), (0, 8, ["not-trimmable"])),
        ((5, 8), STATES, range(7), (5, 2, ["not-trimmable"])),
        # The longest entry hides a shorter one that could be cut, unless that is next.
        ((7, 12), {"window": 9}, range(6), (7, 1, ["one-token-is-fed"])),
        ((4, 7, 12), {"window": 9}, range(6), (4, 2, ["not-trimmable"])),
        # An entry is cut where it parts from the prompt.
        ((8,), {}, [*range(6), 99, 98], (8, 2, [])),
        ((8,), {}, [0, 1, 2, 96, 97, 98, 99, 95], (8, 5, [])),
        ((8,), STATES, [*range(6), 99, 98], (0, 8, ["not-trimmable"])),
        # A shorter entry goes before a longer one that would be cut.
        ((5, 8), {}, [*range(6), 99, 98], (5, 3, ["shorter-entry-first"])),
    ],
)
def test_what_is_found(
    ends: tuple[int, ...],
    kind: dict[str, int],
    prompt: Sequence[int],
    found: tuple[int, int, list[str]],
) -> None:
    assert found == of(store(*ends, **kind).fetch(MODEL, list(prompt)))


def test_a_window_that_is_cut_is_one_no_longer() -> None:
    cut, whole = (
        there_is(store(8, window=16).fetch(MODEL, prompt).prompt_cache)
        for prompt in ([*range(6), 99, 98], list(range(11)))
    )

    assert [KVCache, KVCache] == [type(each) for each in cut]
    assert [KVCache, RotatingKVCache] == [type(each) for each in whole]


def test_entries_that_cannot_be_cut_are_few_and_the_oldest_goes() -> None:
    cache = store(3, 5, 8, states=True, uncut=2)
    assert [5, 8] == [len(key) for _, key, _ in cache.trie.items()]

    cache.fetch(MODEL, [*range(5), 99])
    cache.insert_cache(MODEL, list(range(20, 26)), [rows(6)])
    cache.insert_cache(MODEL, list(range(30, 36)), [ArraysCache(CacheRules(), 2)])
    assert [5, 6, 6] == [len(key) for _, key, _ in cache.trie.items()]


def test_a_model_that_is_not_listed_keeps_only_what_can_be_cut() -> None:
    cache = RapidPromptCache(StoreRules(), UNLISTED)

    assert cache.keeps(range(9), [rows(9), ring(7)])
    assert not cache.keeps(range(9), [rows(9), ring(9)])
    assert not cache.keeps_before_end(range(9), 0)


def test_a_listed_prompt_is_kept_without_its_last_token_if_nothing_was_found() -> None:
    cache = store()

    assert cache.keeps(range(9), [ring(9)])
    assert cache.keeps_before_end(range(9), 0)
    assert not cache.keeps_before_end(range(9), 3)
    assert not cache.keeps_before_end(range(1), 0)


def test_a_state_is_kept_eight_tokens_before_the_messages_end_unless_only_a_user_spoke() -> None:
    tokenizer = ByteTokenizer("strip-reasoning")
    said = Message(role="user", content="[300][301][302][303]")
    system = Message(role="system", content="[310]")
    both = tokenizer.apply_chat_template((system, said), add_generation_prompt=False)

    assert len(both) - 8 == stable_end(tokenizer, (system, said))
    assert 0 == stable_end(tokenizer, (said,))
    assert 0 == stable_end(tokenizer, (system,))
    assert 0 == stable_end(tokenizer, ())
