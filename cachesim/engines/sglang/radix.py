"""The tree of models with full attention only. Follows `RadixCache` of 0.5.9."""

import heapq
from collections.abc import Hashable

from cachesim.engines.sglang.node import FULL, Node
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.tree import STRATEGIES, Match, Tree, joined, matching
from cachesim.units import Integers


class RadixCache(Tree):
    """A tree with a slot per token; leaves go in the order of a policy (`RadixCache`)."""

    def _begin(self) -> None:
        self.leaves: set[Node] = set()
        self.first = STRATEGIES[self.shape.policy]

    def match(self, key: Integers, extra: Hashable) -> Match:
        """Walk down as far as tokens agree. Follows `_match_prefix_helper`."""
        if not len(key):
            return Match(joined([]), self.root)
        page, node, now, found = self.shape.page, self.root, self.clock.tick(), []
        node.last_access = now
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            child.last_access = now
            length = matching(child, key, page)
            if length < len(child):
                node = self._split(child, length, extra)
                found.append(node.slots)
                break
            found.append(child.slots)
            node, key = child, key[length:]
        slots = joined(found)
        return Match(slots, node, len(slots))

    def _split(self, child: Node, length: int, extra: Hashable) -> Node:
        new = self._halves(child, length, extra)
        new.locks[FULL] = child.locks[FULL]
        return new

    def insert(self, key: Integers, slots: Integers, extra: Hashable, priority: int = 0) -> int:
        """Put a key in; how much of it was there already. Follows `_insert_helper`."""
        page, node, now, total = self.shape.page, self.root, self.clock.tick(), 0
        node.last_access = now
        node.priority = max(node.priority, priority)
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            node = child
            node.last_access = now
            length = matching(node, key, page)
            total += length
            key, slots = key[length:], slots[length:]
            if length < len(node):
                node = self._split(node, length, extra)
            node.priority = max(node.priority, priority)
        if len(key):
            new = self._hang(node, key, slots, extra)
            new.priority = priority
            self.evictable[FULL] += len(key)
            self._update_leaf(node)
            self._update_leaf(new)
        self.kept(total + len(key), len(key))
        return total

    def _update_leaf(self, node: Node) -> None:
        """Update the set of evictable leaves. Follows `_update_leaf_status`."""
        if node is self.root or node.locks[FULL] or node.children:
            self.leaves.discard(node)
        else:
            self.leaves.add(node)

    def lock(self, node: Node) -> None:
        for each in node.path():
            if not each.locks[FULL]:
                self.evictable[FULL] -= len(each)
            each.locks[FULL] += 1
            self._update_leaf(each)

    def unlock(self, node: Node, held: object = None) -> None:
        del held
        for each in node.path():
            if each.locks[FULL] == 1:
                self.evictable[FULL] += len(each)
            each.locks[FULL] -= 1
            self._update_leaf(each)

    def _evict(self, tokens: int, window: int, states: int) -> None:
        del window, states
        heap = [(self.first(node), node) for node in self.leaves]
        heapq.heapify(heap)
        evicted = 0
        while evicted < tokens and heap:
            _, node = heapq.heappop(heap)
            parent = node.parent
            self.pool.free(node.slots)
            evicted += len(node)
            self._detach(node)
            self.evictable[FULL] -= len(node)
            self.leaves.discard(node)
            self.lost("node", node)
            if parent is not None:
                self._update_leaf(parent)
                if not parent.children and not parent.locks[FULL]:
                    heapq.heappush(heap, (self.first(parent), parent))

    def cache_unfinished(self, req: Req) -> None:
        """Follows `cache_unfinished_req`: insert, match again, move the lock down."""
        fill = req.fill
        key = self.key_of(req.tokens[:fill])
        self.by_request = req.id
        known = self.insert(key, req.row[: len(key)].copy(), req.extra_key, req.priority)
        self.pool.free(req.row[req.protected : known].copy())
        match = self.match(key, req.extra_key)
        slots = match.slots
        req.write(req.protected, slots[req.protected :])
        req.protected = len(slots)
        if req.last_node is not None:
            self.unlock(req.last_node)
        self.lock(match.node)
        req.prefix = fill
        req.last_node = match.node

    def cache_finished(self, req: Req, *, insert: bool = True) -> None:
        """Follows `cache_finished_req`."""
        committed = req.committed
        key = self.key_of(req.tokens[:committed])
        count = len(key)
        known = count
        if insert:
            self.by_request = req.id
            known = self.insert(key, req.row[:count].copy(), req.extra_key, req.priority)
        self.pool.free(req.row[req.protected : known].copy())
        self.pool.free(req.row[count:committed].copy())
        if req.last_node is not None:
            self.unlock(req.last_node)
