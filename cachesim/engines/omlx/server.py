"""oMLX as an engine."""

from cachesim.engines.mlx_lm.server.engine import MlxLm
from cachesim.engines.mlx_lm.store.lru_prompt_cache import LRUPromptCache
from cachesim.engines.omlx.prefix_cache import BlockAwarePrefixCache
from cachesim.engines.omlx.rules import BlockRules
from cachesim.typed import of_kind


class Omlx(MlxLm):
    """oMLX, whose blocks are files."""

    def _prompt_cache(self) -> LRUPromptCache:
        own = of_kind(BlockRules, self.rules.server.prefix_cache)
        cache = BlockAwarePrefixCache(self.rules.store, own)
        cache.fit(self.models[""])
        return cache

    def restart(self) -> None:
        """Restart the server, which finds its files again (upstream: `_scan_existing_files`)."""
        files = self.server.store.cache
        super().restart()
        self.server.store.cache = files
