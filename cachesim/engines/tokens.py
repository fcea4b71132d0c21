"""Comparing lists of tokens, for every engine and for what is said of it."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import ne
from typing import Final, Self, TypeAlias, overload

import numpy as np

from cachesim.units import Count, Integers, Token

# Tokens as runs of named texts: what a log tells of a prompt is its length and what it repeats.
#
#     text 7   [0 .. 41_959]                 a prompt as runs (text, first, past the last):
#     text 9   [0 .. 310]                    (7, 0, 41_960) (9, 0, 311)
#
# Two tokens are equal where they are the same place of the same text, and nowhere else. So a prompt
# of 80,000 tokens takes a few numbers, and comparing two of them a few steps. A rope answers as a
# list of tokens does, as far as servers ask: it grows at its end, is cut and sliced.

Run: TypeAlias = tuple[int, int, int]
"""A text, the first of its tokens, and one past the last."""

PLACES: Final = 24
"""Bits of a token's number that say where in its text it stands."""

LONGEST: Final = 1 << PLACES
"""So many tokens a text may have."""


class Rope:
    """A list of tokens, kept as runs."""

    __slots__ = ("_length", "runs")
    __hash__ = None  # type: ignore[assignment]  # it changes, as a list does

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs: list[Run] = []
        self._length = 0
        for run in runs:
            self._append(run)

    @classmethod
    def of(cls, text: int, length: int) -> "Rope":
        """The whole of a text."""
        return cls([(text, 0, length)])

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Token]:
        for text, first, last in self.runs:
            base = text << PLACES
            for place in range(first, last):
                yield Token(base | place)

    @overload
    def __getitem__(self, at: int) -> Token: ...
    @overload
    def __getitem__(self, at: slice) -> "Rope": ...
    def __getitem__(self, at: "int | slice") -> "Token | Rope":
        if isinstance(at, slice):
            start, stop, _ = at.indices(self._length)
            if (start, stop) == (0, self._length):
                return self.copy()
            return Rope(self._between(start, stop))
        if at < 0:
            at += self._length
        for text, first, last in self.runs:
            if at < last - first:
                return Token(text << PLACES | first + at)
            at -= last - first
        msg = "there is no such token in this rope"
        raise IndexError(msg)

    def __delitem__(self, at: slice) -> None:
        start, stop, _ = at.indices(self._length)
        if start >= stop:
            return
        if stop < self._length:
            rest = list(self._between(stop, self._length))
            self._cut(start)
            for run in rest:
                self._append(run)
        else:
            self._cut(start)

    def __setitem__(self, at: slice, tokens: "Rope") -> None:
        start, stop, _ = at.indices(self._length)
        rest = list(self._between(stop, self._length))
        self._cut(start)
        self += tokens
        for run in rest:
            self._append(run)

    def __iadd__(self, tokens: "Rope | Iterable[Token]") -> Self:
        if isinstance(tokens, Rope):
            for run in tokens.runs:
                self._append(run)
        else:
            for token in tokens:
                place = token & LONGEST - 1
                self._append((token >> PLACES, place, place + 1))
        return self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Rope):
            return self.runs == other.runs
        return isinstance(other, tuple | list) and list(self) == list(other)

    def __deepcopy__(self, memo: object) -> "Rope":
        return self.copy()

    def __repr__(self) -> str:
        return f"Rope({self.runs})"

    def copy(self) -> "Rope":
        """A copy with the same tokens."""
        one = Rope()
        one.runs, one._length = self.runs.copy(), self._length
        return one

    def clear(self) -> None:
        """Forget all tokens."""
        self.runs, self._length = [], 0

    def common(self, other: "Rope") -> int:
        """The number of equal leading tokens."""
        equal = 0
        for one, two in zip(self.runs, other.runs, strict=False):
            if one != two:
                if one[0] == two[0] and one[1] == two[1]:
                    equal += min(one[2], two[2]) - one[1]
                break
            equal += one[2] - one[1]
        return equal

    def _append(self, run: Run) -> None:
        text, first, last = run
        if last <= first:
            return
        if self.runs:
            before = self.runs[-1]
            if before[0] == text and before[2] == first:
                self.runs[-1] = (text, before[1], last)
                self._length += last - first
                return
        self.runs.append(run)
        self._length += last - first

    def _cut(self, count: int) -> None:
        """Keep the first `count` tokens."""
        while self._length > count:
            text, first, last = self.runs.pop()
            self._length -= last - first
            if self._length < count:
                self._append((text, first, first + count - self._length))

    def _between(self, start: int, stop: int) -> Iterator[Run]:
        at = 0
        for text, first, last in self.runs:
            if at >= stop:
                return
            low, high = max(start, at), min(stop, at + last - first)
            if low < high:
                yield text, first + low - at, first + high - at
            at += last - first


