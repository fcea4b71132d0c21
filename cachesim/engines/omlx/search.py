"""What a search draws for oMLX."""

from typing import Final

from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.mlx_lm.search import above
from cachesim.engines.search import Search

# No scope: states are kept at the ends of blocks of 2,048 tokens, and a scope's prompts have at
# most 497, so that none would be reused.
SEARCH: Final[Search[MlxRules, MlxOptions]] = above()
