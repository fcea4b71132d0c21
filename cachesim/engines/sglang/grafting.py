r"""How what came from the storage gets into the unified tree, on the host's side of its nodes.

    anchor --[on the device]--> A        gets the host's copy that it lacked
              \--> new                   what is left hangs below, on the host only
    the last window and the state of what was fetched go to the end of it, whole or not at all

Follows `insert_host` of `UnifiedTreeCore` and the `PREFETCH` commits of its components.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachesim.engines.sglang.fetching import Fetch, PartFetch
from cachesim.engines.sglang.node import FULL, NO_SLOTS, PART, STATE, Node
from cachesim.engines.sglang.storage_threads import Threads
from cachesim.engines.sglang.tree import matching
from cachesim.engines.sglang.unified_host import HostTier
from cachesim.errors import UpstreamAbort
from cachesim.units import Integers

if TYPE_CHECKING:
    from cachesim.engines.sglang.unified_storage import StoringRadixCache


@dataclass(slots=True)
class Grafted:
    """What came of it (`InsertResult`)."""

    known: int = 0  # prefix_len: tokens whose slots are not needed
    total: int = 0
    node: Node | None = None  # inserted_host_node
    dropped: bool = False


@dataclass(slots=True)
class Graft:
    """One fetch that is hung into the tree."""

    tree: "StoringRadixCache"
    host: HostTier
    threads: Threads
    fetch: Fetch

    def insert(self, slots: Integers, keys: list[bytes]) -> Grafted:
        """Attention's part. Follows `insert_host`."""
        tree, fetch = self.tree, self.fetch
        page, back = tree.shape.page, self.host.shape.writes_back
        key, node = fetch.key[: len(slots)], fetch.anchor
        node.last_access = tree.clock.tick()
        made = Grafted(total=len(key))
        walked, refilled = 0, False
        while len(key):
            child = node.children.get(tree.child_key(key, fetch.extra))
            if child is None:
                break
            child.last_access = tree.clock.tick()
            length = matching(child, key, page)
            node = tree.split(child, length, fetch.extra) if length < len(child) else child
            if not back and node.host_full is None:
                self._refill(node, slots[:length])
                refilled = True
            elif not back:
                if refilled:
                    where = "UnifiedTreeCore.insert_host"
                    raise UpstreamAbort(where, "assert: write-through host-prefix invariant broken")
                made.known += length
            key, slots, keys = key[length:], slots[length:], keys[length // page :]
            walked += length
        if back:
            made.known = walked
        if not len(key):
            made.node = node if made.total and node.host_full is not None else None
        elif node is not tree.root and node.host_full is None and not back:
            made.dropped = True
        else:
            made.node = self._hang(node, key, slots, keys)
        return made

    def _refill(self, node: Node, slots: Integers) -> None:
        node.host_full = slots
        self.tree.update_leaf(node)
        if node.parent is not None:
            self.tree.update_leaf(node.parent)
        self.host.track_twice(node)
        self.host.tell("fetched", FULL, node)

    def _hang(self, parent: Node, key: Integers, slots: Integers, keys: list[bytes]) -> Node:
        node = self.tree.hang_on_host(parent, key, self.fetch.extra)
        node.priority, node.hashes, node.host_full = parent.priority, keys, slots
        self.tree.update_leaf(node)
        self.tree.update_leaf(parent)
        self.host.tell("fetched", FULL, node)
        return node

    def commit(self, made: Grafted) -> None:
        """Windows and states. Follows `commit_hicache_transfers`."""
        for each in self.fetch.parts:
            if each.part == PART:
                self._commit_window(each, made)
            else:
                self._commit_state(each, made)

    def _commit_state(self, each: PartFetch, made: Grafted) -> None:
        node = made.node
        loaded = self.fetch.hits.get(STATE, 0) >= 1
        if each.slots is None or node is None or not loaded or node.host_state is not None:
            self.threads.release(STATE, each.slots)
            return
        node.host_state = int(each.slots[0])
        if node.state is None:
            self.host.left(node, STATE)
        self.host.tell("fetched", STATE, node)

    def _commit_window(self, each: PartFetch, made: Grafted) -> None:
        """One window, whole or not at all. Follows `_commit_prefetch`.

        anchor ... [ node ........ )[ node ... )
                         loaded_start ........ total
        """
        page, slots = self.tree.shape.page, NO_SLOTS if each.slots is None else each.slots
        pages, anchor = len(slots) // page, self.fetch.anchor
        short = anchor is not self.tree.root and pages < -(-self.tree.shape.window // page)
        if short or made.node is None or not pages or self.fetch.hits.get(PART, 0) < pages:
            self.threads.release(PART, slots)
            return
        start, at, node = made.total - pages * page, made.total, made.node
        while node is not anchor and at > start:
            above, first = node.parent or self.tree.root, at - len(node)
            fill = max(first, start)
            own = slots[fill - start : at - start]
            if node.host_window is None and at > fill:
                if fill > first:
                    self.tree.split(node, fill - first, self.fetch.extra)
                self._attach(node, own)
            else:
                self.threads.release(PART, own)
            at, node = first, above
        if at > start:
            self.threads.release(PART, slots[: at - start])

    def _attach(self, node: Node, slots: Integers) -> None:
        node.host_window = slots
        if not node.window:
            self.host.left(node, PART)
        self.tree.update_leaf(node)
        if node.parent is not None:
            self.tree.update_leaf(node.parent)
        self.host.tell("fetched", PART, node)
