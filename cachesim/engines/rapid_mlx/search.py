"""What a search draws for Rapid-MLX, and its laws."""

from typing import Final

from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules, PrefixCacheRules
from cachesim.engines.mlx_lm.search import MlxLaws, Shared, above, guide
from cachesim.engines.mlx_lm.search.stored import CUT
from cachesim.engines.rapid_mlx.rules import RapidRules
from cachesim.engines.search import Scope, Search
from cachesim.engines.seen import Seen
from cachesim.typed import of_kind, there_is


class RapidLaws(MlxLaws):
    """A prompt, or all of it but its last token, and the same with its reply."""

    evicts_early = True

    def _lengths(self, seen: Seen) -> list[int] | None:
        if "window" in seen.layers or seen.chat:
            return None
        memory, prompt = (
            of_kind(RapidRules, self._rules.server.prefix_cache),
            len(seen.reply.prompt),
        )
        if not (seen.layers <= CUT or memory.uncut):
            return []
        early = memory.before_end and there_is(seen.reply.cached) == 0 and prompt > 1
        return [prompt - early, prompt + len(seen.reply.generated)]

    def _due_of(self, own: PrefixCacheRules, _before: Seen, seen: Seen, shared: Shared) -> int:
        memory = of_kind(RapidRules, own)
        if len(seen.reply.prompt) < memory.least:
            return 0
        return shared.end if memory.uncut else min(shared.end, shared.cut)


SEARCH: Final[Search[MlxRules, MlxOptions]] = above(
    Scope(lengths=(1, 4, 5), window=4),
    guide=lambda own: guide({of_kind(RapidRules, own).least}),
    laws=RapidLaws,
)
