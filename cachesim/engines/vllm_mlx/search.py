"""What a search draws for vllm-mlx, and its laws."""

from typing import Final

from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules, PrefixCacheRules
from cachesim.engines.mlx_lm.search import MlxLaws, Shared, above, guide
from cachesim.engines.mlx_lm.search.stored import CUT, KEPT
from cachesim.engines.mlx_lm.server.engine import MlxLm
from cachesim.engines.search import Guide, Scope, Search
from cachesim.engines.seen import Seen
from cachesim.engines.vllm_mlx.mllm_batch_generator import MllmPromptCache
from cachesim.engines.vllm_mlx.rules import MemoryRules, MllmRules, WholeRules
from cachesim.typed import of_kind, there_is


class MemoryLaws(MlxLaws):
    """Prompts with their replies, or prompts alone, by the scheduler of the rules."""

    def __init__(self, engine: MlxLm) -> None:
        self._memory = of_kind(MemoryRules, engine.rules.server.prefix_cache)
        self.feeds_all = isinstance(self._memory, WholeRules)
        super().__init__(engine)

    def _lengths(self, seen: Seen) -> list[int] | None:
        if self.feeds_all or "window" in seen.layers or seen.chat:
            return None
        memory, prompt = self._memory, len(seen.reply.prompt)
        cached, cuts = int(there_is(seen.reply.cached)), seen.layers <= CUT
        whole = prompt + len(seen.reply.generated)
        if isinstance(memory, MllmRules):
            cache = of_kind(MllmPromptCache, self._engine.server.store.cache)
            kept = prompt - cache.suffix if cuts else prompt
            first = cuts or (memory.keeps_logits and cached == 0)
            return [kept] if first and kept >= memory.least else []
        if cuts:
            return [whole] if whole >= memory.least else []
        late = cached > 0 and prompt - cached <= memory.refresh
        counts = bool(seen.layers & KEPT)
        return [prompt + 1] if counts and prompt + 1 >= memory.least and not late else []

    def _due_of(self, _own: PrefixCacheRules, before: Seen, seen: Seen, shared: Shared) -> int:
        memory, length = self._memory, len(seen.reply.prompt)
        prompt, thinks = len(before.reply.prompt), self._options.chat_template == "strip-reasoning"
        if self.feeds_all or length < memory.least or not shared.cut or thinks:
            return 0
        if isinstance(memory, MllmRules):
            return min(prompt, length - 1) if shared.tokens >= prompt >= memory.least else 0
        return shared.end if shared.end >= memory.least else 0


def _guide(own: PrefixCacheRules) -> Guide:
    memory = of_kind(MemoryRules, own)
    if isinstance(memory, WholeRules):
        return guide({memory.least}, "all", ({"stream": True}, {"stream": True}, {"seed": 0}))
    return guide({memory.least}, "some" if isinstance(memory, MllmRules) else "none")


SEARCH: Final[Search[MlxRules, MlxOptions]] = above(
    Scope(lengths=(1, 130), window=4), guide=_guide, laws=MemoryLaws
)
