"""Runs with an unpacked wheel at hand: which state each request's row of a batch is computed from.

One line of JSON in, one line out: a batch goes in (a row for each request: tokens, drafts, what was
accepted, its block table), for each kind of recurrent layers the blocks come out that its kernel is
handed to read. The release's own are Model Runner V2's `prepare_attn` for models with states and
the metadata builders; a kernel reads column `accepted - 1` of a speculative row, and the one block
that a plain row names.
"""

import importlib
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

from cachesim.real.vllm.release_worker import install
from cachesim.real.vllm.worker_settings import Start
from cachesim.real.worker_side import Bag, answer_lines, fitting, own_output

Json = Any
Real = Any  # modules, classes and objects of the release: known only when it runs


class Runner:
    """The parts of a release's model runner that say which states are read."""

    def __init__(self, root: str) -> None:
        install(Path(root))
        self.start = Start()
        triton: Real = importlib.import_module("vllm.triton_utils").triton
        triton.Config = lambda kwargs, **named: Bag(kwargs=kwargs, **named)  # of kernels
        self.torch: Real = importlib.import_module("torch")
        utilities: Real = importlib.import_module("vllm.utils.torch_utils")
        utilities.PIN_MEMORY = False  # a CPU pins no memory
        self.numpy: Real = importlib.import_module("numpy")
        self.states: Real = importlib.import_module("vllm.v1.worker.gpu.model_states.mamba_hybrid")
        self.interface: Real = importlib.import_module("vllm.v1.kv_cache_interface")
        self.backend: Real = importlib.import_module("vllm.v1.attention.backend")
        self.builders = {
            "delta": importlib.import_module(
                "vllm.v1.attention.backends.gdn_attn"
            ).GDNAttentionMetadataBuilder,
            "ssm": importlib.import_module(
                "vllm.v1.attention.backends.mamba2_attn"
            ).Mamba2AttentionMetadataBuilder,
        }

    def read(self, batch: Json) -> dict[str, Json]:
        """The block that each row's kernel reads, by kind of layer; which runner a start has."""
        config = self.start.used(batch["config"])
        told = self._prepared(config, batch)
        found: dict[str, Json] = {"v2": bool(getattr(config, "use_v2_model_runner", False))}
        return found | {kind: self._built(kind, config, batch, told) for kind in self.builders}

    def _prepared(self, config: Real, batch: Json) -> Real:
        """What Model Runner V2 hands to the builders for the batch."""
        torch, rows = self.torch, batch["rows"]
        counts = self.numpy.array([row["tokens"] for row in rows], dtype=self.numpy.int32)
        starts = self.numpy.concatenate([[0], counts.cumsum()]).astype(self.numpy.int32)
        drafts = self.numpy.array([row["drafts"] for row in rows], dtype=self.numpy.int32)
        ends = torch.tensor([row["end"] for row in rows], dtype=torch.int32)
        reading = self.numpy.array([bool(row["reading"]) for row in rows])
        asked = Bag(
            num_reqs=len(rows),
            num_reqs_after_padding=len(rows),
            num_tokens=int(counts.sum()),
            num_scheduled_tokens=counts,
            query_start_loc_np=starts,
            query_start_loc=torch.from_numpy(starts),
            seq_lens=ends,
            seq_lens_cpu_upper_bound=ends,
            is_prefilling_np=reading,
            num_draft_tokens_per_req=drafts if drafts.any() else None,
            idx_mapping=torch.arange(len(rows)),
        )
        state = Bag(
            vllm_config=config,
            max_model_len=config.model_config.max_model_len,
            num_accepted_tokens_gpu=torch.tensor(
                [row["accepted"] for row in rows], dtype=torch.int32
            ),
            _align_mode=False,  # its running states have moved already
        )
        handed: dict[str, Real] = {}
        self.states.build_attn_metadata = lambda **named: handed.update(named)
        prepare = self.states.MambaHybridModelState.prepare_attn
        fitting(
            partial(prepare, state),
            input_batch=asked,
            cudagraph_mode=None,
            block_tables=(),
            slot_mappings=None,
            attn_groups=[],
            kv_cache_config=None,
        )
        return handed

    def _built(self, kind: str, config: Real, batch: Json, handed: Real) -> list[int]:
        torch, rows = self.torch, batch["rows"]
        spec = fitting(
            self.interface.MambaSpec,
            block_size=batch["block"],
            shapes=((1, 1), (1, 1)),
            dtypes=(torch.bfloat16, torch.bfloat16),
            mamba_cache_mode=batch["mode"],
            num_speculative_blocks=batch["config"]["drafts"],
        )
        builder = self.builders[kind](spec, ["layer"], config, torch.device("cpu"))
        longest = max(len(row["table"]) for row in rows)
        tables = [row["table"] + [0] * (longest - len(row["table"])) for row in rows]
        known = handed["model_specific_attn_metadata"]
        common = fitting(
            self.backend.CommonAttentionMetadata,
            query_start_loc=handed["query_start_loc_gpu"],
            query_start_loc_cpu=handed["query_start_loc_cpu"],
            seq_lens=handed["seq_lens"],
            num_reqs=len(rows),
            num_actual_tokens=handed["num_tokens"],
            max_query_len=handed["max_query_len"],
            max_seq_len=handed["max_seq_len"],
            block_table_tensor=torch.tensor(tables, dtype=torch.int32),
            slot_mapping=torch.zeros(handed["num_tokens"], dtype=torch.int64),
            seq_lens_cpu_upper_bound=handed["seq_lens_cpu_upper_bound"],
            is_prefilling=known.is_prefilling,
        )
        more = known.get_extra_attn_kwargs(builder, len(rows))
        built = builder.build(0, common, **more)
        return self._blocks(kind, built, rows, more)

    def _blocks(self, kind: str, built: Real, rows: Json, more: Json) -> list[int]:
        accepted = [row["accepted"] for row in rows]
        if kind == "ssm":
            count = built.num_decodes
            decoded = built.state_indices_tensor_d
            offsets = [0] * count
            if built.num_accepted_tokens is not None:
                offsets = [int(each) - 1 for each in built.num_accepted_tokens[:count]]
            found = [int(decoded[row][offset]) for row, offset in enumerate(offsets)]
            read = built.state_indices_tensor_p if built.num_prefills else ()
            return found + [int(each) for each in read]
        speculative = built.spec_sequence_masks
        if speculative is None:
            return [int(each) for each in built.non_spec_state_indices_tensor[: len(rows)]]
        marks = more["num_decode_draft_tokens_cpu"] >= 0
        spec, plain, found = 0, 0, []
        for row, marked in enumerate(marks.tolist()):
            if marked:
                found.append(int(built.spec_state_indices_tensor[spec][accepted[row] - 1]))
                spec += 1
            else:
                found.append(int(built.non_spec_state_indices_tensor[plain]))
                plain += 1
        return found


def main() -> None:
    """Answer batches until the input ends."""
    answers = own_output()
    logging.disable(logging.WARNING)
    answer_lines(answers, Runner(sys.argv[1]).read)


if __name__ == "__main__":
    main()
