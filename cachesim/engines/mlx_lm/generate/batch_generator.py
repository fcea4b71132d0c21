"""Continuous batching since #1072: prompts advance by their own segments, decode goes on beside.

    waiting  ->  prompt batch (pieces of segments)  ->  last token alone  ->  generation batch

Prefill is right-padded within a piece, decode left-padded; nothing is fed twice.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cachesim.engines.mlx_lm.caches.raised import UpstreamIndexError, UpstreamValueError
from cachesim.engines.mlx_lm.generate.batches import GenerationBatch, PromptProcessingBatch
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.sampler import Sampler, Stopper
from cachesim.engines.mlx_lm.generate.shared import (
    PromptCache,
    PromptResponse,
    Row,
    TokenResponse,
    extract_cache,
    nbytes_of,
)
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.server.rules import ServerRules
from cachesim.units import Token


@dataclass(slots=True)
class Waiting:
    """A sequence that was handed over and is not in a batch yet."""

    row: Row
    segments: list[list[Token]]
    cache: PromptCache


@dataclass(slots=True)
class Processing:
    """What a sequence of the prompt batch still has to be fed."""

    segments: list[list[Token]]
    done: int
    total: int

    @property
    def at_last_token(self) -> bool:
        """Whether only the prompt's last token is left."""
        return len(self.segments) == 1 and len(self.segments[0]) == 1

    def take(self, step: int) -> list[Token]:
        """The next piece: never across a segment's end."""
        if not self.segments:
            msg = "list index out of range"
            raise UpstreamIndexError(msg)
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
        """Queue one sequence; its last token becomes a segment of its own.

        Follows `insert_segments` for one sequence. An exact hit comes without a segment: 0.32.0
        looks at the prompt, earlier ones at its last segment.
        """
        pieces = [list(each) for each in segments]
        if self.rules.refuses_empty_prompts:
            pieces = [each for each in pieces if each]
            if not pieces:
                msg = f"Sequence {self._uid_count} has an empty prompt."
                raise UpstreamValueError(msg)
        if not pieces:
            msg = "list index out of range"
            raise UpstreamIndexError(msg)
        if max_tokens < 1 and self.rules.no_tokens == "dies":
            msg = f"Sequence {self._uid_count}'s max_tokens must be > 0."
            raise UpstreamValueError(msg)
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
        """The state of each sequence and the tokens it holds, wherever the sequence is."""
        wanted = set(uids)
        found: dict[int, tuple[PromptCache, list[Token]]] = {}
        for batch in (self._generation_batch, self._prompt_batch):
            for index, row in enumerate(batch.rows):
                if row.uid in wanted:
                    found[row.uid] = (extract_cache(batch.prompt_cache, index), row.tokens)
        for each in self._waiting:
            if each.row.uid in wanted:
                found[each.row.uid] = (each.cache, each.row.tokens)
        return found

    def remove(self, uids: Iterable[int]) -> None:
        """Forget these sequences."""
        gone = set(uids)
        self._waiting = deque(each for each in self._waiting if each.row.uid not in gone)
        staying = _staying(self._prompt_batch.uids, gone)
        if len(staying) < len(self._prompt_batch):
            self._prompt_batch.filter(staying)
            self._processing = [self._processing[index] for index in staying]
        staying = _staying(self._generation_batch.uids, gone)
        if len(staying) < len(self._generation_batch):
            self._generation_batch.filter(staying)

    @property
    def prompt_cache_nbytes(self) -> int:
        """Bytes of all caches at work, padding and unused capacity included."""
        batches = (self._prompt_batch.prompt_cache, self._generation_batch.prompt_cache)
        return nbytes_of([*(each.cache for each in self._waiting), *batches])

    def next(self) -> tuple[list[PromptResponse], list[TokenResponse]]:
        """One turn: decode, take in, start to decode, prefill. Follows `_next`."""
        tokens = self._generation_batch.next()
        if len(self._generation_batch) >= self.completion_batch_size:
            return [], tokens
        self._take_in()
        prompts = self._start_decoding()
        prompts += self._prefill()
        return prompts, tokens

    def _take_in(self) -> None:
        count = min(
            self.prefill_batch_size - len(self._prompt_batch),
            self.completion_batch_size - len(self._generation_batch),
            len(self._waiting),
        )
        if count <= 0:
            return
        taken = [self._waiting.popleft() for _ in range(count)]
        self._processing += [
            Processing(each.segments, 0, sum(map(len, each.segments))) for each in taken
        ]
        rows, caches = [each.row for each in taken], [each.cache for each in taken]
        batch = PromptProcessingBatch.of(self.model, self.prefill_step_size, rows, caches)
        self._prompt_batch.extend(batch)

    def _start_decoding(self) -> list[PromptResponse]:
        """Prompts of which one token is left go over to the generation batch."""
        leaving = [i for i, each in enumerate(self._processing) if each.at_last_token]
        if not leaving:
            return []
        going = [self._processing[index] for index in leaving]
        self._processing = [each for each in self._processing if not each.at_last_token]
        last = [each.segments[0] for each in going]
        batch = self._prompt_batch.split(leaving).generate(last)
        responses = [
            PromptResponse(
                uid=uid,
                progress=(each.total, each.total),
                end_of_segment=True,
                end_of_prompt=True,
            )
            for uid, each in zip(batch.uids, going, strict=True)
        ]
        self._generation_batch.extend(batch)
        return responses

    def _prefill(self) -> list[PromptResponse]:
        pieces, responses = [], []
        for uid, each in zip(self._prompt_batch.uids, self._processing, strict=True):
            pieces.append(each.take(self.prefill_step_size))
            ended = not each.segments[0]
            if ended:
                each.segments.pop(0)
            responses.append(
                PromptResponse(uid=uid, progress=(each.done, each.total), end_of_segment=ended)
            )
        self._prompt_batch.prompt(pieces)
        return responses


def _staying(uids: Sequence[int], gone: set[int]) -> list[int]:
    return [index for index, uid in enumerate(uids) if uid not in gone]
