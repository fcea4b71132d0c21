"""With an unpacked wheel: workloads on vLLM's own scheduler and model runner.

One line of JSON in, one line out, as for the scheduler alone. What comes out is, step by step,
which blocks every layer would read and write for each request, and which states are copied. Kernels
run in Triton's interpreter.
"""

import importlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from typing import Any, Final
from unittest.mock import patch

from cachesim.lab.real.vllm.marks_worker import WINDOW, Copies, Marks, Prepared
from cachesim.lab.real.vllm.scheduler_worker import Release, Server
from cachesim.lab.real.worker_side import NoOp, Stub, answer_lines, fitting, own_output, play_groups

Json = Any
Real = Any  # modules, classes and objects of the release: known only when it runs

MODULE_V1: Final = "vllm.v1.worker.gpu_model_runner"
VOCABULARY: Final = 500
"""Token ids are cut to it: the release drops those outside of the vocabulary."""


class RunnerV1:
    """A release's runner for one configuration."""

    def __init__(self, config: Real, caches: Real, marks: Marks) -> None:
        self.module: Real = importlib.import_module(MODULE_V1)
        self.torch: Real = importlib.import_module("torch")
        self.marks, self.drafts = marks, marks.drafts
        self._empty_leaves()
        device = self.torch.device("cpu")
        self.runner = runner = self._made()(config, device)
        runner.model = marks.model
        runner.kv_cache_config = caches
        runner.initialize_kv_cache(caches)
        runner.kv_caches = list(marks.tensors.values())
        self.rows: Json = None

    def _empty_leaves(self) -> None:
        module, cuda = self.module, self.torch.cuda
        rank = Stub(is_first_rank=True, is_last_rank=True, world_size=1, rank_in_group=0, ranks=[0])
        for name in dir(module):
            if name.endswith(("Proposer", "ProposerGPU")):
                setattr(module, name, Empty)
        module.Sampler = Empty
        module.RejectionSampler.__init__ = lambda *_, **__: None  # its parsing is the release's
        module.get_pp_group = module.get_tp_group = lambda: rank
        module.initialize_mamba_ssu_backend = lambda *_, **__: None
        module.prepare_kernel_block_sizes = lambda caches, _: [
            each.kv_cache_spec.block_size for each in caches.kv_cache_groups
        ]
        self.torch.Event = cuda.Event = cuda.Stream = lambda *_, **__: NoOp()
        Copies.watch(module, self.marks)

    def _made(self) -> Real:
        marks, recorder = self.marks, self

        class Prepares(self.module.GPUModelRunner):  # type: ignore[misc, name-defined]
            """Stops where the network would begin."""

            def _init_device_properties(self) -> None:
                self.num_sms = 1

            def _sync_device(self) -> None:
                """There is nothing to wait for."""

            def _zero_block_ids(self, block_ids: Real) -> None:
                """Skip: a block's former content is in no comparison."""

            def initialize_attn_backend(self, *_: Real, **__: Real) -> None:
                self.attn_groups, *_rest = marks.attention(self.vllm_config)
                self.calculate_reorder_batch_threshold()

            def initialize_metadata_builders(self, *_: Real, **__: Real) -> None:
                """Made with the backends."""

            def initialize_kv_cache_tensors(self, *_: Real, **__: Real) -> Real:
                return marks.tensors

            def _determine_batch_execution_and_padding(self, **named: Real) -> Real:
                """No CUDA graphs, as with `--enforce-eager`."""
                return super()._determine_batch_execution_and_padding(**named, force_eager=True)

            def _model_forward(self, *_: Real, **__: Real) -> Real:
                recorder.rows = marks.rows(recorder.seen())
                return recorder.torch.zeros(self.max_num_tokens, 1)

            def _get_nans_in_logits(self, _: Real) -> dict[str, int]:
                return {}

            def _to_list(self, sampled: Real) -> Real:
                return sampled.tolist()

        return Prepares

    def seen(self) -> Prepared:
        """Reads and writes of the network's layers."""
        self.marks.settle("before")
        context: Real = importlib.import_module("vllm.forward_context").get_forward_context()
        runner, batch = self.runner, self.runner.input_batch
        count = batch.num_reqs
        starts = [int(each) for each in runner.query_start_loc.np[: count + 1]]
        computed = batch.num_computed_tokens_cpu[:count]
        ends = [int(computed[row]) + starts[row + 1] - starts[row] for row in range(count)]
        tables = [
            batch.block_table[group].get_numpy_array().copy()
            for group in range(len(self.marks.groups))
        ]
        names = list(batch.req_ids)
        return Prepared(names, starts, ends, context.attn_metadata, context.slot_mapping, tables)

    def step(self, output: Real) -> Json:
        """Prepare a scheduled step; what its rows read and write."""
        self.output = output
        self.runner.execute_model(output)
        return self.rows

    def sampled(self, tokens: dict[str, list[int]], drafts: dict[str, int]) -> None:
        """Hand over what was sampled for the step; rows that sample nothing have one to discard."""
        runner, torch = self.runner, self.torch
        state, runner.execute_model_state = runner.execute_model_state, None
        width = 1 + self.drafts if drafts else 1
        rows = [
            [token % VOCABULARY for token in tokens[name]] or [0]
            for name in runner.input_batch.req_ids
        ]
        padded = torch.tensor([row + [-1] * (width - len(row)) for row in rows], dtype=torch.int32)
        fitting(
            runner._update_states_after_model_execute,
            output_token_ids=padded,
            scheduler_output=self.output,
        )
        runner.input_batch.prev_sampled_token_ids = None
        runner._bookkeeping_sync(
            scheduler_output=self.output,
            sampler_output=Stub(sampled_token_ids=padded),
            logits=None,
            hidden_states=state.hidden_states,
            num_scheduled_tokens=self.output.total_num_scheduled_tokens,
            **self._more(),
        )
        self.marks.settle("after")

    def _more(self) -> dict[str, Real]:
        names = self.runner._bookkeeping_sync.__code__.co_varnames
        return {"spec_decode_metadata": None} if "spec_decode_metadata" in names[:8] else {}


