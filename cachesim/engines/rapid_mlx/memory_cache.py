"""The prefix cache of Rapid-MLX, as its scheduler uses it."""

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from cachesim.engines.causes import Loss
from cachesim.engines.chat import ChatTokenizer, Message
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache, RotatingKVCache
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    LayerCache,
    copy_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.server.request import Job
from cachesim.engines.mlx_lm.store.lru_prompt_cache import Fetched, Insert, Key
from cachesim.engines.mlx_lm.vocabulary import (
    ONE_TOKEN_IS_FED,
    SHORTER_ENTRY_FIRST,
    PromptCacheEvicted,
)
from cachesim.engines.rapid_mlx.rules import RapidRules
from cachesim.engines.tokens import get_common_prefix
from cachesim.engines.vllm_mlx.memory_cache import MemoryPromptCache, miss
from cachesim.units import Count, Token, Tokens

REPLAYED: Final = 8
"""Tokens before the end of a chat's messages that are left out of their entry."""


def stable_end(tokenizer: ChatTokenizer, messages: Sequence[Message]) -> Count:
    """Tokens of a chat that its next turn repeats, without the last eight of them.

        prompt      [ messages ............ ][ generation prompt ]
        next turn   [ messages ............ ][ reply ] ...
        end         [ ............. )  8

    Follows `_compute_prefix_boundary`, for templates that write the messages before the
    generation prompt as without it.
    """
    users = [at for at, message in enumerate(messages) if message.role == "user"]
    # Trap: a chat that begins with its last user message gets none.
    if not users or users[-1] == 0:
        return Count(0)
    stable = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    return Count(max(0, len(stable) - REPLAYED))


class RapidPromptCache(MemoryPromptCache):
    """A prefix cache, few of whose entries have a layer that cannot be cut.

        entry   0 ............ prompt                     after the prompt
                0 ........ prompt - 1                     instead, of a hybrid's without a hit
                0 ..... messages - 8                      beside it, where a chat's messages end
                0 ............ prompt ..... reply         at the end
        next    0 ............ prompt ..... reply ... x   continues a whole entry
                0 ........ x                              cuts an entry, if all layers can be cut

    Follows `MemoryAwarePrefixCache` and `Scheduler` of Rapid-MLX, which comes from vllm-mlx,
    without limits in bytes, packed entries and a disk.
    """

    def __init__(self, rules: StoreRules, memory: RapidRules) -> None:
        super().__init__(rules, memory)
        self.rapid = memory

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """Follows `_fetch_locked`."""
        asked, keys = list(tokens), sorted(key for _, key, _ in self.trie.items())
        at = bisect_left(keys, asked)
        covering = [key for key in keys[at:] if key[: len(asked)] == asked]
        exact = [key for key in covering if key == asked]
        longest = max((key for key in covering if key != asked), key=len, default=[])
        beside = [key for key in keys[max(at - 1, 0) : at + 1] if key != asked]
        near = max(beside, key=lambda key: get_common_prefix(key, asked), default=[])
        equal = Count(len(asked)) if covering else get_common_prefix(near, asked)
        frozen: list[list[int]] = []
        # Trap: of the entries that cover the prompt only the longest is considered. If it cannot be
        # cut, a shorter one that covers the prompt is found only as the next among the sorted keys.
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
        """A copy of an entry, cut where it diverges from the prompt, and before the last token.

        Follows `_trim_cache_offset` and `_resolve_exact_hit_tokens`. Trap: a window's layer that is
        cut back becomes one without a window.
        """
        common = get_common_prefix(key, asked)
        # One token is left to feed.
        used = Count(min(common, len(asked) - 1))
        self._used(model, key)
        cache = copy_prompt_cache(self.trie.get(model, key).prompt_cache)
        # Trap: a window's layer that is cut back becomes one without a window.
        if common < len(key):
            cache = [_whole(layer) for layer in cache]
        trim_prompt_cache(cache, len(key) - used)
        detail: dict[str, object] = {"n_tokens": len(asked)}
        cause = ONE_TOKEN_IS_FED
        if common < len(asked):
            cause, detail = SHORTER_ENTRY_FIRST, {"used": used}
        loss = Loss(cause=cause, before=equal, after=used, detail=detail)
        if frozen and common < len(asked):
            loss = self._uncut(model, frozen[0], equal, used)
        kind = "shorter" if len(key) == used else "longer"
        return Fetched.up_to(used, asked, cache, key, equal, loss, kind=kind)

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
        # The oldest entries that cannot be cut go first, whatever the others are.
        frozen = [key for key in keys if self._frozen(model, key) is not None]
        for key in frozen[: max(0, len(frozen) - self.rapid.uncut)]:
            self.drop(model, list(key), PromptCacheEvicted)

    def keeps(self, key: Key, cache: list[LayerCache]) -> bool:
        """True if an entry is stored: its layers can be cut, or some that cannot be are kept."""
        return self.rapid.uncut > 0 or super().keeps(key, cache)

    def keeps_before_end(self, prompt: Key, cached: int) -> bool:
        """True if a prompt is stored without its last token, instead of whole."""
        return self.rapid.before_end and cached == 0 and len(prompt) > 1

    def positions(self, job: Job, key: Tokens, _equal: int) -> list[int]:
        """Where a chat's messages end, or before the last token.

        Follows `_snapshot_boundary_segments`.
        """
        if not self.rapid.uncut:
            return []
        cached, end = int(job.cached or 0), stable_end(job.tokenizer, job.messages)
        job.boundaries = (end,) if end > 0 else ()
        if not end and self.keeps_before_end(key, cached):
            end = Count(len(key) - 1)
        return [end] if cached < end < len(key) else []

    def after_prompt(self, job: Job, cache: list[LayerCache], insert: Insert) -> None:
        """Keep the state of a whole prompt, unless only the one before its last token is kept.

        Follows `_snapshot_promoted_prompts`.
        """
        early = self.keeps_before_end(job.prompt, int(job.cached or 0)) and not job.boundaries
        if not early and self.keeps(job.prompt, cache):
            insert(job.prompt, copy_prompt_cache(cache))

    def after_first(
        self, _job: Job, _token: Token, _cache: list[LayerCache], _insert: Insert
    ) -> None:
        """Nothing is kept here: the prompt itself is kept."""

    def problems(self) -> Iterator[str]:
        """No more entries than are allowed cannot be cut."""
        uncut = sum(
            not all(layer.is_trimmable() for layer in entry.prompt_cache)
            for _, _, entry in self.trie.items()
        )
        if uncut > self.rapid.uncut:
            yield f"{uncut} entries cannot be cut, {self.rapid.uncut} are allowed"


def _whole(layer: LayerCache) -> LayerCache:
    if not isinstance(layer, RotatingKVCache):
        return layer
    whole = KVCache(layer.rules)
    whole.keys, whole.values, whole.offset = layer.keys, layer.values, layer.offset
    return whole
