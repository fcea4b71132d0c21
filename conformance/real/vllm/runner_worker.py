"""With an unpacked wheel: workloads on vLLM's own scheduler and model runner.

One line of JSON in, one line out, as for the scheduler alone. Results are, step by step, the blocks
that every layer would read and write for each request, and the copied states. Kernels run in
Triton's interpreter.

Numbers stand in place of keys, values and states, so that a copy shows: block `b` of a recurrent
state holds `b`; row `i` of its convolution window holds `b * ROWS + i`. Moves by a kernel of the
release are found by comparing, then undone. The layers' reads and writes are in the metadata of the
release's builders.
"""

import dataclasses
import importlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import metadata
from types import SimpleNamespace
from typing import Final, NamedTuple
from unittest.mock import patch

from cachesim.prove.worker_side import (
    Json,
    NoOp,
    Real,
    Stub,
    answer_lines,
    fitting,
    own_output,
    play_groups,
    unpinned,
)
from conformance.real.vllm.caches_worker import exporting
from conformance.real.vllm.scheduler_worker import Release, Server

ROWS: Final = 64
WINDOW: Final = 3
"""Tokens that a convolution looks back on."""

TILES: Final = "_TEMPORAL_TILES"
"""Kernel programs that share the copy of a state; here each state is one number."""

COPIES: Final = "copy_kv_cache_blocks_inplace"

PEELED: Final = "prefill_has_initial_state"
"""With this field rows of one token go through the kernel of decodes beside prefill ones."""

MIXER: Final = "vllm.model_executor.layers.mamba.mamba_mixer2"

PREVIOUS: Final = "block_idx_last_scheduled_token_prev_step"  # not in 0.19

BUILDERS: Final = {
    "delta": ("vllm.v1.attention.backends.gdn_attn", "GDNAttentionBackend"),
    "ssm": ("vllm.v1.attention.backends.mamba2_attn", "Mamba2AttentionBackend"),
}


class Model:
    """A stub of a network, with the copies of its states alone."""

    @cached_property
    def copies(self) -> Real:
        module: Real = importlib.import_module("vllm.model_executor.layers.mamba.mamba_utils")
        return module.get_conv_copy_spec, module.get_temporal_copy_spec

    def get_mamba_state_copy_func(self) -> Real:
        return self.copies

    def get_mamba_state_copy_funcs(self, types: Real) -> Real:
        return dict.fromkeys(types, self.copies)

    def compute_logits(self, hidden: Real) -> Real:
        """Compute nothing."""
        return hidden

    def modules(self) -> list[Real]:
        """No modules, so no other model state is chosen."""
        return []


class Prepared(NamedTuple):
    """A step up to the network, rows in the runner's order."""

    names: list[str]
    starts: list[int]  # of the rows' tokens, and the end of all
    ends: list[int]  # positions
    metadata: Real  # by layer
    slots: Real  # by layer
    tables: list[Real]  # by group: a row for each request


