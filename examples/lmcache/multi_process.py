"""LMCache's daemon and its connectors of vLLM and SGLang behind the protocol.

The daemon is a process of its own on the loopback; caches of a server are tensors on the CPU. For
vLLM a real `Request` is tracked by the connector's own tracker, which names the transferred tokens,
with values of its own in place of images, and the salt. SGLang 0.5.18 hands over tokens alone
(`lookup_kv(token_ids, req.rid)`); 0.5.23 uses another connector, which takes names.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain
from itertools import count as counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import zmq
from lmcache.integration.sglang import multi_process_adapter
from lmcache.integration.sglang.sglang_adapter import LoadMetadata, StoreMetadata
from lmcache.integration.vllm import vllm_multi_process_adapter as adapter

from cachesim.prove.vllm.release_worker import install
from cachesim.testing import Request, Server
from cachesim.testing.contents import Rows
from examples.findings import check
from examples.vllm.cache import BLOCK, Keys

BLOCKS = 40
SECONDS = 30.0
ALONE = adapter.ParallelStrategy(
    mla_only=False, vllm_world_size=1, vllm_worker_id=0, tp_size=1, pp_size=1, n_servers=1
)
PORT: list[int] = []


@contextlib.contextmanager
def daemon() -> Iterator[None]:
    """`lmcache server` with chunks of one block, in memory alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        PORT.append(free.getsockname()[1])
    module = [sys.executable, "-m", "lmcache.v1.multiprocess.server"]
    place = ["--host", "127.0.0.1", "--port", str(PORT[0]), "--chunk-size", str(BLOCK)]
    limits = ["--l1-size-gb", "0.1", "--eviction-policy", "LRU"]
    # A worker without a GPU copies by itself, SGLang's lets the daemon copy: both ways are open.
    ways = ["--supported-transfer-mode", "auto", "--disable-observability"]
    variables = os.environ | {"LMCACHE_TRACK_USAGE": "false"}
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*module, *place, *limits, *ways], env=variables, **quiet)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def address() -> str:
    """Address of the daemon."""
    return f"tcp://127.0.0.1:{PORT[0]}"


