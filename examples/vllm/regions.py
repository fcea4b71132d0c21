"""The memory regions that vLLM's `NixlConnector` registers; runs beside an unpacked wheel.

    layer a    | 1,024 bytes a block |          region at their address: the bytes a block
    layer b    | 256 |                          that a read brings of both

Layers at one address are one region (vllm#57661). The release's own `register_kv_caches` runs here
on a stand-in for its worker, until the regions are known.
"""

import logging
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from cachesim.lab.real.vllm.release_worker import install

BLOCKS = 4
NO_TRITON = ("ssd_bmm", "ssd_chunk_scan", "ssd_chunk_state", "ssd_combined", "ssd_state_passing")
"""Kernels of states, which need Triton when they are imported."""


class RegionsKnownError(Exception):
    """Raised where the worker asks for the layers of its regions."""


PLAIN: Any = {
    "use_mla": True,
    "tp_rank": 0,
    "pp_size": 1,
    "engine_id": "",
    "kv_buffer_device": "cpu",
    "host_xfer_buffers": {},
    "_physical_blocks_per_logical_kv_block": 1,
    "_requires_layer_name_routing.return_value": False,
    "_tracks_region_layers.return_value": False,
    "_set_region_layers.side_effect": RegionsKnownError,
}
OFF = ("_has_mamba", "_has_packed_cache", "_is_csa_linear", "use_host_buffer")
EMPTY = (
    *("_region_is_mla", "block_len_per_layer", "block_stride_per_layer"),
    *("region_group_ids", "region_names", "region_num_blocks"),
)


def regions(worker: Any, heads: dict[str, int]) -> list[tuple[int, int]]:
    """Address and bytes a block of each region, for window layers that share their memory."""
    torch: Any = sys.modules["torch"]
    made: Any = sys.modules["vllm.v1.kv_cache_interface"].SlidingWindowMLASpec
    memory = torch.zeros(1 << 16, dtype=torch.uint8)
    specs = {
        name: made(16, num_kv_heads=1, head_size=size, dtype=torch.bfloat16, sliding_window=32)
        for name, size in heads.items()
    }
    caches = {
        name: memory[: BLOCKS * spec.page_size_bytes].view(BLOCKS, -1)
        for name, spec in specs.items()
    }
    groups = [SimpleNamespace(host_resident=False) for _ in specs]
    given = {**PLAIN, **dict.fromkeys(OFF, False), **{name: [] for name in EMPTY}}
    given |= {"_layer_specs": specs, "kv_caches_base_addr": defaultdict(dict)}
    own = MagicMock(**given)
    own.kv_cache_config = SimpleNamespace(
        num_blocks=BLOCKS,
        transfer_groups=groups,
        transfer_group_index_by_layer={name: at for at, name in enumerate(specs)},
    )
    try:
        worker.register_kv_caches(own, caches)
    except RegionsKnownError:
        (found,) = own.kv_caches_base_addr[""].values()
        return list(zip(found, own.block_len_per_layer, strict=True))
    raise RuntimeError(worker)


if __name__ == "__main__":
    release, root = sys.argv[1:]
    for each in NO_TRITON:
        sys.modules[f"vllm.model_executor.layers.mamba.ops.{each}"] = ModuleType(each)
    scan: Any = sys.modules["vllm.model_executor.layers.mamba.ops.ssd_combined"]
    scan.mamba_chunk_scan_combined_varlen = scan.is_int_pow_2 = None
    install(Path(root))
    logging.disable(logging.CRITICAL)
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

    base_worker.TransferTopology = base_worker.compute_nixl_compatibility_hash = MagicMock()
    [(_, bytes_read)] = regions(base_worker.NixlBaseConnectorWorker, {"a": 32, "b": 8})
    told = f"layers of 1,024 and 256 bytes a block at one address: one region of {bytes_read:,}"
    print(f"vLLM {release}, NIXL regions: {told}", flush=True)
    if bytes_read != 256:  # the layer that was registered last
        sys.exit("expected 256")
