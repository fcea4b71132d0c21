"""What goes when the unified tree needs room. Follows `_evict_components`.

Attention: leaves in the order of the policy, each with all its parts. Windows and states: the ones
used longest ago; of a leaf everything goes, of an inner node this part and those of less worth.
"""

import heapq
from collections.abc import Collection, Hashable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from cachesim.engines.sglang.host_evict import PARTS
from cachesim.engines.sglang.host_pool import Copy
from cachesim.engines.sglang.node import FULL, NO_SLOTS, PART, STATE, LruList, Node
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.tree import STRATEGIES, OnDeed, Tree, joined
from cachesim.units import Integers

if TYPE_CHECKING:
    from cachesim.engines.sglang.unified_host import HostTier


class EvictingTree(Tree):
    """Nodes with parts, which may go one by one (`UnifiedTreeCore`)."""

    windows: WindowPool | None
    window_lru: LruList
    state_lru: LruList
    host: "HostTier | None" = None

    def _begin(self) -> None:
        self.leaves: set[Node] = set()
        self.first = STRATEGIES[self.shape.policy]

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
        if self.host is not None:
            self.host.split(new, child)
        child.last_access = self.clock.tick()
        self.update_leaf(new)
        self.update_leaf(child)
        if self.host is not None:
            self.host.track_twice(new)
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
        if self.host is not None:
            self.host.update_leaf(node)
            taken = node.value is None or any(each.value is not None for each in _below(node))
        else:
            taken = bool(node.children)
        if taken or node is self.root or node.locks[FULL] or node.locks[PART] or node.locks[STATE]:
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
        if self.host is not None and self.host.shape.writes_back:
            self.host.settle()

    def _evict_attention(self, target: int, gone: list[int]) -> None:
        """Leaves in the order of the policy, until there is as much room as was asked for."""
        heap = [(self.first(node), node) for node in self.leaves]
        heapq.heapify(heap)
        while heap and self.pool.available < target:
            _, node = heapq.heappop(heap)
            if node not in self.leaves:
                continue
            parent = node.parent
            self._let_leaf_go(node, gone)
            if parent is not None and parent in self.leaves:
                heapq.heappush(heap, (self.first(parent), parent))

    def _evict_part(
        self, part: int, lru: LruList, count: int, target: int, gone: list[int]
    ) -> None:
        node = lru.oldest()
        while node is not None and gone[part] < count and self._available(part) < target:
            following = lru.before(node)
            if node in self.leaves:
                self._let_leaf_go(node, gone)
            else:
                if self.host is not None:
                    self.host.save_inner(part, node)
                self.drop(node, part, gone)
                self._gave_up(part, node)
                self._cascade(node, part, gone)
            if following is not None and following not in lru:
                following = lru.oldest()
            node = following

    def _cascade(self, node: Node, part: int, gone: list[int]) -> None:
        """An inner node loses the parts of less worth, too. Follows `_cascade_evict`."""
        if part == PART and node.state is not None and not node.locks[STATE]:
            self.drop(node, STATE, gone)
            self._gave_up(STATE, node)
        self.update_leaf(node)

    def _gave_up(self, part: int, node: Node) -> None:
        """Say that a window or a state is gone, or that the host still has it."""
        if self.host is not None and self.host.has(node, part):
            self.host.tell("left", part, node)
        else:
            self.lost("window" if part == PART else "state", node)

    def _let_leaf_go(self, node: Node, gone: list[int]) -> None:
        if self.host is not None:
            self.host.let_leaf_go(node, gone)
        else:
            self.delete_leaf(node, gone)

    def drop(self, node: Node, part: int, gone: list[int]) -> None:
        """One part of a node."""
        if part == FULL:
            self.give_back(node.slots)
            gone[FULL] += len(node)
            self.evictable[FULL] -= len(node)
        elif part == PART and node.window and self.windows is not None:
            stale = self.windows.mapping[node.slots] if self.rules.tree.frees_by_a_stale_map else 0
            self.windows.free_window(node.slots)
            self.windows.mapping[node.slots] = stale
            gone[PART] += len(node)
            self.evictable[PART] -= len(node)
            node.window = False
            self.window_lru.remove(node)
            if self.host is not None:
                self.host.left(node, PART)
        elif part == STATE and node.state is not None:
            self.state_pool.free(node.state)
            gone[STATE] += 1
            self.evictable[STATE] -= 1
            node.state = None
            self.state_lru.remove(node)
            if self.host is not None and self.rules.tree.state_copies_go_too:
                self.host.drop(node, STATE, [0, 0, 0])
            elif self.host is not None:
                self.host.left(node, STATE)

    def delete_leaf(self, node: Node, gone: list[int]) -> None:
        """A leaf with all its parts. Follows `_delete_unbacked_device_leaf`."""
        for part in (PART, STATE, FULL):
            self.drop(node, part, gone)
        if self.host is not None:
            self.host.drop_all(node, [0, 0, 0])
        self.take_out(node)
        self.lost("node", node)
        if self.host is not None:
            self.host.clear_above(node, gone)

    def take_out(self, node: Node) -> None:
        """A node leaves the tree."""
        self._detach(node)
        self.leaves.discard(node)
        if node.parent is not None:
            self.update_leaf(node.parent)

    # -- the host ----------------------------------------------------------------------------------

    def watch_host(self, on_backup: Copy, on_load: Copy, on_deed: OnDeed) -> None:
        if self.host is not None:
            self.host.on_backup, self.host.on_load = on_backup, on_load
            self.host.on_deed = on_deed

    def look(self) -> None:
        """Follows `check_hicache_events`."""
        if self.host is not None:
            self.host.look()

    def written(self, node: Node) -> None:
        """The host has a node; with a storage it goes on from there."""

    def flush(self) -> None:
        """Follows `flush_pending_backups`."""
        if self.host is not None:
            self.host.writes.submit()

    def held_by_host(self) -> Iterator[Node]:
        """Nodes that are locked because a copy is under way."""
        if self.host is not None:
            yield from (each.node for each in self.host.writing.values() if each.is_held)
            yield from (each.node for each, _ in self.host.loaded.values())

    def host_free(self) -> dict[str, int]:
        if self.host is None:
            return {}
        pools = self.host.pools
        parts = {
            "host_tokens": pools.full,
            "host_window_tokens": pools.window,
            "host_states": pools.state,
        }
        return {name: pool.available for name, pool in parts.items() if pool is not None}

    def begin_loading(self) -> None:
        """Follows `ready_to_load_host_cache`."""
        if self.host is not None:
            self.host.loads.submit()

    def bring(self, req: Req) -> int:
        """Follows `init_load_back`."""
        return self.host.bring(req) if self.host is not None else 0

    # -- what comes back from the host -------------------------------------------------------------

    def window_slots(self, node: Node) -> Integers:
        """The window slots of a node's tokens."""
        if self.windows is None:
            return NO_SLOTS
        found: Integers = self.windows.mapping[node.slots]
        return found

    def put_window(self, node: Node, slots: Integers) -> None:
        """A node's window slots are these. Follows `set_component_device_value`."""
        if self.windows is not None:
            self.windows.mapping[node.slots] = slots
        self.publish(node)

    def publish(self, node: Node) -> None:
        """A node's window slots are alive from now on."""
        if self.host is not None:
            self.host.came_back(node, PART)
        node.window = True
        self.window_lru.insert(node)
        if not node.locks[PART]:
            self.evictable[PART] += len(node)

    def put_state(self, node: Node, slot: int) -> None:
        """A node has this state."""
        if self.host is not None:
            self.host.came_back(node, STATE)
        node.state = slot
        self.state_lru.insert(node)
        if not node.locks[STATE]:
            self.evictable[STATE] += 1

    def give_back(self, slots: Integers) -> None:
        """Attention's slots only."""
        if self.windows is not None:
            self.windows.free_full(slots)
        else:
            self.pool.free(slots)

    def slots_to(self, node: Node) -> Integers:
        """Attention's slots from the root to a node's end."""
        return joined([each.slots for each in reversed(list(node.path()))])

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
            self.drop(node, STATE, [0, 0, 0])
            self._gave_up(STATE, node)
            self.update_leaf(node)
            excess -= 1


def _below(node: Node) -> Collection[Node]:
    return node.children.values()
