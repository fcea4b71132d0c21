"""vLLM's `MooncakeStoreConnector` behind the protocol; runs beside an unpacked wheel.

    store         a request goes through the scheduler; the connector's worker saves its blocks
    lookup, load  a request without blocks is scheduled; the worker loads what the store has

Scheduler, KV cache manager, the model runner's calls of the connector, both sides of it, its
threads and its socket are the release's own. What is pretended: the network (the model runner
writes rows of the small network into blocks, a state into the column of the step's last token), the
layers' tensors (the pages of a group's layers are one page), the groups of ranks (there is one
rank) and Mooncake's client (`Objects`).
"""

import atexit
import ctypes
import json
import logging
import os
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from cachesim.prove.vllm.release_worker import install
from cachesim.prove.worker_side import NoOp, fitting
from cachesim.testing import Request, Server
from cachesim.testing.contents import Rows
from conformance.real.vllm.caches_worker import Caches
from conformance.real.vllm.worker_settings import ConfigFactory
from examples.findings import check
from examples.vllm.cache import BLOCK, Keys

BLOCKS = 64
STEPS = 2000
KINDS = {"attention": "full", "recurrent": "mamba"}


class Objects:
    """`MooncakeDistributedStore`: bytes by key, read from and written to registered memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def setup(self, *_: Any, **__: Any) -> int:
        """Nothing is connected."""
        return 0

    register_buffer = close = setup

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        return [int(key in self.kept) for key in keys]

    def batch_put_from_multi_buffers(self, keys: Any, places: Any, sizes: Any, _: Any) -> list[int]:
        for key, parts, lengths in zip(keys, places, sizes, strict=True):
            self.kept.setdefault(key, b"".join(map(ctypes.string_at, parts, lengths)))
        return [0] * len(keys)

    def batch_get_into_multi_buffers(self, keys: Any, places: Any, sizes: Any) -> list[int]:
        for key, parts, lengths in zip(keys, places, sizes, strict=True):
            data = self.kept[key]
            for place, length in zip(parts, lengths, strict=True):
                ctypes.memmove(place, data[:length], length)
                data = data[length:]
        return [sum(lengths) for lengths in sizes]

    def remove_all(self, *, force: bool) -> None:
        self.kept.clear()


class Engine:
    """A scheduler, the memory of its blocks, and the connector's worker."""

    def __init__(self, preset: str) -> None:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.worker import kv_connector_model_runner_mixin as runner

        self.output = ModelRunnerOutput
        self.shapes = Server(preset=preset).shapes
        self.places = [place for place in KINDS if self.of(place)]
        factory = ConfigFactory()
        transfer, own = factory.transfer, {"lookup_rpc_port": preset}  # a socket for each engine
        factory.transfer = lambda **_: transfer(
            kv_connector="MooncakeStoreConnector", kv_role="kv_both", kv_connector_extra_config=own
        )
        groups = [{"kind": KINDS[place], "block": BLOCK, "mode": "align"} for place in self.places]
        config = {"groups": groups, "blocks": BLOCKS, "store": True}
        settings = factory.used(config)
        caches, (block, unit) = Caches().of(settings, config)
        self.scheduler = fitting(
            Scheduler,
            vllm_config=settings,
            kv_cache_config=caches,
            structured_output_manager=NoOp(),
            block_size=block,
            hash_block_size=unit,
            log_stats=False,
        )
        worker = KVConnectorFactory.create_connector(settings, KVConnectorRole.WORKER, caches)
        atexit.register(worker.shutdown)
        size = max(sum(map(self.bytes, self.of(place))) for place in self.places)
        self.memory = torch.zeros((BLOCKS, size), dtype=torch.uint8)
        layers = [name for group in caches.kv_cache_groups for name in group.layer_names]
        worker.register_kv_caches(dict.fromkeys(layers, self.memory))
        runner.has_kv_transfer_group, runner.get_forward_context = lambda: True, lambda: None
        runner.get_kv_transfer_group = lambda: worker
        self.transfers = runner.KVConnectorModelRunnerMixin.maybe_get_kv_connector_output
        self.blocks = self.scheduler.kv_cache_manager.get_block_ids

    def of(self, place: str) -> list[Any]:
        """The layers of a group."""
        return [shape for shape in self.shapes if shape.place == place]

    def bytes(self, shape: Any) -> int:
        """Bytes of a layer's block."""
        return 4 * (int(shape.row) if shape.row else 2 * BLOCK * shape.key[0] * shape.key[1])

    def page(self, place: str, block: int) -> list[Any]:
        """A view of a block for each layer of a group."""
        found, start = [], 0
        for each in self.of(place):
            form = (1, each.row) if each.row else (BLOCK, 2, *each.key)
            end = start + self.bytes(each)
            found.append(self.memory[block, start:end].numpy().view("float32").reshape(form))
            start = end
        return found

    def compute(self, name: str, start: int, end: int, rows: Rows) -> None:
        """Write keys and values of some tokens, and the state after the last."""
        for place, blocks in zip(self.places, self.blocks(name), strict=True):
            attends = place == "attention"
            for token in range(start if attends else end - 1, end):
                pages = self.page(place, blocks[token // BLOCK])
                for page, layer in zip(pages, self.of(place), strict=True):
                    page[token % BLOCK * attends] = rows[layer.layer][token]

    def loaded(self, name: str, count: int) -> Rows:
        """The content of a request's blocks for its first tokens."""
        found = {}
        for place, blocks in zip(self.places, self.blocks(name), strict=True):
            pages = [self.page(place, block) for block in blocks[: count // BLOCK]]
            needed = pages if place == "attention" else pages[-1:]
            for layer, parts in zip(self.of(place), zip(*needed, strict=True), strict=True):
                found[layer.layer] = np.concatenate(parts)
        return [found[shape.layer] for shape in self.shapes]

    def step(self, request: Any, rows: Rows) -> bool:
        """One turn of the engine's loop; true if blocks were loaded for the request."""
        step = self.scheduler.schedule()
        names, end = list(step.num_scheduled_tokens), request.num_computed_tokens
        with self.transfers(step) as told:
            for name in names:
                self.compute(name, end - step.num_scheduled_tokens[name], end, rows)
        runner = fitting(
            self.output,
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=[[1] if end >= request.num_tokens else [] for _ in names],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=told,
        )
        self.scheduler.update_from_output(step, runner)
        time.sleep(0.0001)  # for the connector's threads
        return request.request_id in (told.finished_recving or ())

    def finish(self, request: Any, rows: Rows) -> None:
        """Run until the request is done and all that it saves is in the store."""
        for _ in range(STEPS):
            self.step(request, rows)
            if not self.scheduler.has_requests():
                return
        raise TimeoutError(request.request_id)


class Mooncake(Keys):
    """`MooncakeStoreConnector`; one engine for all examples, cleared before each."""

    ENGINE = staticmethod(cache(Engine))

    def __init__(self, server: Server, place: Path) -> None:
        from vllm.v1.request import RequestStatus

        super().__init__(server, place)
        self.aborted = RequestStatus.FINISHED_ABORTED
        self.engine = self.ENGINE(server.preset)
        self.clear()

    def store(self, request: Request, rows: Rows) -> None:
        made = self.made(request)
        self.engine.scheduler.add_request(made)
        self.engine.finish(made, rows)

    def lookup(self, request: Request) -> int:
        """Asks and loads at once, as the scheduler does."""
        scheduler, made = self.engine.scheduler, self.made(request)
        if not scheduler.reset_prefix_cache():
            raise RuntimeError(request)
        count, _ = scheduler.connector.get_num_new_matched_tokens(made, 0)
        if count:
            scheduler.add_request(made)
            if not any(self.engine.step(made, []) for _ in range(STEPS)):
                raise TimeoutError(request)
            self.found[request] = self.engine.loaded(made.request_id, count)
            scheduler.finish_requests(made.request_id, self.aborted)
            self.engine.finish(made, [])
        return int(count)

    def load(self, request: Request, count: int) -> Rows | None:
        return self.found.pop(request)

    def clear(self) -> None:
        self.found: dict[Request, Rows] = {}
        if not self.engine.scheduler.reset_prefix_cache(reset_connector=True):
            raise RuntimeError(self)


if __name__ == "__main__":
    release, root = sys.argv[1:]
    client: Any = ModuleType("mooncake.store")
    client.MooncakeDistributedStore, client.ReplicateConfig = Objects, SimpleNamespace
    sys.modules |= {"mooncake": ModuleType("mooncake"), "mooncake.store": client}
    install(Path(root))
    logging.disable(logging.CRITICAL)
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import worker

    alone = SimpleNamespace(world_size=1, rank_in_group=0)
    worker.get_tensor_model_parallel_rank = lambda: 0
    worker.get_tensor_model_parallel_world_size = lambda: 1
    worker.get_dcp_group = worker.get_pcp_group = lambda: alone
    torch.cuda.Event = NoOp  # copies on a CPU are done when they return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mooncake.json")
        path.write_text(json.dumps({"metadata_server": "", "master_server_address": ""}))
        os.environ |= {"MOONCAKE_CONFIG_PATH": str(path), "VLLM_RPC_BASE_PATH": folder}
        for preset in ("dense", "hybrid"):
            told: Any = {"presets": (preset,), "varied": ("salt",), "unit": BLOCK, "examples": 100}
            check(f"vLLM {release}, Mooncake, {preset}", Mooncake, **told)
