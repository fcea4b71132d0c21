"""What a search draws for KoboldCpp."""

from typing import Final

from cachesim.engines.koboldcpp.options import KoboldOptions
from cachesim.engines.koboldcpp.rules import KoboldRules
from cachesim.engines.search import Corner, Scope, Search

TINY: Final = {"n_ctx": 64, "n_batch": 4, "n_ubatch": 4}
"""Batches of four tokens."""

SEARCH: Final[Search[KoboldRules, KoboldOptions]] = Search(
    may_decline=False,
    corners=(Corner(flags={"smartcache": 2}, steps=4),),
    scopes=(
        Scope(flags={**TINY, "smartcache": 2}, lengths=(1, 4, 5, 9)),
        Scope(flags=TINY, lengths=(1, 4, 5, 9), layers=frozenset({"window"}), window=4),
    ),
    incidents=("restart",),
    exercised={"state-loaded": "load", "slot-saved": "save", "tokens-erased": "shift"},
)
