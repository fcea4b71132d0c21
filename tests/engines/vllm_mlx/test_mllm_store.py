"""The caches of vllm-mlx beside a model that reads images: prompts of text, and whole prompts."""

from collections.abc import Sequence

import numpy as np
import pytest

from cachesim.engines.images import Image
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache, RotatingKVCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.rules import CacheRules, StoreRules
from cachesim.engines.vllm_mlx.mllm_batch_generator import (
    PLACEHOLDER,
    MllmPromptCache,
    named,
    placed,
)
from cachesim.engines.vllm_mlx.mllm_cache import WholePromptCache, of_prompt
from cachesim.engines.vllm_mlx.rules import MllmRules, WholeRules
from cachesim.units import Count, Pos, as_tokens
from tests.engines.mlx_lm.cache_kit import of

MODEL = "model"
STATE: list[LayerCache] = [ArraysCache(CacheRules(), 2)]


def store(*ends: int, states: bool = False, suffix: int = 0, **more: int) -> MllmPromptCache:
    """Entries of the first tokens of a prompt."""
    made = MllmPromptCache(StoreRules(), MllmRules(least=4, **more), suffix)
    for end in ends:
        layers = STATE if states else [KVCache(CacheRules())]
        made.insert_cache(MODEL, list(range(end)), layers)
    return made


def image(name: str, start: int, count: int) -> Image:
    return Image(name, Pos(start), Count(count))


@pytest.mark.parametrize(
    ("ends", "kind", "prompt", "found"),
    [
        # An entry that covers the prompt is cut before its last token.
        ((5, 8), {}, range(8), (8, 1, ["one-token-is-fed"])),
        ((5, 8), {}, range(7), (8, 1, ["one-token-is-fed"])),
        ((8,), {"states": True}, range(8), (0, 8, ["not-trimmable"])),
        # The tokens that open a reasoning part are not looked up.
        ((8,), {"suffix": 2}, [*range(8), 98, 99], (8, 2, [])),
        ((8,), {"suffix": 2, "states": True}, [*range(8), 98, 99], (8, 2, [])),
        ((8,), {"suffix": 2}, [0, 1, 2, 98, 99], (0, 5, ["too-short"])),
        # A prompt with an image is looked up until 0.5.0 alone.
        ((8,), {}, [*range(8), PLACEHOLDER, 9], (0, 10, ["media-uncached"])),
        ((8,), {"reads_media": True}, [*range(8), PLACEHOLDER, 9], (0, 10, ["image-ahead"])),
    ],
)
def test_what_is_found(
    ends: tuple[int, ...],
    kind: dict[str, int],
    prompt: Sequence[int],
    found: tuple[int, int, list[str]],
) -> None:
    assert found == of(store(*ends, **kind).fetch(MODEL, list(prompt)))


def test_a_state_with_logits_leaves_nothing_to_process() -> None:
    cache = store(8, states=True)
    cache.trie.get(MODEL, list(range(8))).logits = np.zeros(4)

    assert (8, 0, []) == of(cache.fetch(MODEL, list(range(8))))
    assert (8, 2, []) == of(cache.fetch(MODEL, list(range(10))))


def test_a_state_is_kept_after_a_prompt_of_text_that_found_nothing() -> None:
    cache = store()

    assert cache.keeps_logits(range(8), 0, STATE)
    assert not cache.keeps_logits(range(8), 4, STATE)
    assert not cache.keeps_logits(range(3), 0, STATE)
    assert not cache.keeps_logits(range(8), 0, [KVCache(CacheRules())])
    assert not cache.keeps_logits([*range(8), PLACEHOLDER], 0, STATE)
    assert not store(keeps_logits=False).keeps_logits(range(8), 0, STATE)


def test_a_name_has_one_place_for_an_image_of_any_size() -> None:
    two = (image("b", 1, 2), image("a", 4, 3))
    prompt = as_tokens(range(9))

    assert named(prompt, two, sorts=True) == (("a", "b"), (0, PLACEHOLDER, 3, PLACEHOLDER, 7, 8))
    assert named(prompt, two, sorts=False) != named(prompt, two, sorts=True)
    assert (0, PLACEHOLDER, PLACEHOLDER, 3) == placed(prompt, two)[:4]


def test_a_key_has_images_by_placeholders_or_negative_ids() -> None:
    assert [True, True, False, False] == [
        store().has_images(key) for key in ([1, PLACEHOLDER], [1, -5], [1, 2], [])
    ]


def test_the_oldest_prepared_prompt_goes() -> None:
    cache = store(pixels=2)
    for name in "abac":
        cache.prepare(as_tokens(range(4)), (image(name, 1, 2),))

    assert [("a",), ("c",)] == [names for names, _ in cache.prepared]


def test_a_whole_prompt_is_handed_out_to_a_streamed_reply_alone() -> None:
    cache, layers = WholePromptCache(StoreRules(), WholeRules()), [KVCache(CacheRules())]
    cache.keys["it"] = key = list(range(8))
    cache.insert_cache(MODEL, key, list(layers))

    found = []
    for cache.asked in (("it", False), ("it", True), ("other", True)):
        found.append(cache.fetch(MODEL, key))

    assert [(8, 8, ["stored-unused"]), (8, 8, ["fed-again"]), (0, 8, ["same-prompt-alone"])] == [
        of(each) for each in found
    ]
    assert layers[0] is (found[1].prompt_cache or [None])[0]
    assert found[0].prompt_cache is None is found[2].prompt_cache


@pytest.mark.parametrize("layer", [KVCache(CacheRules()), RotatingKVCache(CacheRules(), 16)])
def test_the_rows_of_a_prompt_are_stored_without_those_of_its_reply(
    layer: KVCache | RotatingKVCache,
) -> None:
    rows = np.arange(12.0).reshape(1, 1, 12, 1)
    layer.update_and_fetch(rows, rows)

    kept = of_prompt(layer, 8)

    assert isinstance(kept, type(layer))
    assert 8 == kept.offset == kept.keys.shape[2]
    assert 12 == layer.offset
