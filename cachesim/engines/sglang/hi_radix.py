"""The tree of models with full attention only, with a second tier. Follows `HiRadixCache` of 0.5.9.

    root --[device, host]--> A --[host]--> B        the host keeps leaves that the device evicts

A node is copied to the host after enough hits, or at its eviction from the device (`write_back`).
Other models are refused: upstream's tree takes attention's pool only.

    device  <-->  host  --backup-->  storage        once the copy to the host is done
                    ^---prefetch-------/            while a request waits

Trap: pages are found by their tokens alone, and fetched pages are inserted under the extra key of
the node at which the request's match ended. The root, where nothing matched, has none: a request
with a key of its own does not match what was fetched for it. Trap: with EAGLE nodes are hashed pair
by pair and the prefetch queries single tokens, so that nothing is ever found. Trap: a node fetched
below the root takes the root's priority, the lowest, and is evicted first under `priority`.
"""

import heapq
from collections.abc import Hashable, Iterator
from typing import Final

import numpy as np

from cachesim.engines.sglang.node import FULL, HOST, NO_SLOTS, Node
from cachesim.engines.sglang.pools import (
    LEAST_LOADED,
    LEAST_PRIORITY,
    Backup,
    Copy,
    DelayQueue,
    HostAction,
    HostPool,
    PageCopy,
    PendingCopy,
    Prefetch,
    StorageShape,
    Transfers,
    hashes_of,
    rows,
)
from cachesim.engines.sglang.radix import RadixCache
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.tree import Match, OnHostAction, joined, matching
from cachesim.errors import UpstreamAbort
from cachesim.typed import there_is
from cachesim.units import Integers

SHARE: Final = 0.8
"""Share of the host's surplus over the device that prefetches may occupy."""


