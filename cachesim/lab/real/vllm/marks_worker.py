"""Numbers in place of keys, values and states: each block holds its own number, so a copy shows.

Block `b` of a recurrent state holds `b`; row `i` of its convolution window holds `b * ROWS + i`.
What a kernel of the release has moved is found by comparing, then the numbers are put back. What
the layers would read and write is in the metadata that the release's builders make. Runs in the
worker.
"""

import dataclasses
import importlib
from functools import cached_property
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from cachesim.lab.real.worker_side import Stub, fitting

Json = Any
Real = Any  # modules, classes and objects of the release: known only when it runs

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
        """Nothing is computed."""
        return hidden

    def modules(self) -> list[Real]:
        """Nothing that another model state would be chosen for."""
        return []


class Prepared(NamedTuple):
    """A step up to the network, rows in the runner's order."""

    names: list[str]
    starts: list[int]  # of the rows' tokens, and the end of all
    ends: list[int]  # positions
    metadata: Real  # by layer
    slots: Real  # by layer
    tables: list[Real]  # by group: a row for each request


class Layer:
    """Memory of a layer of the network."""

    def __init__(self, kv_cache: Real) -> None:
        self.kv_cache = kv_cache


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
        self.before = [each.clone() for each in (self.pages, self.windows, self.states)]
        self.copies: dict[str, list[Json]] = {}

    @property
    def tensors(self) -> dict[str, Real]:
        return {"pages": self.pages, "windows": self.windows, "states": self.states}

    def context(self) -> dict[str, Real]:
        return {
            f"layer{group}": Layer([self.windows, self.states])
            for group, each in enumerate(self.groups)
            if each["kind"] == "mamba"
        }

    def attention(self, config: Real) -> Real:
        """By group, the builders of metadata for its layers with states."""
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
        found = []
        pages, windows, states = (
            (now != before).flatten(1).any(1).nonzero().flatten().tolist()
            for now, before in zip(
                (self.pages, self.windows, self.states), self.before, strict=True
            )
        )
        for block in sorted({*pages, *windows, *states}):
            state, first = int(self.states[block, 0]), int(self.windows[block, 0, 0])
            found.append([block, state, *divmod(first, ROWS)])
        self.copies.setdefault(phase, []).extend(found)
        for now, before in zip((self.pages, self.windows, self.states), self.before, strict=True):
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
                    group: self._seen(each, step.tables[group][row], begin, step.ends[row])
                    for group, each in enumerate(self.groups)
                    if each["kind"] != "mamba"
                },
                **{
                    kind: {group: found[row] for group, found in each.items()}
                    for kind, each in reads.items()
                },
            }
        return rows

    def _seen(self, group: Json, table: Real, begin: int, end: int) -> list[int]:
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
        everywhere = self.groups[group].get("mode") == "all"
        if not everywhere:
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
        """By prefill, its blocks and whose state each gets: `MambaMixer2` writes, with no kernel.

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
        return found


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
        """Have the copies of a module noted; releases until 0.25 have none."""
        cls.marks = marks
        vars(importlib.import_module("vllm.v1.worker.mamba_utils"))[TILES] = 1
        copies = getattr(module, COPIES, None)
        if copies is not None and not isinstance(copies, cls):
            setattr(module, COPIES, cls(copies))
