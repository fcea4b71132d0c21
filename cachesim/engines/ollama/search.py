"""What a search draws for Ollama's MLX runner, and its laws."""

from typing import Final

from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules, PrefixCacheRules
from cachesim.engines.mlx_lm.search import MlxLaws, Shared, above, guide
from cachesim.engines.ollama.rules import RunnerRules
from cachesim.engines.search import Guide, Scope, Search
from cachesim.engines.seen import Seen
from cachesim.typed import of_kind, there_is


class RunnerLaws(MlxLaws):
    """States are kept at fixed positions, where a match ended, and after the reply."""

    def _lengths(self, seen: Seen) -> list[int]:
        runner = of_kind(RunnerRules, self._rules.server.prefix_cache)
        prompt, cached = len(seen.reply.prompt), int(there_is(seen.reply.cached))
        places = {*range(runner.interval, prompt, runner.interval), int(seen.reply.equal)}
        places = {at - runner.lookahead for at in places | {prompt - runner.before_end}}
        whole = prompt + len(seen.reply.generated)
        return [*sorted(at for at in places if cached < at < prompt), whole]

    def _due_of(self, own: PrefixCacheRules, _before: Seen, _seen: Seen, shared: Shared) -> int:
        ahead = of_kind(RunnerRules, own).lookahead
        return max(shared.end if not ahead else 0, min(shared.cut, shared.tokens - ahead), 0)


def _guide(own: PrefixCacheRules) -> Guide:
    runner = of_kind(RunnerRules, own)
    return guide({runner.interval, runner.before_end})


SEARCH: Final[Search[MlxRules, MlxOptions]] = above(
    Scope(lengths=(1, 4, 5, 9), window=4), guide=_guide, laws=RunnerLaws
)
