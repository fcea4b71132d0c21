"""The prefix cache of oMLX: states at the ends of its blocks, in files.

    prompt      0 ......... 2048 ........ 4096 .... end       a state after each block
    next one    0 ....................... x                   resumes at the last state before x

Attention could be cut anywhere; a recurrent state is that of one position. Follows
`BlockAwarePrefixCache`, without eviction.
"""

from collections.abc import Hashable
from dataclasses import replace

from cachesim.engines.causes import Loss
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.prompt_cache import LayerCache, copy_prompt_cache
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.server.request import Job
from cachesim.engines.mlx_lm.store.lru_prompt_cache import (
    UNLIMITED,
    Fetched,
    Insert,
    Key,
    LRUPromptCache,
)
from cachesim.engines.mlx_lm.vocabulary import ONE_TOKEN_IS_FED
from cachesim.engines.omlx.rules import BlockRules
from cachesim.engines.omlx.vocabulary import PLACEHOLDER, STATES_ON_A_GRID
from cachesim.units import Count, Tokens


class BlockAwarePrefixCache(LRUPromptCache):
    """Copies of a prompt's caches by block; a fetch returns the deepest usable one."""

    def __init__(self, rules: StoreRules, blocks: BlockRules) -> None:
        own = replace(rules, consumes=False, prunes="never", same_key="replaces")
        super().__init__(own, UNLIMITED)
        self.blocks = blocks
        self.sliceable = True  # no layer has a state
        self.placeholder: int | None = None  # a layer with fewer arrays than are stored

    def fit(self, model: Forward) -> None:
        """Find the layers with states, and the first one with too few arrays."""
        pairs = enumerate(zip(model.network.shapes, model.make_cache(), strict=False))
        states = {
            at: len(layer.cache)
            for at, (shape, layer) in pairs
            if not shape.marks and isinstance(layer, ArraysCache)
        }
        few = [at for at, arrays in states.items() if arrays < self.blocks.fewest_arrays]
        self.sliceable, self.placeholder = not states, few[0] if few else None

    def positions(self, job: Job, key: Tokens, _equal: int) -> list[int]:
        """Ends of blocks after which a copy is kept (`_emit_prefill_boundary_snapshot`)."""
        # omlx#3699: where layers have states, no state of a prompt is kept.
        if not (self.blocks.captures or self.sliceable):
            return []
        ends = range(self.blocks.interval, len(key), self.blocks.interval)
        return [end for end in ends if end > int(job.cached or 0)]

    def at_end(self, _job: Job, _key: Tokens, _cache: list[LayerCache], _insert: Insert) -> None:
        """Nothing more is kept: the last block is not full."""

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """Follows `fetch_cache` with `reconstruct_cache`."""
        near = self.search(model, tokens)
        whole = near.exact is not None
        equal = Count(len(tokens) if whole else near.common_prefix)
        limit = min(int(equal), len(tokens) - 1)
        used = max((end for end in self.trie.prefixes(model, tokens) if end <= limit), default=0)
        losses: tuple[Loss, ...] = ()
        # omlx#2762: a layer's state of too few arrays was stored as a placeholder, so nothing is
        # restored.
        if used and self.placeholder is not None:
            detail = {"layer": self.placeholder, "used": used}
            losses = (Loss(cause=PLACEHOLDER, before=equal, after=Count(0), detail=detail),)
            used = 0
        elif used < equal:
            cause, detail = STATES_ON_A_GRID, {"used": used, "interval": self.blocks.interval}
            if used == len(tokens) - 1:
                cause, detail = ONE_TOKEN_IS_FED, {"n_tokens": len(tokens)}
            losses = (Loss(cause=cause, before=equal, after=Count(used), detail=detail),)
        key = tokens[:used] if used else None
        cache = None if key is None else copy_prompt_cache(self.trie.get(model, key).prompt_cache)
        return Fetched.up_to(used, tokens, cache, key, equal, *losses)