class Vllm(Keys):
    """`LMCacheMPConnector` of vLLM: its tracker, scheduler's side and worker's side."""

    def __init__(self, server: Server, place: Path) -> None:
        super().__init__(server, place)
        from lmcache.integration.vllm import lmcache_mp_metadata as metadata

        self.metadata = metadata
        self.model = f"{server.model}-{place.name}"  # what other examples stored is not found
        given: Any = (zmq.Context.instance(), self.model, BLOCK, ALONE)
        self.scheduler = adapter.LMCacheMPSchedulerAdapter([address()], *given)
        self.worker = adapter.LMCacheMPWorkerAdapter(address(), *given)
        self.caches = {
            f"layer.{shape.layer}": torch.zeros(
                (2, BLOCKS, BLOCK, *shape.key), dtype=getattr(torch, server.dtype)
            )
            for shape in server.shapes
        }
        self.worker.register_kv_caches(self.caches, layout_hints={"kv_layout": "NHD"})
        self.promised: dict[Request, list[Any]] = {}

    def tracked(self, request: Request) -> Any:
        """A request with blocks for its tokens; block 0 stands for none."""
        tracker = self.metadata.LMCacheMPRequestTracker(self.made(request))
        tracker.append_block_ids(([*range(1, 1 + len(request.tokens) // BLOCK)],))
        return tracker

    def store(self, request: Request, rows: Rows) -> None:
        tracker = self.tracked(request)
        self.fill(rows)
        tracker.increase_num_scheduled_tokens(len(request.tokens))
        given = self.metadata.LMCacheMPRequestMetadata.GetStoreMetadata(tracker, BLOCK, [BLOCK])
        if given:
            self.submit(self.worker.batched_submit_store_requests, given)
            if not self.worker.store_futures.pop(given.request_id).result(timeout=SECONDS):
                raise OSError(given)
            self.scheduler.end_session(given.request_id)

    def fill(self, rows: Rows) -> None:
        """Put the rows of whole blocks where the engine computes them."""
        for cache, layer in zip(self.caches.values(), rows, strict=True):
            whole = len(layer) // BLOCK * BLOCK
            held = torch.from_numpy(layer[:whole]).view(cache.dtype)
            parts = held.reshape(-1, BLOCK, *held.shape[1:]).permute(2, 0, 1, 3, 4)
            cache[:, 1 : 1 + whole // BLOCK] = parts

    def submit(self, call: Any, given: Any) -> None:
        names: Any = {"cache_salts": [given.cache_salt]}
        event = self.worker.create_recorded_event()
        call([given.request_id], [given.op], event, **names)

    def lookup(self, request: Request) -> int:
        tracker = self.tracked(request)
        self.scheduler.maybe_submit_lookup_request(
            tracker.request_id, tracker.get_token_ids(), tracker.cache_salt
        )
        while (found := self.scheduler.check_lookup_result(tracker.request_id)) is None:
            time.sleep(0.0005)
        tracker.num_lmcache_hit_tokens = found
        self.promised.setdefault(request, []).append(tracker)
        return int(found)

    def load(self, request: Request, count: int) -> Rows | None:
        tracker = self.promised[request].pop()
        tracker.state = self.metadata.LMCacheMPRequestState.WAITING_FOR_LOAD
        given = self.metadata.LMCacheMPRequestMetadata.GetRetrieveMetadata(tracker, BLOCK, [BLOCK])
        self.submit(self.worker.batched_submit_retrieve_requests, given)
        loaded = self.worker.retrieve_futures.pop(given.request_id)[0].result(timeout=SECONDS)
        self.scheduler.end_session(given.request_id)
        return [self.rows(cache, count) for cache in self.caches.values()] if loaded else None

    def rows(self, cache: Any, count: int) -> Any:
        held = cache[:, 1 : 1 + count // BLOCK].permute(1, 2, 0, 3, 4).contiguous()
        bits = held.view(torch.uint16) if self.server.dtype == "bfloat16" else held
        return bits.numpy().reshape(count, *bits.shape[2:]).copy()

    def release(self, tracker: Any) -> None:
        given = tracker.get_token_ids(), 0, tracker.num_lmcache_hit_tokens, tracker.request_id
        self.scheduler.free_lookup_locks(*given, tracker.cache_salt)
        self.scheduler.end_session(tracker.request_id)

    def close(self) -> None:
        for each in chain(*self.promised.values()):
            self.release(each)
        self.worker.shutdown()
        self.scheduler.shutdown()


class Copying:
    """A client of the daemon whose copies are the worker's.

    On a CPU the daemon cannot register SGLang's keys and values, which lie apart: it fails with an
    AttributeError, and its client waits for ever. Everything but the copies is the daemon's.
    """

    def __init__(self, cache: Vllm) -> None:
        self.worker, self.client = cache.worker, cache.worker.req_client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def register_kv_cache(self, *given: Any) -> Any:
        return SimpleNamespace(result=lambda **_: None)

    def unregister_kv_cache(self, *given: Any) -> Any:
        return self.register_kv_cache(*given)

    def close(self) -> None:
        """Leave the client to the worker."""

    def store(self, key: Any, _: int, blocks: Any, event: Any) -> Any:
        return self.copied(self.worker.transfer_ctx.submit_store, key, blocks)

    def retrieve(self, key: Any, _: int, blocks: Any, event: Any, skipped: int) -> Any:
        return self.copied(self.worker.transfer_ctx.submit_retrieve, key, blocks)

    def copied(self, call: Any, key: Any, blocks: Any) -> Any:
        caches = self.worker.kv_caches
        event = self.worker.create_recorded_event()
        future = call(key.request_id, key, caches, blocks, event, self.worker.blocks_in_chunk)
        kept = {"retain_reference": lambda _: None, "to_device_future": lambda **_: future}
        return SimpleNamespace(**kept, result=lambda timeout: (b"", future.result(timeout)))


class Sglang(Vllm):
    """`LMCacheMPConnector` of SGLang 0.5.18: a request's tokens are all that its calls take."""

    NUMBERS = counter()

    def __init__(self, server: Server, place: Path) -> None:
        super().__init__(server, place)
        pools = [[cache[at].flatten(0, 1) for cache in self.caches.values()] for at in range(2)]
        multi_process_adapter.RequestClientFactory = SimpleNamespace(
            create=lambda *_, **__: Copying(self)
        )
        model: Any = SimpleNamespace(model_path=self.model)
        given: Any = (model, 1, 0, BLOCK, "tcp://127.0.0.1", PORT[0], *pools)
        self.connector = multi_process_adapter.LMCacheMPConnector(*given)

    def store(self, request: Request, rows: Rows) -> None:
        self.fill(rows)
        slots = torch.arange(BLOCK, BLOCK + len(request.tokens))
        name = f"store {next(self.NUMBERS)}"
        self.connector.store_kv(StoreMetadata(None, list(request.tokens), slots, 0, name))

    def lookup(self, request: Request) -> int:
        name = f"lookup {next(self.NUMBERS)}"
        self.promised.setdefault(request, []).append(name)
        return int(self.connector.lookup_kv(list(request.tokens), name))

    def load(self, request: Request, count: int) -> Rows | None:
        name, slots = self.promised[request].pop(), torch.arange(BLOCK, BLOCK + count)
        self.connector.retrieve_kv(LoadMetadata(list(request.tokens), slots, 0, 0, name))
        self.connector.end_session(name)
        return [self.rows(cache, count) for cache in self.caches.values()]

    def release(self, name: Any) -> None:
        self.connector.end_session(name)

    def close(self) -> None:
        super().close()
        self.connector.close()


CHECKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "vLLM, salts": (Vllm, {"varied": ("salt",)}),
    "vLLM, images": (Vllm, {"varied": ("image",)}),
    "vLLM, two engines": (Vllm, {"varied": (), "shared": True}),
    "vLLM, adapters": (Vllm, {"varied": ("adapter",)}),
    "vLLM, models": (Vllm, {"varied": ("model",)}),
    "SGLang 0.5.18, salts": (Sglang, {"varied": ("salt",)}),
    "SGLang 0.5.18, adapters": (Sglang, {"varied": ("adapter",)}),
    "SGLang 0.5.18, models": (Sglang, {"varied": ("model",)}),
}

if __name__ == "__main__":
    release, root, *names = sys.argv[1:]
    install(Path(root))
    logging.disable(logging.CRITICAL)
    with daemon():
        for name in names or CHECKS:
            make, told = CHECKS[name]
            full = f"LMCache {release}, daemon, {name}"
            check(full, make, unit=BLOCK, examples=40, **told)
