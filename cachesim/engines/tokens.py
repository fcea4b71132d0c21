"""Token lists, their common prefixes, and records of computed sequences."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from operator import ne
from typing import Final, Self, TypeAlias, cast, overload

import numpy as np

from cachesim.units import Count, Integers, Token

# Tokens as runs of named texts: a log has the length of a prompt and its repetitions, not its ids.
#
#     text 7   [0 .. 41_959]                 a prompt as runs (text, first, past the last):
#     text 9   [0 .. 310]                    (7, 0, 41_960) (9, 0, 311)
#
# Two tokens are equal if they have the same place in the same text. So a prompt of 80,000 tokens
# takes a few numbers, and a comparison a few steps. A rope has the list operations that servers
# use: append, cut and slice.

Run: TypeAlias = tuple[int, int, int]
"""A text, the place of its first token, and one past the last."""

PLACES: Final = 24
"""Bits of a token's number for its place in its text."""

LONGEST: Final = 1 << PLACES
"""Maximum tokens of a text."""


class Rope:
    """A list of tokens, stored as runs."""

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
        runs = ((text << PLACES, first, last) for text, first, last in self.runs)
        ranges = (range(base + first, base + last) for base, first, last in runs)
        return cast("Iterator[Token]", chain.from_iterable(ranges))

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
        raise IndexError("there is no such token in this rope")

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
        one = Rope()
        one.runs, one._length = self.runs.copy(), self._length
        return one

    def clear(self) -> None:
        self.runs, self._length = [], 0

    def common(self, other: "Rope") -> int:
        """The length of the common prefix."""
        runs, others = self.runs, other.runs
        count = min(len(runs), len(others))
        if runs[:count] == others[:count]:  # a turn that continues a long conversation
            return min(self._length, len(other))
        equal = 0
        for one, two in zip(runs, others, strict=False):
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
    """The tokens if they are a rope, else None."""
    return tokens if isinstance(tokens, Rope) else None


_SHORT: Final = 256
"""Length up to which a scan is faster than a binary search."""


def get_common_prefix(one: Sequence[object] | Rope, other: Sequence[object] | Rope) -> Count:
    """The length of the common prefix (llama.cpp: `server_tokens::get_common_prefix`).

    Long lists are narrowed by comparing slices, half by half, then scanned: both run in C.
    """
    if isinstance(one, Rope) and isinstance(other, Rope):
        return Count(one.common(other))
    low, high = 0, min(len(one), len(other))
    if not high or one[0] != other[0]:  # texts of two conversations mostly
        return Count(0)
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
    one, other = one[:count], other[:count]
    if one.tobytes() == other.tobytes():  # as bytes: most edges of a tree match to their end
        return count
    return int((one != other).argmax())


# A record of computed sequences: an upper bound of a cache's reuse.
#
# Unlimited by default; with a limit (`remember`) there are two trees:
#
#     old    a b c d e f          learned earlier, dropped when the young one is full
#     young          e f g h      learned since; becomes the old one when it is full


@dataclass(slots=True)
class Edge:
    """Tokens and their continuations; `by` is the first request with them."""

    key: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    by: int = -1
    after: dict[Hashable, "Edge"] = field(default_factory=dict)


class PrefixTree:
    """A prefix tree of computed tokens."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, Edge] = {}
        self._old: dict[Hashable, Edge] = {}
        self._parted = 0
        self._most: int | None = None

    def remember(self, most: int) -> None:
        """Limit each tree to `most` branches; the older one is dropped."""
        self._most = most

    def learn(self, tokens: Integers, extra: Hashable, by: int) -> None:
        """Add a sequence."""
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
        """The number of known leading tokens, and the request that added the last of them."""
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
