"""The prefix cache of Rapid-MLX, as its scheduler uses it.

    entry    0 ............ prompt                     after the prompt
             0 ........ prompt - 1                     instead, of a hybrid's prompt without a hit
             0 ..... messages - 8                      beside it, where a chat's messages end
             0 ............ prompt ..... reply         at the end
    next     0 ............ prompt ..... reply ... x   continues a whole entry
             0 ........ x                              cuts an entry, if every layer can be cut

Follows `MemoryAwarePrefixCache` and `Scheduler` of Rapid-MLX, which comes from vllm-mlx, without
limits in bytes, packed entries and a disk.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable

from cachesim.engines.causes import Loss
from cachesim.engines.events import Event
from cachesim.engines.mlx_lm import causes
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache, RotatingKVCache
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    LayerCache,
    copy_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.events import PromptCacheEvicted
from cachesim.engines.mlx_lm.rules import RapidRules, StoreRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import Fetched, Key
from cachesim.engines.mlx_lm.store.memory_prompt_cache import MemoryPromptCache, miss
from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Count


class RapidPromptCache(MemoryPromptCache):
    """Entries in the order of their last use, few of them with a layer that cannot be cut.

    Follows Rapid-MLX's `MemoryAwarePrefixCache`.
    """

    def __init__(
        self,
        rules: StoreRules,
        memory: RapidRules,
        *,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(rules, memory, on_event=on_event)
        self.rapid = memory

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """Follows `_fetch_locked`.

        Trap: of the entries that cover the prompt only the longest is looked at. If it cannot be
        cut, a shorter one that covers the prompt is found only as the next among the sorted keys.
        """
        asked, keys = list(tokens), sorted(key for _, key, _ in self.trie.items())
        at = bisect_left(keys, asked)
        covering = [key for key in keys[at:] if key[: len(asked)] == asked]
        exact = [key for key in covering if key == asked]
        longest = max((key for key in covering if key != asked), key=len, default=[])
        beside = [key for key in keys[max(at - 1, 0) : at + 1] if key != asked]
        near = max(beside, key=lambda each: get_common_prefix(each, asked), default=[])
        equal = Count(len(asked)) if covering else get_common_prefix(near, asked)
        frozen: list[list[int]] = []
        for key in (*exact, longest):
            if key and self._frozen(model, key) is None:
                return self._cut(model, key, asked, equal, frozen)
            frozen += [key] if key else []
        if ends := self.trie.prefixes(model, asked):
            return self._cut(model, asked[: max(ends)], asked, equal, frozen)
        if get_common_prefix(near, asked) > 0:
            if self._frozen(model, near) is None:
                return self._cut(model, near, asked, equal, frozen)
            frozen.append(near)
        loss = [self._uncut(model, key, equal, Count(0)) for key in frozen[:1]]
        return miss(asked, equal, *loss)

    def _cut(
        self,
        model: Hashable,
        key: list[int],
        asked: list[int],
        equal: Count,
        frozen: list[list[int]],
    ) -> Fetched:
        """A copy of an entry, cut where it parts from the prompt, and before the last token.

        Follows `_trim_cache_offset` and `_resolve_exact_hit_tokens`. Trap: a window's layer that is
        cut back becomes one without a window.
        """
        common = get_common_prefix(key, asked)
        used = Count(min(common, len(asked) - 1))
        self._used(model, key)
        cache = copy_prompt_cache(self.trie.get(model, key).prompt_cache)
        if common < len(key):
            cache = [_whole(layer) for layer in cache]
        trim_prompt_cache(cache, len(key) - used)
        detail: dict[str, object] = {"n_tokens": len(asked)}
        cause = causes.ONE_TOKEN_IS_FED
        if common < len(asked):
            cause, detail = causes.SHORTER_ENTRY_FIRST, {"used": used}
        loss = Loss(cause=cause, before=equal, after=used, detail=detail)
        if frozen and common < len(asked):
            loss = self._uncut(model, frozen[0], equal, used)
        return Fetched(
            prompt_cache=cache,
            rest=asked[used:],
            kind="shorter" if len(key) == used else "longer",
            key=key,
            equal=equal,
            losses=(loss,) if used < equal else (),
        )

    def insert_cache(
        self,
        model: Hashable,
        tokens: Key,
        prompt_cache: list[LayerCache],
        *,
        cache_type: str = "assistant",
    ) -> None:
        """Follows `store` and `_enforce_hybrid_bound_locked`."""
        super().insert_cache(model, tokens, prompt_cache, cache_type=cache_type)
        keys = [key for queue in self.order.queues.values() for _, key in queue]
        frozen = [key for key in keys if self._frozen(model, key) is not None]
        for key in frozen[: max(0, len(frozen) - self.rapid.uncut)]:
            self.drop(model, list(key), PromptCacheEvicted)

    def keeps(self, key: Key, cache: list[LayerCache]) -> bool:
        """True if an entry is stored: its layers can be cut, or some that cannot be are kept."""
        return self.rapid.uncut > 0 or super().keeps(key, cache)

    def keeps_before_end(self, prompt: Key, cached: int) -> bool:
        """True if a prompt is stored without its last token, instead of whole."""
        return self.rapid.before_end and cached == 0 and len(prompt) > 1


def _whole(layer: LayerCache) -> LayerCache:
    if not isinstance(layer, RotatingKVCache):
        return layer
    whole = KVCache(layer.rules)
    whole.keys, whole.values, whole.offset = layer.keys, layer.values, layer.offset
    return whole
