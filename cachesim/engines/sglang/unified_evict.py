"""What goes when the unified tree needs room. Follows `_evict_components`.

Attention: leaves in the order of the policy, each with all its parts. Windows and states: the ones
used longest ago; of a leaf everything goes, of an inner node this part and those of less worth.
"""

import heapq
from collections.abc import Hashable
from itertools import pairwise
from typing import Final

from cachesim.engines.sglang.node import FULL, PART, STATE, LruList, Node
from cachesim.engines.sglang.pools import StatePool, TokenPool, WindowPool
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.tree import STRATEGIES, Shape, Tree
from cachesim.units import Integers

PARTS: Final = (FULL, PART, STATE)
"""In the order of their worth."""


class EvictingTree(Tree):
    """Nodes with parts, which may go one by one (`UnifiedTreeCore`)."""

    windows: WindowPool | None
    window_lru: LruList
    state_lru: LruList

    def __init__(
        self, shape: Shape, rules: Rules, pool: TokenPool, states: StatePool | None = None
    ) -> None:
        super().__init__(shape, rules, pool, states)
        self.leaves: set[Node] = set()
        self.first = STRATEGIES[shape.policy]

    # -- nodes -------------------------------------------------------------------------------------

    def split(self, child: Node, length: int, extra: Hashable) -> Node:
        """Divide a node; the state stays below, the window's slots are divided."""
        new = self._halves(child, length, extra)
        new.hits, new.created = child.hits, child.created
        new.locks[FULL], new.locks[PART] = child.locks[FULL], child.locks[PART]
        new.window = child.window
        new.window_mark, child.window_mark = child.window_mark, 0
        if new.window:
            self.window_lru.insert_after(child, new)
        child.last_access = self.clock.tick()
        self.update_leaf(new)
        self.update_leaf(child)
        return new

    def hang(self, parent: Node, key: Integers, slots: Integers, extra: Hashable) -> Node:
        """A new leaf, with attention's slots only."""
        node = self._hang(parent, key, slots, extra)
        self.evictable[FULL] += len(node)
        self.update_leaf(node)
        self.update_leaf(parent)
        return node

    def update_leaf(self, node: Node) -> None:
        """Whether a node may go with all its parts. Follows `_update_evictable_leaf_sets`."""
        if node is self.root or node.children or any(node.locks):
            self.leaves.discard(node)
        else:
            self.leaves.add(node)

    # -- room --------------------------------------------------------------------------------------

    def _available(self, part: int) -> int:
        if part == FULL:
            return self.pool.available
        if part == PART:
            return self.windows.available_windows if self.windows is not None else 0
        return self.states.available if self.states is not None else 0

    def _evict(self, tokens: int, window: int, states: int) -> None:
        wanted = (tokens, window, states)
        targets = [self._available(part) + count for part, count in zip(PARTS, wanted, strict=True)]
        gone = [0, 0, 0]
        for part in PARTS:
            count = wanted[part]
            if count <= 0 or self._available(part) >= targets[part]:
                continue
            if part == FULL:
                self._evict_attention(targets[part], gone)
            elif gone[part] < count:
                lru = self.window_lru if part == PART else self.state_lru
                self._evict_part(part, lru, count, targets[part], gone)

    def _evict_attention(self, target: int, gone: list[int]) -> None:
        """Leaves in the order of the policy, until there is as much room as was asked for."""
        heap = [(self.first(node), node) for node in self.leaves]
        heapq.heapify(heap)
        while heap and self.pool.available < target:
            _, node = heapq.heappop(heap)
            if node not in self.leaves:
                continue
            parent = node.parent
            self._delete_leaf(node, gone)
            if parent is not None and parent in self.leaves:
                heapq.heappush(heap, (self.first(parent), parent))

    def _evict_part(
        self, part: int, lru: LruList, count: int, target: int, gone: list[int]
    ) -> None:
        node = lru.oldest()
        while node is not None and gone[part] < count and self._available(part) < target:
            following = lru.before(node)
            if node in self.leaves:
                self._delete_leaf(node, gone)
            else:
                self._drop(node, part, gone)
                self.lost("window" if part == PART else "state", node)
                self._cascade(node, part, gone)
            if following is not None and following not in lru:
                following = lru.oldest()
            node = following

    def _cascade(self, node: Node, part: int, gone: list[int]) -> None:
        """An inner node loses the parts of less worth, too. Follows `_cascade_evict`."""
        if part == PART and node.state is not None and not node.locks[STATE]:
            self._drop(node, STATE, gone)
            self.lost("state", node)
        self.update_leaf(node)

    def _drop(self, node: Node, part: int, gone: list[int]) -> None:
        """One part of a node."""
        if part == FULL:
            if self.windows is not None:
                self.windows.free_full(node.slots)
            else:
                self.pool.free(node.slots)
            gone[FULL] += len(node)
            self.evictable[FULL] -= len(node)
        elif part == PART and node.window and self.windows is not None:
            self.windows.free_window(node.slots)
            gone[PART] += len(node)
            self.evictable[PART] -= len(node)
            node.window = False
            self.window_lru.remove(node)
        elif part == STATE and node.state is not None:
            self.state_pool.free(node.state)
            gone[STATE] += 1
            self.evictable[STATE] -= 1
            node.state = None
            self.state_lru.remove(node)

    def _delete_leaf(self, node: Node, gone: list[int]) -> None:
        """A leaf with all its parts. Follows `_delete_unbacked_device_leaf`."""
        for part in (PART, STATE, FULL):
            self._drop(node, part, gone)
        self._detach(node)
        self.leaves.discard(node)
        self.lost("node", node)
        if node.parent is not None:
            self.update_leaf(node.parent)

    # -- states on one path ------------------------------------------------------------------------

    def cap_path_states(self, tail: Node) -> None:
        """At most so many states on a path: the shallowest of those that are no fork go first.

        Follows `_evict_excess_path_states`.
        """
        cap = self.shape.states_per_path
        if cap < 0:
            return
        holders = [node for node in tail.path() if node.state is not None]
        excess = len(holders) - cap
        for node, _ in pairwise([*reversed(holders), tail]):
            if excess <= 0 or node is tail:
                break
            if node.locks[STATE] or len(node.children) != 1 or node in self.leaves:
                continue
            self._drop(node, STATE, [0, 0, 0])
            self.lost("state", node)
            self.update_leaf(node)
            excess -= 1
