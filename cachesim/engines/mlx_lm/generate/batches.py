"""The two batches of #1072: prompts are prefilled right-padded, tokens decoded left-padded."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import (
    PromptCache,
    Row,
    TokenResponse,
    as_columns,
    copy_cache,
    extend_cache,
    extract_cache,
    filter_cache,
    merge_caches,
    right_padded,
)
from cachesim.units import Token


@dataclass(slots=True)
class PromptProcessingBatch:
    """Sequences whose prompts are being fed. Follows `PromptProcessingBatch`."""

    model: Forward
    prefill_step_size: int
    rows: list[Row] = field(default_factory=list)
    prompt_cache: PromptCache = field(default_factory=list)

    @classmethod
    def of(
        cls, model: Forward, step: int, rows: list[Row], caches: Sequence[PromptCache]
    ) -> "PromptProcessingBatch":
        """A batch of sequences with a prompt cache each. Follows the constructor."""
        return cls(model, step, rows, merge_caches(caches))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def uids(self) -> list[int]:
        """Who is in it, in order."""
        return [row.uid for row in self.rows]

    def extend(self, batch: "PromptProcessingBatch") -> None:
        """Take in another batch."""
        self.rows.extend(batch.rows)
        self.prompt_cache = extend_cache(self.prompt_cache, batch.prompt_cache)

    def split(self, indices: Sequence[int]) -> "PromptProcessingBatch":
        """Move these rows into a batch of their own; the caches are copied, then both filtered.

        Where no row stays, the caches themselves move: nobody else would have had them.
        """
        leaving = sorted(indices)
        staying = sorted(set(range(len(self.rows))) - set(leaving))
        layers = copy_cache(self.prompt_cache) if staying else list(self.prompt_cache)
        new = PromptProcessingBatch(self.model, self.prefill_step_size, list(self.rows), layers)
        self.filter(staying)
        new.filter(leaving)
        return new

    def filter(self, keep: Sequence[int]) -> None:
        """Keep these rows."""
        self.rows = [self.rows[index] for index in keep]
        filter_cache(self.prompt_cache, keep)

    def prompt(self, tokens: Sequence[Sequence[Token]]) -> None:
        """Feed one piece per row, padded on the right if they differ in length.

        piece 0  a b c d     piece 1  e f 0 0     then the padding is rolled to the front
        """
        if not tokens:
            return
        for row, piece in zip(self.rows, tokens, strict=True):
            row.tokens += piece
        lengths = [len(piece) for piece in tokens]
        padding = [max(lengths) - length for length in lengths]
        if max(padding) > 0:
            columns = right_padded(tokens)
            for layer in self.prompt_cache:
                layer.prepare(lengths=lengths, right_padding=padding)
        else:
            columns = as_columns(tokens)
        while columns.shape[1] > 0:
            self.model(columns[:, : self.prefill_step_size], self.prompt_cache)
            columns = columns[:, self.prefill_step_size :]
        if max(padding) > 0:
            for layer in self.prompt_cache:
                layer.finalize()

    def generate(self, tokens: Sequence[Sequence[Token]]) -> "GenerationBatch":
        """Feed the last token of each prompt and go over to decoding."""
        if any(len(piece) > 1 for piece in tokens):
            self.prompt([piece[:-1] for piece in tokens])
        last = [piece[-1] for piece in tokens]
        batch = GenerationBatch.of(self.model, self.rows, last, self.prompt_cache)
        self.rows, self.prompt_cache = [], []
        return batch


@dataclass(slots=True)
class GenerationBatch:
    """Sequences that are being decoded, one token a call. Follows `GenerationBatch`."""

    model: Forward
    rows: list[Row] = field(default_factory=list)
    prompt_cache: PromptCache = field(default_factory=list)
    next_tokens: list[Token] = field(default_factory=list)

    @classmethod
    def of(
        cls, model: Forward, rows: list[Row], inputs: list[Token], prompt_cache: PromptCache
    ) -> "GenerationBatch":
        """Feeds the prompts' last tokens, which samples the first new ones."""
        batch = cls(model, rows, prompt_cache, inputs)
        if rows:
            batch.step()
        return batch

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def uids(self) -> list[int]:
        """Who is in it, in order."""
        return [row.uid for row in self.rows]

    def extend(self, batch: "GenerationBatch") -> None:
        """Take in another batch."""
        self.rows.extend(batch.rows)
        self.prompt_cache = extend_cache(self.prompt_cache, batch.prompt_cache)
        self.next_tokens.extend(batch.next_tokens)

    def step(self) -> list[Token]:
        """Feed the tokens sampled last, sample the next ones. Follows `_step`.

        A row's `tokens` therefore always lists what its caches hold, and the stop token too is
        fed before it is handed out.
        """
        inputs = self.next_tokens
        columns = np.array(inputs, dtype=np.int64)[:, None]
        logits = self.model(columns, self.prompt_cache)
        self.next_tokens = [
            row.sampler(of_row) for row, of_row in zip(self.rows, logits, strict=True)
        ]
        for row, token in zip(self.rows, inputs, strict=True):
            row.tokens.append(token)
        return inputs

    def filter(self, keep: Sequence[int]) -> None:
        """Keep these rows."""
        self.rows = [self.rows[index] for index in keep]
        filter_cache(self.prompt_cache, keep)
        self.next_tokens = [self.next_tokens[index] for index in keep]

    def next(self) -> list[TokenResponse]:
        """One token per row; rows that are done leave with their caches and tokens."""
        if not self.rows:
            return []
        tokens = self.step()
        keep, responses = [], []
        for index, (row, token) in enumerate(zip(self.rows, tokens, strict=True)):
            reason = finish_reason(row, token)
            if reason is None:
                keep.append(index)
                responses.append(TokenResponse(uid=row.uid, token=token))
            else:
                responses.append(
                    TokenResponse(
                        uid=row.uid,
                        token=token,
                        finish_reason=reason,
                        prompt_cache=extract_cache(self.prompt_cache, index),
                        all_tokens=row.tokens,
                    )
                )
        if len(keep) < len(self.rows):
            self.filter(keep)
        return responses


def finish_reason(row: Row, token: Token) -> str | None:
    """Why the sequence ends with this token; a stop wins over the length."""
    row.num_tokens += 1
    reason = "length" if row.num_tokens >= row.max_tokens else None
    return "stop" if row.stopper.advance(token) else reason
