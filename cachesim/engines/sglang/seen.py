"""Every sequence that was computed or kept, and never forgotten: what a cache could have had."""

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from cachesim.engines.sglang.node import NO_SLOTS, common
from cachesim.units import Integers


@dataclass(slots=True)
class Edge:
    """Some tokens, and what follows them; `by` is the request that came first."""

    key: Integers = field(default_factory=lambda: NO_SLOTS)
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
            shared = common(below.key, key, 1)
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
            shared = common(below.key, tokens[count:], 1)
            count, by = count + shared, below.by
            if shared < len(below.key):
                break
            edge = below
        return count, by


class States:
    """Where states were saved, whatever became of them."""

    def __init__(self) -> None:
        self._ends: dict[int, set[tuple[Hashable, bytes]]] = {}

    def learn(self, tokens: Integers, extra: Hashable) -> None:
        """A state after these tokens."""
        self._ends.setdefault(len(tokens), set()).add((extra, tokens.tobytes()))

    def deepest(self, tokens: Integers, extra: Hashable, most: int) -> int:
        """The last position up to `most` at which one was saved; 0 if there was none."""
        for end in sorted(self._ends, reverse=True):
            if end <= most and (extra, tokens[:end].tobytes()) in self._ends[end]:
                return end
        return 0
