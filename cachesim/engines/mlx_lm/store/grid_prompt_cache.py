"""The prefix caches of oMLX and of Ollama's MLX runner: states at fixed positions of a prompt.

    prompt      0 ......... 2048 ........ 4096 .... end       oMLX: the ends of its blocks
                0 .................. 8191 .... end - 5        Ollama, with a drafter
    next one    0 ....................... x                   resumes at the last state before x

Attention could be cut anywhere; a recurrent state is that of one position. Follows
`BlockAwarePrefixCache` and `prefixCache`, without eviction.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace

from cachesim.engines.causes import Loss
from cachesim.engines.events import Event
from cachesim.engines.mlx_lm import causes
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    LayerCache,
    can_trim_prompt_cache,
    copy_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.rules import GridRules, StoreRules
from cachesim.engines.mlx_lm.store.live_buffer import LiveBuffer, overwrite
from cachesim.engines.mlx_lm.store.lru_prompt_cache import UNLIMITED, Fetched, Key, LRUPromptCache
from cachesim.units import Count


class GridPromptCache(LRUPromptCache):
    """Copies of a prompt's caches by position; of a fetch the deepest one that may be used."""

    def __init__(
        self, rules: StoreRules, grid: GridRules, *, on_event: Callable[[Event], None] | None = None
    ) -> None:
        own = replace(rules, consumes=False, prunes="never", same_key="replaces")
        super().__init__(own, UNLIMITED, on_event=on_event)
        self.grid = grid
        self.sliceable = True  # no layer has a state
        self.counted = True  # a layer has an offset
        self.placeholder: int | None = None  # a layer with fewer arrays than are stored
        self.live = LiveBuffer() if grid.lazy else None

    def positions(self, length: int, cached: int, matched: int) -> list[int]:
        """Positions of a prompt of `length` tokens after which a copy is kept.

        Follows `_emit_prefill_boundary_snapshot`, and `schedulePrefillSnapshots`.
        """
        grid = self.grid
        if not (grid.captures or self.sliceable):
            return []
        found = set(range(grid.interval, length, grid.interval))
        found |= {length - grid.before_end} if grid.before_end else set()
        found = {each - grid.lookahead for each in found}
        found |= {matched - grid.lookahead} if grid.keeps_the_end else set()
        return sorted(each for each in found if cached < each < length)

    @property
    def keeps_replies(self) -> bool:
        """True if a request's state is kept at its end."""
        return self.grid.keeps_the_end

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """Follows `fetch_cache` with `reconstruct_cache`, and `begin` with `switchToPath`."""
        found = self.search(model, tokens)
        whole = found.exact is not None
        equal = Count(len(tokens) if whole else found.common_prefix)
        limit = min(equal - self.grid.lookahead, len(tokens) - 1)
        ends = [*self.trie.prefixes(model, tokens), *([len(tokens)] if whole else [])]
        used, key = max((each for each in ends if each <= limit), default=0), None
        longest = tokens if whole else found.longer
        entry = self.trie.get(model, longest) if longest is not None else None
        cut = entry is not None and self.grid.keeps_the_end and limit > used
        if entry is not None and longest and cut and can_trim_prompt_cache(entry.prompt_cache):
            used, key = limit, longest
        elif used > 0:
            key = tokens[:used]
        losses: tuple[Loss, ...] = ()
        if key is not None and self.placeholder is not None:
            detail = {"layer": self.placeholder, "used": used}
            losses = (Loss(cause=causes.PLACEHOLDER, before=equal, after=Count(0), detail=detail),)
            used, key = 0, None
        elif used < equal:
            cause, detail = causes.STATES_ON_A_GRID, {"used": used, "interval": self.grid.interval}
            if used == len(tokens) - 1:
                cause, detail = causes.ONE_TOKEN_IS_FED, {"n_tokens": len(tokens)}
            elif used == limit:
                cause, detail = causes.DRAFTER_LOOKAHEAD, {"used": used, "equal": equal}
            losses = (Loss(cause=cause, before=equal, after=Count(used), detail=detail),)
        cache = None if key is None else copy_prompt_cache(self.trie.get(model, key).prompt_cache)
        if cache is not None and key is not None and len(key) > used:
            trim_prompt_cache(cache, len(key) - used)
        if self.live is not None:
            last = self.live.key
            rows = self.live.resume(tuple(tokens), max(limit, 0), used)
            if cache is not None and rows and self.trie.holds(model, last):
                overwrite(cache, self.trie.get(model, last).prompt_cache, 0, rows)
        return Fetched(
            prompt_cache=cache,
            rest=tokens[used:],
            kind="miss" if cache is None else "shorter",
            key=key,
            equal=equal,
            losses=losses,
        )

    def insert_cache(
        self,
        model: Hashable,
        tokens: Key,
        prompt_cache: list[LayerCache],
        *,
        cache_type: str = "assistant",
    ) -> None:
        """Insert a copy; the live buffer overwrites snapshots first (`appendKV`)."""
        if self.live is not None:
            entries = [(tuple(key), each.prompt_cache) for _, key, each in self.trie.items()]
            self.live.append(tuple(tokens), prompt_cache, entries)
        super().insert_cache(model, tokens, prompt_cache, cache_type=cache_type)
