"""The release's host tier without memory, and its storage with a dictionary for files.

Sizes, free lists, queues, thresholds, prefetches and all decisions of the tree are the release's
own. Left out are buffers, kernels and threads: pools count slots, copies move nothing, and the
threads' functions run when the scheduler polls. The compiled hash is reimplemented, byte for byte.
Runs in the worker.
"""

import hashlib
import importlib
import json
import threading
from array import array
from collections.abc import Callable, Mapping
from typing import Final

from cachesim.prove.worker_side import Json, NoOp, Real, Stub, fitting
from conformance.real.sglang.stand_ins import Event

MEMORY: Final = 1 << 50
"""Bytes that the machine claims to have."""

ASSEMBLER: Final = "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler"

LAYOUT: Final = "page_first_direct"
"""A layout that every pool takes; no buffer has it."""

WORD_BITS: Final = 32
"""Bits of a token in a page's hash, if it has no wider token."""

UNUSED: Final = (
    "init_kv_buffer", "load_to_device_per_layer", "backup_from_device_all_layer",
    "load_to_device_per_layer_physical", "backup_from_device_all_layer_physical",
    "get_data_page", "get_dummy_flat_data_page", "set_from_flat_data_page",
)  # fmt: skip
"""Functions that would copy bytes."""


def flags(wanted: Json) -> Json:
    """Flags of the host tier that a workload names."""
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
    """Complete copies to the host after `lag` polls; loads by the next poll."""
    submit = controller.start_writing

    def start_writing() -> None:
        Event.lag = lag
        submit()
        Event.lag = 0

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
    body["get_size_per_token"] = lambda _pool: 1
    body["prepare_transfer_indices"] = lambda _pool, host, device, _backend: (host, device)
    return type("Slots", (base,), body)


def install_host(module: Real) -> None:
    """0.5.9: `HiRadixCache` makes its pool itself."""
    host = importlib.import_module("sglang.srt.mem_cache.memory_pool_host")
    psutil: Real = importlib.import_module("psutil")
    psutil.virtual_memory = lambda: Stub(available=MEMORY)
    slots = _slots(host.HostKVCache)

    def make(device: Real, *given: Real, **named: Real) -> Real:
        return slots(device, *given, pin_memory=False, device="cpu", **named)

    module.MHATokenToKVPoolHost = make


def install_unified_host() -> None:
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


PAGES: set[str] = set()
"""Keys of the pages that the storage has; it outlives a tree."""

CONTROLLER = "sglang.srt.managers.cache_controller"
HYBRID_CONTROLLER = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller"
STORAGE = "sglang.srt.mem_cache.hicache_storage"

OWN_TIME: Final = "_prefetch_timeout_check_linear_func"
"""Before 0.5.23: each operation has its own time, from when it was queued."""


def install_storage(wanted: Json) -> None:
    """Install a storage backend, and threads that do nothing."""
    if wanted is None:
        return
    _install_backend(importlib.import_module(STORAGE).HiCacheStorage, {})


def install_unified_storage(wanted: Json) -> None:
    """Install a storage under the release's own `HiCacheFile`, which stores parts of pages."""
    if wanted is None:
        return
    importlib.import_module("sglang.srt.mem_cache.cpp_utils.native_hash").__dict__.update(
        _load_native_hash_module=lambda: Stub(get_hash=page_hashes)
    )
    files: Real = importlib.import_module(STORAGE).HiCacheFile
    _install_backend(files, {"__init__": _begin, "_collect_existing_component_keys": _files})


def _install_backend(base: Real, own: Mapping[str, Callable[..., Real]]) -> None:
    controller = importlib.import_module(CONTROLLER)
    factory = importlib.import_module("sglang.srt.mem_cache.storage").StorageBackendFactory
    idle = Stub(Thread=NoOp, Event=threading.Event, Lock=threading.Lock)
    vars(controller).update(
        threading=idle,
        get_tensor_model_parallel_rank=lambda: 0,
        get_tensor_model_parallel_world_size=lambda: 1,
        is_dp_attention_enabled=lambda: False,
    )
    body: dict[str, Real] = {"get": _get, "set": _set}
    body["exists"] = lambda _storage, key: key in PAGES
    body["batch_get"] = lambda storage, keys, *_: [_get(storage, key) for key in keys]
    body["batch_set"] = lambda storage, keys, *_: all(_set(storage, key) for key in keys)
    made = type("Dictionary", (base,), {**body, **own})
    factory.create_backend = lambda *_: made()


def _begin(storage: Real) -> None:
    storage.config_suffix = storage.tp_config_suffix = ""


