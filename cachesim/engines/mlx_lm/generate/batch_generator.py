"""Continuous batching since #1072: prompts advance by their own segments, beside the decode.

    waiting  ->  prompt batch (pieces of segments)  ->  last token alone  ->  generation batch

Prefill is right-padded within a piece, decode left-padded; no token is fed twice.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache, CacheList
from cachesim.engines.mlx_lm.caches.batch_kv_cache import BatchKVCache, BatchRotatingKVCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache, RotatingKVCache
from cachesim.engines.mlx_lm.caches.layer_cache import (
    LayerCache,
    UpstreamIndexError,
    UpstreamValueError,
    inherit_bytes,
)
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import (
    PromptCache,
    PromptResponse,
    Row,
    Sampler,
    Stopper,
    TokenResponse,
    as_columns,
    copy_cache,
    extend_cache,
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


@dataclass(slots=True)
class PromptProcessingBatch:
    """Sequences in prefill. Follows `PromptProcessingBatch`."""

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
        """Ids of the sequences, in order."""
        return [row.uid for row in self.rows]

    def extend(self, batch: "PromptProcessingBatch") -> None:
        """Append the rows of another batch."""
        self.rows.extend(batch.rows)
        self.prompt_cache = extend_cache(self.prompt_cache, batch.prompt_cache)

    def split(self, indices: Sequence[int]) -> "PromptProcessingBatch":
        """Move these rows into a batch of their own; both are filtered afterwards."""
        leaving = sorted(indices)
        staying = sorted(set(range(len(self.rows))) - set(leaving))
        # The rows that stay keep their caches, so the leaving ones take a copy.
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
        # Rows of equal length need no padding, and no layer has to roll any.
        if max(padding) > 0:
            columns = right_padded(tokens)
            for layer in self.prompt_cache:
                layer.prepare(lengths=lengths, right_padding=padding)
        else:
            columns = as_columns(tokens)
        # In steps of all rows together: a short row's padding is fed beside a long row's tokens.
        while columns.shape[1] > 0:
            self.model(columns[:, : self.prefill_step_size], self.prompt_cache)
            columns = columns[:, self.prefill_step_size :]
        if max(padding) > 0:
            # The padding is rolled to the front, where masks hide it.
            for layer in self.prompt_cache:
                layer.finalize()

    def generate(self, tokens: Sequence[Sequence[Token]]) -> "GenerationBatch":
        """Feed the last token of each prompt, and start decoding."""
        # Only the last token may give the first logits, so the others are prefilled before.
        if any(len(piece) > 1 for piece in tokens):
            self.prompt([piece[:-1] for piece in tokens])
        last = [piece[-1] for piece in tokens]
        batch = GenerationBatch.of(self.model, self.rows, last, self.prompt_cache)
        self.rows, self.prompt_cache = [], []
        return batch


@dataclass(slots=True)
class GenerationBatch:
    """Sequences in decode, one token a call. Follows `GenerationBatch`."""

    model: Forward
    rows: list[Row] = field(default_factory=list)
    prompt_cache: PromptCache = field(default_factory=list)
    next_tokens: list[Token] = field(default_factory=list)

    @classmethod
    def of(
        cls, model: Forward, rows: list[Row], inputs: list[Token], prompt_cache: PromptCache
    ) -> "GenerationBatch":
        """Feed the prompts' last tokens, which samples the first new ones."""
        batch = cls(model, rows, prompt_cache, inputs)
        if rows:
            batch.step()
        return batch

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def uids(self) -> list[int]:
        """Ids of the sequences, in order."""
        return [row.uid for row in self.rows]

    def extend(self, batch: "GenerationBatch") -> None:
        """Append the rows of another batch."""
        self.rows.extend(batch.rows)
        self.prompt_cache = extend_cache(self.prompt_cache, batch.prompt_cache)
        self.next_tokens.extend(batch.next_tokens)

    def step(self) -> list[Token]:
        """Feed the last sampled tokens, sample the next ones. Follows `_step`."""
        inputs = self.next_tokens
        columns = np.array(inputs, dtype=np.int64)[:, None]
        logits = self.model(columns, self.prompt_cache)
        self.next_tokens = [
            row.sampler(of_row) for row, of_row in zip(self.rows, logits, strict=True)
        ]
        # So `tokens` lists what is in the caches. A stop token is fed too, before it is returned.
        for row, token in zip(self.rows, inputs, strict=True):
            row.tokens.append(token)
        return inputs

    def filter(self, keep: Sequence[int]) -> None:
        """Keep these rows."""
        self.rows = [self.rows[index] for index in keep]
        filter_cache(self.prompt_cache, keep)
        self.next_tokens = [self.next_tokens[index] for index in keep]

    def next(self) -> list[TokenResponse]:
        """A token per row; finished rows leave with their caches and tokens."""
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
        # Finished rows leave after their caches were extracted; the others stay where they are.
        if len(keep) < len(self.rows):
            self.filter(keep)
        return responses


