"""The release's storage tier with a dictionary for files, and turns of the scheduler for threads.

Hashes, thresholds, prefetches, backups and the queues between them are the release's own; its
threads' functions run when the scheduler looks. Runs in the worker.
"""

import importlib
import threading
from typing import Any

from cachesim.real.sglang.bag import Bag, Told

Json = Any
Real = Any

PAGES: set[str] = set()
"""Keys of the pages that the storage has; it outlives a tree."""

CONTROLLER = "sglang.srt.managers.cache_controller"


def install(wanted: Json) -> None:
    """What the controller makes for itself: a backend, and threads that do nothing."""
    if wanted is None:
        return
    controller = importlib.import_module(CONTROLLER)
    base: Real = importlib.import_module("sglang.srt.mem_cache.hicache_storage").HiCacheStorage
    factory: Real = importlib.import_module("sglang.srt.mem_cache.storage").StorageBackendFactory
    idle = Bag(Thread=Told, Event=threading.Event, Lock=threading.Lock)
    vars(controller).update(
        threading=idle,
        get_tensor_model_parallel_rank=lambda: 0,
        get_tensor_model_parallel_world_size=lambda: 1,
        is_dp_attention_enabled=lambda: False,
    )
    body = {"exists": _exists, "get": _get, "set": _set, "batch_get": _gets, "batch_set": _sets}
    made = type("Dictionary", (base,), body)
    factory.create_backend = lambda *_: made()


def _exists(_storage: Real, key: str) -> bool:
    return key in PAGES


def _get(_storage: Real, key: str, *_: Real) -> Real:
    return True if key in PAGES else None


def _set(_storage: Real, key: str, *_: Real) -> bool:
    PAGES.add(key)
    return True


def _gets(storage: Real, keys: list[str], *_: Real) -> Real:
    return [_get(storage, key) for key in keys]


def _sets(storage: Real, keys: list[str], *_: Real) -> bool:
    return all(_set(storage, key) for key in keys)


def _count_looks(tree: Real) -> Real:
    """A prefetch begins and times out by the count of looks; all else has its own clock."""
    clock = Bag(looks=0)
    counted = Bag(monotonic=lambda: clock.looks)
    importlib.import_module(CONTROLLER).__dict__["time"] = counted
    module, is_late = importlib.import_module(type(tree).__module__), tree.is_prefetch_timeout

    def is_prefetch_timeout(operation: Real) -> bool:
        names = vars(module)
        usual, names["time"] = names["time"], counted
        try:
            return bool(is_late(operation))
        finally:
            names["time"] = usual

    tree.is_prefetch_timeout = is_prefetch_timeout
    return clock


def step_by_looks(tree: Real, lag: int) -> None:
    """Whenever the tree looks at its queues, the threads' functions do what is due."""
    controller, drain = tree.cache_controller, tree.drain_storage_control_queues
    clock = _count_looks(tree)
    lines: dict[str, list[list[Real]]] = {"backup_queue": [], "prefetch_queue": []}

    def due(name: str) -> None:
        queue, line = getattr(controller, name), lines[name]
        while not queue.empty():
            line.append([lag, queue.get_nowait()])
        while line and not line[0][0]:
            queue.put(line.pop(0)[1])
        for each in line:
            each[0] -= 1

    def run(name: str, function: Real) -> None:
        controller.storage_stop_event = Bag(is_set=getattr(controller, name).empty)
        function()

    def look() -> None:
        clock.looks += 1
        for name in lines:
            due(name)
        run("backup_queue", controller.backup_thread_func)
        run("prefetch_queue", controller.prefetch_thread_func)
        run("prefetch_buffer", controller.prefetch_io_aux_func)
        drain()

    tree.drain_storage_control_queues = look
