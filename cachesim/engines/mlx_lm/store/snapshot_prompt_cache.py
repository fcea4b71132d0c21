"""The store of #923: entries move with their conversation and leave snapshots.

A snapshot is a copy of the finished conversation's cache, trimmed by the tokens of the key that
follow it. The tokens of the cache beyond its key (the generation prompt, the reply) are not
subtracted, and recurrent layers are not trimmed at all: no snapshot holds a state that the model
ever had.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

from cachesim.engines.causes import Loss
from cachesim.engines.mlx_lm import vocabulary
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    LayerCache,
    can_trim_prompt_cache,
    copy_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.rules import SnapshotRules, StoreRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import (
    UNLIMITED,
    CacheEntry,
    Fetched,
    Key,
    LRUPromptCache,
)
from cachesim.engines.mlx_lm.vocabulary import (
    PromptCacheConsumed,
    PromptCacheInserted,
    PromptCacheReplaced,
)
from cachesim.units import Count


def checkpoint_positions(
    rules: SnapshotRules, length: int, boundaries: Sequence[int]
) -> tuple[Count, ...]:
    """Positions of snapshots: message ends near the multiples of the interval.

    Follows `_find_checkpoint_positions`.
    """
    within = [boundary for boundary in boundaries if 0 < boundary < length]
    positions: set[int] = set()
    # #929, its first fix: in a chat shorter than the interval no boundary is near a multiple.
    if rules.always_the_last_boundary and within:
        positions.add(within[-1])
    last = 0
    # For each multiple the last boundary that is new and not more than half an interval beyond it.
    for multiple in range(rules.interval, length, rules.interval):
        near = [
            boundary for boundary in within if last < boundary <= multiple + rules.interval // 2
        ]
        if near:
            last = max(near)
            positions.add(last)
    return tuple(Count(position) for position in sorted(positions))


class SnapshotPromptCache(LRUPromptCache):
    """`LRUPromptCache` as rewritten by #923, on the basis of #906."""

    def __init__(
        self,
        rules: StoreRules,
        snapshots: SnapshotRules,
        max_size: int = 10,
        max_bytes: int = UNLIMITED,
    ) -> None:
        super().__init__(rules, max_size, max_bytes)
        self.snapshots = snapshots

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """An ordinary shorter entry is returned uncopied and stays; a snapshot is removed.

        Follows #923's `fetch_nearest_cache`; `position` is the key of the entry to move.
        """
        found = self.search(model, tokens)
        if found.exact is not None:
            cache = self._extract(model, found.exact, stays=False)
            return Fetched(
                prompt_cache=cache,
                rest=tokens[len(tokens) :],
                kind="exact",
                key=found.exact,
                position=found.exact,
                equal=Count(len(tokens)),
            )
        # A shorter entry ends the search: longer ones are not considered.
        if found.shorter is None:
            return super().fetch(model, tokens)
        snapshot = self.trie.get(model, found.shorter).is_snapshot
        fetched = Fetched(
            # Trap: an ordinary entry is returned uncopied and stays, so its object grows under the
            # old key.
            prompt_cache=self._extract(model, found.shorter, stays=not snapshot),
            rest=tokens[len(found.shorter) :],
            kind="snapshot" if snapshot else "shorter",
            key=found.shorter,
            equal=Count(found.common_prefix),
            losses=self._losses_of_taken(found.shorter, found.common_prefix),
        )
        return fetched if snapshot else replace(fetched, position=found.shorter)

    @staticmethod
    def _losses_of_taken(shorter: Key, common: int) -> tuple[Loss, ...]:
        """A shorter entry ends the search: longer ones are not considered."""
        used, equal = Count(len(shorter)), Count(common)
        if used >= equal:
            return ()
        detail = {"used": int(used)}
        return (
            Loss(cause=vocabulary.SHORTER_ENTRY_FIRST, before=equal, after=used, detail=detail),
        )

    def _extract(self, model: Hashable, key: Key, *, stays: bool) -> list[LayerCache]:
        """The object itself, never a copy. Follows #923's `_extract`."""
        entry = self.trie.get(model, key)
        # Inserted more than once: each fetch takes one off the count.
        if entry.count > 1:
            entry.count -= 1
        elif not stays:
            self._take_out(model, key)
            self._emit(PromptCacheConsumed, key, entry)
        return entry.prompt_cache

    def _take_out(self, model: Hashable, key: Key) -> None:
        self._uncount(self.trie.pop(model, key))
        self.order.remove(model, key)

    def move_cache(
        self,
        model: Hashable,
        tokens: Key,
        prompt_cache: list[LayerCache],
        *,
        boundaries: Sequence[int] = (),
        position: Key | None = None,
    ) -> None:
        """Delete the entry at `position`, insert, make snapshots, evict.

        Follows #923's `insert_cache`.
        """
        # Trap: a missing position raises: two successors of one conversation got the same object,
        # and the second one finds its entry moved.
        if position is not None and list(position) != list(tokens):
            self._take_out(model, position)
        entry = self._entry(prompt_cache)
        if self.trie.holds(model, tokens):
            held = self.trie.get(model, tokens)
            entry.count = held.count + 1
            self._uncount(held)
            self.order.remove(model, tokens)
            self._emit(PromptCacheReplaced, tokens, held)
        self._add(model, tokens, entry)
        for checkpoint_position in checkpoint_positions(self.snapshots, len(tokens), boundaries):
            self._snapshot(model, tokens, prompt_cache, checkpoint_position)
        while len(self.order) > self.max_size:
            self._evict()
        while self._n_bytes > self.max_bytes and len(self.order) > 1:
            self._evict()

    def _entry(self, prompt_cache: list[LayerCache]) -> CacheEntry:
        return CacheEntry(
            prompt_cache=prompt_cache,
            nbytes=sum(cache.nbytes for cache in prompt_cache),
            cache_type=self.rules.queues[0],
        )

    def _add(self, model: Hashable, tokens: Key, entry: CacheEntry) -> None:
        self.trie.add(model, tokens, entry)
        self._n_bytes += entry.nbytes
        self._n_bytes_by_type[entry.cache_type] += entry.nbytes
        self.order.push(model, tokens, entry.cache_type)
        self._emit(PromptCacheInserted, tokens, entry)

    def _snapshot(
        self, model: Hashable, tokens: Key, prompt_cache: list[LayerCache], position: Count
    ) -> None:
        """A copy, trimmed by the tokens of the key beyond `position`.

        Follows `_create_checkpoint_snapshot`.
        """
        # A position that has an entry keeps it, whatever state that is.
        if self.trie.holds(model, tokens[:position]):
            return
        snapshot = copy_prompt_cache(prompt_cache)
        beyond = len(tokens) - position
        # All layers are trimmed or none. Trap: without a trim the copy has the state of the whole
        # conversation under the key of a part.
        if can_trim_prompt_cache(snapshot):
            trim_prompt_cache(snapshot, beyond)
        # #929, its third fix. Trap: the others keep the tokens beyond `position`.
        elif self.snapshots.trims_each_layer_it_can:
            for layer in snapshot:
                if layer.is_trimmable():
                    layer.trim(beyond)
        entry = self._entry(snapshot)
        entry.is_snapshot = True
        self._add(model, tokens[:position], entry)