def finish_reason(row: Row, token: Token) -> str | None:
    """The reason why the sequence ends with this token, or None; a stop precedes the length."""
    row.num_tokens += 1
    reason = "length" if row.num_tokens >= row.max_tokens else None
    # A stop wins over the length where both hold.
    return "stop" if row.stopper.advance(token) else reason


@dataclass(slots=True)
class Waiting:
    """A submitted sequence that is not in a batch yet."""

    row: Row
    segments: list[list[Token]]
    cache: PromptCache


@dataclass(slots=True)
class Processing:
    """Tokens of a sequence that remain to be prefilled."""

    segments: list[list[Token]]
    done: int
    total: int

    @property
    def at_last_token(self) -> bool:
        """True if only the prompt's last token is left."""
        return len(self.segments) == 1 and len(self.segments[0]) == 1

    def take(self, step: int) -> list[Token]:
        """The next piece, within a segment."""
        if not self.segments:
            raise UpstreamIndexError("list index out of range")
        # A piece ends with its segment, so a state can be taken exactly at the segment's end.
        piece = self.segments[0][:step]
        self.segments[0] = self.segments[0][len(piece) :]
        self.done += len(piece)
        return piece


class BatchGenerator:
    """Follows `BatchGenerator` from #1072 on."""

    def __init__(self, model: Forward, rules: ServerRules, options: MlxOptions) -> None:
        self.model = model
        self.rules = rules
        self.prefill_batch_size = options.prompt_concurrency
        self.prefill_step_size = options.prefill_step_size
        self.completion_batch_size = max(options.decode_concurrency, options.prompt_concurrency)
        self._uid_count = 0
        self._waiting: deque[Waiting] = deque()
        self._processing: list[Processing] = []
        self._prompt_batch = PromptProcessingBatch(model, self.prefill_step_size)
        self._generation_batch = GenerationBatch(model)

    def insert_segments(
        self,
        segments: Sequence[Sequence[Token]],
        *,
        sampler: Sampler,
        stopper: Stopper,
        max_tokens: int,
        cache: PromptCache | None,
        all_tokens: Sequence[Token],
    ) -> int:
        """Queue one sequence. Follows `insert_segments` for one sequence."""
        pieces = [list(segment) for segment in segments]
        # An exact hit has no segment: 0.32.0 checks the prompt, earlier releases its last segment.
        if self.rules.refuses_empty_prompts:
            pieces = [piece for piece in pieces if piece]
            if not pieces:
                raise UpstreamValueError(f"Sequence {self._uid_count} has an empty prompt.")
        if not pieces:
            raise UpstreamIndexError("list index out of range")
        if max_tokens < 1 and self.rules.no_tokens == "dies":
            raise UpstreamValueError(f"Sequence {self._uid_count}'s max_tokens must be > 0.")
        # The last token becomes a segment of its own: decode starts with it.
        if len(pieces[-1]) != 1:
            pieces.append(pieces[-1][-1:])
            pieces[-2] = pieces[-2][:-1]
        row = Row(
            uid=self._uid_count,
            sampler=sampler,
            stopper=stopper,
            max_tokens=max_tokens,
            tokens=list(all_tokens),
        )
        held = self.model.make_cache() if cache is None else cache
        self._waiting.append(Waiting(row, pieces, held))
        self._uid_count += 1
        return row.uid

    def extract_cache(self, uids: Iterable[int]) -> dict[int, tuple[PromptCache, list[Token]]]:
        """The cache of each sequence and the tokens in it, in any batch or waiting."""
        wanted = set(uids)
        caches: dict[int, tuple[PromptCache, list[Token]]] = {}
        for batch in (self._generation_batch, self._prompt_batch):
            for index, row in enumerate(batch.rows):
                if row.uid in wanted:
                    caches[row.uid] = (extract_cache(batch.prompt_cache, index), row.tokens)
        for waiting in self._waiting:
            if waiting.row.uid in wanted:
                caches[waiting.row.uid] = (waiting.cache, waiting.row.tokens)
        return caches

    def held(self) -> Iterator[tuple[list[Row], PromptCache]]:
        """The rows of each batch with their caches."""
        for batch in (self._prompt_batch, self._generation_batch):
            yield batch.rows, batch.prompt_cache

    def remove(self, uids: Iterable[int]) -> None:
        """Remove these sequences."""
        removed = set(uids)
        self._waiting = deque(
            waiting for waiting in self._waiting if waiting.row.uid not in removed
        )
        staying = _staying(self._prompt_batch.uids, removed)
        if len(staying) < len(self._prompt_batch):
            self._prompt_batch.filter(staying)
            self._processing = [self._processing[index] for index in staying]
        staying = _staying(self._generation_batch.uids, removed)
        if len(staying) < len(self._generation_batch):
            self._generation_batch.filter(staying)

    @property
    def prompt_cache_nbytes(self) -> int:
        """Bytes of all caches in use, padding and unused capacity included."""
        batches = (self._prompt_batch.prompt_cache, self._generation_batch.prompt_cache)
        return nbytes_of([*(waiting.cache for waiting in self._waiting), *batches])

    def next(self) -> tuple[list[PromptResponse], list[TokenResponse]]:
        """An iteration: decode, admit, start decoding, prefill. Follows `_next`."""
        # Decode comes first: a long prefill never delays the rows in decode by more than its own
        # step.
        tokens = self._generation_batch.next()
        # No slot for a further reply: prefills wait, even if they have begun.
        if len(self._generation_batch) >= self.completion_batch_size:
            return [], tokens
        self._take_in()
        prompts = self._start_decoding()
        prompts += self._prefill()
        return prompts, tokens

    def _take_in(self) -> None:
        count = min(
            # A row in prefill needs a decode slot as well, once it is done.
            self.prefill_batch_size - len(self._prompt_batch),
            self.completion_batch_size - len(self._generation_batch),
            len(self._waiting),
        )
        if count <= 0:
            return
        taken = [self._waiting.popleft() for _ in range(count)]
        self._processing += [
            Processing(waiting.segments, 0, sum(map(len, waiting.segments))) for waiting in taken
        ]
        rows, caches = [waiting.row for waiting in taken], [waiting.cache for waiting in taken]
        batch = PromptProcessingBatch.of(self.model, self.prefill_step_size, rows, caches)
        self._prompt_batch.extend(batch)

    def _start_decoding(self) -> list[PromptResponse]:
        leaving = [i for i, processing in enumerate(self._processing) if processing.at_last_token]
        if not leaving:
            return []
        going = [self._processing[index] for index in leaving]
        self._processing = [
            processing for processing in self._processing if not processing.at_last_token
        ]
        last = [processing.segments[0] for processing in going]
        # Rows at their last token leave the prefill together.
        batch = self._prompt_batch.split(leaving).generate(last)
        responses = [
            PromptResponse(
                uid=uid,
                progress=(processing.total, processing.total),
                end_of_segment=True,
                end_of_prompt=True,
            )
            for uid, processing in zip(batch.uids, going, strict=True)
        ]
        self._generation_batch.extend(batch)
        return responses

    def _prefill(self) -> list[PromptResponse]:
        pieces, responses = [], []
        for uid, processing in zip(self._prompt_batch.uids, self._processing, strict=True):
            pieces.append(processing.take(self.prefill_step_size))
            # The segment's end is reported in the step that reaches it; the state is extracted
            # then.
            ended = not processing.segments[0]
            if ended:
                processing.segments.pop(0)
            responses.append(
                PromptResponse(
                    uid=uid, progress=(processing.done, processing.total), end_of_segment=ended
                )
            )
        self._prompt_batch.prompt(pieces)
        return responses


