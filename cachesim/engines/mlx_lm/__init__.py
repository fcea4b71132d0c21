"""mlx-lm: cache classes, trie, prompt cache, batches, server."""

from cachesim.engines.base import Engine
from cachesim.engines.mlx_lm.engine import MlxLm

Engine.families["mlx-lm"] = MlxLm

__all__ = ["MlxLm"]
