"""The specs of DeepSeek V4's layers, made by the release's own classes of caches.

    every layer     a window of 128 tokens
    of ratio 4      keys of 4 tokens, and their indexer's; the states of both compressors
    of ratio 128    keys of 128 tokens; the states of their compressor

No layer is built with weights: caches alone are. Runs in the worker.
"""

import importlib
from typing import Any, Final

from cachesim.lab.real.vllm.models import COMPRESSED
from cachesim.lab.real.worker_side import Stub, fitting

Real = Any  # whatever the release makes of it

PLACES: Final = (
    ("vllm.models.deepseek_v4.attention", "vllm.models.deepseek_v4.compressor"),
    (  # until 0.21
        "vllm.model_executor.layers.deepseek_v4_attention",
        "vllm.model_executor.layers.deepseek_compressor",
    ),
)

CACHE_DTYPE: Final = "fp8_ds_mla"
"""What `--kv-cache-dtype fp8` becomes on an H100."""

INDEXER_BYTES: Final = 132
"""Of an indexer's key in FP8, with its scale."""


class CompressedLayers:
    """The caches of all layers, in the order in which the model makes them."""

    def __init__(self, settings: Real, block: int) -> None:
        settings.cache_config.block_size = block  # of the attention backend, as a start sets it
        settings.cache_config.cache_dtype = CACHE_DTYPE
        for names in PLACES:
            try:
                self._attention, compressor = map(importlib.import_module, names)
            except ModuleNotFoundError:
                continue
            break
        self._states: Real = compressor.CompressorStateCache
        window: Real = importlib.import_module("vllm.v1.attention.backends.mla.sparse_swa")
        self._window = window.DeepseekV4SWACache
        self._settings = settings
        self.caches: dict[str, Real] = {}
        config: Real = importlib.import_module("vllm.config")
        ratios = COMPRESSED["compress_ratios"]
        drafter = len(ratios) - 1
        with config.set_current_vllm_config(settings):
            for layer, ratio in enumerate(ratios):
                if layer < drafter or settings.speculative_config is not None:
                    self._add(f"model.layers.{layer}.attn", ratio)

    def _add(self, name: str, ratio: int) -> None:
        size, indexed = COMPRESSED["head_dim"], COMPRESSED["index_head_dim"]
        uint8: Real = importlib.import_module("torch").uint8
        cache = {"cache_config": self._settings.cache_config, "dtype": uint8}
        if ratio == 4:
            made = self._attention.DeepseekV4IndexerCache
            own = f"{name}.indexer.k_cache"
            self.caches[own] = fitting(
                made, **cache, head_dim=INDEXER_BYTES, prefix=own, compress_ratio=ratio
            )
            self._add_states(f"{name}.indexer", ratio, indexed)
        window = {"head_dim": size, "window_size": COMPRESSED["sliding_window"]}
        own = f"{name}.swa_cache"
        self.caches[own] = fitting(self._window, **cache, **window, prefix=own)
        if ratio:
            self.caches[name] = Stub(
                compress_ratio=ratio, head_dim=size, kv_cache_dtype=CACHE_DTYPE
            )
            self._add_states(name, ratio, size)

    def _add_states(self, name: str, ratio: int, size: int) -> None:
        """A compressor of ratio 4 overlaps its groups, and keeps two vectors for each."""
        float32: Real = importlib.import_module("torch").float32
        own = f"{name}.compressor.state_cache"
        self.caches[own] = self._states(
            state_dim=2 * (1 + (ratio == 4)) * size, dtype=float32, compress_ratio=ratio, prefix=own
        )

    def specs(self) -> dict[str, Real]:
        """The spec of every cache; those of the MTP layer are marked as the drafter's."""
        named = ("DeepseekV4Attention", "DeepseekV4MLAAttention")  # the second until 0.22
        attention = next(
            vars(self._attention)[each] for each in named if hasattr(self._attention, each)
        )
        found = {}
        for name, cache in self.caches.items():
            if isinstance(cache, Stub):
                found[name] = attention.get_kv_cache_spec(cache, self._settings)
            else:
                found[name] = cache.get_kv_cache_spec(self._settings)
            last = f"model.layers.{len(COMPRESSED['compress_ratios']) - 1}."
            if name.startswith(last) and hasattr(found[name], "is_draft"):
                object.__setattr__(found[name], "is_draft", True)
        return found

    def layouts(self) -> list[str]:
        """The layouts of memory that the caches' own backends work on."""
        backends: Real = importlib.import_module("vllm.v1.attention.backends.utils")
        asked = {each.get_attn_backend() for each in self.caches.values() if type(each) is not Stub}
        return [each.name for each in backends.get_supported_kv_cache_layouts(list(asked))]
