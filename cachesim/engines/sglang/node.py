r"""Nodes of a radix tree, their keys, and their LRU lists.

    root --[1 2 3 4]--> node --[5 6]--> node       an edge's tokens are in the node below it
                          \--[7 8 9]--> node        a child is found by its first page

A node of attention holds one slot per token of its key. It may hold one recurrent state, valid at
its end, and window slots, alive or gone.
"""

from collections.abc import Hashable, Iterator
from typing import Final

import numpy as np

from cachesim.units import Integers

NO_SLOTS: Final[Integers] = np.zeros(0, np.int64)

FULL: Final = 0
PART: Final = 1
STATE: Final = 2
"""A component of a node: attention, the window's slots, the recurrent state."""

HOST: Final = 3
"""Added to one of them: its copy in the host's memory."""


def as_key(tokens: Integers, *, bigrams: bool) -> Integers:
    """The numbers that a tree compares: tokens, or with EAGLE each token with the next one.

    N tokens have N - 1 pairs (`convert_to_bigram_key`).
    """
    if not bigrams:
        return tokens
    # One token has no pair, so nothing of it can be matched.
    if len(tokens) < 2:
        return NO_SLOTS
    # The drafter's entry of a token is computed from the next one, too: both must be equal.
    return (tokens[:-1] << 32) | tokens[1:]


class Clock:
    """Logical time, in place of upstream's monotonic clock."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def tick(self) -> float:
        """Advance the clock."""
        self.now += 1.0
        return self.now


class Node:
    """A node; `request` is the number of the request whose tokens made it."""

    __slots__ = (
        "child_key", "children", "created", "hashes", "hits", "host_full", "host_state",
        "host_window", "id", "key", "last_access", "loading", "locks", "next", "parent",
        "pending", "prev", "priority", "request", "state", "value", "window", "window_mark",
    )  # fmt: skip

    def __init__(self, number: int, time: float) -> None:
        self.id = number
        self.parent: Node | None = None
        self.children: dict[Hashable, Node] = {}
        self.child_key: Hashable = None
        self.key: Integers = NO_SLOTS
        self.value: Integers | None = None
        self.state: int | None = None
        self.window = False
        self.window_mark = 0  # where a window's lock ends; 0: nowhere here
        self.locks = [0] * (2 * HOST)
        self.last_access = time
        self.created = time
        self.hashes: list[bytes] = []  # of its pages, with a storage (hash_value)
        self.hits = 0
        self.priority = 0
        self.request = -1
        self.host_full: Integers | None = None  # slots in the host's memory
        self.host_window: Integers | None = None
        self.host_state: int | None = None
        self.pending: int | None = None  # write_through_pending_id
        self.loading: int | None = None  # load_back_pending_id
        self.prev: list[Node | None] = [None] * (2 * HOST)
        self.next: list[Node | None] = [None] * (2 * HOST)

    def __lt__(self, other: "Node") -> bool:
        return self.last_access < other.last_access

    def __len__(self) -> int:
        return len(self.key)

    def __bool__(self) -> bool:
        return True

    @property
    def evicted(self) -> bool:
        """True if the device has evicted the node's attention slots."""
        return self.value is None and self.parent is not None

    @property
    def slots(self) -> Integers:
        """The slots of the node's tokens; none if they are evicted."""
        return NO_SLOTS if self.value is None else self.value

    def path(self) -> "Iterator[Node]":
        """The node and its ancestors, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def depth(self) -> int:
        """Tokens from the root to the node's end."""
        return sum(len(node.key) for node in self.path())


class LruList:
    """Nodes by last use. Follows `LRUList` and `UnifiedLRUList`."""

    def __init__(self, which: int) -> None:
        self.which = which
        self.head = Node(-1, 0.0)
        self.tail = Node(-2, 0.0)
        self.head.next[which] = self.tail
        self.tail.prev[which] = self.head
        self.members: set[int] = set()

    def __contains__(self, node: Node | None) -> bool:
        return node is not None and node.id in self.members

    def __len__(self) -> int:
        return len(self.members)

    def _link(self, before: Node, node: Node) -> None:
        which = self.which
        after = before.next[which]
        node.prev[which], node.next[which] = before, after
        before.next[which] = node
        if after is not None:
            after.prev[which] = node

    def _unlink(self, node: Node) -> None:
        which = self.which
        before, after = node.prev[which], node.next[which]
        if before is not None:
            before.next[which] = after
        if after is not None:
            after.prev[which] = before
        node.prev[which] = node.next[which] = None

    def insert(self, node: Node) -> None:
        """Insert a node as the most recently used."""
        self.members.add(node.id)
        self._link(self.head, node)

    def insert_after(self, before: Node, node: Node) -> None:
        """Insert a node as used just before another one."""
        self.members.add(node.id)
        self._link(before, node)

    def remove(self, node: Node) -> None:
        self.members.discard(node.id)
        self._unlink(node)

    def use(self, node: Node) -> None:
        """Make a node the most recently used."""
        self._unlink(node)
        self._link(self.head, node)

    def use_path(self, nodes: Iterator[Node]) -> None:
        """Make the nodes from a leaf upwards the most recently used, the leaf before its parent."""
        before = self.head
        for node in nodes:
            if node.id in self.members:
                self._unlink(node)
                self._link(before, node)
                before = node

    def before(self, node: Node, *, leaves: bool = False) -> Node | None:
        """The next candidate for eviction: not locked, used less recently than those before it."""
        which = self.which
        at = node.prev[which]
        while at is not None and at is not self.head:
            # Locked nodes stay in the list, and are passed over.
            if not at.locks[which] and not (leaves and at.children):
                return at
            at = at.prev[which]
        return None

    def oldest(self, *, leaves: bool = False) -> Node | None:
        """The first candidate for eviction."""
        return self.before(self.tail, leaves=leaves)

    def __iter__(self) -> Iterator[Node]:
        at = self.head.next[self.which]
        while at is not None and at is not self.tail:
            yield at
            at = at.next[self.which]
