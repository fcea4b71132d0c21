"""The prefix caches of vllm-mlx beside a model that reads images.

    prepared  [ text ][ images, sorted ]    tokens and pixels of an earlier prompt
    entry     0 .............. prompt       of text alone, when its reply ends
              0 .............. prompt       if a layer cannot be cut: before the reply, with logits
    next      0 .............. prompt - 1   an entry that covers the prompt is cut before its end
              0 .............. prompt       and none of it is processed if it has logits

Follows `MLLMBatchGenerator` and `VisionEmbeddingCache`, without limits in bytes. The default engine
has a cache of its own, `WholePromptCache`.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import replace
from typing import Final

from cachesim.engines.causes import Loss
from cachesim.engines.images import Image
from cachesim.engines.mlx_lm import vocabulary
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    KVCache,
    LayerCache,
    RotatingKVCache,
    copy_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.rules import MemoryRules, MllmRules, StoreRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import Fetched, Key
from cachesim.engines.mlx_lm.store.memory_prompt_cache import MemoryPromptCache, miss
from cachesim.engines.mlx_lm.vocabulary import PreparedAlready
from cachesim.units import Count, Token, Tokens

PLACEHOLDER: Final = Token(1 << 20)
"""The id in place of each token of any image: as in users' models, after those of all words."""


class MllmPromptCache(MemoryPromptCache):
    """Prompts without their replies, and prepared prompts with images.

    Follows `MLLMBatchGenerator`.
    """

    def __init__(self, rules: StoreRules, memory: MllmRules, suffix: int) -> None:
        super().__init__(rules, memory)
        self.mllm = memory
        self.suffix = suffix  # tokens at a prompt's end that open the reasoning part
        self.prepared: OrderedDict[Hashable, tuple[Tokens, tuple[Image, ...]]] = OrderedDict()

    def prepare(
        self, prompt: Tokens, images: tuple[Image, ...]
    ) -> tuple[Tokens, tuple[Image, ...]]:
        """Tokens and images as they are processed. Follows `_preprocess_request`.

        Trap: the key has the images in the order of their hashes, not in that of the prompt.
        """
        if not images:
            return prompt, images
        key = named(prompt, images, sorts=self.mllm.sorts_images)
        if key in self.prepared:
            self.prepared.move_to_end(key)
            used, asked = (
                tuple(image.name for image in of) for of in (self.prepared[key][1], images)
            )
            self.on_event(PreparedAlready(task=self.task, images=used, asked=asked))
            return self.prepared[key]
        while len(self.prepared) >= self.mllm.pixels:
            self.prepared.popitem(last=False)
        self.prepared[key] = prompt, images
        return prompt, images

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """Follows `_process_prompts`: the suffix is not looked up."""
        asked, count = list(tokens), len(tokens) - self.suffix
        if PLACEHOLDER in asked and not self.mllm.reads_media:
            equal = Count(self.search(model, asked).common_prefix)
            detail: dict[str, object] = {"n_tokens": len(asked)}
            cause = vocabulary.MEDIA_UNCACHED
            return miss(
                asked, equal, Loss(cause=cause, before=equal, after=Count(0), detail=detail)
            )
        if self.trie.holds(model, asked) and self.trie.get(model, asked).logits is not None:
            return self._hit(model, asked, asked, Count(len(asked)))
        found = super().fetch(model, asked[:count])
        if found.prompt_cache is None:
            return replace(found, rest=asked)
        used = count - len(found.rest)
        if PLACEHOLDER in asked[used:]:
            detail = {"used": used}
            cause = vocabulary.IMAGE_AHEAD
            loss = Loss(cause=cause, before=found.equal, after=Count(0), detail=detail)
            return miss(asked, found.equal, loss)
        return replace(found, rest=asked[used:])

    def _covered(self, model: Hashable, key: list[int], asked: list[int]) -> Fetched:
        """A copy of an entry that covers the prompt, cut so that a token is left to feed."""
        equal = Count(len(asked))
        if not self.suffix and self._frozen(model, key) is not None:
            return miss(asked, equal, self._uncut(model, key, equal, Count(0)))
        used = Count(len(asked) - (not self.suffix))
        cache = copy_prompt_cache(self.trie.get(model, key).prompt_cache)
        trim_prompt_cache(cache, len(key) - used)
        detail = {"n_tokens": len(asked)}
        loss = Loss(cause=vocabulary.ONE_TOKEN_IS_FED, before=equal, after=used, detail=detail)
        return Fetched(
            prompt_cache=cache,
            rest=asked[used:],
            kind="longer",
            key=key,
            equal=equal,
            losses=(loss,) if used < equal else (),
        )

    def keeps_logits(self, prompt: Key, cached: int, cache: list[LayerCache]) -> bool:
        """True if a prompt is stored before its reply. Follows `_needs_prefill_checkpoint`."""
        return (
            self.mllm.keeps_logits
            and cached == 0
            and PLACEHOLDER not in prompt
            and len(prompt) >= self.memory.least
            and not all(layer.is_trimmable() for layer in cache)
        )


