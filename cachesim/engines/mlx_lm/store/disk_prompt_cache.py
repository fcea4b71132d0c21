"""The prompt cache of LM Studio's mlx-engine since July 2026: one in memory, and records on disk.

    request    taken from memory, and cut if all layers can be; or read from disk, if longer
    its end    kept in memory: prompt and reply; any next request takes it, and drops it

Follows `VlmPromptCacheCoordinator`, for requests that come one after the other.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypeAlias

from cachesim.engines.causes import Cause, Loss
from cachesim.engines.events import Event
from cachesim.engines.mlx_lm import causes
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache, CacheList
from cachesim.engines.mlx_lm.caches.layer_cache import UpstreamRaise
from cachesim.engines.mlx_lm.caches.prompt_cache import LayerCache, trim_prompt_cache
from cachesim.engines.mlx_lm.events import PromptCacheConsumed
from cachesim.engines.mlx_lm.rules import DiskRules, StoreRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import (
    UNLIMITED,
    CacheEntry,
    Fetched,
    Key,
    LRUPromptCache,
)
from cachesim.engines.mlx_lm.store.record_store import RecordStore, extend_chunks
from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Count

Reason: TypeAlias = tuple[int, Cause, Mapping[str, Any]]
"""Matching tokens of a source, and the cause if fewer of them are used."""


class DiskPromptCache(LRUPromptCache):
    """The entry of the last finished request of a model, and the model's records."""

    def __init__(
        self, rules: StoreRules, disk: DiskRules, *, on_event: Callable[[Event], None] | None = None
    ) -> None:
        own = replace(rules, consumes=True, prunes="never", same_key="replaces")
        super().__init__(own, UNLIMITED, on_event=on_event)
        self.disk = disk
        self.stores: dict[Hashable, RecordStore] = {}

    def store(self, model: Hashable) -> RecordStore:
        """The records of a model; they are lost when its process ends."""
        found = self.stores.setdefault(model, RecordStore(self.disk, self._on_event))
        found.task = self.task
        return found

    def _take_hot(self, model: Hashable) -> tuple[Key, CacheEntry] | None:
        """Follows `_take_hot_entry`: used or not, it leaves."""
        for owner, key, entry in self.trie.items():
            if owner == model:
                self.trie.pop(model, key)
                self.order.remove(model, key)
                self._uncount(entry)
                self._emit(PromptCacheConsumed, key, entry)
                return key, entry
        return None

    def listed(self) -> Iterator[dict[str, Any]]:
        """The records as entries, the next one to evict first."""
        for model, store in self.stores.items():
            for each in store.records.values():
                state = each.kind == "state_checkpoint"
                entry = {"n_tokens": each.chunk.end, "checkpoints": 0, "type": each.kind}
                owner = {"model": model} if model else {}
                yield {**entry, "nbytes": each.nbytes, "trimmable": not state, **owner}

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """The longer one of both. Follows `_restore_best_prefix`."""
        most, store, hot = len(tokens) - 1, self.store(model), self._take_hot(model)
        key, cache = ((), None) if hot is None else (hot[0], hot[1].prompt_cache)
        common = get_common_prefix(tokens, key)
        used = min(common, most)
        surplus = len(key) - used
        matched = store.matched(store.chunks(tokens))
        on_disk, plan = (0, []) if used == most and not surplus else store.longest(tokens)
        hot_reason: Reason = (common, causes.ONE_TOKEN_IS_FED, {"n_tokens": len(tokens)})
        frozen = [i for i, layer in enumerate(cache or ()) if not layer.is_trimmable()]
        if cache is not None and frozen:
            name = type(cache[frozen[0]]).__name__
            detail = {"entry": len(key), "layer": frozen[0], "cache": name}
            hot_reason = (common, causes.NOT_TRIMMABLE, detail)
        if cache is None or not used or on_disk > used or trim(cache, surplus) != surplus:
            used, key = on_disk, tokens[:on_disk]
            cache = store.load(used, plan) if used else None
        return Fetched(
            prompt_cache=cache,
            rest=tokens[used:],
            kind="shorter" if used else "miss",
            key=key if used else None,
            equal=Count(max(common, matched)),
            losses=_losses(len(tokens), used, matched, hot_reason),
        )


def _losses(length: int, used: int, matched: int, hot: Reason) -> tuple[Loss, ...]:
    """Causes in `_restore_best_prefix`: of the longer match, then of the other one."""
    disk: Reason = (matched, causes.RECORD_MISSING, {"matched": matched, "used": used})
    reasons = sorted((hot, disk), key=itemgetter(0), reverse=True)
    if used == length - 1:
        reasons = [(reasons[0][0], causes.ONE_TOKEN_IS_FED, {"n_tokens": length})]
    losses = []
    for index, (before, cause, detail) in enumerate(reasons):
        after = max(used, reasons[index + 1][0] if index + 1 < len(reasons) else 0)
        if after < before:
            losses.append(
                Loss(cause=cause, before=Count(before), after=Count(after), detail=detail)
            )
    return tuple(losses)


def trim(cache: list[LayerCache], surplus: int) -> int:
    """The number of tokens that were cut. Follows `_load_hot_restore_plan`."""
    return trim_prompt_cache(cache, surplus) if surplus > 0 else 0


class Saver:
    """Chunks of a request that are still to be saved (`_PrefixCacheSaveState`)."""

    def __init__(self, store: RecordStore, prompt: Key, cached: int) -> None:
        self._store, self._size = store, store.rules.interval
        self._chunks = store.chunks(prompt)
        self._next = cached // self._size

    def after_call(self, cache: Sequence[LayerCache], tokens: Key, length: int) -> None:
        """Save what is complete after `length` of the tokens; an error is not reported.

        Follows `_emit_cache_save_snapshots` of prompts, `_emit_cache_save_snapshot` of replies.
        """
        extend_chunks(tokens, self._chunks, self._size)
        first, end = self._next, length // self._size
        if first < end:
            self._next = end
            with suppress(UpstreamRaise):
                self._store.save(extracted(cache), self._chunks[:end], first, length)


def extracted(cache: Sequence[LayerCache]) -> list[LayerCache]:
    """The caches of a row, as they are unless they have a batch's methods. Follows `extract_cache`.

    Trap: a list of caches has them, and the attention in it does not.
    """
    batched = (ArraysCache, CacheList)
    return [each.extract(0) if isinstance(each, batched) else each for each in cache]
