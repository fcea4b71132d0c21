"""What a search draws for Marconi."""

from typing import Final

from cachesim.engines.marconi.options import MarconiOptions
from cachesim.engines.marconi.rules import Rules
from cachesim.engines.search import Scope, Search

SEARCH: Final[Search[Rules, MarconiOptions]] = Search(
    scopes=(Scope(flags={"capacity_bytes": 100_000_000}, lengths=(1, 4, 5)),),
    may_decline=False,
    exercised={"node-evicted": "eviction", "state-evicted": "eviction", "sequence-kept": "save"},
)
