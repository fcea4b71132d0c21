"""Helpers of both batch generators and of requests served alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays_cache import CacheList
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache, UpstreamValueError
from cachesim.engines.mlx_lm.caches.prompt_cache import copy_prompt_cache
from cachesim.model.arithmetic import Network
from cachesim.units import Array, Integers, Token, Tokens


@dataclass(slots=True)
class Sampler:
    """Greedy or forced tokens, with the logits of each."""

    network: Network
    forced: Tokens | None = None
    rows: list[Array] = field(default_factory=list)

    def __call__(self, logits: Array) -> Token:
        self.rows.append(logits)
        return self.choose(logits, len(self.rows) - 1)

    def choose(self, logits: Array, index: int) -> Token:
        """The token of a row, forced or greedy."""
        if self.forced is not None and index < len(self.forced):
            return self.forced[index]
        return self.network.sample(logits)


@dataclass(slots=True)
class Stopper:
    """Matcher of one sequence's tokens with the end mark and stop words.

    A forced token never ends a generation: in a forced reply only the last token's match counts, as
    the finish reason.
    """

    sequences: tuple[Tokens, ...]
    forced: int | None = None
    seen: list[Token] = field(default_factory=list)
    met: int = 0  # length of the sequence that matched

    def advance(self, token: Token) -> bool:
        """Check for the end of a stop sequence. Follows `StopSequences.Matcher.advance`."""
        self.seen.append(token)
        if self.forced is not None and len(self.seen) < self.forced:
            return False
        self.met = next(
            (
                len(sequence)
                for sequence in self.sequences
                if bool(sequence) and tuple(self.seen[-len(sequence) :]) == tuple(sequence)
            ),
            0,
        )
        return self.met > 0


PromptCache: TypeAlias = list[LayerCache]
"""Caches of the layers with state, in layer order."""

PAD: Token = Token(0)


@dataclass(slots=True, kw_only=True)
class Row:
    """A sequence of a batch; upstream keeps its fields in parallel lists.

    `tokens` lists the tokens in the caches (since #1072).
    """

    uid: int
    sampler: Sampler
    stopper: Stopper
    max_tokens: int
    tokens: list[Token] = field(default_factory=list)
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResponse:
    """Progress of a sequence's prefill. Follows `PromptProcessingBatch.Response`."""

    uid: int
    progress: tuple[int, int]
    end_of_segment: bool = False
    end_of_prompt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenResponse:
    """A token of a sequence. Follows `GenerationBatch.Response`."""

    uid: int
    token: Token
    finish_reason: str | None = None
    prompt_cache: PromptCache | None = None
    all_tokens: list[Token] | None = None


def leaves(cache: PromptCache) -> list[LayerCache]:
    """The layer caches, with the members of a `CacheList`."""
    return [
        layer_cache
        for layer in cache
        for layer_cache in (layer.caches if isinstance(layer, CacheList) else (layer,))
    ]


def as_columns(prompts: Sequence[Sequence[Token]]) -> Integers:
    """Prompts of one length as an array (batch, columns); others raise, as in `mx.array`."""
    if len({len(prompt) for prompt in prompts}) > 1:
        raise UpstreamValueError("Initialization encountered non-uniform length.")
    columns = len(prompts[0]) if prompts else 0
    return np.array([list(prompt) for prompt in prompts], np.int64).reshape(len(prompts), columns)


def right_padded(prompts: Sequence[Sequence[Token]]) -> Integers:
    """Prompts, then padding up to the longest. Follows `_right_pad_prompts`."""
    longest = max(map(len, prompts))
    return as_columns([[*prompt, *[PAD] * (longest - len(prompt))] for prompt in prompts])


def left_padded(prompts: Sequence[Sequence[Token]], length: int) -> Integers:
    """Padding up to `length`, then prompts. Follows `_left_pad_prompts`."""
    return as_columns([[*[PAD] * (length - len(prompt)), *prompt] for prompt in prompts])


def merge_caches(caches: Sequence[PromptCache]) -> PromptCache:
    """Several prompt caches as one batch, layer by layer. Follows `_merge_caches`."""
    return [_merge_layer(layers) for layers in zip(*caches, strict=True)]


def _merge_layer(layers: Sequence[LayerCache]) -> LayerCache:
    if not layers[0].merges:
        raise UpstreamValueError(f"{type(layers[0])} does not yet support batching with history")
    return type(layers[0]).merge(layers)


def extend_cache(one: PromptCache, other: PromptCache) -> PromptCache:
    """Append the rows of `other`; a side without layers is replaced. Follows `_extend_cache`."""
    if not one:
        return other
    if not other:
        return one
    for layer, more in zip(one, other, strict=True):
        layer.extend(more)
    return one


def extract_cache(cache: PromptCache, row: int) -> PromptCache:
    """A row of a batch as a prompt cache of its own."""
    return [layer.extract(row) for layer in cache]


def copy_cache(cache: PromptCache) -> PromptCache:
    """Independent layers, arrays included; upstream's `copy.deepcopy`."""
    return copy_prompt_cache(cache)


def filter_cache(cache: PromptCache, keep: Sequence[int]) -> None:
    """Keep these rows; without any, remove the layers."""
    if not keep:
        cache.clear()
    for layer in cache:
        layer.filter(keep)


def nbytes_of(caches: Sequence[PromptCache]) -> int:
    """Bytes of all layers of several prompt caches."""
    return sum(layer.nbytes for cache in caches for layer in cache)