def _staying(uids: Sequence[int], removed: set[int]) -> list[int]:
    return [index for index, uid in enumerate(uids) if uid not in removed]


# Batching before #1072: prompts are prefilled to the end in one call, and decode waits.
#
#     fresh     0 0 a b c | d        left-padded into new batch caches
#               p q r s t | u
#     history   [stored] a b c 0 0 | d      caches merged, right-padded, rolled flush at the end
#               [stored] p q r s t | u
#
# The prefill stops C columns before the end; C is one number for the whole batch (0.31.x: its
# largest checkpoint distance). The C columns are then fed: C - 1 of them twice.

Progress: TypeAlias = Callable[[int, int, int], None]
"""Callback with a sequence, the columns done and its own length."""

KeepCheckpoint: TypeAlias = Callable[[int, int, Callable[[], PromptCache]], None]
"""Callback with a sequence, C, and a function that extracts its state C columns before the end."""


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
    """Sequences in decode; `y` holds the last token of each. Follows `Batch`."""

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
        """Queue one prompt, by length. Follows `insert`."""
        row = Row(uid=self._uid_count, sampler=sampler, stopper=stopper, max_tokens=max_tokens)
        self._unprocessed.append(Unprocessed(row, rest, cache, checkpoint))
        # By length, so that rows of one batch need little padding; requests do not keep their
        # order.
        self._unprocessed.sort(key=lambda unprocessed: unprocessed.length)
        self._uid_count += 1
        return row.uid

    def held(self) -> Iterator[tuple[list[Row], PromptCache]]:
        """The rows in decode with their caches."""
        if self._active is not None:
            yield self._active.rows, self._active.cache

    def remove(self, uids: Iterable[int]) -> dict[int, PromptCache]:
        """Remove these sequences; return the caches of those in decode."""
        removed = set(uids)
        caches: dict[int, PromptCache] = {}
        if self._active is not None:
            rows = self._active.rows
            for index, row in enumerate(rows):
                if row.uid in removed:
                    caches[row.uid] = extract_cache(self._active.cache, index)
            staying = [index for index, row in enumerate(rows) if row.uid not in removed]
            self._keep_active(staying)
        self._unprocessed = [
            unprocessed for unprocessed in self._unprocessed if unprocessed.row.uid not in removed
        ]
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
        """Bytes of all caches in use, padding and unused capacity included."""
        active = [] if self._active is None else [self._active.cache]
        return nbytes_of([*(unprocessed.cache for unprocessed in self._unprocessed), *active])

    def next(self) -> list[TokenResponse]:
        """An iteration: prefill while decode slots are free, then one token per row. As `_next`."""
        free = self.completion_batch_size - (len(self._active) if self._active else 0)
        # Prompts are prefilled to the end in this call: rows in decode wait for all of them.
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
        tokens = batch.y
        batch.y = self._step(np.array(tokens, dtype=np.int64)[:, None], batch.cache, batch.rows)
        keep, responses = [], []
        for index, (row, token) in enumerate(zip(batch.rows, tokens, strict=True)):
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
        """Prefill, store checkpoints, sample the first tokens. Follows `_process_prompts`."""
        # One distance for the whole batch, the largest: shorter rows stop earlier than they asked
        # for.
        prompt_end = max(1, *(_distance(prompt) for prompt in prompts))
        if self._is_fresh(prompts):
            cache, inputs = self._prefill_fresh(prompts, prompt_end)
        else:
            cache, inputs = self._prefill_history(prompts, prompt_end)
        # Rolls the padding, before states are taken and the last columns fed.
        for layer in cache:
            layer.finalize()
        if self.rules.checkpoint:
            # Pass every row's state to the server. Until #976 the generators that extracted the
            # rows were bound late: all to the last row.
            for index, prompt in enumerate(prompts):
                row = len(prompts) - 1 if self.rules.binds_late else index
                self._keep_checkpoint(
                    prompt.row.uid, prompt_end, partial(extract_cache, cache, row)
                )
        # Trap: these columns are fed again in `_step`: C - 1 tokens enter the state twice.
        if prompt_end > 1:
            self.model(inputs[:, : prompt_end - 1], cache)
        rows = [prompt.row for prompt in prompts]
        return Batch(rows, self._step(inputs, cache, rows), cache)

    def _is_fresh(self, prompts: Sequence[Unprocessed]) -> bool:
        # Until #690 a cache with any token made the batch one with a history.
        if self.rules.fresh_by_length:
            return not any(layer.size() for prompt in prompts for layer in prompt.cache)
        # Trap: only the first layer of each list is asked.
        return all(prompt.cache[0].empty() for prompt in prompts)

    def _prefill_fresh(
        self, prompts: Sequence[Unprocessed], prompt_end: int
    ) -> tuple[PromptCache, Integers]:
        longest = max(len(prompt.rest) for prompt in prompts)
        padding = [longest - len(prompt.rest) for prompt in prompts]
        cache = [batch_form_of(layer, padding) for layer in self.model.make_cache()]
        columns = left_padded([prompt.rest for prompt in prompts], longest)
        return cache, self._feed(prompts, columns, cache, prompt_end)

    def _prefill_history(
        self, prompts: Sequence[Unprocessed], prompt_end: int
    ) -> tuple[PromptCache, Integers]:
        longest = max(len(prompt.rest) for prompt in prompts)
        last = self._last_inputs(prompts, prompt_end)
        columns = right_padded([prompt.rest for prompt in prompts])
        cache = merge_caches([prompt.cache for prompt in prompts])
        # #738: lengths without the last tokens, which this prefill does not feed; before, a ring
        # kept one token too many of each shorter row.
        unfed = prompt_end if self.rules.lengths_leave_last else 0
        for layer in cache:
            layer.prepare(
                lengths=[len(prompt.rest) - unfed for prompt in prompts],
                right_padding=[longest - len(prompt.rest) for prompt in prompts],
            )
        self._feed(prompts, columns, cache, prompt_end)
        return cache, last

    def _last_inputs(self, prompts: Sequence[Unprocessed], prompt_end: int) -> Integers:
        """The last C tokens of each prompt; shorter ones raise, or are padded (#1006)."""
        # Until #1006's second commit prompts of unequal tails raise.
        last = [prompt.rest[-prompt_end:] for prompt in prompts]
        return left_padded(last, prompt_end) if self.rules.tails == "padded" else as_columns(last)

    def _feed(
        self, prompts: Sequence[Unprocessed], columns: Integers, cache: PromptCache, prompt_end: int
    ) -> Integers:
        """Feed all but the last C columns, in steps; return the rest."""
        done = 0
        while columns.shape[1] > prompt_end:
            count = min(self.prefill_step_size, columns.shape[1] - prompt_end)
            self.model(columns[:, :count], cache)
            columns = columns[:, count:]
            done += count
            for prompt in prompts:
                self._progress(prompt.row.uid, done, len(prompt.rest))
        return columns


