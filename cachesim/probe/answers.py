"""Requests and answers in one form for all dialects, and the distance of two answers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

Word: TypeAlias = int | str
"""A token's id; where a server takes texts alone, a word of its vocabulary."""

Row: TypeAlias = Mapping[Word, float]
"""Log probabilities of the likeliest tokens at one place."""

LIKELY: Final = -7.0
"""Log probability below which a token is so unlikely that rounding of it means nothing."""


DISCONNECTED: Final = "the client left"
"""The error of a request whose client did not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A request: prompt, and the reply that is forced where the server can be made to give it."""

    prompt: tuple[Word, ...]
    reply: tuple[Word, ...]
    slot: int = -1
    cache_prompt: bool = True
    leaves: float = 0.0  # seconds after which the client disconnects; 0: never
    messages: tuple[int, ...] = ()  # where messages of a chat end, the last one aside


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer, or the error message in its place."""

    cached: int | None = None
    prompt_tokens: int | None = None
    tokens: tuple[Word, ...] = ()
    rows: tuple[Row, ...] = ()
    error: str = ""
    fatal: bool = False  # no answer, or a broken one: not a refusal
    denied: bool = False  # for want of a key, or by a rate limit
    slot: int | None = None

    def checked(self) -> "Answer":
        """The answer itself; TypeError where a server wrote a value of another kind."""
        counts = (self.cached, self.prompt_tokens, self.slot)
        words = [*self.tokens, *(token for row in self.rows for token in row)]
        right = all(value is None or type(value) is int for value in counts)
        if not right or not all(isinstance(word, int | str) for word in words):
            raise TypeError("a count is no whole number, or a token neither a number nor a text")
        return self


def distance(one: Answer, other: Answer) -> float:
    """The largest difference of a likely log probability, as long as both replies are equal.

    A token that only one of two truncated rows has is at most as likely in the other one as the
    least likely token there. Two answers without log probabilities are 0 apart if their tokens
    are equal, and infinitely far where they differ.

        one    t0 t1 t2 t3        rows 0 to 3 are compared: before t3 both replies are equal
        other  t0 t1 t2 u3 u4     row 4 is not
    """
    if not one.rows and not other.rows:
        return 0.0 if one.tokens == other.tokens else math.inf
    far = 0.0
    for at, (ours, theirs) in enumerate(zip(one.rows, other.rows, strict=False)):
        far = max(far, _row_distance(ours, theirs))
        if one.tokens[at : at + 1] != other.tokens[at : at + 1]:
            break
    return far


def _row_distance(ours: Row, theirs: Row) -> float:
    if not ours or not theirs:  # no finite number: what masks all keys computes none
        return 0.0 if not ours and not theirs else math.inf
    least_ours, least_theirs = min(ours.values()), min(theirs.values())
    far = 0.0
    for token in ours.keys() | theirs.keys():
        here = ours.get(token, min(least_ours, theirs.get(token, 0.0)))
        there = theirs.get(token, min(least_theirs, ours.get(token, 0.0)))
        if max(here, there) > LIKELY:
            far = max(far, abs(here - there))
    return far
