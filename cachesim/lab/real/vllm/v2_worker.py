"""Model Runner V2 of a release on a CPU: its own input preparation, kernels interpreted.

`GPUModelRunner` of `vllm.v1.worker.gpu` is made by its own `__init__` and `initialize_kv_cache`; a
step is its own `execute_model`. Empty are the network, the sampler and CUDA graphs. Runs in the
worker.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from cachesim.lab.real.vllm.marks_worker import Copies, Marks, Prepared
from cachesim.lab.real.worker_side import Bag, Told, fitting

Json = Any
Real = Any  # modules, classes and objects of the release: known only when it runs

MODULE = "vllm.v1.worker.gpu.model_runner"


def empty_of(*_: Real, **__: Real) -> Bag:
    """A stream, or an event on one."""
    return Told()


class Shared:
    """A buffer that processor and GPU share, as with unified addressing."""

    def __init__(self, size: Real, dtype: Real) -> None:
        torch: Real = importlib.import_module("torch")
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()

    def uva(self, n: int | None = None) -> Real:
        return self.cpu if n is None else self.cpu[:n]


class SharedWhole(Shared):
    """The same, until 0.28."""

    def __init__(self, size: Real, dtype: Real) -> None:
        super().__init__(size, dtype)
        vars(self)["uva"] = self.cpu


class Eager:
    """No CUDA graphs, as with `--enforce-eager`."""

    def __init__(self, module: Real) -> None:
        self.described = module.BatchExecutionDescriptor
        self.none = module.CUDAGraphMode.NONE

    def dispatch(self, num_reqs: int, num_tokens: int, *_: Real, **__: Real) -> Real:
        named = {"cg_mode": self.none, "num_tokens": num_tokens, "num_reqs": num_reqs}
        return fitting(self.described, **named)


class RunnerV2:
    """A release's runner for one configuration."""

    def __init__(self, config: Real, caches: Real, marks: Marks) -> None:
        self.module: Real = importlib.import_module(MODULE)
        torch: Real = importlib.import_module("torch")
        self.torch, self.marks = torch, marks
        self.seen: tuple[Real, Real] = None, None
        Copies.watch(self.module, marks)
        device = torch.device("cpu")
        with self._leaves(config):
            self.runner = runner = self.module.GPUModelRunner(config, device)
            runner.sampler = Told(penalties_state=Bag(output_bin_counts=None))
            runner.prompt_logprobs_worker = Told()
            runner.model = marks.model
            runner.model_state = self.module.init_model_state(config, marks.model, None, device)
            runner.decode_query_len = 1 + marks.drafts
            runner.initialize_kv_cache(caches)
            runner.kv_caches = list(marks.tensors.values())
        runner.model = self._forward
        runner.cudagraph_manager = Eager(self.module)
        runner.kv_block_zeroer = Told()

    @contextmanager
    def _leaves(self, config: Real) -> Iterator[None]:
        module, marks = self.module, self.marks
        buffers: Real = importlib.import_module("vllm.v1.worker.gpu.buffer_utils")
        shared = Shared if hasattr(buffers.UvaBuffer, "uva") else SharedWhole
        rank = Bag(is_first_rank=True, is_last_rank=True, world_size=1, rank_in_group=0)
        empty: dict[str, Real] = {
            "get_pp_group": lambda: rank,
            "Sampler": lambda *_, **__: None,
            "init_speculator": lambda *_, **__: None,
            "initialize_mamba_ssu_backend": lambda *_, **__: None,
            "check_attention_cp_compatibility": lambda *_, **__: None,
            "ModelCudaGraphManager": lambda *_, **__: None,
            "init_attn_backend": lambda *_, **__: marks.attention(config),
            "init_kv_cache": lambda *_, **__: marks.tensors,
            "get_kv_connector": lambda *_, **__: module.NO_OP_KV_CONNECTOR,
            "maybe_create_adaptive_verification_manager": lambda *_, **__: None,
            "maybe_build_ubatch_runner": lambda *_, **__: None,
        }
        config.compilation_config.resolve_cudagraph_mode_and_sizes = lambda *_, **__: None
        with (
            patch.multiple(self.torch.cuda, Stream=empty_of, Event=empty_of),
            patch.multiple(module, **{k: v for k, v in empty.items() if hasattr(module, k)}),
            patch.multiple(buffers, UvaBuffer=shared, is_uva_available=lambda: True),
        ):
            yield

    def _forward(self, **_: Real) -> Real:
        context: Real = importlib.import_module("vllm.forward_context").get_forward_context()
        self.marks.settle("before")
        metadata, slots = context.attn_metadata, context.slot_mapping
        self.seen = metadata, slots
        return self.torch.zeros(1, 1)

    def step(self, output: Real) -> Json:
        """Prepare a scheduled step; what its rows read and write."""
        runner = self.runner
        runner.execute_model(output)
        state = runner.execute_model_state
        self.batch = state.input_batch
        step = Prepared(
            list(self.batch.req_ids),
            [int(each) for each in self.batch.query_start_loc_np],
            [int(each) for each in self.batch.seq_lens],
            *self.seen,
            runner.block_tables.input_block_tables,
        )
        return self.marks.rows(step)

    def sampled(self, tokens: dict[str, list[int]], drafts: dict[str, int]) -> None:
        """Hand over what was sampled for the step, and what was rejected."""
        torch, batch, runner = self.torch, self.batch, self.runner
        runner.execute_model_state = None
        width = max(1, *(len(each) for each in tokens.values()))
        rows = [tokens[name] for name in batch.req_ids]
        counts = [len(row) for row in rows]
        rejected = [
            drafts.get(name, 0) + 1 - count if count else 0
            for name, count in zip(batch.req_ids, counts, strict=True)
        ]
        runner.postprocess_sampled(
            batch.idx_mapping,
            torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=torch.int64),
            torch.tensor(counts, dtype=torch.int32),
            torch.tensor(rejected, dtype=torch.int32),
            batch.query_start_loc,
        )
        self.marks.settle("after")
