"""The prompt caches of LM Studio's mlx-engine that are mlx-lm's, used otherwise."""

from collections.abc import Hashable
from dataclasses import replace
from typing import ClassVar

from cachesim.engines.causes import Loss
from cachesim.engines.lm_studio.rules import SessionRules
from cachesim.engines.mlx_lm import vocabulary
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    LayerCache,
    can_trim_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.server.request import Job
from cachesim.engines.mlx_lm.store.lru_prompt_cache import Fetched, Insert, Key, LRUPromptCache
from cachesim.units import Count, Tokens


class SessionPromptCache(LRUPromptCache):
    """The prompt caches of LM Studio's mlx-engine, which are mlx-lm's, used otherwise.

        entry   0 ............... end - 11                    "user", while the prompt is fed
                0 ............................ end ... reply  "assistant", after the reply
        next    0 ............................ end            cut by one, or fed from end - 11

    Follows `CacheWrapper`, and `BatchedModelKit`, which keeps the second entry alone; without
    `max_kv_size`, `kv_bits` and a draft model, and without prompts that are left half fed. A live
    cache is inserted as the next request arrives: here as its own ends, which no request can tell
    apart. The kit that took the second one's place is `DiskPromptCache`.
    """

    type_at_positions: ClassVar[str] = "user"

    def __init__(self, rules: StoreRules, session: SessionRules, *, counted: bool = True) -> None:
        super().__init__(rules, session.most)
        self.session = session
        self.counted = counted  # a layer has an offset

    @property
    def keeps_replies(self) -> bool:
        """Follows `_flush_live_cache`. Trap: without an `offset` the live cache is made new."""
        return self.counted or not self.session.counts_by_offset

    def positions(self, job: Job, key: Tokens, _equal: int) -> list[int]:
        """The position of a prompt that is kept. Follows `update_cache`."""
        end = len(key) - self.session.before_end
        kept = self.session.before_end and self.keeps_replies and end > int(job.cached or 0)
        return [end] if kept else []

    def at_end(self, job: Job, key: Tokens, cache: list[LayerCache], insert: Insert) -> None:
        """Follows `_flush_live_cache`."""
        if self.keeps_replies:
            super().at_end(job, key, cache, insert)

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """Follows `_restore_cache`, and `_prepare_prompt_cache_for_generation`."""
        found, used = super().fetch(model, tokens), 0
        cache, key = found.prompt_cache, found.key
        # A match that leaves tokens to feed is used as mlx-lm would.
        if cache is not None and found.rest:
            return found
        cause: Loss | None = None
        # The whole prompt is cached: one token is cut off, so that it can be fed.
        if cache is not None and can_trim_prompt_cache(cache) and trim_prompt_cache(cache, 1) == 1:
            used, detail = len(tokens) - 1, {"n_tokens": len(tokens)}
            cause = Loss(
                cause=vocabulary.ONE_TOKEN_IS_FED,
                before=found.equal,
                after=Count(used),
                detail=detail,
            )
        else:
            cache = key = None
            # Where that fails, an entry of the prompt without its last token may exist.
            if self.session.asks_again and len(tokens) > 1:
                again = super().fetch(model, tokens[:-1])
                cache, key, used = again.prompt_cache, again.key, len(tokens) - 1 - len(again.rest)
            if used < found.equal:
                near = self.search(model, tokens)
                near = replace(near, longer=near.exact or near.longer)
                cause = self._why_not_longer(near, found.equal, Count(used))
        return Fetched.up_to(used, tokens, cache, key, found.equal, cause)
