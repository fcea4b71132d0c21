"""vllm-mlx as an engine."""

from cachesim.engines.base import Request
from cachesim.engines.mlx_lm.server.engine import MlxLm
from cachesim.engines.mlx_lm.server.serving import Serve
from cachesim.engines.mlx_lm.store.lru_prompt_cache import LRUPromptCache
from cachesim.engines.vllm_mlx.memory_cache import MemoryPromptCache
from cachesim.engines.vllm_mlx.mllm_batch_generator import MllmPromptCache, think_suffix
from cachesim.engines.vllm_mlx.mllm_cache import WholePromptCache, serve_whole
from cachesim.engines.vllm_mlx.rules import MemoryRules, MllmRules, WholeRules
from cachesim.errors import OptionError
from cachesim.typed import of_kind


class VllmMlx(MlxLm):
    """vllm-mlx's `Scheduler`, its `MLLMScheduler` or its default engine, as the rules say."""

    def _prompt_cache(self) -> LRUPromptCache:
        rules, own = self.rules.store, self.rules.server.prefix_cache
        if isinstance(own, MllmRules):
            return MllmPromptCache(rules, own, think_suffix(self.tokenizer))
        if isinstance(own, WholeRules):
            return WholePromptCache(rules, own)
        return MemoryPromptCache(rules, of_kind(MemoryRules, own))

    def _serve(self) -> Serve:
        whole = isinstance(self.rules.server.prefix_cache, WholeRules)
        return serve_whole if whole else super()._serve()

    def restart(self) -> None:
        """Refuse it: this server writes files when it ends."""
        raise OptionError("the files that this server writes when it ends are not simulated")

    def _check_images(self, request: Request) -> None:
        """Refuse what the scheduler of the rules does not serve."""
        own, images = self.rules.server.prefix_cache, request.images
        if isinstance(own, WholeRules) and not images:
            raise OptionError(
                "vllm-mlx's default engine serves a prompt of text alone by another class, which "
                "is not simulated: name an image in it, or the patch +mllm"
            )
        if images and not isinstance(own, MllmRules | WholeRules):
            raise OptionError(
                "vllm-mlx serves a model that reads images otherwise: name the patch +mllm"
            )
        if images and images[-1].end == len(request.prompt):
            raise OptionError(
                "no chat ends with an image, as this prompt does: write some tokens after it"
            )
