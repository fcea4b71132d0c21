"""Model Runner V1 of a release on a CPU: its own input preparation, kernels interpreted.

`GPUModelRunner` of `vllm.v1.worker` is made by its own `__init__`; a step is its own
`execute_model`, its end the release's own postprocessing. Empty are the network, the sampler, the
drafter and CUDA graphs. Runs in the worker.
"""

import importlib
from typing import Any, Final

from cachesim.lab.real.vllm.marks_worker import Copies, Marks, Prepared
from cachesim.lab.real.worker_side import Bag, Told, fitting

Json = Any
Real = Any  # modules, classes and objects of the release: known only when it runs

MODULE: Final = "vllm.v1.worker.gpu_model_runner"
VOCABULARY: Final = 500
"""Token ids are cut to it: the release drops those outside of the vocabulary."""


class RunnerV1:
    """A release's runner for one configuration."""

    def __init__(self, config: Real, caches: Real, marks: Marks) -> None:
        self.module: Real = importlib.import_module(MODULE)
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
        rank = Bag(is_first_rank=True, is_last_rank=True, world_size=1, rank_in_group=0, ranks=[0])
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
        self.torch.Event = cuda.Event = cuda.Stream = lambda *_, **__: Told()
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
            sampler_output=Bag(sampled_token_ids=padded),
            logits=None,
            hidden_states=state.hidden_states,
            num_scheduled_tokens=self.output.total_num_scheduled_tokens,
            **self._more(),
        )
        self.marks.settle("after")

    def _more(self) -> dict[str, Real]:
        names = self.runner._bookkeeping_sync.__code__.co_varnames
        return {"spec_decode_metadata": None} if "spec_decode_metadata" in names[:8] else {}


class Empty(Told):
    """In place of the sampler and the drafter: a workload names tokens and drafts."""

    def __init__(self, *_: Real, **__: Real) -> None:
        super().__init__()