def as_rope(tokens: object) -> Rope | None:
    """Tokens as a rope, if they are one."""
    return tokens if isinstance(tokens, Rope) else None


_SHORT: Final = 256
"""Tokens up to which a walk is quicker than comparing halves."""


def get_common_prefix(one: Sequence[int] | Rope, other: Sequence[int] | Rope) -> Count:
    """The number of equal leading tokens (llama.cpp: `server_tokens::get_common_prefix`).

    Long lists are compared by slices, half by half, and what is left is walked: both run in C.
    """
    if isinstance(one, Rope) and isinstance(other, Rope):
        return Count(one.common(other))
    low, high = 0, min(len(one), len(other))
    if high > _SHORT:
        if type(one) is not type(other):  # slices of a list and a tuple are never equal
            one, other = list(one), list(other)
        if one[:high] == other[:high]:
            return Count(high)
        while high - low > _SHORT:
            middle = (low + high) // 2
            if one[low:middle] == other[low:middle]:
                low = middle
            else:
                high = middle
        one, other = one[low:high], other[low:high]
    return Count(next(compress(range(low, high), map(ne, one, other)), high))


def common_numbers(one: Integers, other: Integers) -> int:
    """The number of equal leading values of two arrays."""
    count = min(len(one), len(other))
    differ = one[:count] != other[:count]
    at = int(differ.argmax()) if count else 0
    return at if count and differ[at] else count


# Every sequence that was computed or kept: what a cache could have had.
#
# Nothing is forgotten, unless somebody says how much is to be remembered. Then there are two trees:
#
#     old    a b c d e f          learned earlier, and dropped when the young one is full
#     young          e f g h      learned since; becomes the old one when it is full


@dataclass(slots=True)
class Edge:
    """Some tokens, and what follows them; `by` is the request that came first."""

    key: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    by: int = -1
    after: dict[Hashable, "Edge"] = field(default_factory=dict)


class Seen:
    """A tree of tokens."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, Edge] = {}
        self._old: dict[Hashable, Edge] = {}
        self._parted = 0
        self._most: int | None = None

    def remember(self, most: int) -> None:
        """Keep two trees of so many places where sequences part, and forget what is older."""
        self._most = most

    def learn(self, tokens: Integers, extra: Hashable, by: int) -> None:
        """Some tokens from the start on."""
        if self._most is not None and self._parted >= self._most:
            self._old, self._roots, self._parted = self._roots, {}, 0
        edge, key = self._roots.setdefault(extra, Edge()), tokens
        while len(key):
            name = int(key[0])
            below = edge.after.get(name)
            if below is None:
                if edge.by == by and len(edge.key) and not edge.after:  # a reply, token by token
                    edge.key = np.concatenate((edge.key, key))
                    return
                edge.after[name] = Edge(np.array(key), by)
                self._parted += 1
                return
            shared = common_numbers(below.key, key)
            if shared < len(below.key):
                rest = Edge(below.key[shared:], below.by, below.after)
                below.key, below.after = below.key[:shared], {int(rest.key[0]): rest}
            edge, key = below, key[shared:]

    def find(self, tokens: Integers, extra: Hashable) -> tuple[int, int]:
        """The number of known leading tokens, and their source."""
        found = _found(self._roots.get(extra), tokens)
        return max(found, _found(self._old.get(extra), tokens)) if self._old else found


def _found(edge: Edge | None, tokens: Integers) -> tuple[int, int]:
    count, by = 0, -1
    while edge is not None and count < len(tokens):
        below = edge.after.get(int(tokens[count]))
        if below is None:
            break
        shared = common_numbers(below.key, tokens[count:])
        count, by = count + shared, below.by
        if shared < len(below.key):
            break
        edge = below
    return count, by
