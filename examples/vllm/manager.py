"""vLLM's `KVCacheManager` behind the protocol of `check_live_cache`; runs beside its wheel.

A store is a request that computes its prompt in one step and finishes, a lookup one that is
admitted with a first step of one token, so that what it found is in use until it is loaded or
given up. Keys and values are bytes by block id, as in the worker's tensors.
"""

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import torch

from cachesim.prove.vllm.release_worker import install
from cachesim.testing import Request, Server
from cachesim.testing.contents import Rows, joined, packed, split, unpacked
from examples.findings import check
from examples.vllm.cache import BLOCK, Keys


class Pool(Keys):
    """One group of layers with full attention."""

    def __init__(self, server: Server, place: Path, blocks: int = 100) -> None:
        super().__init__(server, place)
        core: Any = importlib.import_module("vllm.v1.core.kv_cache_manager")
        form: Any = importlib.import_module("vllm.v1.kv_cache_interface")
        spec = form.FullAttentionSpec(BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
        groups = [form.KVCacheGroupSpec(["layer"], spec)]
        config = form.KVCacheConfig(1 + blocks, [], groups)  # block 0 is the null block
        self.manager = core.KVCacheManager(config, 4096, BLOCK, BLOCK)
        self.memory: dict[int, bytes] = {}
        self.admitted: dict[Request, list[Any]] = {}

    def admit(self, request: Request, step: int | None = None) -> tuple[Any, int, list[int]]:
        """The release's own request, the tokens found, and its blocks; none if it has to wait."""
        own = self.made(request)
        blocks, found, _ = self.manager.get_computed_blocks(own)
        tokens = step or len(request.tokens) - found
        if self.manager.allocate_slots(own, tokens, found, blocks) is None:
            return None, 0, []
        return own, found, self.manager.get_block_ids(own.request_id)[0]

    def store(self, request: Request, rows: Rows) -> None:
        own, found, ids = self.admit(request)
        if own is not None:
            blocks = split(self.server, rows, BLOCK)
            pairs = [*zip(ids, blocks, strict=False)]  # the last block may not be full
            self.memory |= {at: packed(block) for at, block in pairs[found // BLOCK :]}
            self.manager.free(own)

    def lookup(self, request: Request) -> int:
        own, found, _ = self.admit(request, 1)
        if found:
            self.admitted.setdefault(request, []).append(own)
        elif own is not None:
            self.manager.free(own)
        return found

    def load(self, request: Request, count: int) -> Rows | None:
        ids = self.manager.get_block_ids(self.admitted[request][0].request_id)[0]
        held = [self.memory[at] for at in ids[: count // BLOCK]]
        self.release(request)
        return joined([unpacked(self.server, data, BLOCK) for data in held])

    def release(self, request: Request) -> None:
        self.manager.free(self.admitted[request].pop(0))

    def clear(self) -> None:
        if not self.manager.reset_prefix_cache():
            raise RuntimeError("blocks are in use, and no request is left")


if __name__ == "__main__":
    install(Path(sys.argv[2]))
    logging.disable(logging.CRITICAL)
    told: Any = {"unit": BLOCK, "examples": 300, "keeps": True, "outstanding": 2}
    check(f"vLLM {sys.argv[1]}, KVCacheManager", Pool, **told)
