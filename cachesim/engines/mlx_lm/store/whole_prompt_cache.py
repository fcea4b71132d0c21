"""The cache of vllm-mlx's default engine beside a model that reads images.

    name     [ images, sorted ][ text ]
    entry    0 ............ prompt                     after an answer in one piece
    next     0 ............ prompt                     the same name, in one piece: not used
             0 ............ prompt 0 ... prompt ...    streamed: fed again, into the entry

Follows `MLXMultimodalLM` and `MLLMPrefixCacheManager`, without limits in bytes.
"""

from collections.abc import Callable, Hashable
from copy import copy
from dataclasses import replace

from cachesim.engines.causes import Loss
from cachesim.engines.events import Event
from cachesim.engines.mlx_lm import causes
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.prompt_cache import KVCache, LayerCache, RotatingKVCache
from cachesim.engines.mlx_lm.rules import MemoryRules, StoreRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import Fetched, Key
from cachesim.engines.mlx_lm.store.memory_prompt_cache import MemoryPromptCache, miss
from cachesim.units import Count


class WholePromptCache(MemoryPromptCache):
    """Prompts with images by their text and the hashes of their images."""

    def __init__(
        self,
        rules: StoreRules,
        memory: MemoryRules,
        *,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(rules, memory, on_event=on_event)
        self.keys: dict[Hashable, list[int]] = {}  # by name; some are evicted
        self.asked: tuple[Hashable, bool] = ("", False)  # name, and whether the reply is streamed

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """Follows `fetch` and `fetch_cache`. Trap: the entry itself is returned, and written to."""
        name, streams = self.asked
        asked, near = list(tokens), self.search(model, tokens)
        equal = Count(near.common_prefix if near.exact is None else len(asked))
        key, cache, cause = self.keys.get(name, []), None, causes.SAME_PROMPT_ALONE
        known = self.trie.holds(model, key)
        if known:
            self._used(model, key)
            cause = causes.FED_AGAIN if streams else causes.STORED_UNUSED
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