class Marks:
    """The memory of one server."""

    def __init__(self, config: Json, specs: list[Real]) -> None:
        self.torch: Real = importlib.import_module("torch")
        self.specs = specs
        self.groups, self.drafts = config["groups"], config.get("drafts", 0)
        self.scan_size = config.get("scan_size", 0)
        blocks, self.model = config["blocks"], Model()
        self.pages = self.torch.arange(blocks)[:, None].clone()
        width = WINDOW + self.drafts
        window = self.torch.arange(width)[None, :, None]
        self.windows = self.torch.arange(blocks)[:, None, None] * ROWS + window
        self.states = self.torch.arange(blocks)[:, None].clone()
        self.before = [tensor.clone() for tensor in self.tensors.values()]
        self.copies: dict[str, list[Json]] = {}

    @property
    def tensors(self) -> dict[str, Real]:
        return {"pages": self.pages, "windows": self.windows, "states": self.states}

    def context(self) -> dict[str, Real]:
        return {
            f"layer{group}": SimpleNamespace(kv_cache=[self.windows, self.states])
            for group, each in enumerate(self.groups)
            if each["kind"] == "mamba"
        }

    def attention(self, config: Real) -> Real:
        """Builders of metadata for layers with states, by group."""
        utils: Real = importlib.import_module("vllm.v1.worker.utils")
        support: Real = Stub()  # of CUDA graphs
        support.narrow = lambda *_: support
        device, found = self.torch.device("cpu"), []
        for number, spec in enumerate(self.specs):
            groups = []
            for kind in self._kinds(number):
                module, backend = BUILDERS[kind]
                group = fitting(
                    utils.AttentionGroup,
                    backend=getattr(importlib.import_module(module), backend),
                    layer_names=[f"layer{number}.{kind}"],
                    kv_cache_spec=spec,
                    kv_cache_group_id=number,
                )
                fitting(group.create_metadata_builders, vllm_config=config, device=device)
                for builder in group.metadata_builders if self.scan_size else ():
                    if hasattr(builder, "chunk_size"):
                        builder.chunk_size = self.scan_size
                groups.append(group)
            found.append(groups)
        return found, support, [each.block_size for each in self.specs]

    def _kinds(self, number: int) -> tuple[str, ...]:
        """The kinds of layers of a group: gated-delta ones have no mode `all`."""
        group = self.groups[number]
        if group["kind"] != "mamba":
            return ()
        return ("ssm",) if group.get("mode") == "all" else tuple(BUILDERS)

    def settle(self, phase: str) -> None:
        """Record the copies, and restore the numbers."""
        pairs = list(zip(self.tensors.values(), self.before, strict=True))
        changed = set[int]()
        for now, before in pairs:
            changed |= {*(now != before).flatten(1).any(1).nonzero().flatten().tolist()}
        self.copies.setdefault(phase, []).extend(
            [block, int(self.states[block, 0]), *divmod(int(self.windows[block, 0, 0]), ROWS)]
            for block in sorted(changed)
        )
        for now, before in pairs:
            now.copy_(before)

    # -- a step ------------------------------------------------------------------------------------

    def moved(self) -> Json:
        copies, self.copies = self.copies, {}
        return {phase: found for phase, found in copies.items() if found}

    def rows(self, step: Prepared) -> Json:
        """Reads and writes of each row, by request.

        To be called where the network would run: the metadata looks at memory of the runner.
        """
        rows = {}
        read = {"delta": self._delta, "ssm": self._ssm}
        reads: dict[str, dict[int, list[Json]]] = {}
        for group in range(len(self.groups)):
            for kind in self._kinds(group):
                reads.setdefault(kind, {})[group] = read[kind](step, group)
        for row, name in enumerate(step.names):
            first, last = step.starts[row : row + 2]
            begin = step.ends[row] - (last - first)
            rows[name] = {
                "chunk": [begin, step.ends[row]],
                "slots": {
                    group: step.slots[f"layer{group}"][first:last].tolist()
                    for group, each in enumerate(self.groups)
                    if each["kind"] != "mamba"
                },
                "seen": {
                    group: self._visible_blocks(
                        each, step.tables[group][row], begin, step.ends[row]
                    )
                    for group, each in enumerate(self.groups)
                    if each["kind"] != "mamba"
                },
                **{
                    kind: {group: found[row] for group, found in each.items()}
                    for kind, each in reads.items()
                },
            }
        return rows

    def _visible_blocks(self, group: Json, table: Real, begin: int, end: int) -> list[int]:
        """The blocks that a chunk's first token, or a later one, attends to."""
        size, low = group["block"], 0
        if group["kind"] == "window":
            low = max(0, begin - group["window"] + 1)
        elif group["kind"] == "chunked":
            low = begin // group["chunk"] * group["chunk"]
        return [int(each) for each in table[low // size : (end - 1) // size + 1]]

    def _ssm(self, step: Prepared, group: int) -> list[Json]:
        """Block read (none for a prefix of nothing) and blocks written, row by row."""
        built = step.metadata[f"layer{group}.ssm"]
        if self.groups[group].get("mode") != "all":
            return self._ssm_last(step, built)
        return self._ssm_all(step, built, self.specs[group].block_size)

    def _ssm_last(self, step: Prepared, built: Real) -> list[Json]:
        found: list[Json] = []
        accepted = built.num_accepted_tokens
        for row in range(built.num_decodes):
            count = step.starts[row + 1] - step.starts[row]
            table = built.state_indices_tensor_d[row].reshape(-1).tolist()
            offset = 0 if accepted is None else int(accepted[row]) - 1
            found.append([table[offset], table[: count if accepted is not None else 1]])
        for row in range(built.num_prefills):
            block = int(built.state_indices_tensor_p[row])
            found.append([block if built.has_initial_states_p[row] else None, [block]])
        return self._exported(step, getattr(built, "checkpoint_meta", None), found)

    def _exported(self, step: Prepared, exported: Real, found: list[Json]) -> list[Json]:
        """Add the block and the position of each state that the kernel exports on its way."""
        if exported is None:
            return found
        rows = exported.request_rows.tolist()
        offsets, blocks = exported.checkpoint_offsets.tolist(), exported.state_indices.tolist()
        for row, offset, block in zip(rows, offsets, blocks, strict=True):
            if offset and block:
                begin = step.ends[row] - (step.starts[row + 1] - step.starts[row])
                found[row].append([block, begin + offset])
        return found

    def _ssm_all(self, step: Prepared, built: Real, block: int) -> list[Json]:
        """A state in every block that is passed: as `MambaMixer2` picks the columns."""
        found: list[Json] = []
        computed, last = built.block_idx_last_computed_token, built.block_idx_last_scheduled_token
        before: Real = getattr(built, PREVIOUS, None)
        if self.drafts and built.num_decodes and before is None:  # as `MambaMixer2` does
            raise AssertionError(PREVIOUS)
        source: Json
        for row in range(built.num_decodes):
            count = step.starts[row + 1] - step.starts[row]
            table = built.state_indices_tensor_d[row].tolist()
            accepted, end = built.num_accepted_tokens, int(last[row])
            offset = 0 if accepted is None else int(accepted[row]) - 1
            source = int(computed[row]) if not self.drafts else int(before[row]) + offset
            written = table[end : end + (1 if accepted is None else count)]
            found.append([table[source], written])
        for row in range(built.num_prefills):
            table, place = built.state_indices_tensor_p[row].tolist(), row + built.num_decodes
            first = int(built.block_idx_first_scheduled_token_p[row])
            initial = built.has_initial_states_p[row]
            source = table[int(computed[place])] if initial else None
            found.append([source, table[first : int(last[place]) + 1]])
        if self.scan_size and block % self.scan_size and built.num_prefills:
            scanned = self._scanned(step, built, block)
            for row, taken in zip(found[built.num_decodes :], scanned, strict=True):
                row.append(taken)
        return found

    def _scanned(self, step: Prepared, built: Real, block: int) -> list[Json]:
        """Blocks of each prefill and the states written to them (`MambaMixer2`, without a kernel).

        In place of a state is the number of the chunk that it stands after.
        """
        torch, mixer = self.torch, importlib.import_module(MIXER)
        decodes, tokens = built.num_decodes, int(built.query_start_loc_p[-1])
        states = torch.full((len(self.states), 1, 1, 1), -1)
        ends = built.cu_chunk_seqlen_p.tolist()[1:]
        chunks = torch.arange(len(ends))[:, None, None, None]
        named = ("block_idx_last_computed_token", "block_idx_last_scheduled_token", PREVIOUS)
        rest = {
            name: getattr(built, name)[decodes:]
            for name in named
            if getattr(built, name, None) is not None
        }
        last = rest["block_idx_last_scheduled_token"]
        only = dataclasses.replace(built, num_decodes=0, num_decode_tokens=0, **rest)
        layer = Stub(
            **dict.fromkeys(("num_heads", "tp_size", "n_groups", "head_dim"), 1),
            **dict.fromkeys(("tped_conv_size", "tped_dt_size"), 1),
            **dict.fromkeys(("A", "D", "dt_bias", "conv_weights", "activation")),
            conv1d=Stub(bias=None),
            tped_intermediate_size=0,
            prefix="layer",
            num_spec=self.drafts,
            use_replayssm=False,
            kv_cache=(torch.zeros(1, 1, 1), states),
            cache_config=Stub(mamba_block_size=block, mamba_cache_mode="all"),
            split_hidden_states_B_C_fn=lambda each: (each, each, each),
        )
        with patch.multiple(
            mixer,
            get_forward_context=lambda: Stub(attn_metadata={"layer": only}),
            causal_conv1d_fn=lambda each, *_, **__: each,
            mamba_chunk_scan_combined_varlen=lambda *_, **__: chunks,
        ):
            mixer.MambaMixer2.conv_ssm_forward(
                layer, torch.zeros(tokens, 2), torch.zeros(tokens, 1)
            )
        found = []
        for row in range(built.num_prefills):
            table = built.state_indices_tensor_p[row].tolist()
            written = table[int(only.block_idx_first_scheduled_token_p[row]) : int(last[row]) + 1]
            found.append([[each, *self._end(step, built, int(states[each]))] for each in written])
        return found

    def _end(self, step: Prepared, built: Real, chunk: int) -> list[Json]:
        """The request of a kernel's chunk, and the position at which it ends."""
        row = int(built.seq_idx_p[chunk]) + built.num_decodes
        begun = int(built.query_start_loc_p[row - built.num_decodes + 1])
        left = begun - int(built.cu_chunk_seqlen_p[chunk + 1])
        return [step.names[row], step.ends[row] - left]

    def _delta(self, step: Prepared, group: int) -> list[Json]:
        built = step.metadata[f"layer{group}.delta"]
        marked = built.spec_sequence_masks
        marks = [False] * len(step.names) if marked is None else marked.tolist()
        peeled = built.num_decodes if marked is None and PEELED in vars(built) else 0
        initial = built.has_initial_state if built.num_prefills else None
        found: list[Json] = []
        spec = plain = 0
        for row in range(len(step.names)):
            if marks[row]:
                count = step.starts[row + 1] - step.starts[row]
                table = built.spec_state_indices_tensor[spec].tolist()
                found.append([table[int(built.num_accepted_tokens[spec]) - 1], table[:count]])
                spec += 1
                continue
            block = int(built.non_spec_state_indices_tensor[plain])
            fresh = initial is not None and plain >= peeled and not initial[plain]
            found.append([None if fresh else block, [block]])
            plain += 1
        return self._exported(step, getattr(built, "checkpoint", None), found)


class Copies:
    """A release's copies of whole blocks, and a check of the moved ones."""

    marks: Marks

    def __init__(self, copies: Real) -> None:
        self.copies = copies

    def __call__(self, *given: Real) -> None:
        self.copies(*given)
        self.marks.settle("pages")

    @classmethod
    def watch(cls, module: Real, marks: Marks) -> None:
        """Record the copies of a module; releases until 0.25 have none."""
        cls.marks = marks
        vars(importlib.import_module("vllm.v1.worker.mamba_utils"))[TILES] = 1
        copies = getattr(module, COPIES, None)
        if copies is not None and not isinstance(copies, cls):
            setattr(module, COPIES, cls(copies))


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
            group.kv_cache_spec.block_size for group in caches.kv_cache_groups
        ]
        self.torch.Event = cuda.Event = cuda.Stream = lambda *_, **__: NoOp()
        Copies.watch(module, self.marks)

    def _made(self) -> Real:
        marks, recorder = self.marks, self

        class Prepares(self.module.GPUModelRunner):  # type: ignore[misc, name-defined]
            """Stops where the network would begin."""

            def _init_device_properties(self) -> None:
                self.num_sms = 1

            def _skip(self, *_: Real, **__: Real) -> None:
                """Nothing to wait for or to clear; builders are made with the backends."""

            _sync_device = _zero_block_ids = initialize_metadata_builders = _skip

            def initialize_attn_backend(self, *_: Real, **__: Real) -> None:
                self.attn_groups, *_rest = marks.attention(self.vllm_config)
                self.calculate_reorder_batch_threshold()

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
        """Prepare a scheduled step; return its rows' reads and writes."""
        self.output = output
        self.runner.execute_model(output)
        return self.rows

    def sampled(self, tokens: dict[str, list[int]], drafts: dict[str, int]) -> None:
        """Pass the step's sampled tokens; rows without one get one to discard."""
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
        names = runner._bookkeeping_sync.__code__.co_varnames
        runner._bookkeeping_sync(
            scheduler_output=self.output,
            sampler_output=Stub(sampled_token_ids=padded),
            logits=None,
            hidden_states=state.hidden_states,
            num_scheduled_tokens=self.output.total_num_scheduled_tokens,
            **({"spec_decode_metadata": None} if "spec_decode_metadata" in names[:8] else {}),
        )
        self.marks.settle("after")


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
        """Prepare a scheduled step; return its rows' reads and writes."""
        runner = self.runner
        runner.execute_model(output)
        state = runner.execute_model_state
        self.batch = state.input_batch
        step = Prepared(
            list(self.batch.req_ids),
            [int(each) for each in self.batch.query_start_loc_np],
            [int(seq_len) for seq_len in self.batch.seq_lens],
            *self.seen,
            runner.block_tables.input_block_tables,
        )
        return self.marks.rows(step)

    def sampled(self, tokens: dict[str, list[int]], drafts: dict[str, int]) -> None:
        """Pass the step's sampled tokens, and the rejected ones."""
        torch, batch, runner = self.torch, self.batch, self.runner
        runner.execute_model_state = None
        width = max(1, *(len(token) for token in tokens.values()))
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
        # Sizes that the engine core hands on to its workers since 0.31.
        found = getattr(self.release.utils, "resolve_cache_hit_alignment_tokens", None)
        if found is not None:
            cache = self.settings.cache_config
            cache.hash_block_size = self.unit
            cache.cache_hit_alignment_tokens = found(self.caches, self.settings, *self.sizes)
        specs = [self._spec(group) for group in config["groups"]]
        self.marks = Marks(config, specs)
        compilation: Real = self.settings.compilation_config
        compilation.cudagraph_mode = type(compilation.cudagraph_mode).NONE
        context = compilation.static_forward_context
        context.clear()
        context.update(self.marks.context())
        made = RunnerV2 if getattr(self.settings, "use_v2_model_runner", False) else RunnerV1
        self.runner = made(self.settings, self._caches(config, specs), self.marks)
        self.runner.runner.lora_config = None  # no weights are loaded
        self.steps: list[Json] = []
        self.late = list[tuple[int, Real]]()  # empty steps, and how many steps run before each
        self.schedules = self.scheduler.schedule
        self.scheduler.schedule = self._scheduled

    def _scheduled(self) -> Real:
        output = self.schedules()
        if not output.total_num_scheduled_tokens:
            self.late.append((len(self.under_way), output))
            self._run_empty()
        return output

    def _run_empty(self) -> None:
        """Empty steps in their turn: one that overtakes takes requests out of the next batch."""
        while self.late and not self.late[0][0]:
            self.runner.runner.execute_model(self.late.pop(0)[1])

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
            **exporting(group),
        )

    def play(self, group: Json) -> Json:
        self.steps = []
        done = super().play(group)
        return done if "requests" not in done else {"steps": self.steps}

    def hand_over(self, step: Real, sampled: Mapping[str, list[int]]) -> None:
        self._hand_over(step, sampled)
        self.late = [(before - 1, output) for before, output in self.late]
        self._run_empty()

    def _hand_over(self, step: Real, sampled: Mapping[str, list[int]]) -> None:
        if not step.num_scheduled_tokens:  # all requests wait for a load
            self.steps.append({"rows": {}, "copies": {}})
            super().hand_over(step, sampled)
            return
        rows = self.runner.step(step)
        drafted = {name: len(token) for name, token in step.scheduled_spec_decode_tokens.items()}
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
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_: self


def main() -> None:
    """Run workloads until the input ends."""
    answers = own_output()
    logging.disable(logging.WARNING)
    root, version, kernels = sys.argv[1:]
    interpret_kernels(kernels, version)
    pin_nothing()
    release = Release(root)
    answer_lines(answers, lambda w: play_groups(w["steps"], Runs(release, w["config"]).play))
