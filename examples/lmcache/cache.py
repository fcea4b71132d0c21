"""LMCache behind the protocol of `check_live_cache`; runs in its environment.

The connector of vLLM (`vllm_v1_adapter.py`) hands over the tokens, with values of its own in place
of images, and those of the request's sampling parameters that begin with `lmcache.`; neither the
adapter nor the salt. `Tagged` hands over both as tags, which a client can do.
"""

import asyncio
import logging
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lmcache.integration.vllm.utils import apply_mm_hashes_to_token_ids
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.pin_monitor import PinMonitor
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend
from lmcache.v1.token_database import ChunkedTokenDatabase

from cachesim.testing import Request, Server
from cachesim.testing.contents import PLACEHOLDER, Rows
from examples.findings import check

CHUNK = 8
LAYERS, HEADS, SIZE = 2, 1, 8


@dataclass
class Placeholder:
    """`vllm.multimodal.inputs.PlaceholderRange`, as far as it is read."""

    offset: int
    length: int


class InMemory:
    """`LocalCPUBackend`, with the calls of `LMCacheEngine.store`, `lookup` and `retrieve`."""

    def __init__(self, server: Server, place: Path) -> None:
        self.server, self.place = server, place
        self.dtype = getattr(torch, server.dtype)
        self.config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK, local_cpu=True, max_local_cpu_size=0.01
        )
        PinMonitor.GetOrCreate(self.config)
        self.metadata = LMCacheMetadata(
            model_name=server.model,
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=self.dtype,
            kv_shape=(LAYERS, 2, CHUNK, HEADS, SIZE),
        )
        self.database = ChunkedTokenDatabase(self.config, self.metadata)
        self.memory = LocalCPUBackend(self.config, self.metadata, dst_device="cpu")
        self.backend: Any = self.memory
        self.pinned: list[Any] = []

    def tags(self, request: Request) -> dict[str, str] | None:
        return None

    def keys(self, request: Request) -> list[Any]:
        tokens = torch.tensor(request.tokens)
        if request.image:
            held = request.tokens[request.image_at :]
            length = next((i for i, t in enumerate(held) if t != PLACEHOLDER), len(held))
            apply_mm_hashes_to_token_ids(
                tokens, [request.image], [Placeholder(request.image_at, length)]
            )
        tags = self.tags(request)
        found = self.database.process_tokens(tokens=tokens, request_configs=tags)
        return [key for start, end, key in found if end - start == CHUNK]

    def store(self, request: Request, rows: Rows) -> None:
        for number, key in enumerate(self.keys(request)):
            part = np.stack([row[number * CHUNK : (number + 1) * CHUNK] for row in rows])
            tensor = torch.from_numpy(part.reshape(LAYERS, CHUNK, 2, -1)).permute(2, 0, 1, 3)
            held = self.memory.allocate(tensor.shape, self.dtype, MemoryFormat.KV_2LTD)
            held.tensor.copy_(tensor.view(self.dtype))
            self.put(key, held)
            held.ref_count_down()

    def put(self, key: Any, held: Any) -> None:
        self.backend.submit_put_task(key, held)

    def lookup(self, request: Request) -> int:
        self.unpin()
        for key in self.keys(request):
            if not self.backend.contains(key, pin=True):
                break
            self.pinned.append(key)
        return CHUNK * len(self.pinned)

    def unpin(self) -> None:
        for key in self.pinned:
            self.backend.unpin(key)
        self.pinned = []

    def load(self, request: Request, count: int) -> Rows | None:
        chunks = []
        for key in self.keys(request)[: count // CHUNK]:
            held = self.backend.get_blocking(key)
            if held is None:
                return None
            chunks.append(held.tensor.clone())
            held.ref_count_down()
        tensor = torch.cat(chunks, 2).permute(1, 2, 0, 3).contiguous()
        bits = tensor.view(torch.uint16) if self.server.dtype == "bfloat16" else tensor
        return list(bits.numpy().reshape(LAYERS, count, 2, HEADS, SIZE))

    def evict(self, request: Request) -> None:
        self.unpin()
        for key in self.keys(request):
            if self.backend.contains(key):
                self.backend.remove(key)

    def close(self) -> None:
        self.memory.memory_allocator.close()


class Tagged(InMemory):
    """Adapter and salt as tags of the request."""

    def tags(self, request: Request) -> dict[str, str] | None:
        return {"lmcache.tag.adapter": request.adapter, "lmcache.tag.salt": request.salt}


class OnDisk(Tagged):
    """`LocalDiskBackend`, whose index is in memory: it does not outlive its process."""

    def __init__(self, server: Server, place: Path) -> None:
        super().__init__(server, place)
        self.config.local_disk = f"{place}/"
        self.config.max_local_disk_size = 1.0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.backend = LocalDiskBackend(
            self.config, self.loop, self.memory, dst_device="cpu", metadata=self.metadata
        )

    def put(self, key: Any, held: Any) -> None:
        done = threading.Event()
        if not self.backend.contains(key):
            self.backend.submit_put_task(key, held, on_complete_callback=lambda _: done.set())
            done.wait(10)

    def close(self) -> None:
        self.backend.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        super().close()


CHECKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "images": (InMemory, {"varied": ("image",)}),
    "adapters": (InMemory, {"varied": ("adapter",)}),
    "salts": (InMemory, {"varied": ("salt",)}),
    "tags": (Tagged, {"varied": ("adapter", "image", "salt")}),
    "disk": (OnDisk, {"varied": ("adapter", "salt")}),
}

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    release, *names = sys.argv[1:]
    for name in names:
        make, told = CHECKS[name]
        check(f"LMCache {release}, {name}", make, unit=CHUNK, examples=100, **told)