def named(prompt: Tokens, images: Sequence[Image], *, sorts: bool) -> Hashable:
    """Images and text of a prompt. Follows `_make_key` and `_make_cache_key`."""
    text, names = list(prompt), [each.name for each in images]
    for image in reversed(images):
        text[image.start : image.end] = [PLACEHOLDER]
    return tuple(sorted(names) if sorts else names), tuple(text)


def placed(prompt: Tokens, images: Sequence[Image]) -> Tokens:
    """The ids of a prompt: placeholders in place of its images' tokens."""
    ids = list(prompt)
    for image in images:
        ids[image.start : image.end] = [PLACEHOLDER] * image.count
    return tuple(ids)


def has_images(key: Sequence[int]) -> bool:
    """True if a key has ids of images: placeholders, or mlx-lm's own, which are negative."""
    return PLACEHOLDER in key or min(key, default=0) < 0


class WholePromptCache(MemoryPromptCache):
    """The cache of vllm-mlx's default engine beside a model that reads images.

        name     [ images, sorted ][ text ]
        entry    0 ............ prompt                     after an answer in one piece
        next     0 ............ prompt                     the same name, in one piece: not used
                 0 ............ prompt 0 ... prompt ...    streamed: fed again, into the entry

    Follows `MLXMultimodalLM` and `MLLMPrefixCacheManager`, without limits in bytes.
    """

    def __init__(self, rules: StoreRules, memory: MemoryRules) -> None:
        super().__init__(rules, memory)
        self.keys: dict[Hashable, list[int]] = {}  # by name; some are evicted
        self.asked: tuple[Hashable, bool] = ("", False)  # name, and whether the reply is streamed

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """Follows `fetch` and `fetch_cache`. Trap: the entry itself is returned, and written to."""
        name, streams = self.asked
        asked, near = list(tokens), self.search(model, tokens)
        equal = Count(near.common_prefix if near.exact is None else len(asked))
        key, cache, cause = self.keys.get(name, []), None, vocabulary.SAME_PROMPT_ALONE
        known = self.trie.holds(model, key)
        if known:
            self._used(model, key)
            cause = vocabulary.FED_AGAIN if streams else vocabulary.STORED_UNUSED
            cache = self.trie.get(model, key).prompt_cache if streams else None
        loss = Loss(cause=cause, before=equal, after=Count(0), detail={"n_tokens": len(asked)})
        found = replace(miss(asked, equal, loss), key=key if known else None)
        return replace(found, prompt_cache=cache, kind="miss" if cache is None else "exact")


def of_prompt(layer: LayerCache, count: int) -> LayerCache:
    """A layer's first rows, as they are stored. Follows the end of `chat`.

    Traps: the rows of a wrapped ring are not in order, and its place for the next one stays; a
    state is that after the reply.
    """
    kept = copy(layer)
    if isinstance(layer, ArraysCache):
        kept = layer.copy()
    elif isinstance(kept, (KVCache, RotatingKVCache)) and kept.keys is not None:
        rows = min(count, kept.offset)
        kept.keys, kept.values = (
            None if each is None else each[:, :, :rows].copy() for each in (kept.keys, kept.values)
        )
        kept.offset = rows
    return kept
