r"""The unified tree's second tier: copies to the host, loads and evictions.

    root --[device, host]--> A --[host]--> B --[host]--> C        evicted from the leaves upwards
                        \--[device]--> D                     not copied yet

A node is copied after enough hits, its ancestors first; with `write_back` at its eviction. Copies
are done by the next poll. A match resumes where every part is on the device or on the host; the
rest is loaded before the chunk is formed: nodes, the last window, the state at the end. Nodes on
the host alone are evicted for room, from the leaves; a node with children loses states and windows,
and keeps attention's slots.

Follows the parts of `UnifiedTreeCore`, its components and `UnifiedRadixCache` for HiCache.
"""

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np

from cachesim.engines.sglang.node import FULL, HOST, NO_SLOTS, PART, STATE, LruList, Node
from cachesim.engines.sglang.pools import (
    LEAST_LOADED,
    Copy,
    HostAction,
    HostHold,
    HostPool,
    HostShape,
    PendingCopy,
    StatePool,
    TokenPool,
    Transfers,
    WindowPool,
    rows,
)
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.tree import Priority, Shape
from cachesim.units import Integers

PARTS: Final = (FULL, PART, STATE)

Spec = tuple[Integers, list[Node], int | None]
"""Parts of a node to copy: attention slots, nodes with windows, a state."""

Wanted: TypeAlias = tuple[list[Node], list[Node], bool]
"""Nodes whose attention is loaded, nodes whose windows are, and True if a state is."""

Slots: TypeAlias = tuple[Integers, Integers, int | None]
"""Slots on the device for attention, windows and a state."""


class DeviceTree(Protocol):
    """The members of the device's tree that the host uses."""

    rules: Rules
    shape: Shape
    root: Node
    leaves: set[Node]
    first: Priority
    has_windows: bool
    has_states: bool
    pool: TokenPool
    windows: WindowPool | None
    evictable: list[int]

    @property
    def state_pool(self) -> StatePool: ...
    def evict(self, tokens: int = 0, window: int = 0, states: int = 0) -> None: ...
    def state_or_room(self, where: str) -> int: ...
    def give_back(self, slots: Integers) -> None: ...
    def put_window(self, node: Node, slots: Integers) -> None: ...
    def put_state(self, node: Node, slot: int) -> None: ...
    def lock(self, node: Node) -> int: ...
    def unlock(self, node: Node, held: object = None) -> None: ...
    def update_leaf(self, node: Node) -> None: ...
    def drop(self, node: Node, part: int, gone: list[int]) -> None: ...
    def split(self, child: Node, length: int, extra: Hashable) -> Node: ...
    def delete_leaf(self, node: Node, gone: list[int]) -> None: ...
    def take_out(self, node: Node) -> None: ...
    def window_slots(self, node: Node) -> Integers: ...
    def slots_to(self, node: Node) -> Integers: ...
    def written(self, node: Node) -> None: ...


@dataclass(slots=True)
class HostPools:
    """A pool for each part of the model."""

    full: HostPool
    window: HostPool | None
    state: HostPool | None

    @classmethod
    def make(cls, shape: HostShape, *, windows: bool, states: bool) -> "HostPools":
        """Empty pools."""
        return cls(
            HostPool(shape.tokens),
            HostPool(shape.window_tokens) if windows and shape.window_tokens else None,
            HostPool(shape.states) if states else None,
        )

    def of(self, part: int) -> HostPool | None:
        return (self.full, self.window, self.state)[part]


