"""What `cachesim check` draws for the server."""

from cachesim.engines.search import Search

from .family import Options, Rules

SEARCH: Search[Rules, Options] = Search(may_decline=False)
