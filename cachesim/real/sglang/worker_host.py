"""The release's host tier without the memory: its pools count slots, and copies move nothing.

Sizes, free lists, the controller's queues and all that the tree decides are the release's own; what
is left out are the buffers and the kernels. Runs in the worker.
"""

import importlib
import json
from typing import Any, Final

from cachesim.real.sglang import tensors
from cachesim.real.worker_side import Bag, fitting

Json = Any
Real = Any

MEMORY: Final = 1 << 50
"""Bytes that the machine claims to have."""

ASSEMBLER: Final = "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler"

LAYOUT: Final = "page_first_direct"
"""A layout that every pool takes; no buffer has it."""

UNUSED: Final = (
    "init_kv_buffer",
    "load_to_device_per_layer",
    "backup_from_device_all_layer",
    "load_to_device_per_layer_physical",
    "backup_from_device_all_layer_physical",
    "get_data_page",
    "get_dummy_flat_data_page",
    "set_from_flat_data_page",
)
"""What would move bytes."""


def flags(wanted: Json) -> Json:
    """What a user would write for the host tier that a workload names."""
    if wanted is None:
        return {}
    given = {
        "enable_hierarchical_cache": True,
        "hicache_ratio": wanted["ratio"],
        "hicache_write_policy": wanted["policy"],
    }
    storage = wanted.get("storage")
    if storage is None:
        return given
    extra = {
        "prefetch_threshold": storage["threshold"],
        "prefetch_timeout_base": storage["timeout_base"],
        "prefetch_timeout_per_ki_token": storage["timeout_per_ki_token"],
    }
    return given | {
        "hicache_storage_backend": "file",
        "hicache_storage_prefetch_policy": storage["policy"],
        "hicache_storage_backend_extra_config": json.dumps(extra),
        "hicache_storage_prefetch_retry_poll_interval": storage.get("interval", 8),
        "hicache_storage_prefetch_retry_max_attempts": storage.get("attempts", 8),
    }


def slow_down(controller: Real, lag: int) -> None:
    """Copies to the host are done after so many looks; loads by the next one."""
    submit = controller.start_writing

    def start_writing() -> None:
        tensors.Event.lag = lag
        submit()
        tensors.Event.lag = 0

    controller.start_writing = start_writing


def free_slots(tree: Real) -> Json:
    """Free slots of each part on the host."""
    if not hasattr(tree, "host_pool_group"):
        return {"host_tokens": int(tree.token_to_kv_pool_host.available_size())}
    names = {"kv": "host_tokens", "swa": "host_window_tokens", "mamba": "host_states"}
    return {
        names[entry.name.value]: int(entry.host_pool.available_size())
        for entry in tree.host_pool_group.entries
    }


def _nothing(*_: Real, **__: Real) -> None:
    """No bytes move."""


def _slots(base: Real) -> Real:
    body: dict[str, Real] = dict.fromkeys(UNUSED, _nothing)
    body |= {"get_size_per_token": _one_byte, "prepare_transfer_indices": _as_they_are}
    return type("Slots", (base,), body)


def _one_byte(_pool: Real) -> int:
    return 1


def _as_they_are(_pool: Real, host: Real, device: Real, _backend: Real) -> Real:
    return host, device


def install_old(module: Real) -> None:
    """0.5.9: `HiRadixCache` makes its pool itself."""
    host = importlib.import_module("sglang.srt.mem_cache.memory_pool_host")
    psutil: Real = importlib.import_module("psutil")
    psutil.virtual_memory = lambda: Bag(available=MEMORY)
    slots = _slots(host.HostKVCache)

    def make(device: Real, *given: Real, **named: Real) -> Real:
        return slots(device, *given, pin_memory=False, device="cpu", **named)

    module.MHATokenToKVPoolHost = make


def install_unified() -> None:
    """0.5.16 on: an assembler makes a pool for each part of the model."""
    module: Real = importlib.import_module(ASSEMBLER)
    slots = _slots(importlib.import_module("sglang.srt.mem_cache.pool_host.base").HostKVCache)
    memory = importlib.import_module("sglang.srt.runtime_context").get_memory

    def pool(capacity: int, page: int, start: int, end: int) -> Real:
        return fitting(
            slots,
            dtype=None,
            device_capacity_tokens=capacity,
            size_per_token=1,
            start_layer=start,
            end_layer=end,
            host_to_device_ratio=memory().hicache_ratio,
            host_size=0,
            page_size=page,
            layout=LAYOUT,
            pin_memory=False,
            device="cpu",
            is_dummy=True,
        )

    def attention(*, kv_pool: Real, page_size: int, **_: Real) -> Real:
        return pool(kv_pool.size, page_size, kv_pool.start_layer, kv_pool.end_layer)

    def states(mamba_pool: Real, *_: Real, **__: Real) -> Real:
        return pool(mamba_pool.size, 1, 0, 0)

    module.build_kv_host_pool, module.build_mamba_host_pool = attention, states
