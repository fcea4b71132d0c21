"""A sparse indexer's keys in a page of HiCache's storage; runs beside an unpacked wheel.

    host       keys and values of 64 tokens | the indexer's keys
    storage    keys and values              |                       SGLang 0.5.9 (sglang#27504)

The pool of the host is the release's own, `NSATokenToKVPoolHost`, with the sizes of DeepSeek V3.2
and a stand-in for the device's pool. A page goes to the storage and back by its own methods, once
as `HiCacheFile` takes it and once at the addresses that `MooncakeStore` registers and asks for.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch

from conformance.real.sglang import stand_ins

PAGE: Final = 64
LAYERS: Final = 2
DEVICE: Final = {
    "dtype": torch.bfloat16,
    "store_dtype": torch.bfloat16,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "kv_cache_dim": 576,
    "index_head_dim": 128,
    "quant_block_size": 128,
    "layer_num": LAYERS,
    "start_layer": 0,
    "end_layer": LAYERS - 1,
    "size": 4 * PAGE,
    "device": "cpu",
}


def pool() -> Any:
    """The host's pool, full of ones."""
    from sglang.srt.mem_cache import memory_pool_host as made

    made.NSATokenToKVPool.index_k_with_scale_buffer_dtype = torch.uint8
    made.ALLOC_MEMORY_FUNCS = dict.fromkeys(
        ("cpu",), lambda dims, dtype, device, **_: torch.ones(dims, dtype=dtype, device=device)
    )
    made.psutil = SimpleNamespace(virtual_memory=lambda: SimpleNamespace(available=1 << 40))
    buffers = [torch.ones(1) for _ in range(LAYERS)]
    device = SimpleNamespace(**DEVICE, index_k_with_scale_buffer=buffers)
    return made.NSATokenToKVPoolHost(device, 2.0, 0, PAGE, "page_first", pin_memory=False)


if __name__ == "__main__":
    release, root = sys.argv[1:]
    stand_ins.install(Path(root))
    host = pool()
    file = host.get_data_page(0).clone()
    _, [mooncake] = host.get_page_buffer_meta(torch.arange(PAGE))
    for buffer in (host.kv_buffer, *host.index_k_with_scale_buffer):
        buffer.zero_()
    host.set_from_flat_data_page(0, file)
    keys, indexer = host.kv_buffer[:PAGE], host.index_k_with_scale_buffer[0]
    held = host.get_size_per_token() * PAGE
    print(f"SGLang {release}: a page has {held:,} bytes in the host and {mooncake:,} in Mooncake")
    if not bool((keys == 1).all()) or bool(indexer.any()) or mooncake == held:
        sys.exit("expected keys and values to come back, and no key of the indexer")
    print("back from the storage: keys and values, and no key of the indexer", flush=True)
