"""The prompt caches of LM Studio's mlx-engine, which are mlx-lm's, used otherwise.

    entry    0 ............... end - 11                    "user", while the prompt is fed
             0 ............................ end ... reply  "assistant", after the reply
    next     0 ............................ end            cut by one token, or fed from end - 11

Follows `CacheWrapper`, and `BatchedModelKit`, which keeps the second entry alone; without
`max_kv_size`, `kv_bits` and a draft model, and without prompts that are left half fed. A live cache
is inserted as the next request arrives: here as its own ends, which no request can tell apart. The
kit that took the second one's place is `DiskPromptCache`.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import ClassVar

from cachesim.engines.causes import Loss
from cachesim.engines.events import Event
from cachesim.engines.mlx_lm import causes
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    can_trim_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.rules import SessionRules, StoreRules
from cachesim.engines.mlx_lm.store.grid_prompt_cache import GridPromptCache
from cachesim.engines.mlx_lm.store.lru_prompt_cache import Fetched, Key, LRUPromptCache
from cachesim.units import Count


class SessionPromptCache(GridPromptCache):
    """mlx-lm's store with the positions and the second lookup of mlx-engine."""

    type_at_positions: ClassVar[str] = "user"

    def __init__(
        self,
        rules: StoreRules,
        session: SessionRules,
        *,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(rules, session, on_event=on_event)
        self.rules, self.max_size, self.session = rules, session.most, session

    @property
    def keeps_replies(self) -> bool:
        """Follows `_flush_live_cache`. Trap: without an `offset` the live cache is made new."""
        return self.counted or not self.session.counts_by_offset

    def positions(self, length: int, cached: int, _matched: int) -> list[int]:
        """The position of a prompt that is kept. Follows `update_cache`."""
        end = length - self.session.before_end
        return [end] if self.session.before_end and self.keeps_replies and end > cached else []

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """Follows `_restore_cache`, and `_prepare_prompt_cache_for_generation`."""
        found, used = LRUPromptCache.fetch(self, model, tokens), 0
        cache, key = found.prompt_cache, found.key
        if cache is not None and found.rest:
            return found
        cause: Loss | None = None
        if cache is not None and can_trim_prompt_cache(cache) and trim_prompt_cache(cache, 1) == 1:
            used, detail = len(tokens) - 1, {"n_tokens": len(tokens)}
            cause = Loss(
                cause=causes.ONE_TOKEN_IS_FED, before=found.equal, after=Count(used), detail=detail
            )
        else:
            cache = key = None
            if self.session.asks_again and len(tokens) > 1:
                again = LRUPromptCache.fetch(self, model, tokens[:-1])
                cache, key, used = again.prompt_cache, again.key, len(tokens) - 1 - len(again.rest)
            if used < found.equal:
                near = self.search(model, tokens)
                near = replace(near, longer=near.exact or near.longer)
                cause = self._why_not_longer(near, found.equal, Count(used))
        return Fetched(
            prompt_cache=cache,
            rest=tokens[used:],
            kind="miss" if cache is None else "shorter",
            key=key,
            equal=found.equal,
            losses=() if cause is None else (cause,),
        )
