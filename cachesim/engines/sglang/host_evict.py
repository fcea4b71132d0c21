"""What the host gives up when it needs room, and what that leaves of the tree.

    on the device and on the host    -- the device needs room -->  on the host only
    on the host only, no children    -- the host needs room ---->  gone
    on the host only, with children  -- states, windows -------->  attention's slots stay

Follows the parts of `UnifiedTreeCore` and its components that speak of the host.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from cachesim.engines.sglang.host_pool import Deed, HostHold, HostPool, HostShape
from cachesim.engines.sglang.node import FULL, HOST, PART, STATE, LruList, Node
from cachesim.units import Integers

if TYPE_CHECKING:
    from cachesim.engines.sglang.unified import UnifiedRadixCache

PARTS: Final = (FULL, PART, STATE)


@dataclass(slots=True)
class HostPools:
    """A pool for each part of the model that there is."""

    full: HostPool
    window: HostPool | None
    state: HostPool | None

    @classmethod
    def make(cls, shape: HostShape, *, windows: bool, states: bool) -> "HostPools":
        """Empty ones."""
        return cls(
            HostPool(shape.tokens),
            HostPool(shape.window_tokens) if windows else None,
            HostPool(shape.states) if states else None,
        )

    def of(self, part: int) -> HostPool | None:
        """The pool of a part."""
        return (self.full, self.window, self.state)[part]


class HostEviction:
    """The nodes that the host has something of, and the order in which they go.

    Upstream: `UnifiedTreeCore`.
    """

    def __init__(self, tree: "UnifiedRadixCache", shape: HostShape) -> None:
        self.tree = tree
        self.shape = shape
        self.pools = HostPools.make(shape, windows=tree.has_windows, states=tree.has_states)
        self.leaves: set[Node] = set()  # evictable_host_leaves
        self.window_lru = LruList(HOST + PART)
        self.state_lru = LruList(HOST + STATE)
        self.twice: dict[int, Node] = {}  # full_host_duplicates
        self.on_deed: Callable[[Deed, int, Node], None] | None = None

    def tell(self, deed: Deed, part: int, node: Node) -> None:
        """Say what has become of a part of a node."""
        if self.on_deed is not None:
            self.on_deed(deed, part, node)

    # -- what a node has here ----------------------------------------------------------------------

    def lru(self, part: int) -> LruList:
        """The list of windows, or of states."""
        return self.window_lru if part == PART else self.state_lru

    @staticmethod
    def has(node: Node, part: int) -> bool:
        """Whether the host has a part of a node."""
        held = (node.host_full, node.host_window, node.host_state)[part]
        return held is not None

    @staticmethod
    def on_device(node: Node, part: int) -> bool:
        """Whether the device has it."""
        return (node.value is not None, node.window, node.state is not None)[part]

    def left(self, node: Node, part: int) -> None:
        """The device has given a part up: what the host has of it may go from now on."""
        if self.has(node, part) and node not in self.lru(part):
            self.lru(part).insert(node)

    def came_back(self, node: Node, part: int) -> None:
        """The device has a part again."""
        if node in self.lru(part):
            self.lru(part).remove(node)

    def update_leaf(self, node: Node) -> None:
        """Whether the host may drop a node with all its parts. Follows `_is_host_leaf`."""
        here = node.evicted and node.host_full is not None
        if here and not node.children and not any(node.locks):
            self.leaves.add(node)
        else:
            self.leaves.discard(node)

    def track_twice(self, node: Node) -> None:
        """Whether both have attention's slots, and no copy is under way. Follows
        `_update_duplicate_tracking`.
        """
        both = node.value is not None and node.host_full is not None
        if both and node.pending is None and node.loading is None:
            self.twice.setdefault(node.id, node)
        else:
            self.twice.pop(node.id, None)

    # -- holding -----------------------------------------------------------------------------------

    def hold(self, node: Node) -> HostHold:
        """Nothing of what a load reads may be dropped. Follows `inc_host_lock_ref`."""
        held = HostHold(node)
        if node is self.tree.root:
            return held
        if node.host_full is not None or self.shape.writes_back:
            held.full = len(node)
            node.locks[HOST + FULL] += 1
        if self.tree.has_windows:
            for each in self._segment(node, self.tree.shape.window):
                self._hold_part(each, PART)
                held.window += len(each)
        if self.tree.has_states:
            self._hold_part(node, STATE)
        self.tree.update_leaf(node)
        return held

    def _hold_part(self, node: Node, part: int) -> None:
        if not node.locks[HOST + part] and node in self.lru(part):
            self.lru(part).remove(node)
        node.locks[HOST + part] += 1

    @staticmethod
    def _segment(node: Node, tokens: int) -> Iterator[Node]:
        covered = 0
        for each in node.path():
            if covered >= tokens:
                return
            covered += len(each)
            yield each

    def release(self, held: HostHold) -> None:
        """The same back: a node that was divided meanwhile is still as many tokens.

        Follows `dec_host_lock_ref`.
        """
        node = held.node
        if node is self.tree.root:
            return
        if self.tree.has_states:
            self._release_part(node, STATE)
        for each in self._segment(node, held.window):
            self._release_part(each, PART)
        for each in self._segment(node, held.full):
            each.locks[HOST + FULL] -= 1
            self.tree.update_leaf(each)
        self.tree.update_leaf(node)

    def _release_part(self, node: Node, part: int) -> None:
        node.locks[HOST + part] -= 1
        if not node.locks[HOST + part] and not self.on_device(node, part):
            self.left(node, part)
        self.tree.update_leaf(node)

    # -- dropping ----------------------------------------------------------------------------------

    def drop(self, node: Node, part: int, gone: list[int]) -> None:
        """The host's copy of one part."""
        pool, slots = self.pools.of(part), self._slots(node, part)
        if pool is None or slots is None:
            return
        pool.free(slots)
        gone[part] += len(slots)
        if part == FULL:
            node.host_full = None
        elif part == PART:
            node.host_window = None
        else:
            node.host_state = None
        if part != FULL:
            self.came_back(node, part)

    @staticmethod
    def _slots(node: Node, part: int) -> Integers | None:
        if part == STATE:
            return None if node.host_state is None else np.array([node.host_state], np.int64)
        return node.host_full if part == FULL else node.host_window

    def drop_all(self, node: Node, gone: list[int]) -> None:
        """Every part, of a node that leaves the tree."""
        for part in PARTS:
            self.drop(node, part, gone)
        self.leaves.discard(node)
        self.twice.pop(node.id, None)

    def evict(self, part: int, count: int) -> int:
        """Make room; how much there was to drop. Follows `drive_host_eviction`."""
        gone = [0, 0, 0]
        if part != FULL:
            self._evict_part(part, count, gone)
            return gone[part]
        if self.shape.writes_back:
            self._reclaim_twice(count, gone)
        heap = [(self.tree.first(node), node) for node in self.leaves]
        heapq.heapify(heap)
        while gone[FULL] < count and heap:
            _, node = heapq.heappop(heap)
            if node not in self.leaves:
                continue
            parent = node.parent
            self._drop_leaf(node, gone)
            if parent is not None and parent in self.leaves:
                heapq.heappush(heap, (self.tree.first(parent), parent))
        return gone[FULL]

    def _drop_leaf(self, node: Node, gone: list[int]) -> None:
        """Follows `_evict_host_leaf`."""
        self.tell("dropped", FULL, node)
        self.drop_all(node, gone)
        self.tree.take_out(node)
        self.clear_above(node, gone)

    def clear_above(self, node: Node, gone: list[int]) -> None:
        """Nodes above that nobody has any more go as well. Follows
        `_iteratively_delete_tombstone_ancestors`.
        """
        at = node.parent
        while at is not None and at is not self.tree.root and not at.children:
            if any(at.locks):
                return
            if at.value is not None or at.host_full is not None:
                self.tree.update_leaf(at)
                return
            self.drop_all(at, gone)
            self.tree.take_out(at)
            above = at.parent
            if above is not None:
                self.tree.update_leaf(above)
            at = above

    def _evict_part(self, part: int, count: int, gone: list[int]) -> None:
        """The copies used longest ago; a leaf goes with everything, an inner node stays."""
        lru = self.lru(part)
        node = lru.oldest()
        while gone[part] < count and node is not None and node in lru:
            following = lru.before(node)
            if node in self.leaves:
                self._drop_leaf(node, gone)
            else:
                self.tell("dropped", part, node)
                self.drop(node, part, gone)
                if part == PART and node.host_state is not None and not node.locks[HOST + STATE]:
                    self.tell("dropped", STATE, node)
                    self.drop(node, STATE, gone)
                self.tree.update_leaf(node)
            node = following

    def _reclaim_twice(self, count: int, gone: list[int]) -> None:
        """With `write_back`: what the device has too goes first, leaves of the device last.

        Follows `_reclaim_full_host_duplicates`.
        """
        swept = []
        for spares_leaves in (True, False):
            for node in self.twice.values():
                if gone[FULL] >= count:
                    break
                if node.value is None or node.host_full is None:
                    swept.append(node.id)
                    continue
                if spares_leaves and node in self.tree.leaves:
                    continue
                busy = node.pending is not None or node.loading is not None
                if busy or node.locks[HOST + FULL]:
                    continue
                self.tell("dropped", FULL, node)
                self.drop(node, FULL, gone)
                swept.append(node.id)
        for number in swept:
            self.twice.pop(number, None)
