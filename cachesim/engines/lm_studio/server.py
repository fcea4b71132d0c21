"""LM Studio's mlx-engine as an engine."""

from cachesim.engines.lm_studio.batch_generator import serve_kit
from cachesim.engines.lm_studio.cache_wrapper import SessionPromptCache
from cachesim.engines.lm_studio.prompt_cache import DiskPromptCache
from cachesim.engines.lm_studio.rules import DiskRules, SessionRules
from cachesim.engines.mlx_lm.server.engine import MlxLm
from cachesim.engines.mlx_lm.server.serving import Serve
from cachesim.engines.mlx_lm.store.lru_prompt_cache import LRUPromptCache
from cachesim.errors import OptionError
from cachesim.typed import of_kind


class LmStudio(MlxLm):
    """One of `ModelKit`, `BatchedModelKit` and `BatchedVisionModelKit`, by the rules."""

    def _prompt_cache(self) -> LRUPromptCache:
        rules, own = self.rules.store, self.rules.server.prefix_cache
        layers = [layer for model in self.models.values() for layer in model.make_cache()]
        if not isinstance(own, DiskRules):
            counted = any(hasattr(layer, "offset") for layer in self.models[""].make_cache())
            return SessionPromptCache(rules, of_kind(SessionRules, own), counted=counted)
        if not all(layer.merges for layer in layers):
            raise OptionError(
                "mlx-engine serves a model whose caches have no batch form by its other kit: name "
                "the patch +one-request"
            )
        return DiskPromptCache(rules, own)

    def _serve(self) -> Serve:
        on_disk = isinstance(self.rules.server.prefix_cache, DiskRules)
        return serve_kit if on_disk else super()._serve()
