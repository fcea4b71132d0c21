"""Ollama's MLX runner as an engine."""

from cachesim.engines.mlx_lm.server.engine import MlxLm


class OllamaMlx(MlxLm):
    """Ollama's MLX runner, whose rules its store and its requests read."""