def _distance(prompt: Unprocessed) -> int:
    # A positive number is a position, a negative one a distance from the end.
    if prompt.checkpoint > 0:
        return len(prompt.rest) - prompt.checkpoint
    return -prompt.checkpoint


def _finish_reason(row: Row, token: Token) -> str | None:
    row.num_tokens += 1
    if row.stopper.advance(token):
        return "stop"
    return "length" if row.num_tokens >= row.max_tokens else None


def batch_form_of(layer: LayerCache, left_padding: Sequence[int]) -> LayerCache:
    """A fresh layer as the batch class for left-padded input. Follows `_make_cache`."""
    form: LayerCache
    # A recurrent layer has no batch class of its own: the same object gets the padding.
    if isinstance(layer, ArraysCache):
        layer.left_padding = np.array(left_padding, dtype=np.int64)
        return layer
    if isinstance(layer, CacheList):
        return CacheList(
            layer.rules, *(batch_form_of(cache, left_padding) for cache in layer.caches)
        )
    if isinstance(layer, RotatingKVCache):
        # `keep` is lost in batches, so upstream refuses it here.
        if layer.keep > 0:
            raise UpstreamValueError("RotatingKVCache with keep tokens is not supported.")
        form = BatchRotatingKVCache(layer.rules, layer.max_size, left_padding)
    elif type(layer) is KVCache:
        form = BatchKVCache(layer.rules, left_padding)
    else:
        raise UpstreamValueError(f"{type(layer)} does not yet support batching")
    inherit_bytes(form, layer)
    return form
