"""What a search draws for LM Studio's mlx-engine."""

from dataclasses import replace
from typing import Final

from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.mlx_lm.search import SEARCH as BELOW
from cachesim.engines.search import Scope, Search

SEARCH: Final[Search[MlxRules, MlxOptions]] = replace(
    BELOW,
    draws_models=False,
    finds_again=lambda _: 0,
    draft_flag="",
    hunted=({},),
    scopes=(Scope(lengths=(1, 4, 5), window=4),),
)
