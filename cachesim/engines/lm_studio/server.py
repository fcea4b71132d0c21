"""LM Studio's mlx-engine as an engine."""

from cachesim.engines.mlx_lm.server.engine import MlxLm


class LmStudio(MlxLm):
    """LM Studio's mlx-engine, whose rules its store and its requests read."""
