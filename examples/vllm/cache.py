"""vLLM's offloading managers behind the protocol of `check_live_cache`; runs beside its wheel.

Keys are those of the release: a `Request` with adapter, salt and images, its block hasher, and
`make_offload_key`. A lookup is followed by `prepare_load`, as the connector's scheduler does under
one lock (`get_num_new_matched_tokens`, then `update_state_after_alloc`).
"""

import importlib
import logging
import sys
from itertools import count as counter
from pathlib import Path
from typing import Any

from cachesim.prove.vllm.release_worker import install
from cachesim.testing import Request, Server
from cachesim.testing.contents import PLACEHOLDER, Rows, joined, packed, split, unpacked
from examples.findings import check

BLOCK = 8
CHUNKS = 12


class Keys:
    """The release's own keys of a request's blocks."""

    NUMBERS = counter()

    def __init__(self, server: Server, place: Path) -> None:
        self.server, self.place = server, place
        self.base: Any = importlib.import_module("vllm.v1.kv_offload.base")
        utils: Any = importlib.import_module("vllm.v1.core.kv_cache_utils")
        sha256 = importlib.import_module("vllm.utils.hashing").sha256
        utils.init_none_hash(sha256)
        self.hasher = utils.get_request_block_hasher(BLOCK, sha256)
        self.adapter = importlib.import_module("vllm.lora.request").LoRARequest
        self.media: Any = importlib.import_module("vllm.multimodal.inputs")
        self.request = importlib.import_module("vllm.v1.request").Request
        self.sampling = importlib.import_module("vllm.sampling_params").SamplingParams

    def features(self, request: Request) -> list[Any]:
        if not request.image:
            return []
        held = request.tokens[request.image_at :]
        length = next((i for i, token in enumerate(held) if token != PLACEHOLDER), len(held))
        place = self.media.PlaceholderRange(request.image_at, length)
        return [self.media.MultiModalFeatureSpec(None, "image", request.image, place)]

    def made(self, request: Request) -> Any:
        """The release's own `Request`."""
        number = request.adapter and sum(request.adapter.encode())
        return self.request(
            request_id=str(next(self.NUMBERS)),
            prompt_token_ids=list(request.tokens),
            sampling_params=self.sampling(max_tokens=1),
            pooling_params=None,
            mm_features=self.features(request),
            lora_request=self.adapter(request.adapter, number, request.adapter) if number else None,
            cache_salt=request.salt or None,
            block_hasher=self.hasher,
        )

    def keys(self, request: Request) -> list[Any]:
        return [
            self.base.make_offload_key(block_hash, 0)
            for block_hash in self.made(request).block_hashes
        ]


