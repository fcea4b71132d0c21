r"""The unified tree's second tier: what is copied to the host, and when.

    root --[device, host]--> A --[host]--> B --[host]--> C        evicted from the leaves upwards
                        \--[device]--> D                     not copied yet

A node is copied when it was walked over often enough, those above it first; with `write_back` when
the device gives it up. Copies are done by the next look. Follows the parts of `UnifiedRadixCache`
that speak of backups.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cachesim.engines.sglang.host_evict import HostEviction
from cachesim.engines.sglang.host_pool import (
    Copy,
    HostShape,
    Transfers,
    Underway,
    rows,
)
from cachesim.engines.sglang.node import FULL, HOST, NO_SLOTS, PART, STATE, Node
from cachesim.units import Integers

if TYPE_CHECKING:
    from cachesim.engines.sglang.unified import UnifiedRadixCache

Spec = tuple[Integers, list[Node], int | None]
"""What is to be copied of a node: attention's slots, nodes with windows, a state."""


class HostBackup(HostEviction):
    """Copies to the host (`HybridCacheController.write`, as the tree drives it)."""

    def __init__(self, tree: "UnifiedRadixCache", shape: HostShape) -> None:
        super().__init__(tree, shape)
        self.writes = Transfers(shape.lag)
        self.writing: dict[int, Underway] = {}  # ongoing_write_through
        self.on_backup: Copy | None = None

    # -- to the host -------------------------------------------------------------------------------

    def chain(self, node: Node) -> list[Node]:
        """A node and those above it that have no copy, from above. Follows
        `_build_backup_kv_action`.
        """
        found = [node]
        for each in node.path():
            if each is not node:
                if each.host_full is not None:
                    break
                found.append(each)
        return found[::-1]

    def backup_if_used(self, node: Node) -> None:
        """Follows `_inc_hit_count_and_check`."""
        if node.host_full is None and node.hits >= self.shape.threshold:
            self.backup(self.chain(node))

    def backup_more(self, node: Node) -> None:
        """A copied node has got more since. Follows `_should_backup_after_insert`."""
        if self.shape.writes_back or node.host_full is None or node.pending is not None:
            return
        lacks_state = node.state is not None and node.host_state is None
        if lacks_state or self.unbacked_windows(node):
            self.backup(self.chain(node))

    def unbacked_windows(self, node: Node) -> list[Node]:
        """Nodes within one window whose window slots have no copy, from above. Follows
        `_collect_unbacked_swa_nodes_in_window`.
        """
        found: list[Node] = []
        covered = 0
        for each in node.path() if self.tree.has_windows else ():
            if covered >= self.tree.shape.window or each.pending is not None:
                break
            if not each.window and each.host_window is None:
                break
            covered += len(each)
            if each.window and each.host_window is None:
                found.append(each)
        return found[::-1]

    def backup(self, nodes: Sequence[Node], *, waits: bool = False) -> int:
        """Copy nodes, until one finds no room; how many tokens of attention the last one has.

        Follows `_execute_and_commit_kv_backup`.
        """
        written = 0
        for node in nodes:
            full = node.slots if node.host_full is None else NO_SLOTS
            windows = self.unbacked_windows(node)
            state = node.state if node.host_state is None else None
            if not len(full) and not windows and state is None:
                continue
            if not self._copy(node, (full, windows, state)):
                return 0
            held = None if waits else self.tree.lock(node)
            covers = [*(each for each in windows if each is not node), node]
            for each in covers:
                each.pending = node.id
            self.writing[node.id] = Underway(node, covers, held, is_held=not waits)
            self.writes.queued.append(node.id)
            written = len(full)
        return written

    def _copy(self, node: Node, spec: Spec) -> bool:
        """Slots on the host for all of it, or for nothing. Follows `_execute_kv_backup` and
        `resolve_host_transfers`.
        """
        full, windows, state = spec
        short = len(full) - self.pools.full.available
        if short > 0 and self.evict(FULL, short) < short:
            return False
        to = self.pools.full.alloc(len(full))
        if to is None:
            return False
        to_state = self.room(STATE, 1) if state is not None else NO_SLOTS
        to_window = self.room(PART, rows(windows)) if to_state is not None else None
        if to_state is None or to_window is None:
            self.pools.full.free(to)
            if to_state is not None and self.pools.state is not None:
                self.pools.state.free(to_state)
            return False
        if len(full):
            node.host_full = to
            self._moved(FULL, full, to, node)
        if state is not None:
            node.host_state = int(to_state[0])
            self._moved(STATE, np.array([state]), to_state, node)
        for each in windows:
            each.host_window, to_window = to_window[: len(each)], to_window[len(each) :]
            self._moved(PART, self.tree.window_slots(each), each.host_window, each)
        return True

    def room(self, part: int, count: int) -> Integers | None:
        """Slots of a part; where there are none, something goes for them."""
        pool = self.pools.of(part)
        if pool is None or not count:
            return NO_SLOTS
        slots = pool.alloc(count)
        if slots is None:
            self.evict(part, count)
            slots = pool.alloc(count)
        return slots

    def _moved(self, part: int, at: Integers, to: Integers, node: Node) -> None:
        if self.on_backup is not None:
            self.on_backup(part, at, to)
        self.tell("copied", part, node)

    def look(self) -> None:
        """Copies that are done let go of their nodes. Follows `check_hicache_events`."""
        self.writes.submit()
        for number in self.writes.done():
            self._written(number)

    def settle(self) -> None:
        """Wait for everything that is being written. Follows `writing_check(write_back=True)`."""
        for number in self.writes.wait():
            if number in self.writing:
                self._written(number)

    def _written(self, number: int) -> None:
        """Follows `_finish_write_through_ack`."""
        done = self.writing.pop(number)
        for node in done.covers:
            if node.pending == number:
                node.pending = None
                self.track_twice(node)
        if done.is_held:
            self.tree.unlock(done.node, done.held)
        for node in done.covers:
            self.tree.written(node)

    # -- nodes that are divided, and leaves that the device gives up -------------------------------

    def split(self, new: Node, child: Node) -> None:
        """What the host has of a node is divided with it; its state stays below.

        Follows `redistribute_on_node_split`, `_replace_pending_write_through_node`.
        """
        length = len(new)
        if child.host_full is not None:
            new.host_full, child.host_full = child.host_full[:length], child.host_full[length:]
        new.locks[HOST + FULL] = child.locks[HOST + FULL]
        new.locks[HOST + PART] = child.locks[HOST + PART]
        if child.host_window is not None:
            whole = child.host_window
            new.host_window, child.host_window = whole[:length], whole[length:]
            if not child.window and not child.locks[HOST + PART]:
                if child in self.window_lru:
                    self.window_lru.insert_after(child, new)
                else:
                    self.window_lru.insert(new)
                    self.window_lru.insert(child)
        new.pending, new.loading = child.pending, child.loading
        if child.pending is not None and child.pending in self.writing:
            covers = self.writing[child.pending].covers
            if child in covers:
                covers.insert(covers.index(child), new)

    def let_leaf_go(self, node: Node, gone: list[int]) -> None:
        """The device gives a leaf up. Follows `evict_device_leaf` and what calls it."""
        if node.host_full is None:
            if not self.shape.writes_back:
                self.tree.delete_leaf(node, gone)
                return
            if self.backup([node], waits=True) <= 0:
                self._drop_subtree(node, gone)
                return
            self.settle()
        self._demote(node, gone)

    def _demote(self, node: Node, gone: list[int]) -> None:
        """The host keeps it. Follows `_demote`.

        Trap: a copy that is held counts as used last now, not when it is let go of.
        """
        for part in (PART, STATE, FULL):
            self.tree.drop(node, part, gone)
            if part != FULL:
                self.left(node, part)
        node.value = None
        self.tell("left", FULL, node)
        self.tree.update_leaf(node)
        if node.parent is not None:
            self.tree.update_leaf(node.parent)

    def _drop_subtree(self, node: Node, gone: list[int]) -> None:
        """No room on the host: the leaf goes, and what the host has below it. Follows
        `drop_subtree_no_host`.
        """
        below: list[Node] = []
        stack = list(node.children.values())
        while stack:
            each = stack.pop()
            below.append(each)
            stack.extend(each.children.values())
        for each in (node, *below):
            busy = each.loading is not None or (each is not node and each.pending is not None)
            if busy or any(each.locks):
                return
        for each in reversed(below):
            self.tell("dropped", FULL, each)
            self.drop_all(each, [0, 0, 0])
            self.tree.take_out(each)
        self.tree.delete_leaf(node, gone)

    def save_inner(self, part: int, node: Node) -> None:
        """With `write_back` an inner node's state or window is copied before it goes.

        Follows `backup_node_for_write_back`; #40680 for states, #29204 for windows.
        """
        rules = self.tree.rules.tree
        copies = rules.copies_inner_states if part == STATE else rules.copies_inner_windows
        if not copies or not self.shape.writes_back or node.host_full is not None:
            return
        if self.has(node, part) or node.value is None:
            return
        pool = self.pools.of(part)
        count = 1 if part == STATE else rows(self.unbacked_windows(node))
        if pool is not None and count and pool.available < count:
            self.evict(part, count)
        if count:
            if self.writing:
                self.settle()
            if self.backup([node], waits=True):
                self.settle()
