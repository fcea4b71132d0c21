"""A round of speculative decoding on the real scheduler, without a drafter.

The release's own code reserves slots, commits verified tokens, and frees the rest; a workload has
the number that each round accepts. Runs in the worker.
"""

import importlib

from cachesim.prove.worker_side import Json, Real, Stub

ALLOCATORS = ("mem_cache.allocation", "speculative.spec_utils")
"""Modules that write slots into rows by a kernel."""


def write_rows(rows: Real, table: Real, starts: Real, ends: Real, slots: Real, _count: int) -> None:
    """Write slots into rows, in place of `assign_req_to_token_pool`."""
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = slots[at : at + end - start].to(table.dtype)
        at += end - start


def last_slots(table: Real, rows: Real, lengths: Real) -> Real:
    """The slot before each row's end, in place of `get_last_loc_triton`."""
    torch = importlib.import_module("torch")
    found = table[rows.long(), (lengths.long() - 1).clamp(min=0)]
    return torch.where(lengths > 0, found, torch.full_like(found, -1))


class _OnCpu:
    """PyTorch without a device that a call names."""

    def __init__(self, torch: Real) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Real:
        return getattr(self._torch, name)

    def zeros(self, *given: Real, **named: Real) -> Real:
        """A tensor of zeros."""
        return self._torch.zeros(*given, **named | {"device": "cpu"})


def install() -> None:
    """Compute in Python what the reservation launches as kernels; 0.5.9 has states for drafts that
    are on a GPU.
    """
    vars(importlib.import_module("sglang.srt.mem_cache.memory_pool"))["torch"] = _OnCpu(
        importlib.import_module("torch")
    )
    for name in ALLOCATORS:
        try:
            module = importlib.import_module(f"sglang.srt.{name}")
        except ImportError:
            continue
        names = {"assign_req_to_token_pool_func": write_rows, "get_last_loc_triton": last_slots}
        vars(module).update({each: names[each] for each in names if hasattr(module, each)})


def accepted(wanted: Json, drafts: Json, rounds: int) -> int:
    """Tokens of a round: those of a workload in turn, as far as a path of drafts goes."""
    counts = wanted.get("accepts") or [1]
    most = min(drafts["steps"], drafts["tokens"] - 1) + 1
    return int(min(counts[rounds % len(counts)], most))


def verified(runs: list[list[int]], width: int, common: Json) -> Real:
    """The result of a round, as a worker returns it."""
    torch = importlib.import_module("torch")
    padded = [run + [0] * (width - len(run)) for run in runs]
    return Stub(
        **common
        | {
            "next_token_ids": torch.tensor(padded).flatten(),
            "accept_lens": torch.tensor([len(run) for run in runs]),
            "speculative_output_stride": width,
            "num_non_draft_tokens_per_req": 1,
            "grammar_retained_tokens": None,
        }
    )


def advance(batch: Real, result: Real) -> None:
    """Lengthen a batch's sequences by the verified tokens. Follows `run_batch`."""
    batch.seq_lens = batch.seq_lens + result.accept_lens
    batch.seq_lens_cpu = batch.seq_lens.cpu()
    batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())


class Launch:
    """A kernel's place: started as `kernel[grid](...)`, computed by a plain function."""

    def __init__(self, function: Real) -> None:
        self.function = function

    def __getitem__(self, _grid: Real) -> Real:
        return self.function


def keep_started_pages(lengths: Real, evicted: Real, page: int, width: int, _upper: int) -> None:
    """Keep the rejected slots of a page with accepted ones (`align_evict_mask_to_page_size`)."""
    rows = evicted.view(-1, width)
    for row, length in zip(rows, lengths.tolist(), strict=True):
        kept = width - int(row.sum())
        start = (length + kept - 1) // page * page - length
        row[max(start, 0) : min(start + page, width)] = False


class _Greedy(Stub):
    """Sampling of a batch without penalties."""

    def __init__(self, count: int) -> None:
        super().__init__(is_all_greedy=True, penalizer_orchestrator=Stub())
        self.count = count

    def __len__(self) -> int:
        return self.count


def verified_while_drafted(
    batch: Real, runs: list[list[int]], drafts: Json, page: int, allocator: Real
) -> Real:
    """Draft and verify; the requests have their tokens then. Follows 0.5.9's `EAGLEWorker`.

    Slots are allocated meanwhile. Its own functions allocate, accept and free; a workload has the
    accepted tokens.
    """
    torch, worker, info = (
        importlib.import_module(name)
        for name in (
            "torch",
            "sglang.srt.speculative.eagle_worker",
            "sglang.srt.speculative.eagle_info",
        )
    )
    width, steps, topk = (drafts[each] for each in ("tokens", "steps", "topk"))
    order = torch.arange(len(runs) * width).view(-1, width)

    def accept(predicts: Real, accept_index: Real, accept_token_num: Real, **_: Real) -> Real:
        for row, run in enumerate(runs):
            for at, token in enumerate(run):
                predicts[order[row, at]] = token
                accept_index[row, at] = order[row, at]
            accept_token_num[row] = len(run) - 1
        return predicts, accept_index, accept_token_num

    vars(worker).update(assign_draft_cache_locs=Launch(lambda *_: None))
    vars(info).update(
        align_evict_mask_to_page_size=Launch(keep_started_pages),
        assign_req_to_token_pool_func=write_rows,
        TREE_SPEC_KERNEL_AVAILABLE=False,
        verify_tree_greedy_func=accept,
    )
    drafter = Stub(
        page_size=page,
        topk=topk,
        speculative_num_steps=steps,
        device="cpu",
        extend_lens=None,
        num_new_pages_per_topk=None,
        token_to_kv_pool_allocator=allocator,
    )
    batch.spec_info = Stub(hidden_states=torch.zeros(len(runs) * width))
    worker.EAGLEWorker._draft_preprocess_decode(drafter, batch)
    asked = info.EagleVerifyInput(
        draft_token=torch.zeros(len(runs) * width, dtype=torch.long),
        custom_mask=None,
        positions=None,
        retrive_index=order,
        retrive_next_token=None,
        retrive_next_sibling=None,
        retrive_cum_len=None,
        spec_steps=steps,
        topk=topk,
        draft_token_num=width,
        capture_hidden_mode=None,
        seq_lens_sum=0,
        seq_lens_cpu=batch.seq_lens_cpu,
    )
    asked.prepare_for_verify(batch, page)
    logits = Stub(next_token_logits=torch.zeros(len(runs) * width, 1))
    sampling, batch.sampling_info = batch.sampling_info, _Greedy(len(runs))
    found = asked.verify(batch, logits, allocator, page, None)
    batch.sampling_info, batch.spec_info = sampling, None
    return Stub(
        next_token_ids=found.verified_id,
        accept_length_per_req_cpu=found.accept_length_per_req_cpu,
        num_accepted_tokens=sum(found.accept_length_per_req_cpu),
        can_run_cuda_graph=False,
    )
