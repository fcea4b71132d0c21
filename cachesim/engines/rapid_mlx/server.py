"""Rapid-MLX as an engine."""

from cachesim.engines.mlx_lm.server.engine import MlxLm


class RapidMlx(MlxLm):
    """Rapid-MLX, whose rules its store and its requests read."""
