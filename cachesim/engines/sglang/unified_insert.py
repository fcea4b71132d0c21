"""Putting a key into the unified tree: walk, overlap, commit, tail. Follows `_advance_insert`."""

from collections.abc import Hashable
from typing import TYPE_CHECKING

from cachesim.engines.sglang.node import FULL, PART, STATE, Node
from cachesim.engines.sglang.tree import matching
from cachesim.units import Integers

if TYPE_CHECKING:
    from cachesim.engines.sglang.unified import UnifiedRadixCache


class Insertion:
    """One insert. `own` tokens are the tree's already, `gone` have lost their window."""

    def __init__(
        self,
        tree: "UnifiedRadixCache",
        key: Integers,
        slots: Integers,
        extra: Hashable,
        *,
        own: int,
        gone: int,
        inserted: int,
        state: int | None,
        priority: int,
    ) -> None:
        self.tree = tree
        self.key = key
        self.slots = slots
        self.extra = extra
        self.own = own
        self.gone = gone
        self.inserted = inserted
        self.state = state
        self.priority = priority
        self.node = tree.root
        self.total = 0
        self.state_was_there = True

    def run(self) -> None:
        """From the root down; what is left over becomes a leaf."""
        tree, page = self.tree, self.tree.shape.page
        tree.root.last_access = tree.clock.tick()
        tree.root.priority = max(tree.root.priority, self.priority)
        if not len(self.key):
            return
        while len(self.key):
            child = self.node.children.get(tree.child_key(self.key, self.extra))
            if child is None:
                break
            child.last_access = tree.clock.tick()
            length = matching(child, self.key, page)
            if length < len(child):
                child = tree.split(child, length, self.extra)
            child.priority = max(child.priority, self.priority)
            if child.evicted:
                self._restore(child, length)
            else:
                self._overlap(child, length)
            if self.total + length > self.inserted:
                self._walked_over(child)
            self.node = child
            self.total += length
            self.key, self.slots = self.key[length:], self.slots[length:]
        fresh = len(self.key) > 0
        tree.kept(self.total + len(self.key), len(self.key))
        if fresh:
            self._leaf()
        self._commit_state(fresh=fresh)
        if tree.has_windows and self.node is not tree.root:
            tree.window_lru.use_path(tree.near(self.node))
        if fresh and self.total + len(self.node) > self.inserted:
            self._walked_over(self.node)
        elif not fresh and tree.host is not None:
            tree.host.backup_more(self.node)

    def _walked_over(self, node: Node) -> None:
        """Follows `_inc_hit_count_and_check`. Trap: with `write_back` nothing is counted, so that
        `lfu` is `lru` there.
        """
        host = self.tree.host
        if not self.tree.rules.tree.counts_hits or (host is not None and host.shape.writes_back):
            return
        node.hits += 1
        if host is not None:
            host.backup_if_used(node)

    # -- what the device has given up --------------------------------------------------------------

    def _restore(self, node: Node, length: int) -> None:
        """The request's slots become those of a node that is on the host only. Follows
        `_unevict_node_on_insert` and `recover_after_unevict`.
        """
        tree = self.tree
        node.value = self.slots[:length]
        if not node.locks[FULL]:
            tree.evictable[FULL] += length
        tree.update_leaf(node)
        if tree.host is not None:
            tree.host.track_twice(node)
        if node.parent is not None:
            tree.update_leaf(node.parent)
        alive = max(self.total, self.gone)
        if tree.windows is None or node.window or alive >= self.total + length:
            return
        if alive > self.total:
            tree.split(node, alive - self.total, self.extra)
        tree.publish(node)

    # -- what the tree has already -----------------------------------------------------------------

    def _overlap(self, node: Node, length: int) -> None:
        """The request's slots of tokens that the tree has are freed, but where a window is revived.

        node     [ window gone .............. )
        request  [ own | gone | alive ....... )   the alive ones become the tree's
                       ^ freed ^
        """
        tree, total = self.tree, self.total
        kept_from = length
        if tree.windows is not None and self.own < total + length:
            kept_from = self._revive(node, length)
        start = max(0, self.own - total)
        if start >= kept_from:
            return
        twice = self.slots[start:kept_from]
        if tree.windows is None:
            tree.pool.free(twice)
            return
        dead = min(max(self.gone - (total + start), 0), len(twice))
        if dead:
            tree.windows.free_full(twice[:dead])
        if dead < len(twice):
            tree.windows.free(twice[dead:])

    def _revive(self, node: Node, length: int) -> int:
        """From where on the request's slots replace the tree's. Follows
        `update_component_on_insert_overlap`.
        """
        tree, pool = self.tree, self.tree.windows
        if pool is None or node.window or not tree.rules.tree.refills_windows:
            return length
        start = max(self.total, self.gone)
        if start >= self.total + length:
            return length
        if start > self.total:
            tree.split(node, start - self.total, self.extra)
        fresh = self.slots[start - self.total : length]
        if node.locks[FULL]:
            windows = pool.mapping[fresh]
            pool.mapping[fresh] = 0
            pool.mapping[node.slots] = windows
            pool.free_full(fresh)
        else:
            if tree.rules.tree.frees_by_a_stale_map:
                pool.free_window(node.slots)
            pool.free_full(node.slots)
            node.value = fresh
        tree.publish(node)
        return start - self.total

    # -- what is new -------------------------------------------------------------------------------

    def _leaf(self) -> None:
        """A leaf with what is left; its last window becomes a node of its own, so that it can be
        held alone.

            [ gone | alive, not needed by the last window | the last window )
        """
        tree, total = self.tree, self.total
        parent = self.node
        node = tree.hang(parent, self.key, self.slots, self.extra)
        node.priority = self.priority
        self.node = node
        if tree.windows is None:
            return
        alive = max(total, self.gone)
        if alive >= total + len(node):
            return
        if alive > total:
            tree.split(node, alive - total, self.extra)
        upper = self._split_for_lock(node)
        if upper is not None:
            tree.publish(upper)
        tree.publish(node)

    def _split_for_lock(self, leaf: Node) -> Node | None:
        """Follows `_maybe_split_leaf_for_swa_lock`."""
        page = self.tree.shape.page
        tail = -(-self.tree.shape.window // page) * page
        if leaf.locks[PART] or len(leaf) <= tail:
            return None
        return self.tree.split(leaf, len(leaf) - tail, self.extra)

    def _commit_state(self, *, fresh: bool) -> None:
        """The state goes to the last node, unless that has one. Follows
        `commit_insert_component_data`.
        """
        tree, node = self.tree, self.node
        if not tree.has_states or self.state is None:
            return
        if not fresh and node.state is not None:
            tree.state_lru.use(node)
            node.last_access = tree.clock.tick()
            return
        self.state_was_there = False
        if tree.host is not None:
            tree.host.came_back(node, STATE)
        node.state = self.state
        tree.state_lru.insert(node)
        if fresh or not node.locks[STATE]:
            tree.evictable[STATE] += 1
        if not fresh:
            node.last_access = tree.clock.tick()
        tree.kept_state(node)
        tree.cap_path_states(node)