class HiRadixCache(RadixCache):
    """`RadixCache` over the device's slots, the host's and a storage (`HiRadixCache`)."""

    def _begin(self) -> None:
        super()._begin()
        self.tier = tier = there_is(self.shape.host)
        self.host = HostPool(tier.tokens)
        self.host_leaves: set[Node] = set()  # evictable_host_leaves
        self.writes, self.loads = Transfers(tier.lag), Transfers()
        self.writing: dict[int, PendingCopy] = {}  # ongoing_write_through
        self.loaded: dict[int, Node] = {}  # ongoing_load_back
        self.on_backup: Copy | None = None
        self.on_load: Copy | None = None
        self.on_action: OnHostAction | None = None
        self._half_read = False
        self.stores = tier.storage is not None
        if self.stores:
            self.root.priority = LEAST_PRIORITY  # no insertion raises it here, unlike `RadixCache`
        self.settings = tier.storage or StorageShape()
        self.least = max(self.settings.threshold, self.shape.page)  # prefetch_threshold
        more = self.tier.tokens - self.pool.size
        self.most = max(0, int(SHARE * more))  # prefetch_capacity_limit
        self.occupied = 0  # prefetch_tokens_occupied
        self.polls = 0  # the only clock that there is
        self.backups: DelayQueue[Backup] = DelayQueue(self.settings.lag)
        self.prefetches: DelayQueue[Prefetch] = DelayQueue(self.settings.lag)
        self.ongoing: dict[int, Prefetch] = {}  # ongoing_prefetch
        self.revoked: list[int] = []  # prefetch_revoke_queue
        self.released: list[Integers] = []  # host_mem_release_queue
        self.on_store: PageCopy | None = None
        self.on_fetch: PageCopy | None = None
        self._offsets = np.arange(self.shape.page, dtype=np.int64)

    def watch_host(self, on_backup: Copy, on_load: Copy, on_action: OnHostAction) -> None:
        self.on_backup, self.on_load, self.on_action = on_backup, on_load, on_action

    def _notify(self, action: HostAction, node: Node) -> None:
        if self.on_action is not None:
            self.on_action(action, FULL, node)

    # -- match and insert --------------------------------------------------------------------------

    def match(self, key: Integers, extra: Hashable) -> Match:
        """Match a key on device and host alike. Follows `match_prefix`."""
        if not len(key):
            return Match(joined([]), self.root)
        page, node, on_host = self.shape.page, self.root, 0
        found: list[Integers] = []
        node.last_access = self.clock.tick()
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            child.last_access = self.clock.tick()
            length = matching(child, key, page)
            partly = length < len(child)
            node = self._split(child, length, extra) if partly else child
            # Below a node that only the host holds there is none that the device holds.
            if node.value is not None:
                found.append(node.slots)
            else:
                on_host += len(node)
            if partly:
                break
            key = key[length:]
        slots, deepest = joined(found), node
        # The lock goes on what the device holds; the rest is loaded once the request is admitted.
        while node.evicted and node.parent is not None:
            node = node.parent
        reach = len(slots) + on_host
        return Match(slots, node, reach, best=deepest, reach=reach, on_host=on_host)

    def _split(self, child: Node, length: int, extra: Hashable) -> Node:
        new = super()._split(child, length, extra)
        new.hits = child.hits
        if child.host_full is not None:
            new.host_full, child.host_full = child.host_full[:length], child.host_full[length:]
        if self.stores:
            pages = length // self.shape.page
            new.hashes, child.hashes = child.hashes[:pages], child.hashes[pages:]
        return new

    def _hang(self, parent: Node, key: Integers, slots: Integers, extra: Hashable) -> Node:
        node = super()._hang(parent, key, slots, extra)
        if self.stores:
            prior = parent.hashes[-1] if parent.hashes else None
            node.hashes = hashes_of(key, prior, self.shape.page, bigrams=self.shape.bigrams)
        return node

    def insert(self, key: Integers, slots: Integers, extra: Hashable, priority: int = 0) -> int:
        """Insert a key; return the number of its tokens already on the device. Follows `insert`.

        A node that only the host has takes the request's slots, which have just been computed.
        """
        page, node, total = self.shape.page, self.root, 0
        length_of_key = len(key)
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            node = child
            node.last_access = self.clock.tick()
            node.priority = max(node.priority, priority)
            length = matching(node, key, page)
            if length < len(node):
                node = self._split(node, length, extra)
                node.priority = max(node.priority, priority)
            if node.evicted:
                self._restore(node, slots[:length])
            else:
                self._count_hit(node)
                total += length
            key, slots = key[length:], slots[length:]
        if len(key):
            new = self._hang(node, key, slots, extra)
            new.priority = priority
            self.evictable[FULL] += len(key)
            self._update_leaf(node)
            self._update_leaf(new)
            self._count_hit(new)
        self.kept(length_of_key, len(key))
        return total

    def _restore(self, node: Node, slots: Integers) -> None:
        node.value = slots
        self.evictable[FULL] += len(slots)
        self._update_leaf(node)
        self._update_host_leaf(node)
        if node.parent is not None:
            self._update_leaf(node.parent)

    def _count_hit(self, node: Node) -> None:
        """Follows `_inc_hit_count`."""
        # A partly prefilled prompt would be counted once for each chunk.
        if self.tier.writes_back or self._half_read:
            return
        node.hits += 1
        if node.host_full is None and node.hits >= self.tier.threshold:
            self._backup(node, waits=False)

    def cache_unfinished(self, req: Req) -> None:
        """Follows `cache_unfinished_req`."""
        self._half_read = req.half_read
        super().cache_unfinished(req)
        self._half_read = False

    # -- leaves ------------------------------------------------------------------------------------

    def _update_leaf(self, node: Node) -> None:
        """Update the set of evictable leaves. Follows `_update_leaf_status`."""
        free = node is not self.root and not node.locks[FULL] and not node.evicted
        # Children that only the host holds do not keep their parent on the device.
        if free and all(child.evicted for child in node.children.values()):
            self.leaves.add(node)
        else:
            self.leaves.discard(node)

    def _update_host_leaf(self, node: Node) -> None:
        """Update the host's set of evictable leaves. Follows `_update_host_leaf_status`.

        Trap: it is not updated when a child leaves the device, so with `write_back` a node may be
        deleted before its children; deleting those fails an assertion.
        """
        free = node.evicted and not node.locks[FULL]
        if free and not any(child.evicted for child in node.children.values()):
            self.host_leaves.add(node)
        else:
            self.host_leaves.discard(node)

    def lock(self, node: Node) -> None:
        super().lock(node)
        for ancestor in node.path():
            self._update_host_leaf(ancestor)

    def unlock(self, node: Node, held: object = None) -> None:
        super().unlock(node, held)
        for ancestor in node.path():
            self._update_host_leaf(ancestor)

    # -- to the host -------------------------------------------------------------------------------

    def _backup(self, node: Node, *, waits: bool) -> int:
        """Follows `write_backup`."""
        to = self.host.alloc(len(node))
        if to is None:
            self._evict_host(len(node))
            to = self.host.alloc(len(node))
        if to is None:
            return 0
        node.host_full = to
        if self.on_backup is not None:
            self.on_backup(FULL, node.slots, to)
        self._notify("copied", node)
        self.writing[node.id] = PendingCopy(node, [node], is_held=not waits)
        # Its slots must not be given to another request before the copy is done.
        if not waits:
            self.lock(node)
        self.writes.queued.append(node.id)
        self.writes.submit()
        return len(to)

    def poll(self) -> None:
        """Follows `check_hicache_events`."""
        if self.writing:
            for number in self.writes.done():
                node = self.writing.pop(number).node
                self.unlock(node)
                self._written(node)
        for number in self.loads.done():
            self.unlock(self.loaded.pop(number))
        if self.stores:
            # Follows `drain_storage_control_queues`, after a turn of the threads.
            self.polls += 1
            backups = self.backups.due()
            for backup in backups:
                self._store(backup)
            for prefetch in [
                prefetch for prefetch in self.prefetches.due() if self._query(prefetch)
            ]:
                # Follows `_page_transfer`: without a waiting request nothing is fetched.
                if not prefetch.terminated:
                    for index, key in enumerate(prefetch.keys):
                        if self.on_fetch is not None:
                            place = self._place(self.storage.places[key])
                            self.on_fetch(FULL, self._page(prefetch.wanted, index), place)
                    prefetch.completed = len(prefetch.wanted)
                self._release(prefetch.wanted[prefetch.completed :])
            for request in self.revoked:
                gone = self.ongoing.pop(request, None)
                if gone is not None:
                    gone.node.locks[HOST + FULL] -= 1
                    self.occupied = max(0, self.occupied - len(gone.tokens))
            for backup in backups:
                backup.node.locks[HOST + FULL] -= 1
            self.host.free(joined(self.released))
            self.revoked, self.released = [], []

    def held_by_host(self) -> Iterator[Node]:
        yield from (copy.node for copy in self.writing.values() if copy.is_held)
        yield from self.loaded.values()

    def host_free(self) -> dict[str, int]:
        return {"host_tokens": self.host.available}

    def begin_loading(self) -> None:
        """Follows `start_loading`."""
        self.loads.submit()

    # -- evict -------------------------------------------------------------------------------------

    def _evict(self, tokens: int, window: int, states: int) -> None:
        """Evict leaves from the device; their copies on the host stay. Follows `evict`."""
        heap = [(self.first(node), node) for node in self.leaves]
        heapq.heapify(heap)
        evicted, back = 0, list[Node]()
        while evicted < tokens and heap:
            _, node = heapq.heappop(heap)
            if node.locks[FULL]:
                continue
            parent = node.parent or self.root
            # A copy is there: only the slots of the device go.
            if node.host_full is not None:
                evicted += self._demote(node)
            # Copied first, and evicted once all copies of this eviction are done.
            elif self.tier.writes_back:
                evicted += self._backup(node, waits=True)
                back.append(node)
            else:
                evicted += len(node)
                self._delete(node)
            # Without children on the device the parent is the next leaf.
            if all(child in back or child.evicted for child in parent.children.values()):
                heapq.heappush(heap, (self.first(parent), parent))
        if self.tier.writes_back:
            for number in self.writes.wait():
                self._written(self.writing.pop(number).node)
            for node in back:
                if node.host_full is None:
                    where = "HiRadixCache.evict"
                    raise UpstreamAbort(where, "assert: node.backuped")
                self._demote(node)

    def _demote(self, node: Node) -> int:
        """Evict a node from the device; the host keeps its copy. Follows `_evict_backuped`.

        Trap: a parent popped twice in one eviction (as a leaf, and again after its last child) is
        first written back, then evicted; the end of the eviction evicts it again, when its slots
        are None.
        """
        if node.evicted:
            where = "HiRadixCache._evict_backuped"
            raise UpstreamAbort(where, "'NoneType' object has no attribute 'numel'")
        self.pool.free(node.slots)
        self.evictable[FULL] -= len(node)
        node.value = None
        self._notify("left", node)
        self._update_leaf(node)
        self._update_host_leaf(node)
        if node.parent is not None:
            self._update_leaf(node.parent)
        return len(node)

    def _delete(self, node: Node) -> None:
        """Follows `_evict_regular`."""
        self.pool.free(node.slots)
        self._detach(node)
        self.evictable[FULL] -= len(node)
        self.leaves.discard(node)
        if node.parent is not None:
            self._update_leaf(node.parent)
        self.lost("node", node)

    def _evict_host(self, tokens: int) -> None:
        """Evict nodes that only the host holds, leaves first. Follows `evict_host`."""
        heap = [(self.first(node), node) for node in self.host_leaves]
        heapq.heapify(heap)
        evicted = 0
        while evicted < tokens and heap:
            _, node = heapq.heappop(heap)
            if node is self.root:
                break
            # Loaded again since, or read by a transfer.
            if not node.evicted or node.host_full is None or node.locks[HOST + FULL]:
                continue
            parent = node.parent or self.root
            self._notify("dropped", node)
            self.host.free(node.host_full)
            evicted += len(node)
            if parent.children.get(node.child_key) is not node:
                where = "HiRadixCache.evict_host"
                raise UpstreamAbort(where, "assert: parent does not have child key")
            self._detach(node)
            self.host_leaves.discard(node)
            self._update_host_leaf(parent)
            if not parent.children and parent.evicted:
                heapq.heappush(heap, (self.first(parent), parent))

    # -- back to the device ------------------------------------------------------------------------

    def bring(self, req: Req) -> int:
        """Load the nodes that a request resumes from, all or none. Follows `init_load_back`."""
        last = req.best
        if last is None or not last.evicted:
            return 0
        nodes = [node for node in last.path() if node.evicted][::-1]
        above = nodes[0].parent or self.root
        slots = self._load_back(nodes, last, above)
        if slots is None:
            req.last_node = above
            return 0
        req.last_node = last
        req.shared = joined([req.shared, slots])
        return len(slots)

    def _load_back(self, nodes: list[Node], last: Node, above: Node) -> Integers | None:
        """Follows `load_back`."""
        self.lock(above)
        count = rows(nodes)
        # So few tokens are computed again instead.
        if count < LEAST_LOADED:
            self.unlock(above)
            return None
        slots = self.pool.alloc_pages(count)
        if slots is None:
            self.evict(tokens=count)
            slots = self.pool.alloc_pages(count)
        self.unlock(above)
        if slots is None:
            return None
        at = 0
        for node in nodes:
            node.value = slots[at : at + len(node)]
            at += len(node)
            if self.on_load is not None and node.host_full is not None:
                self.on_load(FULL, node.host_full, node.value)
            self._notify("loaded", node)
        self.evictable[FULL] += count
        self.loaded[last.id] = last
        self.loads.queued.append(last.id)
        self.lock(last)
        return slots

    def watch_storage(self, on_store: PageCopy, on_fetch: PageCopy) -> None:
        self.on_store, self.on_fetch = on_store, on_fetch

    # -- to the storage ----------------------------------------------------------------------------

    def _written(self, node: Node) -> None:
        """Follows `write_backup_storage`."""
        if not self.stores:
            return
        slots = NO_SLOTS if node.host_full is None else node.host_full
        self.backups.put(Backup(node, slots, node.hashes))
        node.locks[HOST + FULL] += 1

    def _store(self, backup: Backup) -> None:
        """Write pages that the storage does not hold. Follows `_page_backup`."""
        fresh = False
        for index, key in enumerate(backup.keys):
            place = self.storage.put(key)
            fresh = fresh or place is not None
            if place is not None and self.on_store is not None:
                self.on_store(FULL, self._page(backup.slots, index), self._place(place))
        if fresh:
            self._notify("stored", backup.node)

    def _page(self, slots: Integers, index: int) -> Integers:
        return slots[index * self.shape.page : (index + 1) * self.shape.page]

    def _place(self, place: int) -> Integers:
        return place * self.shape.page + self._offsets

    # -- from the storage --------------------------------------------------------------------------

    def prefetch(self, req: Req, match: Match, known_until: int | None = None) -> None:
        """Query the storage for the tokens of a request that the tree lacks. Follows
        `prefetch_from_storage`.

        Trap: the whole prompt is queried, its last page too, where no match ends. With full
        attention the node above it serves; a window after it would be incomplete (#27291).
        """
        if match.node is not self.root and match.node.host_full is None:
            return
        node, page = match.best or match.node, self.shape.page
        # Fetched pages are inserted on the host, below a node that the host holds.
        while node is not self.root and node.host_full is None:
            node = node.parent or self.root
        end = req.num_tokens - int(not self.rules.tree.fetches_last_page)
        tokens = req.tokens[match.usable : end]
        tokens = tokens[: len(tokens) // page * page].copy()
        if len(tokens) < self.least or self.occupied >= self.most:
            return
        node.locks[HOST + FULL] += 1
        slots = self.host.alloc(len(tokens))
        if slots is None:
            self._evict_host(len(tokens))
            slots = self.host.alloc(len(tokens))
        if slots is None:
            node.locks[HOST + FULL] -= 1
            return
        prior = node.hashes[-1] if node.hashes else None
        made = Prefetch(req.id, node, tokens, slots, prior, slots, began=self.polls)
        self.prefetches.put(made)
        self.ongoing[req.id] = made
        self.occupied += len(tokens)

    def _query(self, each: Prefetch) -> bool:
        """Check that the storage holds enough tokens for a prefetch. Follows
        `prefetch_thread_func`.
        """
        keys = hashes_of(each.tokens, each.prior, self.shape.page, bigrams=False)
        pages = self.storage.known(keys)
        count = pages * self.shape.page
        # A short hit is not worth a transfer.
        if count < self.least:
            self.revoked.append(each.request)
            self._release(each.slots)
            return False
        each.keys = keys[:pages]
        # Slots were taken for all that was queried, before the hit was known; not so in the unified
        # tree.
        self._release(each.slots[count:])
        each.wanted = each.slots[:count]
        return True

    def _release(self, slots: Integers) -> None:
        if len(slots):
            self.released.append(slots)

    def fetched(self, req: Req) -> bool:
        """True once a request need not wait. Follows `check_prefetch_progress`."""
        each = self.ongoing.get(req.id)
        if each is None:
            return True
        if not each.terminated and not self._may_end(each):
            return False
        each.terminated = True
        count = each.completed
        self.by_request = req.id
        known = self._insert_on_host(each, count)
        # Inserted by another request in the meantime: these slots are duplicates.
        self.host.free(each.slots[:known])
        each.node.locks[HOST + FULL] -= 1
        del self.ongoing[req.id]
        self.occupied -= len(each.tokens)
        return True

    def _may_end(self, each: Prefetch) -> bool:
        """True where a prefetch may end. Follows `can_terminate_prefetch`.

        Trap: pages in transit count after the query only; before, the base alone.
        """
        settings, pages = self.settings, len(each.keys)
        if settings.policy == "best_effort":
            return True
        if pages and each.completed == pages * self.shape.page:
            return True
        per_page = self.shape.page / 1024 * settings.timeout_per_ki_token
        waited = self.polls - each.began
        return settings.policy == "timeout" and waited > settings.timeout_base + pages * per_page

    def _insert_on_host(self, each: Prefetch, count: int) -> int:
        """Insert the fetched pages below the node. Follows `_insert_helper_host`."""
        node, extra, page = each.node, extra_of(each.node), self.shape.page
        key, slots, known = each.tokens[:count], each.slots[:count], 0
        node.last_access = self.clock.tick()
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            node = child
            node.last_access = self.clock.tick()
            length = matching(node, key, page)
            key, slots, known = key[length:], slots[length:], known + length
            if length < len(node):
                node = self._split(node, length, extra)
        if len(key):
            new = self._hang(node, key, slots, extra)
            new.value, new.host_full, new.priority = None, slots, node.priority
            self._update_host_leaf(new)
            self._update_leaf(node)
            self._update_host_leaf(node)
            self._notify("fetched", new)
        return known

    def stop_fetching(self, req: Req) -> None:
        """Drop the prefetch of an aborted request. Follows `release_aborted_request`."""
        each = self.ongoing.pop(req.id, None)
        if each is None:
            return
        each.terminated = True
        each.node.locks[HOST + FULL] -= 1
        self._release(each.slots[: each.completed])
        self.occupied -= len(each.tokens)

    def stored(self, key: Integers, extra: Hashable) -> int:
        page = self.shape.page
        key = key[: len(key) // page * page]
        keys = hashes_of(key, None, page, bigrams=self.shape.bigrams)
        return self.storage.known(keys) * page

    def host_underway(self) -> dict[str, int]:
        asked = {id(prefetch): prefetch.slots for _, prefetch in self.prefetches.waiting}
        asked |= {
            id(prefetch): prefetch.slots[: prefetch.completed] for prefetch in self.ongoing.values()
        } | asked
        count = sum(map(len, asked.values())) + sum(map(len, self.released))
        return {"host_tokens": count}


def extra_of(node: Node) -> Hashable:
    """The extra key of a node; the root has none."""
    return node.child_key[0] if isinstance(node.child_key, tuple) else None
