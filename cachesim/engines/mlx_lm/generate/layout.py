"""Which cache class each layer of a network gets, and what its rows cost in the real model."""

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.cache_list import CacheList
from cachesim.engines.mlx_lm.caches.chunked_kv_cache import ChunkedKVCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.caches.rotating_kv_cache import RotatingKVCache
from cachesim.engines.mlx_lm.caches.sparse_cache import SparseCache
from cachesim.engines.mlx_lm.families import RecurrentRules
from cachesim.engines.mlx_lm.generate.shared import PromptCache
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.model.arithmetic import LayerShape, Network
from cachesim.model.spec import F16_BYTES, F32_BYTES


class Layout:
    """The shapes of a network, as the models of mlx-lm lay out their caches.

    Full attention gets a `KVCache`, a window a `RotatingKVCache` without `keep`, a chunk a
    `ChunkedKVCache`, a recurrent layer an `ArraysCache` with the convolution's rows and the state;
    some families put a recurrent layer and the attention after it into one `CacheList`.
    """

    def __init__(
        self,
        network: Network,
        rules: CacheRules,
        recurrent: RecurrentRules,
        element_bytes: int = F16_BYTES,
    ) -> None:
        self.network = network
        self.shapes = network.shapes
        self.rules = rules
        self.recurrent = recurrent
        self.row_bytes = {
            shape.layer: (self._row_bytes(shape, element_bytes), self._row_bytes(shape, F32_BYTES))
            for shape in network.shapes
        }

    def make_cache(self) -> PromptCache:
        """Fresh caches for one sequence. Follows `make_prompt_cache`."""
        caches: PromptCache = []
        for shape in self.shapes:
            cache = self._cache(shape)
            paired = self.recurrent.paired and not shape.marks and shape.place == "attention"
            if paired and caches and isinstance(caches[-1], ArraysCache):
                cache = CacheList(self.rules, caches.pop(), cache)
            caches.append(cache)
        return caches

    def window_of(self, shape: LayerShape) -> int | None:
        """The window that the layer asks its cache's mask for."""
        return self.network.spec.window if shape.place == "window" else None

    def _cache(self, shape: LayerShape) -> LayerCache:
        cache: LayerCache
        match shape.place:
            case "attention" | "window" if self.recurrent.sparse:
                window = self.network.spec.window
                cache = SparseCache(self.rules, window, groups=shape.place == "attention")
            case "attention":
                cache = KVCache(self.rules)
            case "window" if self.network.spec.chunked:
                cache = ChunkedKVCache(self.rules, self.network.spec.window)
            case "window":
                cache = RotatingKVCache(self.rules, self.network.spec.window)
            case "recurrent":
                cache = ArraysCache(
                    self.rules,
                    self.recurrent.slots,
                    is_mamba=self.recurrent.merges_slots_as_padding,
                )
        cache.row_bytes, cache.wide_row_bytes = self.row_bytes[shape.layer]
        return cache

    def _row_bytes(self, shape: LayerShape, element_bytes: int) -> int:
        """Numbers are in the model's own type, states proper in float32 too; marks take none."""
        spec = self.network.spec
        if shape.marks:
            return 0
        if shape.place == "recurrent":
            state = F32_BYTES if self.recurrent.float32_state else element_bytes
            return element_bytes * spec.conv_row(shape.layer) + state * spec.state_row(shape.layer)
        if self.recurrent.sparse:
            return spec.head_size * element_bytes  # one latent, keys and values at once
        halves = spec.key_bytes(shape.layer) + spec.value_bytes(shape.layer)
        return halves * element_bytes // F16_BYTES
