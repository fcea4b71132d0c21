"""Caches that count what they have room for, of three more kinds, and bugs in them.

pool      slots for blocks, with a free list and counts of open lookups (`BlockPool`)
tree      a radix tree of tokens, whose nodes are split, locked, and evicted from the leaves
prompts   whole prompts, of which the longest common part is cut out
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cachesim.engines.tokens import get_common_prefix
from cachesim.testing import Request, Server
from cachesim.testing.contents import Rows, packed, split
from cachesim.testing.examples import UNIT, BlockPool
from cachesim.units import Tokens


class LeaksOnEvict(BlockPool):
    """An evicted block's slot is not free again."""

    def evict(self, request: Request) -> None:
        for key in self.keys(request):
            self.where.pop(key, None)


class DoubleFree(BlockPool):
    """A slot is free twice."""

    def drop(self, key: Hashable) -> None:
        self.free.append(self.where[key])
        super().drop(key)


class NotPinned(BlockPool):
    """A lookup does not count as a use."""

    def lookup(self, request: Request) -> int:
        count = super().lookup(request)
        self.used.clear()
        return count


class PinStays(BlockPool):
    """A block stays in use after it was loaded."""

    def load(self, request: Request, count: int) -> Rows | None:
        before = self.used.copy()
        rows = super().load(request, count)
        self.used = before
        return rows


class PinsOfLastOnly(BlockPool):
    """A lookup ends the uses of the one before."""

    def lookup(self, request: Request) -> int:
        self.used.clear()
        return super().lookup(request)


class EvictsOwnPrefix(BlockPool):
    """Room for a prompt's end is made at its beginning, which was here and is not touched."""

    def store(self, request: Request, rows: Rows) -> None:
        for key, block in zip(self.keys(request), split(self.server, rows, UNIT), strict=True):
            if key not in self.where:
                slot = self.take([])
                if slot is None:
                    return
                self.slots[slot] = [layer.copy() for layer in block]
                self.where[key] = slot


class StaleMap(BlockPool):
    """An evicted key still names its slot."""

    def take(self, keys: list[Hashable]) -> int | None:
        before = OrderedDict(self.where)
        slot = super().take(keys)
        self.where = before
        return slot


class CountDrifts(BlockPool):
    """A counter of blocks also counts those that were here."""

    count = 0

    def store(self, request: Request, rows: Rows) -> None:
        self.count += len(list(self.keys(request)))
        super().store(request, rows)

    def take(self, keys: list[Hashable]) -> int | None:
        return super().take(keys) if self.count <= 3 * len(self.slots) else None

    def drop(self, key: Hashable) -> None:
        self.count -= 1
        super().drop(key)


@dataclass(eq=False)
class Node:
    """Tokens on an edge, and their rows."""

    tokens: Tokens
    rows: Rows
    parent: "Node | None" = None
    children: dict[int, "Node"] = field(default_factory=dict)
    lock: int = 0
    tick: int = 0


