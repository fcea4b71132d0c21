"""The memory regions that vLLM's `NixlConnector` registers; runs beside an unpacked wheel.

    windows, layers 0 - 6   | 19,008 bytes a block |            windows, 21 - 27  | 19,008 |
    compressor of layer 2   | 32,768, a ring of 8 rows |        indexer of 2      | 4,608 |

Group after group, layers of DeepSeek-V4.1 begin at the same address. Layers at one address are one
region, whose bytes a read brings of each (vllm#57661). The release's own classes lay the layers
out, in blocks of 64 tokens, and its own `register_kv_caches` runs on a stand-in for its worker,
until the regions are known.
"""

import importlib
import logging
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest.mock import MagicMock

from cachesim.prove.vllm.release_worker import install

NO_TRITON = ("ssd_bmm", "ssd_chunk_scan", "ssd_chunk_state", "ssd_combined", "ssd_state_passing")
"""Kernels of states, which need Triton when they are imported."""

PLANNING: Final = {
    "0.31.0": "kv_cache_utils",
    "0.32.0": "kv_cache_utils",
    "0.33.0": "kv_cache_planning",
}
RING: Final = "layers.2.attn.compressor.state_cache"
WINDOW: Final = "layers.21.attn.swa_cache"
CUT: Final = {
    "0.31.0": {RING: (19_008, 32_768), WINDOW: (4_608, 19_008)},
    "0.32.0": {RING: (19_008, 32_768), WINDOW: (4_608, 19_008)},
    "0.33.0": {RING: (32_768, 32_768), WINDOW: (19_008, 19_008)},
}
"""Bytes of a ring and of a window's block, those that a read brings and all of them."""

SOURCES: Final = {2: 2, 8: 2, 14: 2, 20: 1}
"""`kv_source_layer_ids` of DeepSeek-V4.1-Flash, and the tokens that each pools."""

SHARED: Final = -1
"""The group of a region with layers of several."""

V4: Final = {
    "num_kv_heads": 1,
    "head_size": 512,
    "cache_dtype_str": "fp8_ds_mla",
    "alignment": 576,
    "model_version": "deepseek_v4",
    "state_content_bytes": 584,
}
"""Arguments of DeepSeek-V4.1's attention specs on an H200, read in its source."""


class RegionsKnownError(Exception):
    """Raised where the worker asks for the layers of its regions."""


PLAIN: Any = {
    "use_mla": True,
    "tp_rank": 0,
    "pp_size": 1,
    "engine_id": "",
    "kv_buffer_device": "cpu",
    "host_xfer_buffers": {},
    "_has_packed_cache": True,  # BLHNC
    "_is_csa_linear": True,  # of a model with rings
    "_has_mamba": False,
    "use_host_buffer": False,
    "_physical_blocks_per_logical_kv_block": 1,
    "_requires_layer_name_routing.return_value": False,
    "_tracks_region_layers.return_value": False,
    "_set_region_layers.side_effect": RegionsKnownError,
}
EMPTY = (
    *("_region_is_mla", "block_len_per_layer", "block_stride_per_layer"),
    *("region_group_ids", "region_names", "region_num_blocks"),
)


def layers() -> dict[str, Any]:
    """The 40 layers of DeepSeek-V4.1-Flash, of which four compress."""
    torch, made = sys.modules["torch"], importlib.import_module("vllm.v1.kv_cache_interface")
    size: Any = {"block_size": 32, "sliding_window": 128, "bounded_replay": True}  # the default
    window = made.SlidingWindowMLASpec(dtype=torch.uint8, **size, **V4)
    rows = {"block_size": 8, "num_kv_heads": 1, "head_size": 1024, "head_size_v": 0}
    indexer = {"num_kv_heads": 1, "head_size": 132, "alignment": 576}
    found = {f"layers.{at}.attn.swa_cache": window for at in range(40)}
    for at, pooled in SOURCES.items():
        keys: Any = {"block_size": 64, "dtype": torch.uint8, "tokens_per_state": pooled}
        found[f"layers.{at}.attn"] = made.MLAAttentionSpec(**keys, **V4)
        found[f"layers.{at}.attn.indexer.k_cache"] = made.MLAAttentionSpec(**keys, **indexer)
        if pooled > 1:
            ring = made.CircularBufferSpec(dtype=torch.float32, **rows)
            found[f"layers.{at}.attn.compressor.state_cache"] = ring
    return found


def regions(release: str) -> dict[str, tuple[int, int]]:
    """Bytes of two layers' blocks, those that their region brings and all of them."""
    torch: Any = sys.modules["torch"]
    planning = importlib.import_module(f"vllm.v1.core.{PLANNING[release]}")
    worker = importlib.import_module(
        "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker"
    )
    layout = importlib.import_module("vllm.v1.kv_cache_layout").KVCacheLayout["BLHNC"]
    settings, specs = MagicMock(), layers()
    settings.cache_config.get_resolved_kv_cache_layout.return_value = layout
    settings.cache_config.num_gpu_blocks_override = None
    settings.scheduler_config.disable_hybrid_kv_cache_manager = False
    settings.attention_config.hisparse_config = None
    groups = planning.get_kv_cache_groups(settings, specs)
    found = planning.get_kv_cache_config_from_groups(settings, groups, 1 << 24)
    allocate = importlib.import_module("vllm.v1.worker.utils").allocate_kv_cache
    caches = allocate(found, torch.device("cpu"), layout)
    given = {**PLAIN, **{name: [] for name in EMPTY}, "_layer_specs": specs}
    own = MagicMock(**given, kv_caches_base_addr=defaultdict(dict), kv_cache_config=found)
    worker.TransferTopology = worker.compute_nixl_compatibility_hash = MagicMock()
    try:
        worker.NixlBaseConnectorWorker.register_kv_caches(own, caches)
    except RegionsKnownError:
        return {each: read_of(each, caches, own, specs) for each in CUT[release]}
    raise RuntimeError(worker)


def read_of(layer: str, caches: dict[str, Any], own: Any, specs: dict[str, Any]) -> tuple[int, int]:
    """Bytes of a layer's block, those within a region of its group and all of them."""
    group = own.kv_cache_config.transfer_group_index_by_layer[layer]
    here, page = caches[layer].data_ptr(), specs[layer].page_size_bytes
    regions = zip(own.region_names, own.block_len_per_layer, own.region_group_ids, strict=True)
    ends = [
        start + length
        for start, length, at in ((caches[name].data_ptr(), *rest) for name, *rest in regions)
        if start <= here and at in {group, SHARED}
    ]
    return min(page, max(ends) - here), page


if __name__ == "__main__":
    release, root = sys.argv[1:]
    for each in NO_TRITON:
        sys.modules[f"vllm.model_executor.layers.mamba.ops.{each}"] = ModuleType(each)
    scan: Any = sys.modules["vllm.model_executor.layers.mamba.ops.ssd_combined"]
    scan.mamba_chunk_scan_combined_varlen = scan.is_int_pow_2 = None
    install(Path(root))
    logging.disable(logging.CRITICAL)
    found = regions(release)
    for layer, (read, page) in found.items():
        print(f"vLLM {release}, NIXL: {read:,} of {page:,} bytes of {layer}", flush=True)
    if found != CUT[release]:
        sys.exit(f"expected {CUT[release]}")