class Host(Keys):
    """`CPUOffloadingManager`: it returns the chunk of host memory that a block is copied to."""

    POLICY = "lru"

    def __init__(self, server: Server, place: Path) -> None:
        super().__init__(server, place)
        manager: Any = importlib.import_module("vllm.v1.kv_offload.cpu.manager")
        self.manager = manager.CPUOffloadingManager(CHUNKS, self.POLICY)
        self.memory: dict[int, bytes] = {}
        self.promised: dict[Request, tuple[list[Any], Any, Any]] = {}

    def begin(self) -> Any:
        context = self.base.ReqContext(str(next(self.NUMBERS)))
        self.manager.on_new_request(context)
        return context

    def store(self, request: Request, rows: Rows) -> None:
        keys, context = self.keys(request), self.begin()
        output = self.manager.prepare_store(keys, context)
        if output is not None:  # None: no room that is not pinned; nothing is kept
            blocks = dict(zip(keys, split(self.server, rows, BLOCK), strict=True))
            chunks = output.store_spec.block_ids
            for key, chunk in zip(output.keys_to_store, chunks, strict=True):
                self.memory[int(chunk)] = packed(blocks[key])
            self.manager.complete_store(output.keys_to_store, context)
        self.manager.on_request_finished(context)

    def lookup(self, request: Request) -> int:
        self.complete(request)
        hit = self.base.LookupResult.HIT
        keys, context = self.keys(request), self.begin()
        found = [self.manager.lookup(key, context) is hit for key in keys]
        pinned = keys[: found.index(False) if False in found else len(found)]
        chunks = self.manager.prepare_load(pinned, context).block_ids
        self.promised[request] = pinned, context, chunks
        return BLOCK * len(pinned)

    def load(self, request: Request, count: int) -> Rows | None:
        chunks = self.promised[request][2][: count // BLOCK]
        rows = joined([unpacked(self.server, self.memory[int(c)], BLOCK) for c in chunks])
        self.complete(request)
        return rows

    def complete(self, request: Request) -> None:
        pinned, context, _ = self.promised.pop(request, ([], None, []))
        self.manager.complete_load(pinned, context)

    def clear(self) -> None:
        self.promised = {}
        self.manager.reset_cache()


class Adaptive(Host):
    """The same with the policy `arc`."""

    POLICY = "arc"


class Files(Keys):
    """`FileMapper` and the file tier's reads and writes, as called by its threads."""

    def __init__(self, server: Server, place: Path) -> None:
        super().__init__(server, place)
        self.io: Any = importlib.import_module("vllm.v1.kv_offload.tiering.fs.io")
        names: Any = importlib.import_module("vllm.v1.kv_offload.file_mapper")
        self.files = names.FileMapper(
            root_dir=str(place),
            model_name=server.model,
            tokens_per_hash=BLOCK,
            blocks_per_file=1,
            **{f"{each}_size": 1 for each in ("tp", "pp", "pcp", "dcp")},
            rank=0,
            dtype=server.dtype,
        )

    def paths(self, request: Request) -> list[str]:
        return [self.files.get_file_name(key) for key in self.keys(request)]

    def store(self, request: Request, rows: Rows) -> None:
        for path, block in zip(self.paths(request), split(self.server, rows, BLOCK), strict=True):
            data = bytearray(packed(block))
            self.io.batch_store_block([path], memoryview(data), [0], len(data), use_o_direct=False)

    def lookup(self, request: Request) -> int:
        found = [Path(path).exists() for path in self.paths(request)]
        return BLOCK * (found.index(False) if False in found else len(found))

    def load(self, request: Request, count: int) -> Rows | None:
        blocks = []
        for path in self.paths(request)[: count // BLOCK]:
            data = bytearray(self.size)
            self.io.batch_load_block([path], memoryview(data), [0], len(data), use_o_direct=False)
            blocks.append(unpacked(self.server, bytes(data), BLOCK))
        return joined(blocks)

    @property
    def size(self) -> int:
        """Bytes of a block, by the worker's caches."""
        word = {"float32": 4, "float64": 8}.get(self.server.dtype, 2)
        return word * sum(
            (1 if shape.place == "recurrent" else BLOCK)
            * (int(shape.row) if shape.row else 2 * shape.key[0] * shape.key[1])
            for shape in self.server.shapes
        )


if __name__ == "__main__":
    (root,) = sys.argv[1:]
    install(Path(root))
    logging.disable(logging.CRITICAL)
    named: Any = {"varied": ("adapter", "salt", "image")}
    for name, make, told in (
        ("host memory, lru", Host, named),
        ("host memory, arc", Adaptive, named),
        ("files, restarts, models, data types", Files, {"varied": ("model", "dtype")}),
        ("files, adapters, salts, images", Files, named),
        ("files, two writers", Files, {"varied": (), "shared": True}),
        ("files, scaling of positions", Files, {"varied": ("rope",)}),
    ):
        files: Any = {"persists": True} if make is Files and "shared" not in told else {}
        check(f"vLLM 0.33.0, {name}", make, unit=BLOCK, examples=100, **told, **files)
