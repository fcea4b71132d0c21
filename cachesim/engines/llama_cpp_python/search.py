"""What a search draws for llama-cpp-python."""

from typing import Final

from cachesim.engines.llama_cpp_python.options import Options
from cachesim.engines.llama_cpp_python.rules import Rules
from cachesim.engines.search import Corner, Scope, Search

TINY: Final = {"n_ctx": 64, "n_batch": 4, "n_ubatch": 4, "cache": "ram"}
"""Batches of four tokens, and a store of conversations."""


SEARCH: Final[Search[Rules, Options]] = Search(
    may_decline=False,
    corners=(Corner(flags={"cache": "ram"}, layers=frozenset({"window"}), steps=4),),
    scopes=(
        Scope(flags=TINY, lengths=(1, 4, 5, 9)),
        Scope(
            flags={**TINY, "swa_full": False},
            lengths=(1, 4, 5, 9),
            layers=frozenset({"window"}),
            window=4,
        ),
    ),
    incidents=("restart",),
    exercised={
        "state-loaded": "load",
        "state-saved": "save",
        "state-evicted": "eviction",
        "draft-verified": "rollback",
        "instance-reset": "full reprocessing",
    },
)
