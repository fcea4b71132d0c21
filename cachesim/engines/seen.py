"""Every sequence that was computed or kept, and never forgotten: what a cache could have had."""

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from cachesim.units import Integers


@dataclass(slots=True)
class Edge:
    """Some tokens, and what follows them; `by` is the request that came first."""

    key: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    by: int = -1
    after: dict[Hashable, "Edge"] = field(default_factory=dict)


class Seen:
    """A tree of tokens that only grows."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, Edge] = {}

    def learn(self, tokens: Integers, extra: Hashable, by: int) -> None:
        """Some tokens from the start on."""
        edge, key = self._roots.setdefault(extra, Edge()), tokens
        while len(key):
            name = int(key[0])
            below = edge.after.get(name)
            if below is None:
                edge.after[name] = Edge(np.array(key), by)
                return
            shared = _shared(below.key, key)
            if shared < len(below.key):
                rest = Edge(below.key[shared:], below.by, below.after)
                below.key, below.after = below.key[:shared], {int(rest.key[0]): rest}
            edge, key = below, key[shared:]

    def find(self, tokens: Integers, extra: Hashable) -> tuple[int, int]:
        """How many leading tokens are known, and from whom."""
        edge, count, by = self._roots.get(extra), 0, -1
        while edge is not None and count < len(tokens):
            below = edge.after.get(int(tokens[count]))
            if below is None:
                break
            shared = _shared(below.key, tokens[count:])
            count, by = count + shared, below.by
            if shared < len(below.key):
                break
            edge = below
        return count, by


def _shared(one: Integers, other: Integers) -> int:
    """How many leading numbers are equal."""
    count = min(len(one), len(other))
    differ = one[:count] != other[:count]
    at = int(differ.argmax()) if count else 0
    return at if count and differ[at] else count
