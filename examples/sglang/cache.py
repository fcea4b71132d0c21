"""HiCache's file storage behind the protocol of `check_live_cache`; runs beside an unpacked wheel.

Pages are keyed as `HiCacheController` keys them: a chain of hashes of their tokens, in 0.5.23
begun with the request's namespace (the adapter and `extra_key`, and the salt). What is pretended:
the extension that hashes is compiled where it runs; here it is Python's SHA-256.
"""

import hashlib
import logging
import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cachesim.testing import Request, Server
from cachesim.testing.contents import Rows, joined, packed, split, unpacked
from conformance.real.sglang import stand_ins
from examples.findings import check

PAGE = 8


def native_hash(key: Any, prior: bytes | None, page_size: int | None = None) -> Any:
    """`get_native_hash`: of a page after the hash before it, or of each page."""
    tokens = list(getattr(key, "token_ids", key))
    size, found, digest = page_size or len(tokens), [], prior or b""
    for start in range(0, len(tokens), size):
        words = np.array(tokens[start : start + size], np.uint32).tobytes()
        digest = hashlib.sha256(digest + words).digest()
        found.append(digest.hex())
    return found if page_size else found[0]


class Files:
    """`HiCacheFile`, page after page."""

    def __init__(self, server: Server, place: Path) -> None:
        from sglang.srt.mem_cache import hicache_storage, utils
        from sglang.srt.mem_cache.radix_cache import RadixKey

        utils.get_native_hash = native_hash
        self.key = RadixKey
        self.hashes = getattr(utils, "get_storage_hash_str", utils.get_hash_str)
        self.server = server
        named = hicache_storage.HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=False,
            model_name=server.model,
        )
        self.files = hicache_storage.HiCacheFile(named, str(place))

    def pages(self, request: Request) -> list[str]:
        whole = request.tokens[: len(request.tokens) // PAGE * PAGE]
        if not whole:
            return []
        key = self.key(array("q", whole), request.adapter or None, cache_salt=request.salt or None)
        return list(self.hashes(key, page_size=PAGE))

    def store(self, request: Request, rows: Rows) -> None:
        for page, block in zip(self.pages(request), split(self.server, rows, PAGE), strict=True):
            data = torch.frombuffer(bytearray(packed(block)), dtype=torch.uint8)
            if not self.files.set(page, data):
                raise OSError(page)

    def lookup(self, request: Request) -> int:
        found = [self.files.exists(page) for page in self.pages(request)]
        return PAGE * (found.index(False) if False in found else len(found))

    def load(self, request: Request, count: int) -> Rows | None:
        size = np.dtype("uint16" if "16" in self.server.dtype else self.server.dtype).itemsize
        numbers = sum(2 * PAGE * int(np.prod(shape.key)) for shape in self.server.shapes)
        blocks = []
        for page in self.pages(request)[: count // PAGE]:
            data = self.files.get(page, torch.empty(numbers * size, dtype=torch.uint8))
            if data is None:
                return None
            blocks.append(unpacked(self.server, data.numpy().tobytes(), PAGE))
        return joined(blocks)


if __name__ == "__main__":
    release, root = sys.argv[1:]
    stand_ins.install(Path(root))
    logging.disable(logging.CRITICAL)
    for name, told in {
        "adapters": {"varied": ("adapter",)},
        "salts": {"varied": ("salt",)},
        "restarts, models": {"varied": ("model",), "persists": True},
        "two writers": {"varied": (), "shared": True},
        "data types": {"varied": ("dtype",), "persists": True},
    }.items():
        check(f"SGLang {release}, {name}", Files, unit=PAGE, examples=100, **told)
