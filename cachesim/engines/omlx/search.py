"""What a search draws for oMLX, and its laws."""

from typing import Final

from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules, PrefixCacheRules
from cachesim.engines.mlx_lm.search import MlxLaws, Shared, above, guide
from cachesim.engines.mlx_lm.search.stored import KEPT
from cachesim.engines.omlx.rules import BlockRules
from cachesim.engines.search import Search
from cachesim.engines.seen import Seen
from cachesim.typed import of_kind, there_is


class BlockLaws(MlxLaws):
    """A state is kept at the end of each block of a prompt, and the last one is found."""

    def _lengths(self, seen: Seen) -> list[int]:
        blocks = of_kind(BlockRules, self._rules.server.prefix_cache)
        ends = range(blocks.interval, len(seen.reply.prompt), blocks.interval)
        captured = blocks.captures or seen.layers <= KEPT
        return [end for end in ends if captured and end > int(there_is(seen.reply.cached))]

    def _due_of(self, own: PrefixCacheRules, before: Seen, seen: Seen, shared: Shared) -> int:
        interval = of_kind(BlockRules, own).interval
        most = min(shared.cut, len(before.reply.prompt) - 1)
        return max(0, most) // interval * interval


# No scope: states are kept at the ends of blocks of 2,048 tokens, and a scope's prompts have at
# most 497, so that none would be reused.
SEARCH: Final[Search[MlxRules, MlxOptions]] = above(
    guide=lambda own: guide({of_kind(BlockRules, own).interval}), laws=BlockLaws
)