class Tree:
    """A radix tree; leaves that nobody has locked are evicted, the oldest first."""

    def __init__(self, server: Server, place: Path, max_tokens: int = 1000) -> None:
        self.room, self.size, self.tick = max_tokens, 0, 0
        self.roots: dict[Hashable, Node] = {}
        self.open: dict[Request, list[Node]] = {}

    def names(self, request: Request) -> Hashable:
        return request.adapter, request.salt, request.image, request.image_at

    def walk(self, request: Request) -> tuple[Node, int]:
        """The node at the end of the known tokens, which is split off where it does not end."""
        node, at = self.roots.setdefault(self.names(request), Node((), [])), 0
        self.tick += 1
        while (child := node.children.get(int((*request.tokens[at:], -1)[0]))) is not None:
            same = get_common_prefix(child.tokens, request.tokens[at:])
            node = self.split(child, same) if same < len(child.tokens) else child
            node.tick = self.tick
            at += len(node.tokens)
        return node, at

    def split(self, child: Node, same: int) -> Node:
        assert child.parent is not None
        upper = Node(child.tokens[:same], self.first(child, same), child.parent, lock=child.lock)
        child.parent.children[int(child.tokens[0])] = upper
        child.tokens, child.rows = child.tokens[same:], self.rest(child, same)
        child.parent, upper.children = upper, {int(child.tokens[0]): child}
        return upper

    def first(self, node: Node, same: int) -> Rows:
        return [layer[:same] for layer in node.rows]

    def rest(self, node: Node, same: int) -> Rows:
        return [layer[same:] for layer in node.rows]

    def store(self, request: Request, rows: Rows) -> None:
        node, at = self.walk(request)
        rest = request.tokens[at:]
        node.lock += 1
        fits = self.make_room(len(rest))
        node.lock -= 1
        if rest and fits:
            leaf = Node(rest, [layer[at:].copy() for layer in rows], node, tick=self.tick)
            node.children[int(rest[0])] = leaf
            self.size += self.counted(leaf, at)

    def counted(self, leaf: Node, at: int) -> int:
        return len(leaf.tokens)

    def nodes(self) -> Iterator[Node]:
        found = list(self.roots.values())
        for node in found:
            found += node.children.values()
            if node.parent is not None:
                yield node

    def may_go(self, node: Node) -> bool:
        return not node.children and not node.lock

    def make_room(self, count: int) -> bool:
        while self.size + count > self.room:
            oldest = min(filter(self.may_go, self.nodes()), key=lambda n: n.tick, default=None)
            if oldest is None:
                return False
            self.remove(oldest)
        return True

    def remove(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.children[int(node.tokens[0])]
        self.size -= len(node.tokens)
        node.rows = []  # another's by now

    def lookup(self, request: Request) -> int:
        node, at = self.walk(request)
        if at:
            self.open.setdefault(request, []).append(node)
            self.locked(node, 1)
        return at

    def locked(self, node: Node, by: int) -> list[Node]:
        path = [node]
        while (parent := path[-1].parent) is not None:
            path.append(parent)
        for each in path:
            each.lock += by
        return path[-2::-1]

    def load(self, request: Request, count: int) -> Rows | None:
        path = self.locked(self.open[request].pop(0), -1)
        if not all(node.rows for node in path):
            return None
        return [np.concatenate(layers) for layers in zip(*(n.rows for n in path), strict=True)]

    def release(self, request: Request) -> None:
        self.locked(self.open[request].pop(0), -1)

    def evict(self, request: Request) -> None:
        node, _ = self.walk(request)
        below = list(node.children.values())
        for each in below:
            below += each.children.values()
        for each in reversed(below):
            self.remove(each)
        while node.parent is not None and not node.children:
            self.remove(node)
            node = node.parent

    def clear(self) -> None:
        self.roots.clear()
        self.size = 0


class SplitKeepsRows(Tree):
    """The lower part of a split node has the upper part's rows."""

    def rest(self, node: Node, same: int) -> Rows:
        return [layer[: len(node.tokens) - same] for layer in node.rows]


class SplitForgetsLock(Tree):
    """The upper part of a split node is not locked."""

    def split(self, child: Node, same: int) -> Node:
        upper = super().split(child, same)
        upper.lock = child.lock = 0
        return upper


class NoNames(Tree):
    """All requests share a tree."""

    def names(self, request: Request) -> Hashable:
        return request.image, request.image_at


class RemovedStillCounts(Tree):
    """An evicted request's tokens still count."""

    def evict(self, request: Request) -> None:
        before = self.size
        super().evict(request)
        self.size = before


class MatchTooLong(Tree):
    """A node that is equal in part is taken whole."""

    def lookup(self, request: Request) -> int:
        root = self.roots.get(self.names(request))
        child = root and root.children.get(int(request.tokens[0]))
        whole = len(child.tokens) if child else 0
        return max(super().lookup(request), min(whole, len(request.tokens)))


class SizeOfWhole(Tree):
    """A new leaf is counted with all tokens before it."""

    def counted(self, leaf: Node, at: int) -> int:
        return at + len(leaf.tokens)


class InnerGoFirst(Tree):
    """A node with children is evicted, and their tokens still count."""

    def may_go(self, node: Node) -> bool:
        return not node.lock


class Prompts:
    """Whole prompts, the oldest out first; a lookup takes the longest common part of one."""

    def __init__(self, server: Server, place: Path, max_entries: int = 100) -> None:
        self.room, self.nbytes = max_entries, 0
        self.entries: OrderedDict[tuple[Hashable, Tokens], Rows] = OrderedDict()
        self.open: dict[Request, list[tuple[Rows, int]]] = {}

    def key(self, request: Request) -> tuple[Hashable, Tokens]:
        return (request.adapter, request.salt, request.image, request.image_at), request.tokens

    def store(self, request: Request, rows: Rows) -> None:
        self.drop(self.key(request))
        self.entries[self.key(request)] = [layer.copy() for layer in rows]
        self.nbytes += len(packed(rows))
        while len(self.entries) > self.room:
            self.drop(self.oldest())

    def oldest(self) -> tuple[Hashable, Tokens]:
        return next(iter(self.entries))

    def drop(self, key: tuple[Hashable, Tokens]) -> None:
        self.nbytes -= len(packed(self.entries.pop(key, [])))

    def best(self, request: Request) -> tuple[tuple[Hashable, Tokens] | None, int]:
        names, tokens = self.key(request)
        known = [key for key in self.entries if key[0] == names]
        shared = {key: get_common_prefix(key[1], tokens) for key in known}
        longest = max(known, key=lambda key: shared[key], default=None)
        return longest, shared[longest] if longest else 0

    def lookup(self, request: Request) -> int:
        key, count = self.best(request)
        if key is not None and count:
            self.entries.move_to_end(key)
            self.open.setdefault(request, []).append((self.entries[key], count))
        return count

    def load(self, request: Request, count: int) -> Rows | None:
        rows, count = self.open[request].pop(0)
        return [layer[:count].copy() for layer in rows]

    def release(self, request: Request) -> None:
        self.open[request].pop(0)

    def evict(self, request: Request) -> None:
        self.drop(self.key(request))

    def clear(self) -> None:
        self.entries.clear()
        self.nbytes = 0


class TrimTooLong(Prompts):
    """One token more than is common is taken of a longer entry."""

    def best(self, request: Request) -> tuple[tuple[Hashable, Tokens] | None, int]:
        key, count = super().best(request)
        more = key is not None and 0 < count < min(len(key[1]), len(request.tokens))
        return key, count + more


class TrimsInPlace(Prompts):
    """What is cut out of an entry is all that stays of it."""

    def load(self, request: Request, count: int) -> Rows | None:
        rows, _ = self.open[request][0]
        rows[:] = [layer[:count] for layer in rows]
        return super().load(request, count)


class OwnArrays(Prompts):
    """The loaded arrays are the entry's own."""

    def load(self, request: Request, count: int) -> Rows | None:
        rows, count = self.open[request].pop(0)
        return [layer[:count] for layer in rows]


class NewestOut(Prompts):
    """The newest entry is evicted."""

    def oldest(self) -> tuple[Hashable, Tokens]:
        return next(reversed(self.entries))


class ShorterStays(Prompts):
    """A prompt whose beginning is stored is not stored."""

    def store(self, request: Request, rows: Rows) -> None:
        key, count = self.best(request)
        if key is None or count < len(key[1]):
            super().store(request, rows)


class OthersGo(Prompts):
    """A longer prompt replaces its beginnings, also those under other names."""

    def store(self, request: Request, rows: Rows) -> None:
        for key in [key for key in self.entries if request.tokens[: len(key[1])] == key[1]]:
            self.drop(key)
        super().store(request, rows)


class SizeDrifts(Prompts):
    """A prompt that is stored again is counted again."""

    def store(self, request: Request, rows: Rows) -> None:
        self.entries.pop(self.key(request), None)
        super().store(request, rows)


SEVERAL = ""
"""The end of any law: lost room, lost rows and rows of others all show this bug."""

PLANTED: dict[Any, tuple[str, dict[str, Any]]] = {
    LeaksOnEvict: ("room returns", {}),
    DoubleFree: (SEVERAL, {}),
    NotPinned: (SEVERAL, {}),
    PinStays: (SEVERAL, {}),
    PinsOfLastOnly: (SEVERAL, {}),
    EvictsOwnPrefix: (SEVERAL, {}),
    StaleMap: (SEVERAL, {}),
    CountDrifts: (SEVERAL, {}),
    SplitKeepsRows: ("position in the key", {}),
    SplitForgetsLock: ("promise kept", {}),
    NoNames: ("adapter in the key", {}),
    RemovedStillCounts: ("room returns", {}),
    MatchTooLong: (SEVERAL, {}),
    SizeOfWhole: (SEVERAL, {}),
    InnerGoFirst: (SEVERAL, {}),
    TrimTooLong: (SEVERAL, {}),
    TrimsInPlace: (SEVERAL, {}),
    OwnArrays: ("no aliasing", {}),
    NewestOut: ("just stored is found", {}),
    ShorterStays: ("just stored is found", {}),
    OthersGo: ("kept while it fits", {"holds": 1000}),
    SizeDrifts: ("room returns", {}),
}

RIGHT: dict[str, tuple[Any, dict[str, Any]]] = {
    "pool, dense": (BlockPool, {}),
    "pool, hybrid": (BlockPool, {"presets": ("hybrid",)}),
    "tree": (Tree, {}),
    "prompts": (Prompts, {}),
    "prompts, swa": (Prompts, {"presets": ("swa",)}),
}
