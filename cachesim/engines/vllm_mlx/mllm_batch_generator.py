"""The prefix cache of vllm-mlx beside a model that reads images.

    prepared  [ text ][ images, sorted ]    tokens and pixels of an earlier prompt
    entry     0 .............. prompt       of text alone, when its reply ends
              0 .............. prompt       if a layer cannot be cut: before the reply, with logits
    next      0 .............. prompt - 1   an entry that covers the prompt is cut before its end
              0 .............. prompt       and none of it is processed if it has logits

Follows `MLLMBatchGenerator` and `VisionEmbeddingCache`, without limits in bytes. The default engine
has a cache of its own (`mllm_cache.py`).
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from cachesim.engines.causes import Loss
from cachesim.engines.chat import ChatTokenizer, Message
from cachesim.engines.images import Image
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    LayerCache,
    copy_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.server.request import Job
from cachesim.engines.mlx_lm.store.lru_prompt_cache import Fetched, Insert, Key
from cachesim.engines.mlx_lm.vocabulary import ONE_TOKEN_IS_FED
from cachesim.engines.vllm_mlx.memory_cache import MemoryPromptCache, miss
from cachesim.engines.vllm_mlx.rules import MllmRules
from cachesim.engines.vllm_mlx.vocabulary import IMAGE_AHEAD, MEDIA_UNCACHED, PreparedAlready
from cachesim.units import Array, Count, Token, Tokens

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
            cause = MEDIA_UNCACHED
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
            cause = IMAGE_AHEAD
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
        loss = Loss(cause=ONE_TOKEN_IS_FED, before=equal, after=used, detail=detail)
        return Fetched.up_to(used, asked, cache, key, equal, loss, kind="longer")

    def as_fed(self, job: Job, key: Tokens) -> tuple[Tokens, Tokens]:
        """A prompt as it was prepared; its key has one id for all images' tokens."""
        fed, images = self.prepare(job.prompt, job.images) if job.images else (key, job.images)
        return fed, placed(fed, images)

    def logits_after(self, job: Job, key: Tokens) -> Array | None:
        """Logits that are stored with a state that cannot be cut."""
        return self.trie.get(job.model, list(key)).logits

    def after_prompt(self, job: Job, cache: list[LayerCache], insert: Insert) -> None:
        """Keep the state of a prompt of text alone, with its logits. Follows `_process_prompts`."""
        if not job.images and self.keeps_logits(job.prompt, int(job.cached or 0), cache):
            insert(list(job.prompt), copy_prompt_cache(cache))
            self.trie.get(job.model, list(job.prompt)).logits = job.sampler.rows[-1]

    def after_first(
        self, _job: Job, _token: Token, _cache: list[LayerCache], _insert: Insert
    ) -> None:
        """Nothing is kept here: a state that cannot be cut was kept before the reply."""

    def at_end(self, job: Job, key: Tokens, cache: list[LayerCache], insert: Insert) -> None:
        """Keep a prompt without its reply. Follows `_maybe_store_prefix_cache`."""
        key = key[: len(key) - self.suffix]
        # Since 0.5.0 (#718) prompts with images are not stored: before, placeholders alone were
        # compared.
        media = job.images and not self.mllm.reads_media
        if not media and not job.should_stop and self.keeps(key, cache):
            kept = copy_prompt_cache(cache)
            trim_prompt_cache(kept, len(job.generated) + self.suffix)
            self.evict_prefixes(job.model, list(key))
            insert(list(key), kept)

    def has_images(self, key: Sequence[int]) -> bool:
        """True if a key has placeholders."""
        return PLACEHOLDER in key or super().has_images(key)

    def problems(self) -> Iterator[str]:
        """No more prompts are prepared than are allowed."""
        if len(self.prepared) > self.mllm.pixels:
            yield f"{len(self.prepared)} prompts are prepared, {self.mllm.pixels} are allowed"

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
    text, names = list(prompt), [image.name for image in images]
    for image in reversed(images):
        text[image.start : image.end] = [PLACEHOLDER]
    return tuple(sorted(names) if sorts else names), tuple(text)


def placed(prompt: Tokens, images: Sequence[Image]) -> Tokens:
    """The ids of a prompt: placeholders in place of its images' tokens."""
    ids = list(prompt)
    for image in images:
        ids[image.start : image.end] = [PLACEHOLDER] * image.count
    return tuple(ids)


def think_suffix(tokenizer: ChatTokenizer) -> int:
    """Tokens at a prompt's end that open a reasoning part.

    Follows `_compute_think_suffix_len`.
    """
    start = tokenizer.think_start
    end = tokenizer.apply_chat_template([Message(role="user", content="x")])[-2:]
    return 0 if start is None or start not in end else len(end) - end.index(start)
