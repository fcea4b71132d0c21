"""oMLX as an engine."""

from cachesim.engines.mlx_lm.server.engine import MlxLm


class Omlx(MlxLm):
    """oMLX, whose rules its store and its requests read."""