def _files(storage: Real, keys: list[str], transfers: Real = None) -> set[str]:
    names = ["", *(f".{transfer.name}" for transfer in transfers or ())]
    wanted = {f"{key}{name}{storage.config_suffix}" for key in keys for name in names}
    return {f"{each}.bin" for each in wanted & PAGES}


def page_hashes(raw: Real, count: int, width: int, pairs: Real, *rest: Real) -> str | list[str]:
    """SHA-256 chain by pages, as the compiled hash: the tree core in Rust stores under its own.

    Tokens are 32 bits wide; a page with a wider one is a byte 0xff and its tokens with 64 bits.
    """
    prior, page = rest
    stride = 1 if pairs else width  # pairs overlap
    rows = [raw[at * stride : at * stride + width] for at in range(count)]
    step, found = page or max(count, 1), list[str]()
    for start in range(0, count, step):
        tokens = [token for row in rows[start : start + step] for token in row]
        is_wide = max(tokens).bit_length() > WORD_BITS
        text = b"\xff" + array("Q", tokens).tobytes() if is_wide else array("I", tokens).tobytes()
        prior = hashlib.sha256((prior or b"") + text).digest()
        found.append(prior.hex())
    return found if page else found[-1]


def _get(_storage: Real, key: str, *_: Real) -> Real:
    return True if key in PAGES else None


def _set(_storage: Real, key: str, *_: Real) -> bool:
    PAGES.add(key)
    return True


def _count_polls(tree: Real, controller: str, late: str) -> Real:
    """A prefetch begins and times out by the count of polls; all else has its own clock."""
    clock = Stub(polls=0)
    counted = Stub(monotonic=lambda: clock.polls)
    importlib.import_module(controller).__dict__["time"] = counted
    module, is_late = importlib.import_module(type(tree).__module__), getattr(tree, late)

    def is_late_by_polls(operation: Real) -> bool:
        names = vars(module)
        usual, names["time"] = names["time"], counted
        try:
            return bool(is_late(operation))
        finally:
            names["time"] = usual

    setattr(tree, late, is_late_by_polls)
    return clock


class Threads:
    """A controller's threads: an operation is done some polls after its request."""

    def __init__(self, controller: Real, lag: int) -> None:
        self.controller, self.lag = controller, lag
        self.lines: dict[str, list[list[Real]]] = {}

    def run(self, name: str, function: Real, *, lag: int | None = None) -> None:
        """Run a thread's function on the due items of its queue."""
        queue, line = getattr(self.controller, name), self.lines.setdefault(name, [])
        while not queue.empty():
            line.append([self.lag if lag is None else lag, queue.get_nowait()])
        while line and not line[0][0]:
            queue.put(line.pop(0)[1])
        for each in line:
            each[0] -= 1
        self.controller.storage_stop_event = Stub(is_set=queue.empty)
        function()

    def pass_on(self, function: Real, most: int) -> None:
        """Pass on at most `most` items of a queue; 0: all."""
        queue = self.controller.prefetch_sync_queue
        line = self.lines.setdefault("prefetch_sync_queue", [])
        while not queue.empty():
            line.append(queue.get_nowait())
        count = most or len(line)
        for each in line[:count]:
            queue.put(each)
        del line[:count]
        self.controller.storage_stop_event = Stub(is_set=queue.empty)
        function()


def step_by_polls(tree: Real, wanted: Json) -> None:
    """Run the threads' due operations whenever the tree polls or counts its queues.

    Since 0.5.16 a transfer reports in pieces, of which at most `acks` are received in one poll.
    """
    controller, threads = tree.cache_controller, Threads(tree.cache_controller, wanted["lag"])
    sync = getattr(controller, "prefetch_sync_thread_func", None)
    name = "drain_storage_control_queues" if sync is None else "check_hicache_events"
    inner = getattr(tree, name)
    if sync is None:
        clock = _count_polls(tree, CONTROLLER, "is_prefetch_timeout")
    elif hasattr(tree, OWN_TIME):
        clock = _count_polls(tree, HYBRID_CONTROLLER, OWN_TIME)
    else:
        clock = Stub(polls=0)
        timer = importlib.import_module("sglang.srt.utils.poll_timer")
        vars(timer).update(time=Stub(perf_counter=lambda: clock.polls))

    def poll() -> None:
        clock.polls += 1
        threads.run("backup_queue", controller.backup_thread_func)
        threads.run("prefetch_queue", controller.prefetch_thread_func)
        lag = 0 if sync is None else None
        threads.run("prefetch_buffer", controller.prefetch_io_aux_func, lag=lag)
        if sync is not None:
            threads.pass_on(sync, wanted["acks"])
        inner()

    setattr(tree, name, poll)