class HostTier:
    """Nodes on the host, copies there and loads from there (`HybridCacheController`).

    Upstream: the HiCache parts of `UnifiedTreeCore` and `UnifiedRadixCache`.
    """

    def __init__(self, tree: DeviceTree, shape: HostShape) -> None:
        self.tree = tree
        self.shape = shape
        self.pools = HostPools.make(shape, windows=tree.has_windows, states=tree.has_states)
        self.leaves: set[Node] = set()  # evictable_host_leaves
        self.window_lru = LruList(HOST + PART)
        self.state_lru = LruList(HOST + STATE)
        self.twice: dict[int, Node] = {}  # full_host_duplicates
        self.writes = Transfers(shape.lag)
        self.writing: dict[int, PendingCopy] = {}  # ongoing_write_through
        self.loads = Transfers()
        self.loaded: dict[int, tuple[PendingCopy, HostHold]] = {}  # ongoing_load_back
        self.on_backup: Copy | None = None
        self.on_load: Copy | None = None
        self.on_action: Callable[[HostAction, int, Node], None] | None = None

    def notify(self, action: HostAction, part: int, node: Node) -> None:
        """Emit an event on a part of a node."""
        if self.on_action is not None:
            self.on_action(action, part, node)

    # -- what a node has here ----------------------------------------------------------------------

    def lru(self, part: int) -> LruList:
        """The list of windows, or of states."""
        return self.window_lru if part == PART else self.state_lru

    @staticmethod
    def has(node: Node, part: int) -> bool:
        """True if the host holds a part of a node."""
        held = (node.host_full, node.host_window, node.host_state)[part]
        return held is not None

    @staticmethod
    def on_device(node: Node, part: int) -> bool:
        """True if the device holds a part of a node."""
        return (node.value is not None, node.window, node.state is not None)[part]

    def left(self, node: Node, part: int) -> None:
        """Make the host's copy of a part evictable, after the device has evicted that part."""
        # Only now: while the device holds the part too, the copy is not in the list.
        if self.has(node, part) and node not in self.lru(part):
            self.lru(part).insert(node)

    def came_back(self, node: Node, part: int) -> None:
        """Take the host's copy of a part out of the LRU list, after the device has loaded it."""
        if node in self.lru(part):
            self.lru(part).remove(node)

    def update_leaf(self, node: Node) -> None:
        """Update the host's set of evictable leaves. Follows `_is_host_leaf`."""
        here = node.evicted and node.host_full is not None
        if here and not node.children and not any(node.locks):
            self.leaves.add(node)
        else:
            self.leaves.discard(node)

    def track_twice(self, node: Node) -> None:
        """Track nodes of which both have attention's slots, without a copy under way. Follows
        `_update_duplicate_tracking`.
        """
        both = node.value is not None and node.host_full is not None
        if both and node.pending is None and node.loading is None:
            self.twice.setdefault(node.id, node)
        else:
            self.twice.pop(node.id, None)

    # -- holding -----------------------------------------------------------------------------------

    def hold(self, node: Node) -> HostHold:
        """Lock the nodes that a load reads. Follows `inc_host_lock_ref`."""
        held = HostHold(node)
        if node is self.tree.root:
            return held
        # What a load reads must not be evicted from the host meanwhile.
        if node.host_full is not None or self.shape.writes_back:
            held.full = len(node)
            node.locks[HOST + FULL] += 1
        if self.tree.has_windows:
            for ancestor in self._segment(node, self.tree.shape.window):
                self._hold_part(ancestor, PART)
                held.window += len(ancestor)
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
        for ancestor in node.path():
            if covered >= tokens:
                return
            covered += len(ancestor)
            yield ancestor

    def release(self, held: HostHold) -> None:
        """Unlock as many tokens; the node may have been split since.

        Follows `dec_host_lock_ref`.
        """
        node = held.node
        if node is self.tree.root:
            return
        if self.tree.has_states:
            self._release_part(node, STATE)
        for ancestor in self._segment(node, held.window):
            self._release_part(ancestor, PART)
        # By tokens, not by nodes: the node may have been split since.
        for ancestor in self._segment(node, held.full):
            ancestor.locks[HOST + FULL] -= 1
            self.tree.update_leaf(ancestor)
        self.tree.update_leaf(node)

    def _release_part(self, node: Node, part: int) -> None:
        node.locks[HOST + part] -= 1
        if not node.locks[HOST + part] and not self.on_device(node, part):
            self.left(node, part)
        self.tree.update_leaf(node)

    # -- dropping ----------------------------------------------------------------------------------

    def drop(self, node: Node, part: int, gone: list[int]) -> None:
        """Evict the host's copy of one part."""
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
        """Evict every part of a node that is deleted."""
        for part in PARTS:
            self.drop(node, part, gone)
        self.leaves.discard(node)
        self.twice.pop(node.id, None)

    def evict(self, part: int, count: int) -> int:
        """Evict from the host; return the number of slots. Follows `drive_host_eviction`."""
        gone = [0, 0, 0]
        if part != FULL:
            lru = self.lru(part)
            node = lru.oldest()
            while gone[part] < count and node is not None and node in lru:
                following = lru.before(node)
                # A leaf of the host goes with all its parts; a node with children keeps attention's
                # slots.
                if node in self.leaves:
                    self._drop_leaf(node, gone)
                else:
                    self.notify("dropped", part, node)
                    self.drop(node, part, gone)
                    if (
                        part == PART
                        and node.host_state is not None
                        and not node.locks[HOST + STATE]
                    ):
                        self.notify("dropped", STATE, node)
                        self.drop(node, STATE, gone)
                    self.tree.update_leaf(node)
                node = following
            return gone[part]
        # What the device holds, too, goes first: nothing is lost by it.
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
        self.notify("dropped", FULL, node)
        self.drop_all(node, gone)
        self.tree.take_out(node)
        self.clear_above(node, gone)

    def clear_above(self, node: Node, gone: list[int]) -> None:
        """Delete ancestors that neither device nor host holds. Follows
        `_iteratively_delete_tombstone_ancestors`.
        """
        at = node.parent
        while at is not None and at is not self.tree.root and not at.children:
            # A copy or a load still needs it.
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

    def _reclaim_twice(self, count: int, gone: list[int]) -> None:
        """Evict host copies of nodes that the device holds too (`write_back`), its leaves last.

        Follows `_reclaim_full_host_duplicates`.
        """
        swept = []
        # The device's leaves are the next to be evicted there: their copies are wanted soon.
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
                self.notify("dropped", FULL, node)
                self.drop(node, FULL, gone)
                swept.append(node.id)
        for number in swept:
            self.twice.pop(number, None)

    # -- to the host -------------------------------------------------------------------------------

    def chain(self, node: Node) -> list[Node]:
        """A node and its ancestors without a copy, top down. Follows `_build_backup_kv_action`."""
        chain = [node]
        for ancestor in node.path():
            if ancestor is not node:
                # Its ancestors have copies, too: a copy without its prefix could not be loaded.
                if ancestor.host_full is not None:
                    break
                chain.append(ancestor)
        return chain[::-1]

    def backup_if_used(self, node: Node) -> None:
        """Follows `_inc_hit_count_and_check`."""
        # `write_through_selective` copies what was used twice.
        if node.host_full is None and node.hits >= self.shape.threshold:
            self.backup(self.chain(node))

    def backup_more(self, node: Node) -> None:
        """Copy parts that a node gained after its first copy. Follows
        `_should_backup_after_insert`.
        """
        back = self.shape.writes_back
        # With `write_back` copies are made at eviction.
        if back and not self.tree.rules.tree.copies_late_windows:
            return
        if node.host_full is None or node.pending is not None:
            return
        lacks_state = not back and node.state is not None and node.host_state is None
        if lacks_state or self.unbacked_windows(node):
            self.backup([node] if back else self.chain(node))

    def unbacked_windows(self, node: Node) -> list[Node]:
        """Nodes within one window whose window slots have no copy, top down. Follows
        `_collect_unbacked_swa_nodes_in_window`.
        """
        nodes: list[Node] = []
        covered = 0
        for ancestor in node.path() if self.pools.window is not None else ():
            if covered >= self.tree.shape.window or ancestor.pending is not None:
                break
            if not ancestor.window and ancestor.host_window is None:
                break
            covered += len(ancestor)
            if ancestor.window and ancestor.host_window is None:
                nodes.append(ancestor)
        return nodes[::-1]

    def backup(self, nodes: Sequence[Node], *, waits: bool = False) -> int:
        """Copy nodes until the host has no room; return the last node's attention tokens.

        Follows `_execute_and_commit_kv_backup`.
        """
        written = 0
        for node in nodes:
            full = node.slots if node.host_full is None else NO_SLOTS
            windows = self.unbacked_windows(node)
            state = node.state if node.host_state is None else None
            if not len(full) and not windows and state is None:
                continue
            # Its descendants would lack their prefix on the host.
            if not self._copy(node, (full, windows, state)):
                return 0
            # Until the copy is done its slots must not be given to another request (#39830).
            held = None if waits else self.tree.lock(node)
            covers = [*(window for window in windows if window is not node), node]
            for cover in covers:
                cover.pending = node.id
            self.writing[node.id] = PendingCopy(node, covers, held, is_held=not waits)
            self.writes.queued.append(node.id)
            written = len(full)
        return written

    def _copy(self, node: Node, spec: Spec) -> bool:
        """Allocate the host's slots for a node's copy, all or none. Follows `_execute_kv_backup`
        and `resolve_host_transfers`.
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
        # All or none: attention without its state or window is no place to resume from.
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
        for window in windows:
            window.host_window, to_window = to_window[: len(window)], to_window[len(window) :]
            self._moved(PART, self.tree.window_slots(window), window.host_window, window)
        return True

    def room(self, part: int, count: int) -> Integers | None:
        """Allocate slots of a part, after an eviction where none are free."""
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
        self.notify("copied", part, node)

    def poll(self) -> None:
        """Release the nodes of finished copies and loads. Follows `check_hicache_events`."""
        self.writes.submit()
        for number in self.writes.done():
            self._written(number)
        for number in self.loads.done():
            # A load is done. Follows `loading_check` and `finish_load_back`.
            done, held = self.loaded.pop(number)
            self.tree.unlock(done.node, done.held)
            self.release(held)
            for node in done.node.path():
                if self.shape.writes_back:
                    if node.loading != number:
                        continue
                    node.loading = None
                self.track_twice(node)

    def settle(self) -> None:
        """Wait for all copies under way. Follows `writing_check(write_back=True)`."""
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
        """Split the host's slots of a node; its state stays with the lower half.

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
        # The copy under way covers both halves.
        if child.pending is not None and child.pending in self.writing:
            covers = self.writing[child.pending].covers
            if child in covers:
                covers.insert(covers.index(child), new)

    def let_leaf_go(self, node: Node, gone: list[int]) -> None:
        """Evict a leaf from the device. Follows `evict_device_leaf` and its callers."""
        if node.host_full is None:
            # Not copied, since it was not used often enough: it is lost.
            if not self.shape.writes_back:
                self.tree.delete_leaf(node, gone)
                return
            # The host has no room, and what it holds below this node would have no prefix.
            if self.backup([node], waits=True) <= 0:
                self._drop_subtree(node, gone)
                return
            self.settle()
        self._demote(node, gone)

    def _demote(self, node: Node, gone: list[int]) -> None:
        """Evict a leaf from the device; the host keeps its copy. Follows `_demote`."""
        # Trap: a locked copy becomes most recently used now, not at its unlock.
        for part in (PART, STATE, FULL):
            self.tree.drop(node, part, gone)
            if part != FULL:
                self.left(node, part)
        node.value = None
        self.notify("left", FULL, node)
        self.tree.update_leaf(node)
        if node.parent is not None:
            self.tree.update_leaf(node.parent)

    def _drop_subtree(self, node: Node, gone: list[int]) -> None:
        """Delete a leaf, and the host's nodes below it, where the host has no room. Follows
        `drop_subtree_no_host`.
        """
        below: list[Node] = []
        stack = list(node.children.values())
        while stack:
            lower = stack.pop()
            below.append(lower)
            stack.extend(lower.children.values())
        for lower in (node, *below):
            busy = lower.loading is not None or (lower is not node and lower.pending is not None)
            if busy or any(lower.locks):
                return
        for lower in reversed(below):
            self.notify("dropped", FULL, lower)
            self.drop_all(lower, [0, 0, 0])
            self.tree.take_out(lower)
        self.tree.delete_leaf(node, gone)

    def save_inner(self, part: int, node: Node) -> None:
        """Copy an inner node's state or window before its eviction (`write_back`).

        Follows `backup_node_for_write_back`; #40680 for states, #29204 for windows.
        """
        rules = self.tree.rules.tree
        copies = rules.copies_inner_states if part == STATE else rules.copies_inner_windows
        # Trap: releases without #40680 and #29204 lose an inner node's state or window, although
        # attention's slots are still there.
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

    # -- what a match asks -------------------------------------------------------------------------

    @staticmethod
    def tokens_between(above: Node, node: Node) -> int:
        """Tokens that the host holds, from a node up to another. Follows
        `finalize_match_result_in_tree_core` of `FullComponent`.
        """
        count = 0
        for ancestor in node.path():
            if ancestor is above:
                break
            count += len(ancestor) if ancestor.host_full is not None else 0
        return count

    def window_tokens(self, node: Node) -> int:
        """Tokens of the last window that only the host holds."""
        count, covered = 0, 0
        for ancestor in node.path() if self.tree.has_windows else ():
            alive = ancestor.window or ancestor.host_window is not None
            if covered >= self.tree.shape.window or not alive:
                break
            covered += len(ancestor)
            count += 0 if ancestor.window else len(ancestor)
            if self.tree.rules.tree.splits_long_windows and covered > self.tree.shape.window:
                page = self.tree.shape.page
                count -= 0 if ancestor.window else (covered - self.tree.shape.window) // page * page
        return count

    # -- back to the device ------------------------------------------------------------------------

    def bring(self, req: Req) -> int:
        """Load the nodes that a request resumes from; return the number of loaded tokens. Follows
        `init_load_back`.
        """
        node, before = req.best, req.last_node
        if node is None or before is None:
            return 0
        # As #31771 proposes: else the window slots of a whole long node are loaded.
        if self.tree.rules.tree.splits_long_windows:
            self._split_long_window(node, req)
        # Both tiers: the room for the load is made by evicting, which must not take its own prefix.
        held, lock = self.hold(node), self.tree.lock(node)
        came = self._load_back(node, req)
        self.tree.unlock(node, lock)
        self.release(held)
        if not came:
            return 0
        slots = self.tree.slots_to(node)
        count = len(slots) - req.prefix
        if count:
            req.shared, req.last_node = slots, node
        return count

    def _split_long_window(self, node: Node, req: Req) -> None:
        """Split the node in which the window before a match begins, so that no more is loaded.

        Proposed in #31771; whole pages are loaded.
        """
        left, page = self.tree.shape.window, self.tree.shape.page
        for ancestor in node.path() if self.tree.has_windows else ():
            if len(ancestor) >= left:
                above = (len(ancestor) - left) // page * page
                if above and not ancestor.window and ancestor.host_window is not None:
                    self.tree.split(ancestor, above, req.extra_key)
                return
            left -= len(ancestor)

    def _load_back(self, node: Node, req: Req) -> bool:
        """Follows `load_back`."""
        tree, held = self.tree, self.hold(node)
        lock = tree.lock(node)
        # The request runs on a state of its own, and the tree gets the loaded one.
        own = None
        if req.state is None and node.state is None and node.host_state is not None:
            own = req.state = tree.state_or_room("MambaComponent.prepare_load_back")
        spec = self._load_spec(node)
        slots = self._slots_for(spec) if spec is not None else None
        tree.unlock(node, lock)
        if spec is None or slots is None:
            self.release(held)
            if own is not None:
                tree.state_pool.free(own)
                req.state = None
            return False
        self._commit(node, spec, slots, req)
        covers = PendingCopy(node, spec[0], tree.lock(node), is_held=True)
        self.loaded[node.id] = (covers, held)
        self.loads.queued.append(node.id)
        return True

    def _load_spec(self, node: Node) -> Wanted | None:
        """Nodes whose attention is loaded, nodes whose windows are loaded, and the state, if any.

        Empty if too little, or pinned by another load. Follows `build_load_back_spec`.
        """
        full = [ancestor for ancestor in node.path() if ancestor.evicted][::-1]
        windows, covered = list[Node](), 0
        for ancestor in node.path() if self.tree.has_windows else ():
            if covered >= self.tree.shape.window:
                break
            covered += len(ancestor)
            if not ancestor.window:
                windows.append(ancestor)
        windows.reverse()
        state = node.state is None and node.host_state is not None
        needed = (*full, *windows, *([node] if state else ()))
        # Another request loads it: this one gets what the device has.
        if any(upper.loading not in {None, node.id} for upper in needed):
            return None
        # Too few for a load: they are computed again.
        if rows(full) < LEAST_LOADED and not windows and not state:
            return None
        return full, windows, state

    def _slots_for(self, spec: Wanted) -> Slots | None:
        """Allocate the device's slots for a load, all or none.

        Follows `_resolve_device_transfers`.
        """
        tree, (full, windows, wants_state) = self.tree, spec
        count = rows(full)
        if tree.pool.available < count:
            tree.evict(tokens=count - tree.pool.available)
        slots = tree.pool.alloc_pages(count)
        if slots is None:
            return None
        to_window: Integers | None = NO_SLOTS
        if windows and tree.windows is not None:
            inner, wanted = tree.windows.windows, rows(windows)
            if inner.available < wanted:
                tree.evict(window=wanted - inner.available)
            to_window = inner.alloc_pages(wanted)
        state = None
        if wants_state and to_window is not None:
            state = tree.state_pool.alloc()
            if state is None:
                tree.evict(states=1)
                state = tree.state_pool.alloc()
        if to_window is None or (wants_state and state is None):
            if to_window is not None and tree.windows is not None:
                tree.windows.windows.free(to_window)
            tree.give_back(slots)
            return None
        return slots, to_window, state

    def _commit(self, node: Node, spec: Wanted, slots: Slots, req: Req) -> None:
        """Follows `commit_load_back`."""
        tree, (full, windows, _) = self.tree, spec
        to, to_window, state = slots
        for ancestor in full:
            ancestor.value, to = to[: len(ancestor)], to[len(ancestor) :]
            if self.shape.writes_back:
                ancestor.loading = node.id
            if not ancestor.locks[FULL]:
                tree.evictable[FULL] += len(ancestor)
            self._load(FULL, ancestor.host_full, ancestor.value)
            self.notify("loaded", FULL, ancestor)
        for ancestor in full:
            tree.update_leaf(ancestor)
        for window in windows:
            tree.put_window(window, to_window[: len(window)])
            self._load(PART, window.host_window, to_window[: len(window)])
            self.notify("loaded", PART, window)
            to_window = to_window[len(window) :]
        if state is not None and node.host_state is not None:
            tree.put_state(node, state)
            at = np.array([node.host_state])
            self._load(STATE, at, np.array([state]))
            self.notify("loaded", STATE, node)
            if req.state is not None:
                self._load(STATE, at, np.array([req.state]))
        tree.update_leaf(node)

    def _load(self, part: int, at: Integers | None, to: Integers) -> None:
        if self.on_load is not None and at is not None:
            self.on_load(part, at, to)
