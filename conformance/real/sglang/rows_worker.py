"""With an unpacked wheel: the state that each row of a batch reads, and writes.

The scheduler runs a workload as in `scheduler_worker`. For each batch the release's own model
runner makes its `ForwardBatch`, clears and copies states, and its backend of linear attention makes
the metadata and copies tracked states. In place of a kernel, the state in a slot is the number of a
text: of the tokens that a recurrent layer would have folded in.
"""

import importlib
from functools import partial
from types import SimpleNamespace

from cachesim.prove.worker_side import (
    Json,
    NoOp,
    Real,
    Stub,
    answer_lines,
    own_output,
    play_groups,
)
from conformance.real.sglang import scheduler_worker

BACKEND = "sglang.srt.layers.attention.hybrid_linear_attn_backend"
TAPS = 4
"""Inputs that a convolution keeps."""


class Texts:
    """Numbers of texts; 0 is the empty one, which a cleared state has."""

    def __init__(self) -> None:
        self.known: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {(): 0}

    def number(self, text: tuple[int, ...]) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.known)
            self.known.append(text)
        return self._numbers[text]


class Rows(scheduler_worker.Playing):
    """The real scheduler, and its model runner's reads and writes."""

    def __init__(self, core: Real, config: Json) -> None:
        self.texts = Texts()
        self.batches: Json = []
        super().__init__(core, config)

    def _start(self) -> None:
        super()._start()
        torch: Real = importlib.import_module("torch")
        pool = self.core.pool
        runner: Real = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
        named = "_maybe_execute_deferred_mamba_cow_and_clear"
        self._deferred = getattr(runner, named, lambda *_: None)  # 0.5.9 copies at the match
        forwards: Real = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
        forwards.enable_num_token_non_padded = lambda *_: False  # one worker pads nothing
        self._forwards = forwards.ForwardBatch
        base: Real = importlib.import_module(BACKEND).MambaAttnBackendBase
        self.runner = Stub(
            device=torch.device("cpu"),
            server_args=self.core.args,
            is_draft_worker=False,
            req_to_token_pool=pool,
            model_config=Stub(hf_text_config=SimpleNamespace()),
            ngram_embedding_manager=Stub(),
            kv_index_translator=NoOp(own_plan=lambda *_: NoOp()),
        )
        self.backend = base.__new__(base)
        vars(self.backend).update(
            device="cpu",
            topk=0,
            is_draft_worker=False,
            req_to_token_pool=pool,
            enable_unified_memory=False,
            conv_states_shape=(1, TAPS - 1),
            _model_runner=self.runner,
            _mamba_chunk_size=None,
        )
        self.states = pool.mamba_pool.mamba_cache.temporal[0]
        self.states.zero_()

    def _run(self, batch: Real, results: Json) -> None:
        torch: Real = importlib.import_module("torch")
        if hasattr(batch, "get_model_worker_batch"):  # 0.5.9
            if batch.input_ids is None:  # what was sampled; the scheduler looks at none of it
                batch.input_ids = torch.zeros(len(batch.reqs), dtype=torch.int64)
            forward = self._forwards.init_new(batch.get_model_worker_batch(), self.runner)
        else:
            forward = self._forwards.init_new(
                batch, self.runner, return_hidden_states_before_norm=False
            )
        self._deferred(self.runner, forward)
        self.backend.init_forward_metadata(forward)
        made = self.backend.forward_metadata
        slots = [int(index) for index in made.mamba_cache_indices]
        spans = self._spans(batch)
        read = [self._text(slot) for slot in slots]
        asked = [
            self._whole(request, end) for request, (_, end) in zip(batch.reqs, spans, strict=True)
        ]
        numbers = [
            self.texts.number(before + text[start:at])
            for before, text, (start, end) in zip(read, asked, spans, strict=True)
            for at in range(start, end, 64)
        ]
        # `h`: the state before each chunk of 64 tokens, row after row
        inside = torch.tensor(numbers, dtype=self.states.dtype).reshape(1, -1, 1, 1, 1)
        for slot, before, text, (start, _) in zip(slots, read, asked, spans, strict=True):
            self.states[slot] = self.texts.number(before + text[start:])
        tracked = self._track(batch, forward, made, inside)
        for request, before, text, span, row in zip(
            batch.reqs, read, asked, spans, tracked, strict=True
        ):
            right = before == text[: span[0]]
            self.batches.append([int(request.rid), *span, len(before), right, row])
        super()._run(batch, results)

    def _whole(self, request: Real, end: int) -> tuple[int, ...]:
        """A request's tokens, those of a batch in flight too."""
        known = self.known[int(request.rid)][:end]
        return (*known, *[1] * (end - len(known)))

    def _text(self, slot: int) -> tuple[int, ...]:
        return self.texts.known[int(self.states[slot].reshape(-1)[0])]

    def _spans(self, batch: Real) -> list[tuple[int, int]]:
        if not batch.forward_mode.is_extend():
            lengths = [int(seq_len) for seq_len in batch.seq_lens]
            return [(length - 1, length) for length in lengths]
        pairs = zip(batch.prefix_lens, batch.extend_lens, strict=True)
        return [(int(start), int(start) + int(count)) for start, count in pairs]

    def _track(self, batch: Real, forward: Real, made: Real, inside: Real) -> list[Json]:
        """Copy tracked states; for each row the content of its slot, and where its taps end."""
        masks = forward.mamba_track_mask
        if masks is None:
            return [None for _ in batch.reqs]
        extends = batch.forward_mode.is_extend()
        to = [int(index) for index in forward.mamba_track_indices]
        chosen = [bool(mask) for mask in masks]
        if extends and any(chosen):
            self.backend._track_mamba_state_extend(forward, inside, self.states, made)
        elif not extends:  # `track_mamba_states_if_needed`, a kernel
            for row, slot in enumerate(made.mamba_cache_indices.tolist()):
                if chosen[row]:
                    self.states[to[row]] = self.states[slot].clone()
        taps = iter(made.track_conv_indices.tolist() if made.track_conv_indices is not None else ())
        found: list[Json] = []
        for row, request in enumerate(batch.reqs):
            if not chosen[row]:
                found.append(None)
                continue
            text = self._text(to[row])
            right = text == self._whole(request, len(text))
            start = int(batch.prefix_lens[row]) if extends else 0
            ends = next(taps)[-1] + 1 - int(made.query_start_loc[row]) + start if extends else None
            found.append([len(text), right, len(text) if ends is None else ends])
        return found


def play(core: Real, workload: Json) -> Json:
    """The rows of every batch of a workload, and the scheduler's results."""
    playing = Rows(core, workload["config"])
    groups = play_groups(workload["steps"], playing.play)
    return {"rows": playing.batches, "groups": groups}


def main() -> None:
    """Run workloads until the input ends."""
    answers = own_output()
    answer_lines(answers, partial(play, scheduler_worker.core_with("rust")))
