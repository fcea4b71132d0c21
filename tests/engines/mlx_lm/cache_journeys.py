"""Conversations that wander through mlx-lm's caches: alone, in batches, copied, cut, saved.

Whatever happens to them, the logits after their last token are those of a cold run. A journey is a
list of steps, each three small numbers that are read as the state allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cachesim.engines.mlx_lm.caches.prompt_cache import (
    BatchRotatingKVCache,
    can_trim_prompt_cache,
    load_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import (
    PromptCache,
    copy_cache,
    extend_cache,
    extract_cache,
    filter_cache,
    merge_caches,
    right_padded,
)
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.engines.mlx_lm.server.store import is_sound
from cachesim.model.arithmetic import Network
from cachesim.units import Token, as_tokens
from cachesim.verify.oracle import Oracle

Step = tuple[int, int, int]

MOST = 4
"""Conversations that are alone, and rows of the batch, at a time."""


class DivergedError(AssertionError):
    """The logits are not those of a cold run."""


class UnsoundError(AssertionError):
    """A cache holds other tokens than it claims, as a traced network sees it."""


@dataclass
class Conversation:
    """Tokens, and caches that claim to hold them."""

    tokens: list[int]
    cache: PromptCache


@dataclass
class Batch:
    """Rows side by side: what each holds, and the caches of all."""

    rows: list[list[int]] = field(default_factory=list)
    cache: PromptCache = field(default_factory=list)

    def join(self, rows: list[list[int]], cache: PromptCache) -> None:
        self.cache = extend_cache(self.cache, cache)
        self.rows = [*self.rows, *rows]

    def keep(self, rows: Sequence[int]) -> None:
        filter_cache(self.cache, rows)
        self.rows = [self.rows[row] for row in rows]

    def without(self, row: int) -> list[int]:
        return [number for number in range(len(self.rows)) if number != row]


@dataclass
class Journey:
    """Concurrent conversations: some alone, some in prefill, some in decode."""

    network: Network
    rules: CacheRules
    avoids_turned_rings: bool = True
    alone: list[Conversation] = field(default_factory=list)
    prompts: Batch = field(default_factory=Batch)
    generation: Batch = field(default_factory=Batch)
    checked: int = 0

    def __post_init__(self) -> None:
        self.model = Forward(self.network, self.rules)
        self.oracle = Oracle(self.network)
        self._next = 0

    def walk(self, steps: Sequence[Step]) -> None:
        """Take the steps one by one; raises where an answer diverges."""
        for act, one, two in steps:
            getattr(self, ACTS[act % len(ACTS)])(one, two)
            for it in self.alone:
                if is_sound(self.network, it.cache, as_tokens(it.tokens)) is False:
                    raise UnsoundError(it.tokens)

    def fresh(self, count: int) -> list[int]:
        """Tokens nobody had so far, as far as the vocabulary goes; never padding's token."""
        size = self.network.spec.vocabulary - 1
        tokens = [1 + (self._next + i) * 7 % size for i in range(count)]
        self._next += count
        return tokens

    def begin(self, one: int, _two: int) -> None:
        """A conversation without tokens yet."""
        if len(self.alone) < MOST:
            self.alone.append(Conversation([], self.model.make_cache()))
            self.feed(-1, one)

    def feed(self, one: int, two: int) -> None:
        """Some tokens for one that is alone."""
        if not self.alone:
            return
        it = self.alone[one % len(self.alone)]
        piece = self.fresh(1 + two % 7)
        logits = self.model(np.array([piece]), it.cache)
        it.tokens += piece
        self.check(it.tokens, logits[0])

    def cut(self, one: int, two: int) -> None:
        """Take the last tokens back, where all layers can."""
        if not self.alone:
            return
        it = self.alone[one % len(self.alone)]
        count = min(two % 5, len(it.tokens))
        if can_trim_prompt_cache(it.cache):
            trim_prompt_cache(it.cache, count)
            it.tokens = it.tokens[: len(it.tokens) - count]

    def copy(self, one: int, _two: int) -> None:
        if self.alone and len(self.alone) < MOST:
            it = self.alone[one % len(self.alone)]
            self.alone.append(Conversation(list(it.tokens), copy_cache(it.cache)))

    def save(self, one: int, _two: int) -> None:
        """Through a file and back."""
        if self.alone and self.rules.state_form == "whole":
            it = self.alone[one % len(self.alone)]
            blob = save_prompt_cache(it.cache, rules=self.rules)
            it.cache, _ = load_prompt_cache(blob, rules=self.rules)

    def admit(self, one: int, two: int) -> None:
        """One that is alone, or a fresh one, joins the prompts."""
        if len(self.prompts.rows) >= MOST:
            return
        it = Conversation([], self.model.make_cache())
        if self.alone and two % 3:
            it = self.alone.pop(one % len(self.alone))
        self.prompts.join([it.tokens], merge_caches([it.cache]))

    def prefill(self, one: int, two: int) -> None:
        """Pieces of different lengths, padded on the right, for all prompts."""
        batch = self.prompts
        if not batch.rows:
            return
        lengths = [1 + (one + row * (two % 4)) % 5 for row in range(len(batch.rows))]
        if max(lengths) > 1 and self.avoids_turned_rings and _has_turned(batch.cache):
            return
        pieces = [self.fresh(length) for length in lengths]
        padding = [max(lengths) - length for length in lengths]
        if max(padding) > 0:
            for layer in batch.cache:
                layer.prepare(lengths=lengths, right_padding=padding)
        logits = self.model(right_padded([as_tokens(piece) for piece in pieces]), batch.cache)
        if max(padding) > 0:
            for layer in batch.cache:
                layer.finalize()
        for row, piece in enumerate(pieces):
            batch.rows[row] = batch.rows[row] + piece
            if len(piece) == max(lengths):
                self.check(batch.rows[row], logits[row])

    def promote(self, one: int, _two: int) -> None:
        """A prompt is through: its row moves over to the generation, by a copy of the batch."""
        if not self.prompts.rows or len(self.generation.rows) >= MOST:
            return
        row = one % len(self.prompts.rows)
        moved = copy_cache(self.prompts.cache)
        filter_cache(moved, [row])
        tokens = self.prompts.rows[row]
        self.prompts.keep(self.prompts.without(row))
        column = self.fresh(1)
        logits = self.model(np.array([column]), moved)
        self.check([*tokens, *column], logits[0])
        self.generation.join([[*tokens, *column]], moved)

    def decode(self, _one: int, two: int) -> None:
        """One token for every row, a few times."""
        batch = self.generation
        for _ in range((1 + two % 4) if batch.rows else 0):
            column = self.fresh(len(batch.rows))
            logits = self.model(np.array(column)[:, None], batch.cache)
            for row, token in enumerate(column):
                batch.rows[row] = [*batch.rows[row], token]
                self.check(batch.rows[row], logits[row])

    def leave(self, one: int, _two: int) -> None:
        """A row of the generation is finished and goes on alone."""
        batch = self.generation
        if batch.rows:
            row = one % len(batch.rows)
            self._extract(batch, row)
            batch.keep(batch.without(row))

    def look(self, one: int, _two: int) -> None:
        """A copy of a prompt's row goes on alone, as a checkpoint does."""
        if self.prompts.rows:
            self._extract(self.prompts, one % len(self.prompts.rows))

    def _extract(self, batch: Batch, row: int) -> None:
        if batch.rows[row] and len(self.alone) < MOST:
            single = extract_cache(batch.cache, row)
            self.alone.append(Conversation(list(batch.rows[row]), single))

    def check(self, tokens: Sequence[int], logits: object) -> None:
        """Bit for bit the cold answer."""
        cold = self.oracle.logits(as_tokens(list(tokens)), (Token(0),))[0]
        self.checked += 1
        if not np.array_equal(cold, logits):
            raise DivergedError(f"after {len(tokens)} tokens")


def _has_turned(cache: PromptCache) -> bool:
    """True if a ring wrapped with a padded row, which would hide a token of that row."""
    return any(
        isinstance(layer, BatchRotatingKVCache)
        and layer.rotated
        and bool((layer.left_padding > 0).any())
        for layer in cache
    )


ACTS = (
    "begin", "feed", "feed", "cut", "copy", "save", "admit", "admit", "prefill", "prefill",
    "promote", "promote", "decode", "decode", "leave", "look",
)  # fmt: skip
