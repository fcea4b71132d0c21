"""SGLang's router: an approximate radix tree of what it sent where.

The tree holds texts; here a token stands for a character. Every replica is a tenant of the nodes
that it was sent:

    root {0, 1} ── "system prompt" {0, 1} ── "question A" {0}
                                         └── "question B" {1}

Follows `CacheAwarePolicy` and `Tree`, read at the commits 053b63f and 03744db.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from cachesim.engines.tokens import Rope
from cachesim.traces.fleet.router import Arrival, Dispatcher, Replica, Router, in_range


@dataclass(slots=True, eq=False)
class Node:
    """A part of a text, and the tenants that were sent it, with their last use."""

    text: Rope
    parent: "Node | None" = None
    children: "dict[int, Node]" = field(default_factory=dict)
    tenants: dict[int, int] = field(default_factory=dict)
    last_tenant: int | None = None

    def is_leaf_of(self, tenant: int) -> bool:
        """True if the tenant's texts end here."""
        ends = not any(tenant in child.tenants for child in self.children.values())
        return tenant in self.tenants and ends


class Tree:
    """A radix tree of all tenants (`Tree`)."""

    def __init__(self) -> None:
        self.root = Node(Rope())
        self.sizes: dict[int, int] = {}  # tokens of each tenant
        self._epoch = 0

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch - 1

    def insert(self, text: Rope, tenant: int) -> None:
        """Add a text of a tenant. Follows `insert`.

        node   | a b c d e f |            text  a b c x y
        split  | a b c | ── | d e f |     the upper part has the tenants of the lower
                       └── | x y |
        """
        self.root.tenants.setdefault(tenant, 0)
        self.sizes.setdefault(tenant, 0)
        node, rest = self.root, text
        while len(rest):
            child = node.children.get(rest[0])
            if child is None:
                leaf = Node(rest, node, {}, {tenant: self._next_epoch()}, tenant)
                node.children[rest[0]] = leaf
                self.sizes[tenant] += len(rest)
                return
            shared = rest.common(child.text)
            if shared < len(child.text):
                child = self._split(node, child, shared)
            if tenant not in child.tenants:
                self.sizes[tenant] += len(child.text)
                child.tenants[tenant] = 0
            node, rest = child, rest[shared:]
        node.tenants[tenant] = self._next_epoch()

    @staticmethod
    def _split(parent: Node, child: Node, at: int) -> Node:
        upper = Node(child.text[:at], parent, {}, dict(child.tenants), child.last_tenant)
        parent.children[child.text[0]] = upper
        child.text, child.parent = child.text[at:], upper
        upper.children[child.text[0]] = child
        return upper

    def peek(self, text: Rope) -> tuple[int, Node]:
        """The length of the longest known prefix, and its last node."""
        node, rest, matched = self.root, text, 0
        while len(rest):
            child = node.children.get(rest[0])
            if child is None:
                break
            shared = rest.common(child.text)
            matched += shared
            node = child
            if shared < len(child.text):
                break
            rest = rest[shared:]
        return matched, node

    def prefix_match(self, text: Rope) -> tuple[int, int | None]:
        """The length of the longest known prefix, and a tenant of its last node. Follows
        `prefix_match_with_counts`.
        """
        matched, node = self.peek(text)
        tenant = node.last_tenant
        if tenant not in node.tenants:  # upstream: the first in the order of a hash map
            tenant = node.last_tenant = next(iter(node.tenants), None)
        epoch = self._next_epoch()
        if not epoch & 7 and tenant is not None:
            node.tenants[tenant] = epoch
        return matched, tenant

    def nodes(self) -> Iterator[Node]:
        """All nodes, the root first."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            stack += node.children.values()
            yield node

    def evict(self, most: int) -> None:
        """Remove the leaves used longest ago from tenants above a size. Follows
        `evict_tenant_by_size`.
        """
        if all(size <= most for size in self.sizes.values()):
            return
        count = 0
        heap: list[tuple[int, int, int, Node]] = []
        for node in self.nodes():
            for tenant, used in node.tenants.items():
                if node.is_leaf_of(tenant):
                    heap.append((used, count := count + 1, tenant, node))
        heapq.heapify(heap)
        while heap:
            _, _, tenant, node = heapq.heappop(heap)
            if self.sizes.get(tenant, 0) <= most or not node.is_leaf_of(tenant):
                continue
            self.sizes[tenant] -= len(node.text)
            parent = self._drop(node, tenant)
            if parent is not None and parent.is_leaf_of(tenant):
                count += 1
                heapq.heappush(heap, (parent.tenants[tenant], count, tenant, parent))

    def remove_tenant(self, tenant: int) -> None:
        """Forget a tenant. Follows `remove_tenant`."""
        for node in [leaf for leaf in self.nodes() if leaf.is_leaf_of(tenant)]:
            at: Node | None = node
            while at is not None and at.is_leaf_of(tenant):
                at = self._drop(at, tenant)
        self.sizes.pop(tenant, None)

    @staticmethod
    def _drop(node: Node, tenant: int) -> Node | None:
        del node.tenants[tenant]
        parent = node.parent
        if parent is not None and not node.children and not node.tenants:
            del parent.children[node.text[0]]
        return parent


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAware(Router):
    """The replica that was sent the longest prefix, unless the loads are too far apart."""

    name: ClassVar[str] = "cache-aware"
    follows: ClassVar[str] = "sglang-router 0.3.2, `CacheAwarePolicy.select_worker`"
    cache_threshold: float = 0.3  # share of the text that has to match
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5
    eviction_interval_secs: int = 60
    max_tree_size: int = 1 << 26  # of a replica; upstream's counts characters, here tokens

    def check(self) -> None:
        in_range("cache_threshold", self.cache_threshold, 0, 1)
        in_range("balance_abs_threshold", self.balance_abs_threshold, 0)
        in_range("balance_rel_threshold", self.balance_rel_threshold, 1)
        in_range("eviction_interval_secs", self.eviction_interval_secs, 0)
        in_range("max_tree_size", self.max_tree_size, 1)

    def start(self, replicas: Sequence[Replica]) -> Dispatcher:
        return Approximate(replicas, self)


class Approximate(Dispatcher):
    """The dispatcher of `CacheAware`."""

    def __init__(self, replicas: Sequence[Replica], rules: CacheAware) -> None:
        super().__init__(replicas)
        self.rules = rules
        self.tree = Tree()
        self.evicted = 0.0
        for replica in replicas:
            self.tree.insert(Rope(), replica.number)

    def choose(self, arrival: Arrival) -> int:
        """Follows `select_worker`.

        loads too far apart            -> the least loaded replica
        matched share > threshold      -> a replica that was sent the matched text
        else                           -> the least loaded replica

        Trap: the least loaded of several is the first, so that an idle fleet sends every text that
        it does not know to the first replica.
        """
        interval = self.rules.eviction_interval_secs * 1000
        if interval and arrival.time - self.evicted >= interval:
            self.evicted = arrival.time // interval * interval
            self.tree.evict(self.rules.max_tree_size)
        rules, text = self.rules, arrival.prompt
        loads = [replica.load for replica in self.replicas if replica.alive]
        apart = max(loads) - min(loads) > rules.balance_abs_threshold
        if apart and max(loads) > min(loads) * rules.balance_rel_threshold:
            chosen = self.least_loaded().number
            self.tree.insert(text, chosen)
            return chosen
        matched, tenant = self.tree.prefix_match(text)
        known = tenant is not None and matched / len(text) > rules.cache_threshold
        chosen = tenant if known and tenant is not None else self.least_loaded().number
        self.tree.insert(text, chosen)
        return chosen

    def left(self, replica: int) -> None:
        self.tree.remove_tenant(replica)
