"""What a match finds on the host only, and how it comes back to the device.

    root --[device]--> A --[host]--> B --[host]--> C
    match                        on the host | to here
    loaded, before the chunk is formed:  B and C, the last window, the state at C

A match goes on from where every part is on the device or on the host. Follows the parts of
`UnifiedRadixCache` that speak of loading back.
"""

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cachesim.engines.sglang.host_backup import HostBackup
from cachesim.engines.sglang.host_pool import (
    LEAST_LOADED,
    Copy,
    HostHold,
    HostShape,
    Transfers,
    Underway,
    rows,
)
from cachesim.engines.sglang.node import FULL, NO_SLOTS, PART, STATE, Node
from cachesim.engines.sglang.request import Req
from cachesim.units import Integers

if TYPE_CHECKING:
    from cachesim.engines.sglang.unified import UnifiedRadixCache

Wanted: TypeAlias = tuple[list[Node], list[Node], bool]
"""Nodes whose attention is loaded, nodes whose windows are, and whether a state is."""

Slots: TypeAlias = tuple[Integers, Integers, int | None]
"""The same on the device."""


class HostTier(HostBackup):
    """Loads (`HybridCacheController.load`, as the tree drives it)."""

    def __init__(self, tree: "UnifiedRadixCache", shape: HostShape) -> None:
        super().__init__(tree, shape)
        self.loads = Transfers()
        self.loaded: dict[int, tuple[Underway, HostHold]] = {}  # ongoing_load_back
        self.on_load: Copy | None = None

    def look(self) -> None:
        """Follows `check_hicache_events`."""
        super().look()
        for number in self.loads.done():
            self._came(number)

    # -- what a match asks -------------------------------------------------------------------------

    @staticmethod
    def tokens_between(above: Node, node: Node) -> int:
        """Tokens that the host has, from a node up to another. Follows
        `finalize_match_result_in_tree_core` of `FullComponent`.
        """
        count = 0
        for each in node.path():
            if each is above:
                break
            count += len(each) if each.host_full is not None else 0
        return count

    def window_tokens(self, node: Node) -> int:
        """Tokens of the last window that only the host has."""
        count, covered = 0, 0
        for each in node.path() if self.tree.has_windows else ():
            alive = each.window or each.host_window is not None
            if covered >= self.tree.shape.window or not alive:
                break
            covered += len(each)
            count += 0 if each.window else len(each)
        return count

    # -- back to the device ------------------------------------------------------------------------

    def bring(self, req: Req) -> int:
        """Load what a request would go on from; how many tokens came. Follows `init_load_back`."""
        node, before = req.best, req.last_node
        if node is None or before is None:
            return 0
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

    def _load_back(self, node: Node, req: Req) -> bool:
        """Follows `load_back`."""
        tree, held = self.tree, self.hold(node)
        lock = tree.lock(node)
        own = None
        if req.state is None and node.state is None and node.host_state is not None:
            own = req.state = tree.state_or_room("MambaComponent.prepare_load_back")
        spec = self._wanted(node)
        slots = self._slots_for(spec) if spec is not None else None
        tree.unlock(node, lock)
        if spec is None or slots is None:
            self.release(held)
            if own is not None:
                tree.state_pool.free(own)
                req.state = None
            return False
        self._commit(node, spec, slots, req)
        covers = Underway(node, spec[0], tree.lock(node), is_held=True)
        self.loaded[node.id] = (covers, held)
        self.loads.queued.append(node.id)
        return True

    def _wanted(self, node: Node) -> Wanted | None:
        """Nodes whose attention is loaded, those whose windows are, and whether a state is.

        Nothing where it is too little, or pinned by another load. Follows `build_load_back_spec`.
        """
        full = [each for each in node.path() if each.evicted][::-1]
        windows, covered = list[Node](), 0
        for each in node.path() if self.tree.has_windows else ():
            if covered >= self.tree.shape.window:
                break
            covered += len(each)
            if not each.window:
                windows.append(each)
        windows.reverse()
        state = node.state is None and node.host_state is not None
        needed = (*full, *windows, *([node] if state else ()))
        if any(each.loading not in {None, node.id} for each in needed):
            return None
        if rows(full) < LEAST_LOADED and not windows and not state:
            return None
        return full, windows, state

    def _slots_for(self, spec: Wanted) -> Slots | None:
        """Slots on the device for all of it, or for nothing.

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

    def _commit(
        self,
        node: Node,
        spec: Wanted,
        slots: Slots,
        req: Req,
    ) -> None:
        """Follows `commit_load_back`."""
        tree, (full, windows, _) = self.tree, spec
        to, to_window, state = slots
        for each in full:
            each.value, to = to[: len(each)], to[len(each) :]
            if self.shape.writes_back:
                each.loading = node.id
            if not each.locks[FULL]:
                tree.evictable[FULL] += len(each)
            self._load(FULL, each.host_full, each.value)
            self.tell("loaded", FULL, each)
        for each in full:
            tree.update_leaf(each)
        for each in windows:
            tree.put_window(each, to_window[: len(each)])
            self._load(PART, each.host_window, to_window[: len(each)])
            self.tell("loaded", PART, each)
            to_window = to_window[len(each) :]
        if state is not None and node.host_state is not None:
            tree.put_state(node, state)
            at = np.array([node.host_state])
            self._load(STATE, at, np.array([state]))
            self.tell("loaded", STATE, node)
            if req.state is not None:
                self._load(STATE, at, np.array([req.state]))
        tree.update_leaf(node)

    def _load(self, part: int, at: Integers | None, to: Integers) -> None:
        if self.on_load is not None and at is not None:
            self.on_load(part, at, to)

    def _came(self, number: int) -> None:
        """A load is done. Follows `loading_check` and `finish_load_back`."""
        done, held = self.loaded.pop(number)
        self.tree.unlock(done.node, done.held)
        self.release(held)
        for each in done.node.path():
            if self.shape.writes_back:
                if each.loading != number:
                    continue
                each.loading = None
            self.track_twice(each)
