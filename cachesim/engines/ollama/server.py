"""Ollama's MLX runner as an engine."""

from cachesim.engines.mlx_lm.server.engine import MlxLm
from cachesim.engines.mlx_lm.store.lru_prompt_cache import LRUPromptCache
from cachesim.engines.ollama.cache import PrefixCache
from cachesim.engines.ollama.rules import RunnerRules
from cachesim.typed import of_kind


class OllamaMlx(MlxLm):
    """Ollama's MLX runner, with its prefix cache."""

    def _prompt_cache(self) -> LRUPromptCache:
        return PrefixCache(self.rules.store, of_kind(RunnerRules, self.rules.server.prefix_cache))
