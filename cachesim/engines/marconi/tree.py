r"""The radix tree of the artifact: every node has a state at its end. Follows `RadixCache`.

    root --[0 .. 150)--> S --[150 .. 203)--> S        an edge that is branched off gets a state
                          \-[150 .. 200)--> S         where it is divided

The branching request computes the state; the next one with the same prefix reuses it.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from cachesim.engines.marconi.options import MarconiOptions
from cachesim.engines.marconi.rules import Rules
from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import ContractError
from cachesim.units import Array, Tokens


@dataclass(frozen=True, slots=True)
class Costs:
    """FLOPs and bytes of one model, over all layers of a kind, in half precision."""

    options: MarconiOptions

    def attention(self, tokens: int) -> int:
        """FLOPs of the attention layers."""
        d = self.options.d
        return self.options.num_attn_layers * (8 * tokens * d**2 + 4 * tokens**2 * d)

    def mlp(self, tokens: int) -> int:
        """FLOPs of the MLPs."""
        return self.options.num_mlp_layers * 16 * tokens * self.options.d**2

    def recurrent(self, tokens: int) -> int:
        """FLOPs of the recurrent layers."""
        d, n = self.options.d, self.options.n
        one = 12 * tokens * d**2 + 16 * tokens * d * n + 10 * tokens * d
        return self.options.num_ssm_layers * one

    def saved(self, tokens: int) -> int:
        """FLOPs that a hit saves."""
        return self.recurrent(tokens) + self.attention(tokens) + self.mlp(tokens)

    def keys_bytes(self, tokens: int) -> int:
        """Bytes of keys and values."""
        return self.options.num_attn_layers * 2 * tokens * self.options.d * 2

    def state_bytes(self) -> int:
        """Bytes of a state, of scan and convolution (kernel 4, expansion 2)."""
        d, n = self.options.d, self.options.n
        return self.options.num_ssm_layers * (d * n * 2 + (2 * d + 2 * n) * 4 * 2)


def normalised(values: Array) -> Array:
    """Values scaled to 0 to 1; all 1 if they are equal."""
    low, high = values.min(), values.max()
    # No difference, so this part of the score decides nothing.
    if low == high:
        return np.ones(len(values))
    scaled: Array = (values - low) / (high - low)
    return scaled


def shared_with(key: Tokens, rest: Tokens) -> int:
    """The equal tokens of an edge and the rest of a sequence; most edges of a path are whole."""
    return len(key) if rest[: len(key)] == key else int(get_common_prefix(key, rest))


WEIGHTS: Final = tuple(step / 10 for step in range(21))
"""Candidate weights: 0 to 2."""

LAST: Final = 500
"""Requests over which a candidate weight is evaluated."""


@dataclass(slots=True, eq=False)
class Node:
    """Tokens with a state at their end; `content` is the stored data, `by` the request that made
    it.

    `number` counts the nodes of a tree; the root is 0.
    """

    key: Tokens = ()
    parent: "Node | None" = None
    children: dict[int, "Node"] = field(default_factory=dict)
    last_access: float = 0.0
    content: Any = None
    by: int = -1
    number: int = 0
    end: int = 0  # tokens from the root to the node's end
    place: int = -1  # among the nodes that may be evicted

    def __lt__(self, other: "Node") -> bool:
        return self.last_access < other.last_access

    def path(self) -> "list[Node]":
        """The nodes from below the root to this one."""
        path: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

    def last(self) -> "Node":
        """The last node below, depth first."""
        node = self
        while node.children:
            node = next(reversed(node.children.values()))
        return node

    def order(self) -> list[int]:
        """What sorts nodes depth first: the places of the nodes on the path among others."""
        order, node = [], self
        while node.parent is not None:
            order.append(list(node.parent.children).index(node.key[0]))
            node = node.parent
        return order[::-1]


@dataclass(frozen=True, slots=True)
class Match:
    """The nodes that match to their end, and the number of matching tokens."""

    nodes: tuple[Node, ...]
    agreed: int
    reusable: int  # tokens of those nodes, before an insertion divides them

    @property
    def branches(self) -> bool:
        """True if an insertion divides an edge."""
        return self.agreed > self.reusable


class Tree:
    """Match, insert, evict (`RadixCache`)."""

    def __init__(self, options: MarconiOptions, rules: Rules) -> None:
        self.options = options
        self.rules = rules
        self.costs = Costs(options)
        self.root = Node()
        self.time = 0
        self.made = 0
        self.nodes = 0
        self.tokens = 0
        self.policy = options.policy
        self.weight = options.eff_weight
        self._worth: dict[tuple[int, int], float] = {}
        # Nodes with at most one child, as the weighed policies compare them all for each eviction.
        self._candidates: list[Node] = []
        self._worths, self._used = np.zeros(64), np.zeros(64)  # of each, and its last access
        self.hits: list[tuple[int, int]] = []  # requested tokens, reused tokens
        self.window: list[tuple[Tokens, Tokens]] = []  # requests that the weight is tuned on
        self.bootstrap: int | None = None
        self.on_deleted: Callable[[Node], None] | None = None
        self.on_merged: Callable[[Node], None] | None = None

    @property
    def size(self) -> int:
        """Bytes held."""
        return self.nodes * self.costs.state_bytes() + self.costs.keys_bytes(self.tokens)

    # -- match -------------------------------------------------------------------------------------

    def look_up(self, prompt: Tokens) -> Match:
        """Match a request's prompt, and record the hit."""
        match = self.match(prompt)
        self.hits.append((len(prompt), match.reusable))
        return match

    def match(self, tokens: Tokens) -> Match:
        """Nodes whose keys match to their end. Follows `match_prefix`."""
        self.time += 1
        nodes: list[Node] = []
        node, rest, agreed = self.root, tokens, 0
        while True:
            if self.policy == "lru":
                node.last_access = self.time
            child = node.children.get(rest[0]) if rest else None
            if child is None:
                break
            shared = shared_with(child.key, rest)
            agreed += shared
            rest = rest[shared:]
            # A state is valid at its node's end only.
            if shared == len(child.key):
                nodes.append(child)
            # Trap: the artifact continues among the children of an edge that matches in part, and
            # counts their tokens as reusable.
            elif not self.rules.descends_partial:
                if self.policy == "lru":
                    child.last_access = self.time
                break
            node = child
        # Only the state that is used counts as used, not those above it.
        if self.policy != "lru" and nodes:
            nodes[-1].last_access = self.time
            self._weigh(nodes[-1])
        return Match(tuple(nodes), agreed, sum(len(node.key) for node in nodes))

    # -- insert ------------------------------------------------------------------------------------

    def insert(self, prompt: Tokens, tokens: Tokens, by: int = -1) -> tuple[Node, Node | None]:
        """Insert a sequence; return its last node, and the node of a divided edge.

        Follows `insert`: the weight is tuned after enough requests, bytes are freed, an edge is
        divided where the sequence branches off.
        """
        self.time += 1
        if self.policy == "tuned":
            self.window.append((prompt, tokens))
            # Once: the weight is tuned on the requests before and after the first eviction.
            if self.bootstrap is not None and len(self.hits) == self.bootstrap:
                self.weight = tuned(self.options, self.rules, self.window)
                self.window = []
        match = self.match(tokens)
        # Two states where an edge is divided: one at the branch, one at the end.
        needed = (1 + match.branches) * self.costs.state_bytes()
        needed += self.costs.keys_bytes(len(tokens) - match.agreed)
        over = self.size + needed - self.options.capacity_bytes
        if over > 0:
            self.evict(over)
        return self._insert(tokens, by)

    def _insert(self, tokens: Tokens, by: int) -> tuple[Node, Node | None]:
        node, rest, branch = self.root, tokens, None
        while True:
            if self.policy == "lru":
                node.last_access = self.time
            if not rest:
                return node, branch
            child = node.children.get(rest[0])
            if child is None:
                leaf = self._new(rest, node, by)
                node.children[rest[0]] = leaf
                self._weigh(leaf)
                self._weigh(node)
                self.nodes += 1
                self.tokens += len(rest)
                return leaf, branch
            shared = shared_with(child.key, rest)
            # Two sequences have this much in common: a third may, too, so the branch gets a state.
            if shared < len(child.key):
                child = branch = self._divide(child, shared, by)
            node, rest = child, rest[shared:]

    def _new(self, key: Tokens, parent: Node | None, by: int) -> Node:
        self.made += 1
        end = len(key) + (parent.end if parent is not None else 0)
        return Node(key, parent, last_access=self.time, by=by, number=self.made, end=end)

    def _divide(self, child: Node, length: int, by: int) -> Node:
        upper = self._new(child.key[:length], child.parent, by)
        upper.children = {child.key[length]: child}
        if child.parent is not None:
            child.parent.children[child.key[0]] = upper
        child.parent, child.key = upper, child.key[length:]
        self._weigh(upper)
        self._weigh(child)
        self.nodes += 1
        return upper

    def walk(self, tokens: Tokens) -> Iterator[tuple[Node, int]]:
        """Nodes that match, each with its number of matching tokens; no access time changes."""
        node, rest = self.root, tokens
        while rest and (child := node.children.get(rest[0])) is not None:
            shared = shared_with(child.key, rest)
            yield child, shared
            if shared < len(child.key):
                return
            node, rest = child, rest[shared:]

    def agreed(self, tokens: Tokens) -> tuple[int, int]:
        """Number of matching tokens, and of those in whole nodes, which have a state at their
        end.
        """
        walked = list(self.walk(tokens))
        whole = sum(shared for node, shared in walked if shared == len(node.key))
        return sum(shared for _, shared in walked), whole

    def check(self) -> None:
        """Raise ContractError if the counts disagree with the nodes."""
        nodes = list(self.all())
        counted = (len(nodes), sum(len(node.key) for node in nodes))
        if counted != (self.nodes, self.tokens):
            msg = f"marconi: {counted} nodes and tokens, and {(self.nodes, self.tokens)} counted"
            raise ContractError(msg)

    # -- evict -------------------------------------------------------------------------------------

    def evict(self, wanted: int) -> None:
        """Free at least `wanted` bytes if possible. Follows `evict`."""
        self.time += 1
        # The first eviction: how many requests the weight is tuned on depends on how many came
        # before.
        if self.bootstrap is None:
            self.bootstrap = self.options.bootstrap_multiplier * len(self.hits)
        if self.policy == "lru":
            # Leaves, least recently used first. Follows `evict_v1`.
            #
            # Trap: a lookup without reuse also refreshes the nodes on its path.
            heap = [node for node in self.all() if not node.children]
            heapq.heapify(heap)
            freed = 0
            while freed < wanted and heap:
                node = heapq.heappop(heap)
                freed += self.costs.state_bytes() + self.costs.keys_bytes(len(node.key))
                parent = node.parent
                self._delete(node)
                if parent is not None and parent is not self.root and not parent.children:
                    heapq.heappush(heap, parent)
        else:
            # Nodes with at most one child: an inner one loses its state and merges with its child.
            # Follows `evict_v2`.
            #
            # Trap: the artifact counts an evicted leaf with the tokens of the last candidate, so it
            # may evict more or less than `wanted`.
            freed = 0
            while freed < wanted and self.nodes:
                node = self._least_worth()
                freed += self.costs.state_bytes()
                # Its state goes, and its keys stay with the child, which needs them.
                if node.children:
                    if self.on_merged is not None:
                        self.on_merged(node)
                    [child] = node.children.values()
                    child.key = node.key + child.key
                    child.parent = node.parent
                    child.last_access = max(node.last_access, child.last_access)
                    if node.parent is not None:
                        node.parent.children[child.key[0]] = child
                    self._leave_out(node)
                    self._weigh(child)
                    self.nodes -= 1
                    continue
                counted = self.root.last() if self.rules.bytes_of_last_candidate else node
                freed += self.costs.keys_bytes(len(counted.key))
                self._delete(node)

    def _least_worth(self) -> Node:
        """The candidate with the lowest score, the first of equals (`evict_v2`)."""
        count = len(self._candidates)
        worths, scores = self._worths[:count], self._used[:count]  # in order of the last access
        # At weight 0 recency alone decides.
        if self.weight:
            scores = self.weight * normalised(worths) + normalised(1 / (self.time - scores))
        equal = [self._candidates[at] for at in np.flatnonzero(scores == scores.min())]
        return equal[0] if len(equal) == 1 else min(equal, key=Node.order)

    def _weigh(self, node: Node) -> None:
        """Note a node that may be evicted, as it is now."""
        if self.policy == "lru" or node is self.root:
            return
        # A fork is never evicted: its state serves several sequences.
        if len(node.children) > 1:
            self._leave_out(node)
            return
        if node.place < 0:
            node.place = len(self._candidates)
            self._candidates.append(node)
            if node.place == len(self._used):
                self._worths, self._used = np.tile(self._worths, 2), np.tile(self._used, 2)
        self._worths[node.place] = self.worth(node.end, len(node.key))
        self._used[node.place] = node.last_access

    def _leave_out(self, node: Node) -> None:
        """Take a node out of those that may be evicted; the last one takes its place."""
        last = self._candidates.pop() if node.place >= 0 else node
        if last is not node:
            self._candidates[node.place] = last
            self._worths[node.place] = self._worths[last.place]
            self._used[node.place] = self._used[last.place]
            last.place = node.place
        node.place = -1

    def all(self) -> Iterator[Node]:
        """All nodes but the root, depth first."""
        stack = [*reversed(self.root.children.values())]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def worth(self, whole: int, own: int) -> float:
        """FLOPs that a node of `own` tokens saves beyond its parent, per byte of its prefix."""
        known = self._worth.get((whole, own))
        if known is None:
            known = self._worth[whole, own] = self._saved_per_byte(whole, whole - own)
        return known

    def _saved_per_byte(self, whole: int, above: int) -> float:
        costs = self.costs
        saved = costs.recurrent(whole - above) + costs.attention(whole) - costs.attention(above)
        # Trap: the artifact subtracts attention's FLOPs of the parent's tokens instead.
        less = costs.mlp(above)
        if self.rules.mlp_less_attention:
            layers = self.options.num_attn_layers or 1
            less = self.options.num_mlp_layers * costs.attention(above) // layers
        saved += costs.mlp(whole) - less
        return saved / (costs.state_bytes() + costs.keys_bytes(whole))

    def _delete(self, node: Node) -> None:
        if node.parent is not None:
            del node.parent.children[node.key[0]]
            self._weigh(node.parent)
        self._leave_out(node)
        self.nodes -= 1
        self.tokens -= len(node.key)
        if self.on_deleted is not None:
            self.on_deleted(node)


def tuned(options: MarconiOptions, rules: Rules, requests: list[tuple[Tokens, Tokens]]) -> float:
    """The weight with the highest savings over the requests so far. Follows `tune_config`."""
    best, most = 0.0, -1
    for weight in WEIGHTS:
        tree = Tree(options, rules)
        tree.policy, tree.weight = "weighed", weight
        for prompt, tokens in requests:
            tree.look_up(prompt)
            tree.insert(prompt, tokens)
        recent = tree.hits[-LAST:]
        saved = tree.costs.recurrent(sum(hit for _, hit in recent))
        saved += sum(tree.costs.attention(hit) + tree.costs.mlp(hit) for _, hit in recent)
        # Of equal weights the smallest.
        if saved > most:
            best, most = weight, saved
    return best
