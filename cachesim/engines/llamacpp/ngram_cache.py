"""Drafts from the n-grams of what a slot has held (`--spec-type ngram-cache`).

text     a b c a b            what followed `a b` before: c
draft              c a b

Upstream: `common_speculative_impl_ngram_cache` and `common/ngram-cache.cpp`, without the files of a
static and a dynamic cache.
"""

from collections.abc import Sequence
from typing import Final

from cachesim.units import Token

CACHED: Final = "ngram-cache"
"""The `spec_type` that drafts from here."""

LONGEST: Final = 4
"""The longest n-gram (`LLAMA_NGRAM_MAX`); the shortest is one token."""

LEAST_SEEN: Final = (2, 2, 1, 1)
"""Minimum occurrences of an n-gram of each length (`draft_min_sample_size_lax`)."""

LEAST_PERCENT: Final = (66, 50, 50, 50)
"""Minimum share of the most frequent next token, in percent (`draft_min_percent_lax`)."""

MOST_DRAFTED: Final = 8
"""The most tokens of a draft, whatever the flags say (`n_draft`)."""

STATIC: Final = 2
"""A text shorter than this gets no draft (`LLAMA_NGRAM_STATIC`)."""


class NgramCache:
    """The continuations of each n-gram in a slot, and the length of the text they come from.

    Upstream: `common_ngram_cache`, as `common_speculative_impl_ngram_cache` keeps one per slot.
    """

    __slots__ = ("after", "size")

    def __init__(self) -> None:
        self.after: dict[tuple[Token, ...], dict[Token, int]] = {}
        self.size = 0

    def draft(self, tokens: Sequence[Token], sampled: Token, most: int) -> list[Token]:
        """Take in what is new of a slot's text, and propose what may follow.

        Trap: nothing says that another request has begun. A text that is shorter than what went in
        before is not taken in at all, a longer one from there on.
        """
        if self.size < len(tokens) + 1:
            self._learn([*tokens[self.size :], sampled])
            self.size = len(tokens) + 1
        text = [*tokens[-LONGEST:], sampled]
        if len(tokens) + 1 < STATIC:
            return []
        drafted: list[Token] = []
        while len(drafted) < MOST_DRAFTED:
            token = self._following([*text, *drafted])
            if token is None:
                break
            drafted.append(token)
        return drafted[:most]

    def _learn(self, new: Sequence[Token]) -> None:
        """Follows `common_ngram_cache_update`; n-grams across the seam are not counted (a trap)."""
        for length in range(1, LONGEST + 1):
            for end in range(length, len(new)):
                part = self.after.setdefault(tuple(new[end - length : end]), {})
                part[new[end]] = part.get(new[end], 0) + 1

    def _following(self, text: Sequence[Token]) -> Token | None:
        """The token that followed the longest n-gram often enough. Follows `try_draft`."""
        for length in range(min(LONGEST, len(text)), 0, -1):
            part = self.after.get(tuple(text[-length:]))
            if part is None:
                continue
            seen = sum(part.values())
            best = max(reversed(part), key=part.__getitem__)  # the newest first among equals
            often_enough = 100 * part[best] >= LEAST_PERCENT[length - 1] * seen
            if seen >= LEAST_SEEN[length - 1] and often_enough:
                return best
        return None
