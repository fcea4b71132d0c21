"""mlx-lm: cache classes, trie, prompt cache, batches, server."""

from cachesim.engines.mlx_lm.engine import MlxLm

__all__ = ["MlxLm"]
