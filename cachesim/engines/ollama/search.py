"""What a search draws for Ollama's MLX runner."""

from typing import Final

from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.mlx_lm.search import above
from cachesim.engines.search import Scope, Search

SEARCH: Final[Search[MlxRules, MlxOptions]] = above(Scope(lengths=(1, 4, 5, 9), window=4))
