"""The prefix cache of vllm-mlx, as its scheduler uses it.

    entry    0 ................ prompt ..... reply     layers that can be cut: all of it, at the end
             0 ................ prompt +1              others: after the first token of the reply
    next     0 ................ prompt ..... reply ... x     continues a whole entry
             0 ........ x                              cuts an entry, if every layer can be cut

Follows `MemoryAwarePrefixCache` and `Scheduler`, without limits in bytes and without a disk.
"""

from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import replace

from cachesim.engines.causes import Loss
from cachesim.engines.mlx_lm import vocabulary
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    LayerCache,
    can_trim_prompt_cache,
    copy_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.server.request import Job
from cachesim.engines.mlx_lm.store.lru_prompt_cache import Fetched, Insert, Key, LRUPromptCache
from cachesim.engines.mlx_lm.vocabulary import PromptCacheChange, PromptCachePruned
from cachesim.engines.tokens import get_common_prefix
from cachesim.engines.vllm_mlx.rules import MemoryRules
from cachesim.engines.vllm_mlx.vocabulary import NO_TOKEN_LEFT, TOO_SHORT
from cachesim.units import Count, Token, Tokens


class MemoryPromptCache(LRUPromptCache):
    """Entries in the order of their last use, and their keys sorted.

    Follows `MemoryAwarePrefixCache`.
    """

    def __init__(self, rules: StoreRules, memory: MemoryRules) -> None:
        own = replace(rules, prunes="never", same_key="keeps-old")
        super().__init__(own, memory.most)
        self.memory = memory

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """Follows `fetch`, and `_schedule_waiting`, which uses no entry that covers the prompt.

        Trap: a longer entry is looked for before a shorter one, and then neither is used.
        """
        found, asked = self.search(model, tokens), list(tokens)
        equal = Count(len(asked) if found.exact is not None else found.common_prefix)
        short = Loss(
            cause=TOO_SHORT,
            before=equal,
            after=Count(0),
            detail={"least": self.memory.least},
        )
        # Below this length a lookup is not worth it (`least`).
        if len(asked) < self.memory.least:
            return miss(asked, equal, short)
        keys = sorted(key for _, key, _ in self.trie.items())
        at = bisect_left(keys, asked)
        longer = [key for key in keys[at:] if key[: len(asked)] == asked]
        # Trap: a longer entry is looked for before a shorter one, and then neither is used.
        covering = asked if found.exact is not None else max(longer, key=len, default=None)
        if covering is not None and (covering == asked or self._frozen(model, covering) is None):
            self._used(model, covering)
            return self._covered(model, covering, asked)
        if ends := self.trie.prefixes(model, asked):
            used = Count(max(ends))
            loss = Loss(
                cause=vocabulary.SHORTER_ENTRY_FIRST,
                before=equal,
                after=used,
                detail={"used": used},
            )
            loss = loss if covering is None else self._uncut(model, covering, equal, used)
            return self._hit(model, asked[:used], asked, equal, loss)
        # Only the neighbours among the sorted keys are compared: one of them shares most tokens.
        near = max(
            keys[max(at - 1, 0) : at + 1],
            key=lambda key: get_common_prefix(key, asked),
            default=[],
        )
        # A shorter match is not worth a copy either.
        if equal < self.memory.least:
            return miss(asked, equal, short)
        if self._frozen(model, near) is not None:
            return miss(asked, equal, self._uncut(model, near, equal, Count(0)))
        return self._hit(model, near, asked, equal)

    def _covered(self, _model: Hashable, key: list[int], asked: list[int]) -> Fetched:
        """An entry that covers the prompt: not used."""
        detail, equal = {"entry": len(key), "n_tokens": len(asked)}, Count(len(asked))
        loss = Loss(cause=NO_TOKEN_LEFT, before=equal, after=Count(0), detail=detail)
        return miss(asked, equal, loss)

    def _frozen(self, model: Hashable, key: Key) -> int | None:
        """The first layer of an entry that cannot be cut."""
        layers = enumerate(self.trie.get(model, key).prompt_cache)
        return next((at for at, layer in layers if not layer.is_trimmable()), None)

    def _uncut(self, model: Hashable, key: Key, before: Count, after: Count) -> Loss:
        layer = self._frozen(model, key) or 0
        kind = type(self.trie.get(model, key).prompt_cache[layer]).__name__
        detail = {"entry": len(key), "layer": layer, "cache": kind}
        return Loss(cause=vocabulary.NOT_TRIMMABLE, before=before, after=after, detail=detail)

    def _used(self, model: Hashable, key: Key) -> None:
        self.order.remove(model, key)
        self.order.push(model, key, self.trie.get(model, key).cache_type)

    def _hit(
        self, model: Hashable, key: list[int], asked: list[int], equal: Count, *lost: Loss
    ) -> Fetched:
        """A copy of an entry, cut where it diverges from the prompt."""
        used = get_common_prefix(key, asked)
        self._used(model, key)
        cache = copy_prompt_cache(self.trie.get(model, key).prompt_cache)
        # Cut where it diverges: all of its layers can be, or nothing is cut at all.
        trim_prompt_cache(cache, len(key) - used)
        kind = "shorter" if len(key) == used else "longer"
        return Fetched.up_to(used, asked, cache, key, equal, *lost, kind=kind)

    def keeps(self, key: Key, cache: list[LayerCache]) -> bool:
        """True if a prompt is stored with its reply: its layers can be cut, and it is long."""
        return len(key) >= self.memory.least and can_trim_prompt_cache(cache)

    def keeps_first(self, key: Key, cached: int, cache: list[LayerCache]) -> bool:
        """True if a prompt and its first reply token are stored, because they cannot be cut.

        Not soon after a hit, and not without a layer that counts its tokens.
        """
        # Soon after a hit the stored state is near enough.
        beyond = len(key) - 1 - cached
        return (
            len(key) >= self.memory.least
            and not (cached > 0 and beyond <= self.memory.refresh)
            and not can_trim_prompt_cache(cache)
            and any(getattr(layer, "offset", None) is not None for layer in cache)
        )

    def after_first(self, job: Job, token: Token, cache: list[LayerCache], insert: Insert) -> None:
        """Keep a state that cannot be cut. Follows `_store_prompt_only_cache`."""
        # Taken after the first token, so the state is that of the prompt and one token.
        key = (*job.prompt, token)
        if self.keeps_first(key, int(job.cached or 0), cache):
            self.evict_prefixes(job.model, key)
            insert(key, copy_prompt_cache(cache))

    def at_end(self, job: Job, key: Tokens, cache: list[LayerCache], insert: Insert) -> None:
        """Keep a prompt with its reply, unless its client disconnected."""
        if self.keeps(job.cache_key, cache) and not job.should_stop:
            super().at_end(job, key, cache, insert)

    def evict_prefixes(self, model: Hashable, key: Key) -> None:
        """Remove the entries that a new one continues. Follows `commit_prepared`."""
        if self.trie.holds(model, key):
            return
        for end in self.trie.prefixes(model, key):
            self.drop(model, list(key[:end]), PromptCachePruned)

    def drop(self, model: Hashable, key: list[int], event: type[PromptCacheChange]) -> None:
        """Remove an entry."""
        entry = self.trie.pop(model, key)
        self._uncount(entry)
        self.order.remove(model, key)
        self._emit(event, key, entry)


def miss(asked: list[int], equal: Count, *lost: Loss) -> Fetched:
    """Nothing to reuse; without an equal token nothing is lost."""
    return Fetched.up_to(0, asked, None, None, equal, *lost)
