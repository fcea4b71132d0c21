"""The KV cache groups of the real scheduler, made of layers by the release's own engine core.

    layers         full full full | mamba mamba mamba | mamba mamba mamba | the drafter's
    specs          as many bytes in a block as heads make
    engine core    pages of one size, where blocks grow; groups of as many layers each

The engine core's `_initialize_kv_caches` runs as at a server's start; the model executor that it
asks for specs and memory is ours. Runs in the worker.
"""

import importlib
import math
from typing import Any, Final

from cachesim.lab.real.vllm.compressed_worker import CompressedLayers
from cachesim.lab.real.worker_side import NoOp, fitting

Json = Any
Real = Any  # whatever the release makes of it

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
            block = next(each["block"] for each in config["groups"] if each["kind"] == "full")
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
        found = [self._described(group.kv_cache_spec) for group in made.kv_cache_groups]
        wanted = [_described(group) for group in config["groups"]]
        if found != wanted:
            msg = f"the engine core's groups are {found}, not {wanted}"
            raise ValueError(msg)
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
        )

    def _layouts(self) -> list[str]:
        """The layouts of memory that the attention of an H100 works on, the usual one first."""
        backends: Real = importlib.import_module("vllm.v1.attention.backends.utils")
        flash: Real = importlib.import_module("vllm.v1.attention.backends.flash_attn")
        known = backends.get_supported_kv_cache_layouts([flash.FlashAttentionBackend])
        return [layout.name for layout in known]

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
    return (kind, group["block"], *(group[each] for each in ("window", "chunk") if group.get(each)))


def attention_block(groups: Json) -> int:
    """`block_size` of a server: attention's, or that of states where there is none."""
    blocks = [group["block"] for group in groups if group["kind"] != "mamba"]
    return int(min(blocks or [group["block"] for group in groups]))
