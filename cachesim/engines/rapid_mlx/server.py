"""Rapid-MLX as an engine."""

from cachesim.engines.base import Request
from cachesim.engines.mlx_lm.store.lru_prompt_cache import LRUPromptCache
from cachesim.engines.rapid_mlx.memory_cache import RapidPromptCache
from cachesim.engines.rapid_mlx.rules import RapidRules
from cachesim.engines.vllm_mlx.server import VllmMlx
from cachesim.errors import OptionError
from cachesim.typed import of_kind


class RapidMlx(VllmMlx):
    """Rapid-MLX, with its prefix cache."""

    def _prompt_cache(self) -> LRUPromptCache:
        own = of_kind(RapidRules, self.rules.server.prefix_cache)
        return RapidPromptCache(self.rules.store, own)

    def _check_images(self, request: Request) -> None:
        """Refuse images."""
        if request.images:
            raise OptionError(
                "Rapid-MLX serves a model that reads images without a prefix cache: not simulated"
            )
