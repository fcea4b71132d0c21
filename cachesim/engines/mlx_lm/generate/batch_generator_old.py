"""Batching before #1072: prompts are prefilled to the end in one call, and decode waits.

    fresh     0 0 a b c | d        left-padded into new batch caches
              p q r s t | u
    history   [stored] a b c 0 0 | d      caches merged, right-padded, rolled flush at the end
              [stored] p q r s t | u

Everything stops C columns before the end; C is one number for the whole batch (0.31.x: its
largest checkpoint distance). The C columns are then fed: C - 1 of them twice.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.batch_kv_cache import BatchKVCache
from cachesim.engines.mlx_lm.caches.batch_rotating_kv_cache import BatchRotatingKVCache
from cachesim.engines.mlx_lm.caches.cache_list import CacheList
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache, inherit_bytes
from cachesim.engines.mlx_lm.caches.raised import UpstreamValueError
from cachesim.engines.mlx_lm.caches.rotating_kv_cache import RotatingKVCache
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import (
    PromptCache,
    Row,
    Sampler,
    Stopper,
    TokenResponse,
    as_columns,
    extract_cache,
    filter_cache,
    left_padded,
    merge_caches,
    nbytes_of,
    right_padded,
)
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import ServerRules
from cachesim.units import Integers, Token, Tokens

Progress: TypeAlias = Callable[[int, int, int], None]
"""Told of a sequence, the columns done and its own length."""

KeepCheckpoint: TypeAlias = Callable[[int, int, Callable[[], PromptCache]], None]
"""Told of a sequence, C, and how to cut out its state C columns before the end."""


@dataclass(slots=True)
class Unprocessed:
    """A prompt that waits for its prefill."""

    row: Row
    rest: Tokens
    cache: PromptCache
    checkpoint: int

    @property
    def length(self) -> int:
        """Sort key of waiting prompts."""
        return len(self.rest) + max(layer.size() for layer in self.cache)


@dataclass(slots=True)
class Batch:
    """Sequences that are being decoded; `y` holds what each said last. Follows `Batch`."""

    rows: list[Row]
    y: list[Token]
    cache: PromptCache

    def __len__(self) -> int:
        return len(self.rows)

    def filter(self, keep: Sequence[int]) -> None:
        """Keep these rows."""
        self.rows = [self.rows[index] for index in keep]
        self.y = [self.y[index] for index in keep]
        filter_cache(self.cache, keep)

    def extend(self, other: "Batch") -> None:
        """Append the rows of another batch."""
        self.rows.extend(other.rows)
        self.y.extend(other.y)
        for layer, more in zip(self.cache, other.cache, strict=True):
            layer.extend(more)


class OldBatchGenerator:
    """Follows `BatchGenerator` up to 0.31.1."""

    def __init__(
        self,
        model: Forward,
        rules: ServerRules,
        options: MlxOptions,
        *,
        progress: Progress,
        keep_checkpoint: KeepCheckpoint,
    ) -> None:
        self.model = model
        self.rules = rules
        self.prefill_batch_size = options.prompt_concurrency
        self.prefill_step_size = options.prefill_step_size
        self.completion_batch_size = max(options.decode_concurrency, options.prompt_concurrency)
        self._progress = progress
        self._keep_checkpoint = keep_checkpoint
        self._uid_count = 0
        self._unprocessed: list[Unprocessed] = []
        self._active: Batch | None = None

    def insert(
        self,
        rest: Tokens,
        *,
        sampler: Sampler,
        stopper: Stopper,
        max_tokens: int,
        cache: PromptCache,
        checkpoint: int,
    ) -> int:
        """Queue one prompt; the queue is kept in order of length. Follows `insert`."""
        row = Row(uid=self._uid_count, sampler=sampler, stopper=stopper, max_tokens=max_tokens)
        self._unprocessed.append(Unprocessed(row, rest, cache, checkpoint))
        self._unprocessed.sort(key=lambda each: each.length)
        self._uid_count += 1
        return row.uid

    def remove(self, uids: Iterable[int]) -> dict[int, PromptCache]:
        """Forget these sequences; the states of those that were being decoded."""
        gone = set(uids)
        caches: dict[int, PromptCache] = {}
        if self._active is not None:
            rows = self._active.rows
            for index, row in enumerate(rows):
                if row.uid in gone:
                    caches[row.uid] = extract_cache(self._active.cache, index)
            staying = [index for index, row in enumerate(rows) if row.uid not in gone]
            self._keep_active(staying)
        self._unprocessed = [each for each in self._unprocessed if each.row.uid not in gone]
        return caches

    def _keep_active(self, staying: Sequence[int]) -> None:
        if self._active is None:
            return
        if staying:
            self._active.filter(staying)
        else:
            self._active = None

    @property
    def prompt_cache_nbytes(self) -> int:
        """Bytes of all caches at work, padding and unused capacity included."""
        active = [] if self._active is None else [self._active.cache]
        return nbytes_of([*(each.cache for each in self._unprocessed), *active])

    def next(self) -> list[TokenResponse]:
        """A turn: prefill while decode slots are free, then one token per row. As `_next`."""
        free = self.completion_batch_size - (len(self._active) if self._active else 0)
        while free >= self.prefill_batch_size:
            prompts = self._unprocessed[: self.prefill_batch_size]
            if not prompts:
                break
            batch = self._process_prompts(prompts)
            self._unprocessed = self._unprocessed[self.prefill_batch_size :]
            if self._active is None:
                self._active = batch
            else:
                self._active.extend(batch)
            free -= len(batch)
        return [] if self._active is None else self._decode(self._active)

    def _decode(self, batch: Batch) -> list[TokenResponse]:
        said = batch.y
        batch.y = self._step(np.array(said, dtype=np.int64)[:, None], batch.cache, batch.rows)
        keep, responses = [], []
        for index, (row, token) in enumerate(zip(batch.rows, said, strict=True)):
            reason = _finish_reason(row, token)
            cache = None
            if reason is None:
                keep.append(index)
            else:
                cache = extract_cache(batch.cache, index)
            responses.append(
                TokenResponse(uid=row.uid, token=token, finish_reason=reason, prompt_cache=cache)
            )
        if len(keep) < len(batch.rows):
            self._keep_active(keep)
        return responses

    def _step(self, columns: Integers, cache: PromptCache, rows: Sequence[Row]) -> list[Token]:
        logits = self.model(columns, cache)
        return [row.sampler(of_row) for row, of_row in zip(rows, logits, strict=True)]

    def _process_prompts(self, prompts: Sequence[Unprocessed]) -> Batch:
        """Prefill, keep checkpoints, sample the first tokens. Follows `_process_prompts`."""
        prompt_end = max(1, *(_distance(each) for each in prompts))
        if self._is_fresh(prompts):
            cache, inputs = self._prefill_fresh(prompts, prompt_end)
        else:
            cache, inputs = self._prefill_history(prompts, prompt_end)
        for layer in cache:
            layer.finalize()
        if self.rules.checkpoint:
            self._keep_checkpoints(prompts, cache, prompt_end)
        if prompt_end > 1:
            self.model(inputs[:, : prompt_end - 1], cache)
        rows = [each.row for each in prompts]
        return Batch(rows, self._step(inputs, cache, rows), cache)

    def _is_fresh(self, prompts: Sequence[Unprocessed]) -> bool:
        if self.rules.fresh_by_length:
            return not any(layer.size() for each in prompts for layer in each.cache)
        return all(each.cache[0].empty() for each in prompts)

    def _keep_checkpoints(
        self, prompts: Sequence[Unprocessed], cache: PromptCache, prompt_end: int
    ) -> None:
        """Hand every row's state to the server, one after the other.

        Until #976 the generators that cut the rows out were bound late: all to the last row.
        """
        for index, each in enumerate(prompts):
            row = len(prompts) - 1 if self.rules.binds_late else index
            self._keep_checkpoint(each.row.uid, prompt_end, partial(extract_cache, cache, row))

    def _prefill_fresh(
        self, prompts: Sequence[Unprocessed], prompt_end: int
    ) -> tuple[PromptCache, Integers]:
        longest = max(len(each.rest) for each in prompts)
        padding = [longest - len(each.rest) for each in prompts]
        cache = [batch_form_of(layer, padding) for layer in self.model.make_cache()]
        columns = left_padded([each.rest for each in prompts], longest)
        return cache, self._feed(prompts, columns, cache, prompt_end)

    def _prefill_history(
        self, prompts: Sequence[Unprocessed], prompt_end: int
    ) -> tuple[PromptCache, Integers]:
        longest = max(len(each.rest) for each in prompts)
        last = self._last_inputs(prompts, prompt_end)
        columns = right_padded([each.rest for each in prompts])
        cache = merge_caches([each.cache for each in prompts])
        unfed = prompt_end if self.rules.lengths_leave_last else 0
        for layer in cache:
            layer.prepare(
                lengths=[len(each.rest) - unfed for each in prompts],
                right_padding=[longest - len(each.rest) for each in prompts],
            )
        self._feed(prompts, columns, cache, prompt_end)
        return cache, last

    def _last_inputs(self, prompts: Sequence[Unprocessed], prompt_end: int) -> Integers:
        """The last C tokens of each prompt; shorter ones raise, or are padded (#1006)."""
        last = [each.rest[-prompt_end:] for each in prompts]
        return left_padded(last, prompt_end) if self.rules.tails == "padded" else as_columns(last)

    def _feed(
        self,
        prompts: Sequence[Unprocessed],
        columns: Integers,
        cache: PromptCache,
        prompt_end: int,
    ) -> Integers:
        """Feed all but the last C columns, in steps; what is left of them."""
        done = 0
        while columns.shape[1] > prompt_end:
            count = min(self.prefill_step_size, columns.shape[1] - prompt_end)
            self.model(columns[:, :count], cache)
            columns = columns[:, count:]
            done += count
            for each in prompts:
                self._progress(each.row.uid, done, len(each.rest))
        return columns


def _distance(prompt: Unprocessed) -> int:
    if prompt.checkpoint > 0:
        return len(prompt.rest) - prompt.checkpoint
    return -prompt.checkpoint


def _finish_reason(row: Row, token: Token) -> str | None:
    row.num_tokens += 1
    if row.stopper.advance(token):
        return "stop"
    return "length" if row.num_tokens >= row.max_tokens else None


def batch_form_of(layer: LayerCache, left_padding: Sequence[int]) -> LayerCache:
    """A fresh layer as the batch class that takes left-padded input. Follows `_make_cache`."""
    form: LayerCache
    if isinstance(layer, ArraysCache):
        layer.left_padding = np.array(left_padding, dtype=np.int64)
        return layer
    if isinstance(layer, CacheList):
        return CacheList(layer.rules, *(batch_form_of(each, left_padding) for each in layer.caches))
    if isinstance(layer, RotatingKVCache):
        if layer.keep > 0:
            msg = "RotatingKVCache with keep tokens is not supported."
            raise UpstreamValueError(msg)
        form = BatchRotatingKVCache(layer.rules, layer.max_size, left_padding)
    elif type(layer) is KVCache:
        form = BatchKVCache(layer.rules, left_padding)
    else:
        msg = f"{type(layer)} does not yet support batching"
        raise UpstreamValueError(msg)
    inherit_bytes(form, layer)
    return form
