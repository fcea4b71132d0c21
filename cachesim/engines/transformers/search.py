"""What a search draws for Transformers' continuous batching."""

from typing import Final

from cachesim.engines.search import ACTS, Corner, Scope, Search
from cachesim.engines.transformers.options import TransformersOptions
from cachesim.engines.transformers.rules import Rules

SEARCH: Final[Search[Rules, TransformersOptions]] = Search(
    reuse_flags=("allow_block_sharing",),
    may_decline=False,
    scopes=(
        Scope(
            flags={"page_size": 4, "num_blocks": 8, "max_batch_tokens": 8},
            lengths=(4, 5, 8),
            acts=(*ACTS, "together"),
            window=4,
        ),
    ),
    corners=(
        Corner(),
        Corner(flags={"page_size": 16, "num_blocks": 24}),
        Corner(flags={"page_size": 4, "num_blocks": 96, "max_batch_tokens": 32}),
    ),
    exercised={"blocks-evicted": "eviction", "blocks-hashed": "save"},
)
