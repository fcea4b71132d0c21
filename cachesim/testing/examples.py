"""A complete object for each check: a pool of blocks for `check_live_cache`, a memory for
`check_memory`.

    >>> from cachesim.testing import check_live_cache, check_memory
    >>> from cachesim.testing.examples import BlockPool, ListMemory
    >>> check_live_cache(BlockPool, examples=20).loaded.total() > 0
    True
    >>> check_memory(ListMemory, examples=20)
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

from cachesim.testing.contents import Request, Rows, Server, joined, split
from cachesim.units import Tokens

UNIT: Final = 8
"""Tokens of a block, `unit` of the check."""


class BlockPool:
    """Slots for blocks, shared by all prompts that begin alike; the oldest unused one is evicted.

    A key names all tokens up to the block's end, and whatever else changes its rows. A block that
    a lookup has promised is in use, so it keeps its slot, until it was loaded or released.
    """

    def __init__(self, server: Server, folder: Path, blocks: int = 1000) -> None:
        del folder  # nothing outlives the process
        self.server = server
        self.slots: list[Rows | None] = [None] * blocks
        self.free = list(range(blocks))
        self.where: OrderedDict[Hashable, int] = OrderedDict()  # key -> slot, the oldest first
        self.used: Counter[int] = Counter()  # slot -> open lookups
        self.open: dict[Request, list[list[int]]] = {}

    def keys(self, request: Request) -> Iterator[Hashable]:
        names = request.adapter, request.salt, request.image, request.image_at
        for end in range(UNIT, len(request.tokens) + 1, UNIT):
            yield request.tokens[:end], names

    def store(self, request: Request, rows: Rows) -> None:
        keys = list(self.keys(request))
        for key, block in zip(keys, split(self.server, rows, UNIT), strict=True):
            if key not in self.where:
                slot = self.take(keys)
                if slot is None:  # all are in use
                    return
                self.slots[slot] = [layer.copy() for layer in block]
                self.where[key] = slot
            self.where.move_to_end(key)

    def take(self, keys: list[Hashable]) -> int | None:
        """A free slot; else that of the oldest block that nobody uses, those of `keys` aside."""
        if not self.free:
            idle = (k for k, slot in self.where.items() if not self.used[slot] and k not in keys)
            oldest = next(idle, None)
            if oldest is None:
                return None
            self.drop(oldest)
        return self.free.pop()

    def drop(self, key: Hashable) -> None:
        self.free.append(self.where.pop(key))

    def lookup(self, request: Request) -> int:
        held = list(takewhile(self.where.__contains__, self.keys(request)))
        slots = [self.where[key] for key in held]
        if slots:
            self.used.update(slots)
            self.open.setdefault(request, []).append(slots)
        return UNIT * len(slots)

    def load(self, request: Request, count: int) -> Rows | None:
        del count  # what the lookup said
        blocks = [self.slots[slot] for slot in self.close_lookup(request)]
        return joined([block for block in blocks if block is not None])

    def release(self, request: Request) -> None:
        self.close_lookup(request)

    def close_lookup(self, request: Request) -> list[int]:
        slots = self.open[request].pop(0)
        self.used.subtract(slots)
        return slots

    def evict(self, request: Request) -> None:
        for key in self.keys(request):
            if key in self.where:
                self.drop(key)

    def clear(self) -> None:
        for key in list(self.where):
            self.drop(key)


class ListMemory:
    """Sequences of tokens; an answer is what was fed, as a network's depends on it alone."""

    def __init__(self) -> None:
        self.held: dict[int, Tokens] = {0: (), 1: ()}

    def feed(self, seq: int, tokens: Tokens) -> Hashable:
        self.held[seq] += tokens
        return self.held[seq]

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        if p1 != -1:
            return False  # a part in the middle cannot be removed, so nothing is
        self.held[seq] = self.held[seq][:p0]
        return True

    def seq_pos_max(self, seq: int) -> int:
        return len(self.held[seq]) - 1

    def seq_cp(self, src: int, dst: int) -> None:
        self.held[dst] = self.held[src]

    def save(self, seq: int) -> object:
        return self.held[seq]

    def load(self, seq: int, state: object) -> bool:
        if not isinstance(state, tuple):
            return False
        self.held[seq] = state
        return True