class Empty(NoOp):
    """In place of the sampler and the drafter: a workload names tokens and drafts."""

    def __init__(self, *_: Real, **__: Real) -> None:
        super().__init__()


MODULE_V2 = "vllm.v1.worker.gpu.model_runner"


def empty_of(*_: Real, **__: Real) -> Stub:
    """A stream, or an event on one."""
    return NoOp()


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
        self.module: Real = importlib.import_module(MODULE_V2)
        torch: Real = importlib.import_module("torch")
        self.torch, self.marks = torch, marks
        self.seen: tuple[Real, Real] = None, None
        Copies.watch(self.module, marks)
        device = torch.device("cpu")
        with self._leaves(config):
            self.runner = runner = self.module.GPUModelRunner(config, device)
            runner.sampler = NoOp(penalties_state=Stub(output_bin_counts=None))
            runner.prompt_logprobs_worker = NoOp()
            runner.model = marks.model
            runner.model_state = self.module.init_model_state(config, marks.model, None, device)
            runner.decode_query_len = 1 + marks.drafts
            runner.initialize_kv_cache(caches)
            runner.kv_caches = list(marks.tensors.values())
        runner.model = self._forward
        runner.cudagraph_manager = Eager(self.module)
        runner.kv_block_zeroer = NoOp()

    @contextmanager
    def _leaves(self, config: Real) -> Iterator[None]:
        module, marks = self.module, self.marks
        buffers: Real = importlib.import_module("vllm.v1.worker.gpu.buffer_utils")
        shared = Shared if hasattr(buffers.UvaBuffer, "uva") else SharedWhole
        rank = Stub(is_first_rank=True, is_last_rank=True, world_size=1, rank_in_group=0)
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


