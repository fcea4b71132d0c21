"""vllm-mlx as an engine."""

from cachesim.engines.mlx_lm.server.engine import MlxLm


class VllmMlx(MlxLm):
    """vllm-mlx, whose rules its store and its requests read."""
