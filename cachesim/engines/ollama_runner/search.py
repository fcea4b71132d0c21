"""What a search draws for Ollama's runner."""

from typing import Final

from cachesim.engines.ollama_runner.options import RunnerOptions
from cachesim.engines.ollama_runner.rules import RunnerRules
from cachesim.engines.search import Scope, Search

TINY: Final = {"n_ctx": 64, "n_batch": 4, "n_ubatch": 4}
"""Batches of four tokens."""

SEARCH: Final[Search[RunnerRules, RunnerOptions]] = Search(
    may_decline=False,
    scopes=(
        # A hybrid's first checkpoint is of position 16 (`FIRST`); shorter prompts reuse none.
        Scope(flags=TINY, lengths=(1, 5, 17, 21)),
        Scope(flags=TINY, lengths=(1, 4, 5, 9), layers=frozenset({"window"}), window=4),
    ),
    incidents=("restart",),
    exercised={"slot-cleared": "full reprocessing", "context-shifted": "shift"},
)
