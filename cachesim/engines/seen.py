"""Every sequence that was computed or kept: what a cache could have had.

Nothing is forgotten, unless somebody says how much is to be remembered. Then there are two trees:

    old    a b c d e f          learned earlier, and dropped when the young one is full
    young          e f g h      learned since; becomes the old one when it is full
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from cachesim.engines.tokens import common_numbers
from cachesim.units import Integers


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
