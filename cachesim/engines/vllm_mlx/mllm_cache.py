"""The cache of vllm-mlx's default engine beside a model that reads images, and its requests."""

from collections.abc import Hashable
from contextlib import closing
from copy import copy
from dataclasses import replace

from cachesim.engines.causes import Loss
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.prompt_cache import KVCache, LayerCache, RotatingKVCache
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.server.request import Job, keyed
from cachesim.engines.mlx_lm.server.serving import Serving
from cachesim.engines.mlx_lm.server.single import answered, stream
from cachesim.engines.mlx_lm.store.lru_prompt_cache import Fetched, Key
from cachesim.engines.vllm_mlx.memory_cache import MemoryPromptCache, miss
from cachesim.engines.vllm_mlx.mllm_batch_generator import named
from cachesim.engines.vllm_mlx.rules import MemoryRules
from cachesim.engines.vllm_mlx.vocabulary import FED_AGAIN, SAME_PROMPT_ALONE, STORED_UNUSED
from cachesim.typed import of_kind
from cachesim.units import Count


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
        key, cache, cause = self.keys.get(name, []), None, SAME_PROMPT_ALONE
        known = self.trie.holds(model, key)
        if known:
            self._used(model, key)
            cause = FED_AGAIN if streams else STORED_UNUSED
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
            None if array is None else array[:, :, :rows].copy()
            for array in (kept.keys, kept.values)
        )
        kept.offset = rows
    return kept


def serve_whole(serving: Serving, job: Job) -> None:
    """As `serve_single`, by the default engine's own loop."""
    answered(_serve, serving, job)


def _serve(serving: Serving, job: Job) -> None:
    """Serve a prompt with images. Follows `chat` and `stream_chat`."""
    store = of_kind(WholePromptCache, serving.store.cache)
    name, key = named(job.prompt, job.images, sorts=True), keyed(job.prompt, job.images)
    store.asked = name, job.streams
    cache, found = serving.store.look_up(job, key)
    serving.admitted(job, "single", cache, job.prompt)
    held = serving.make_cache() if cache is None else cache
    with closing(stream(serving, job, job.prompt, held)) as tokens:
        for token in tokens:
            job.add_token(token)
            if job.stopper.advance(token) or job.should_stop:
                break
    serving.finish(job, "stop" if job.should_stop else "length")
    if not job.streams and found.key is None and not job.should_stop:
        store.keys[name] = list(key)
        serving.store.insert(job, list(key), [of_prompt(layer, len(key)) for layer in held])
