"""The KV cache groups of the real scheduler, made of layers by the release's own engine core.

    layers         full full full | mamba mamba mamba | mamba mamba mamba | the drafter's
    specs          as many bytes in a block as heads make
    engine core    pages of one size, where blocks grow; groups of as many layers each

The engine core's `_initialize_kv_caches` runs as at a server's start; the model executor that it
asks for specs and memory is ours. Runs in the worker.
"""

import importlib
import math
from typing import Final

from cachesim.prove.worker_side import Json, NoOp, Real, Stub, fitting
from conformance.real.vllm.models import COMPRESSED

LAYERS: Final = 3
"""Layers of a group: with the drafter's own one more there still is one group."""

MEMORY: Final = 1 << 50
"""Bytes for the pool: enough for any `max_model_len`; a workload names how many blocks it gets."""


class Caches:
    """A release's KV cache configuration."""

    def __init__(self) -> None:
        self.interface: Real = importlib.import_module("vllm.v1.kv_cache_interface")
        self.utils: Real = importlib.import_module("vllm.v1.core.kv_cache_utils")
        self.dtype: Real = importlib.import_module("torch").bfloat16
        self.core: Real = importlib.import_module("vllm.v1.engine.core").EngineCore

    def of(self, settings: Real, config: Json) -> tuple[Real, tuple[int, int]]:
        if config.get("compressed"):
            block = next(group["block"] for group in config["groups"] if group["kind"] == "full")
            caches = CompressedLayers(settings, block)
            layers, layouts = caches.specs(), caches.layouts
        else:
            layers, layouts = self._layers(config), self._layouts
        executor = NoOp(
            get_kv_cache_specs=lambda: [layers],
            determine_available_memory=lambda: [MEMORY],
            get_supported_kv_cache_layouts=lambda: [layouts()],
        )
        engine = NoOp(model_executor=executor, available_gpu_memory_for_kv_cache=-1)
        made = self.core._initialize_kv_caches(engine, settings)
        groups = made.kv_cache_groups
        marks = [getattr(group, "is_eagle_group", False) for group in groups]  # since 0.20
        drops = not config.get("further", {}).get("disable_eagle_block_drop")
        all_ = bool(config.get("eagle")) and drops and not any(marks)  # as the coordinator does
        found = [
            (*self._described(group.kv_cache_spec), mark or all_)
            for group, mark in zip(groups, marks, strict=True)
        ]
        wanted = [(*_described(group), bool(group.get("eagle"))) for group in config["groups"]]
        if found != wanted:
            raise ValueError(f"the engine core's groups are {found}, not {wanted}")
        settings.cache_config.num_gpu_blocks = made.num_blocks = config["blocks"]
        return made, self._sizes(made, settings)

    def _sizes(self, made: Real, settings: Real) -> tuple[int, int]:
        if not hasattr(self.utils, "resolve_kv_cache_block_sizes"):  # until 0.19
            block = int(settings.cache_config.block_size)
            return block, block
        scheduler, ids = self.utils.resolve_kv_cache_block_sizes(made, settings)
        return int(scheduler), int(ids)

    def _layers(self, config: Json) -> dict[str, Real]:
        """The spec of every layer, in the order in which a model has them."""
        groups = config["groups"]
        block = attention_block(groups)
        most = math.lcm(*(group["block"] for group in groups if group["kind"] != "mamba"), block)
        heads = most // block
        in_turn = [group for group in groups for _ in range(LAYERS)]
        layers = [groups[number] for number in config["layers"]] if "layers" in config else in_turn
        layers = [_before_promotion(*layer) for layer in enumerate(layers)]
        found = {
            f"{layer}.{group['kind']}": self.spec(
                group,
                block=group["block"] if group["kind"] == "mamba" else block,
                page=4 * most,
                heads=1 if group["kind"] == "mamba" else heads * block // group["block"],
            )
            for layer, group in enumerate(layers)
        }
        attention = sorted(
            (group for group in groups if group["kind"] != "mamba"),
            key=lambda group: group["kind"] != "full",
        )
        if config.get("eagle") and attention:
            size = config.get("drafter_block") or attention[0]["block"]
            own = self.spec(attention[0], block=block, page=4 * most, heads=heads * block // size)
            found["drafter"] = own
            if hasattr(own, "is_draft"):
                object.__setattr__(own, "is_draft", True)
        return found

    def spec(self, group: Json, *, block: int, page: int = 0, heads: int = 1) -> Real:
        attention = {"block_size": block, "num_kv_heads": heads, "head_size": 1}
        attention["dtype"] = self.dtype
        interface = self.interface
        if group["kind"] == "full":
            return fitting(interface.FullAttentionSpec, **attention)
        if group["kind"] == "window":
            window = group["window"]
            return fitting(interface.SlidingWindowSpec, **attention, sliding_window=window)
        if group["kind"] == "chunked":
            made = interface.ChunkedLocalAttentionSpec
            return fitting(made, **attention, attention_chunk_size=group["chunk"])
        return fitting(
            interface.MambaSpec,
            block_size=block,
            shapes=((1, 1),),
            dtypes=(self.dtype,),
            mamba_cache_mode=group.get("mode", "align"),
            num_speculative_blocks=group.get("speculative_blocks", 0),
            page_size_padded=page,
            **exporting(group),
        )

    def _layouts(self) -> list[str]:
        """The layouts of memory that the attention of an H100 works on, the usual one first."""
        flash: Real = importlib.import_module("vllm.v1.attention.backends.flash_attn")
        return layouts_of([flash.FlashAttentionBackend])

    def _described(self, spec: Real) -> tuple[Json, ...]:
        if hasattr(spec, "kv_cache_specs"):  # of layers of one kind with other pages
            spec = next(iter(spec.kv_cache_specs.values()))
        if isinstance(spec, self.interface.MambaSpec):
            more: tuple[Json, ...] = (spec.mamba_cache_mode, spec.num_speculative_blocks)
            return ("mamba", spec.block_size, *more)
        if isinstance(spec, self.interface.SlidingWindowSpec):
            return ("window", spec.block_size, spec.sliding_window)
        if isinstance(spec, self.interface.ChunkedLocalAttentionSpec):
            return ("chunked", spec.block_size, spec.attention_chunk_size)
        return ("full", spec.block_size)


def _described(group: Json) -> tuple[Json, ...]:
    kind = group["kind"]
    if kind == "mamba":
        more: tuple[Json, ...] = (group.get("mode", "align"), group.get("speculative_blocks", 0))
        return ("mamba", group["block"], *more)
    if kind == "full":
        return (kind, group["block"])
    return (kind, group["block"], *(group[each] for each in ("window", "chunk") if group.get(each)))


def _before_promotion(layer: int, group: Json) -> Json:
    """A layer's own group, where the engine core then makes one group of both kinds of layers."""
    local = {name: value for name in ("window", "chunk") if (value := group.get(name))}
    if group["kind"] != "full" or not local:
        return group
    plain = {name: value for name, value in group.items() if name not in local}
    kind = "window" if "window" in local else "chunked"
    return plain if layer % 2 == 0 else plain | local | {"kind": kind}


def layouts_of(backends: list[Real]) -> list[str]:
    """The layouts of memory that all backends of attention work on."""
    utils: Real = importlib.import_module("vllm.v1.attention.backends.utils")
    return [layout.name for layout in utils.get_supported_kv_cache_layouts(backends)]


def exporting(group: Json) -> Json:
    """Fields of a `MambaSpec` whose layers export a state inside a prefill chunk."""
    alignment = group.get("checkpoint_alignment")
    if not alignment:
        return {}
    return {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": alignment}


def attention_block(groups: Json) -> int:
    """`block_size` of a server: attention's, or that of states where there is none."""
    blocks = [group["block"] for group in groups if group["kind"] != "mamba"]
    return int(min(blocks or [group["block"] for group in groups]))


PLACES: Final = (
    ("vllm.models.deepseek_v4.attention", "vllm.models.deepseek_v4.compressor"),
    (  # until 0.21
        "vllm.model_executor.layers.deepseek_v4_attention",
        "vllm.model_executor.layers.deepseek_compressor",
    ),
)

CACHE_DTYPE: Final = "fp8_ds_mla"
"""Value of `--kv-cache-dtype fp8` on an H100."""

INDEXER_BYTES: Final = 132
"""Of an indexer's key in FP8, with its scale."""


class CompressedLayers:
    """The caches of DeepSeek V4's layers, in the order in which the model makes them.

    every layer     a window of 128 tokens
    of ratio 4      keys of 4 tokens, and their indexer's; the states of both compressors
    of ratio 128    keys of 128 tokens; the states of their compressor

    The release's own classes make the specs; no layer is built with weights.
    """

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
        asked = {
            cache.get_attn_backend() for cache in self.caches.values() if type(cache) is not Stub
        }
        return layouts_of(list(asked))