class Runs(Server):
    """A server whose steps run on the release's model runner."""

    def __init__(self, release: Release, config: Json) -> None:
        super().__init__(release, config)
        sizes = [group["block"] for group in config["groups"]]
        self.settings.cache_config.block_size = min(sizes)  # as the engine core sets it
        specs = [self._spec(group) for group in config["groups"]]
        self.marks = Marks(config, specs)
        compilation: Real = self.settings.compilation_config
        compilation.cudagraph_mode = type(compilation.cudagraph_mode).NONE
        context = compilation.static_forward_context
        context.clear()
        context.update(self.marks.context())
        made = RunnerV2 if getattr(self.settings, "use_v2_model_runner", False) else RunnerV1
        self.runner = made(self.settings, self._caches(config, specs), self.marks)
        self.steps: list[Json] = []
        self.schedules = self.scheduler.schedule
        self.scheduler.schedule = self._scheduled

    def _scheduled(self) -> Real:
        output = self.schedules()
        if not output.total_num_scheduled_tokens:
            self.runner.runner.execute_model(output)
        return output

    def _caches(self, config: Json, specs: list[Real]) -> Real:
        interface = self.release.caches.interface
        return fitting(
            interface.KVCacheConfig,
            num_blocks=config["blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[
                fitting(
                    interface.KVCacheGroupSpec,
                    layer_names=[f"layer{number}"],
                    kv_cache_spec=spec,
                    is_eagle_group=bool(config["groups"][number].get("eagle")),
                )
                for number, spec in enumerate(specs)
            ],
        )

    def _spec(self, group: Json) -> Real:
        if group["kind"] != "mamba":
            return self.release.caches.spec(group, block=group["block"])
        torch, drafts = importlib.import_module("torch"), group.get("speculative_blocks", 0)
        return fitting(
            self.release.caches.interface.MambaSpec,
            block_size=group["block"],
            shapes=((WINDOW + drafts, 1), (1,)),
            dtypes=(torch.int64, torch.int64),
            mamba_cache_mode=group.get("mode", "align"),
            num_speculative_blocks=drafts,
            page_size_padded=8 * max(group["block"], WINDOW + drafts + 1),
        )

    def play(self, group: Json) -> Json:
        self.steps = []
        done = super().play(group)
        return done if "requests" not in done else {"steps": self.steps}

    def hand_over(self, step: Real, sampled: Mapping[str, list[int]]) -> None:
        if not step.num_scheduled_tokens:  # all requests wait for a load
            self.steps.append({"rows": {}, "copies": {}})
            super().hand_over(step, sampled)
            return
        rows = self.runner.step(step)
        drafted = {name: len(each) for name, each in step.scheduled_spec_decode_tokens.items()}
        with self.runner.torch.inference_mode():
            self.runner.sampled(dict(sampled), drafted)
        self.steps.append({"rows": rows, "copies": self.marks.moved()})
        super().hand_over(step, sampled)


def interpret_kernels(folder: str, version: str) -> None:
    """Triton from a folder, as an interpreter: before anything of the release is imported.

    The release looks for its own version before it uses Triton. The language is prepared for the
    interpreter once; Triton does so again at every call of a kernel, each time around what it had
    done before.
    """
    sys.path.append(folder)
    os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    installed = metadata.version
    vars(metadata)["version"] = lambda name: version if name == "vllm" else installed(name)
    interpreter: Real = importlib.import_module("triton.runtime.interpreter")
    prepare, done = interpreter._patch_lang, list[Real]()

    def once(kernel: Real) -> Real:
        if not done:
            done.append(prepare(kernel))
        return NoOp()

    interpreter._patch_lang = once


def pin_nothing() -> None:
    """Ignore a request for pinned memory, which a CPU does not have."""
    torch: Real = importlib.import_module("torch")
    for name in ("empty", "full", "ones", "tensor", "zeros"):
        setattr(torch, name, _unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_: self


def _unpinned(made: Real) -> Real:
    def plain(*given: Real, pin_memory: bool = False, **named: Real) -> Real:
        del pin_memory
        return made(*given, **named)

    return plain


def results_of(release: Release, wanted: Json) -> list[Json]:
    """All groups of a workload up to the first that ends in an error."""
    return play_groups(wanted["steps"], Runs(release, wanted["config"]).play)


def main() -> None:
    """Run workloads until the input ends."""
    answers = own_output()
    logging.disable(logging.WARNING)
    root, version, kernels = sys.argv[1:]
    interpret_kernels(kernels, version)
    pin_nothing()
    answer_lines(answers, partial(results_of, Release(root)))


if __name__ == "__main__":
    main()
