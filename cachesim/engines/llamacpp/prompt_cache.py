"""The prompt cache: whole conversations parked in host memory (`--cache-ram`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cachesim.engines.causes import Cause
from cachesim.engines.llamacpp import causes
from cachesim.engines.llamacpp.contexts import SavedState
from cachesim.engines.llamacpp.ratio import QUARTER, Float32, ratio, shown
from cachesim.engines.llamacpp.rules import PromptCacheRules
from cachesim.engines.llamacpp.slot import Approximation, Checkpoint
from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Count, Token


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """One parked conversation; a failed load may leave its target blob empty."""

    tokens: list[Token]
    state: SavedState
    checkpoints: tuple[Checkpoint, ...]
    approximate: Approximation | None

    @property
    def n_tokens(self) -> Count:
        """How many tokens the conversation has."""
        return Count(len(self.tokens))

    @property
    def size(self) -> int:
        """Bytes of the blobs and of all checkpoints."""
        return self.state.size + sum(each.size for each in self.checkpoints)


class CacheLog(Protocol):
    """Who is told what the cache does."""

    def already_cached(self, tokens: Sequence[Token]) -> None:
        """The prompt is in the cache; it is not saved."""

    def obsolete(self, entry: Entry) -> None:
        """An entry is a prefix of what is being saved."""

    def too_large(self, size: int, limit: int) -> None:
        """The prompt alone exceeds the limit; it is not saved."""

    def making_room(self, entry: Entry) -> None:
        """The oldest goes for one that is being saved."""

    def limit_reached(self, entry: Entry, *, which: str, estimate: int) -> None:
        """The oldest goes because there is too much."""

    def looking(self, f_keep: Float32, f_sim: Float32) -> None:
        """A search begins."""

    def compared(self, entry: Entry, *, lcp: Count, f_keep: Float32, f_sim: Float32) -> None:
        """One entry in it."""

    def refused(self, entry: Entry, cause: Cause, **detail: Any) -> None:  # noqa: ANN401
        """One entry is out."""


class PromptCache:
    """An ordered list of entries, oldest first (upstream: `server_prompt_cache`).

    An entry's age is the time it was saved: being looked at does not refresh it, being loaded
    removes it.
    """

    def __init__(self, rules: PromptCacheRules, *, limit_size: int, limit_tokens: int) -> None:
        """A `limit_size` of 0 bytes means none."""
        self.rules = rules
        self.limit_size = limit_size
        self.limit_tokens = limit_tokens
        self.entries: list[Entry] = []

    @property
    def size(self) -> int:
        """Bytes of everything."""
        return sum(entry.size for entry in self.entries)

    @property
    def n_tokens(self) -> int:
        """Tokens of everything."""
        return sum(entry.n_tokens for entry in self.entries)

    def contains(self, tokens: Sequence[Token]) -> bool:
        """True if a prompt equals an entry or is a prefix of one."""
        return any(get_common_prefix(each.tokens, tokens) == len(tokens) for each in self.entries)

    def alloc(self, entry: Entry, log: CacheLog) -> bool:
        """Append an entry unless another one covers it (upstream: `alloc`); False if it was not."""
        if self.contains(entry.tokens):
            log.already_cached(entry.tokens)
            return False
        if self.rules.save_makes_room and 0 < self.limit_size < entry.size:
            log.too_large(entry.size, self.limit_size)
            return False
        self._drop_prefixes_of(entry.tokens, log)
        if self.rules.save_makes_room and self.limit_size > 0:
            while self.entries and self.size + entry.size > self.limit_size:
                log.making_room(self.entries.pop(0))
        self.entries.append(entry)
        return True

    def _drop_prefixes_of(self, tokens: Sequence[Token], log: CacheLog) -> None:
        kept = []
        for entry in self.entries:
            if get_common_prefix(entry.tokens, tokens) == entry.n_tokens:
                log.obsolete(entry)
            else:
                kept.append(entry)
        self.entries = kept

    def find(self, held: Sequence[Token], prompt: Sequence[Token], log: CacheLog) -> Entry | None:
        """The entry that beats the slot's own tokens on both ratios (upstream: first part of
        `load`).

        The walk goes from the oldest to the newest, and each winner raises both bars: an older
        entry with a high keep and a low similarity blocks a younger one.
        """
        lcp = get_common_prefix(held, prompt)
        best_keep = ratio(lcp, len(held)) if held else np.float32(-1.0)
        best_sim = ratio(lcp, len(prompt))
        log.looking(best_keep, best_sim)
        best: Entry | None = None
        for entry in self.entries:
            lcp = get_common_prefix(entry.tokens, prompt)
            keep, sim = ratio(lcp, entry.n_tokens), ratio(lcp, len(prompt))
            log.compared(entry, lcp=lcp, f_keep=keep, f_sim=sim)
            if keep < QUARTER:
                log.refused(entry, causes.CACHE_KEEP, f_keep=shown(keep), below=0.25)
            elif self._beats(keep, sim, best_keep, best_sim):
                if best is not None:
                    log.refused(
                        best, causes.CACHE_BETTER_ENTRY, f_keep=shown(keep), f_sim=shown(sim)
                    )
                best, best_keep, best_sim = entry, keep, sim
            else:
                log.refused(
                    entry, causes.CACHE_NOT_BETTER, f_keep=shown(keep), f_sim=shown(sim),
                    best_keep=shown(best_keep), best_sim=shown(best_sim),
                )  # fmt: skip
        return best

    def _beats(self, keep: Float32, sim: Float32, best_keep: Float32, best_sim: Float32) -> bool:
        if self.rules.best_by_reuse:
            return bool(best_sim < sim)
        return bool(best_keep < keep and best_sim < sim)

    def update(self, log: CacheLog) -> None:
        """Apply both limits, oldest first (upstream: `update`)."""
        least = 1 if self.rules.limits_keep_one else 0
        while 0 < self.limit_size < self.size and len(self.entries) > least:
            log.limit_reached(self.entries.pop(0), which="size", estimate=self.limit_size)
        estimate = self.token_limit()
        while self.n_tokens > estimate and len(self.entries) > least:
            log.limit_reached(self.entries.pop(0), which="tokens", estimate=estimate)

    def token_limit(self) -> int:
        """How many tokens may be parked: the context, or what the bytes would hold on average."""
        if self.limit_size <= 0:
            return self.limit_tokens
        per_token = max(np.float32(1.0), ratio(self.size, max(1, self.n_tokens)))
        return max(self.limit_tokens, int(np.float32(self.limit_size) / per_token))
