"""What `cachesim check` draws for the server."""

from cachesim.engines.search import Search

from .options import Options
from .rules import Rules

SEARCH: Search[Rules, Options] = Search(may_decline=False, exercised={"entry-evicted": "eviction"})
