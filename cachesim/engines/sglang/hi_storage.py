"""`HiRadixCache` of 0.5.9 with a storage below the host.

    device  <-->  host  --backup-->  storage        once the copy to the host is done
                    ^---prefetch-------/            while a request waits

Trap: pages are found by their tokens alone, and fetched pages are inserted under the extra key of
the node at which the request's match ended. The root, where nothing matched, has none: a request
with a key of its own does not match what was fetched for it. Trap: with EAGLE nodes are hashed pair
by pair and the prefetch queries single tokens, so that nothing is ever found. Trap: a node fetched
below the root takes the root's priority, the lowest, and is evicted first under `priority`.
"""

from collections.abc import Hashable
from typing import Final

import numpy as np

from cachesim.engines.sglang.hi_radix import HiRadixCache
from cachesim.engines.sglang.node import FULL, HOST, NO_SLOTS, Node
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.storage import (
    LEAST_PRIORITY,
    Backup,
    Line,
    PageCopy,
    Prefetch,
    hashes_of,
)
from cachesim.engines.sglang.tree import Match, joined, matching
from cachesim.typed import there_is
from cachesim.units import Integers

SHARE: Final = 0.8
"""Prefetches may occupy so much of what the host holds more than the device."""


class StoringHiRadixCache(HiRadixCache):
    """Pages are written to the storage, and come back while a request waits.

    Upstream: `HiRadixCache`, where `enable_storage` is set.
    """

    stores = True

    def _begin(self) -> None:
        super()._begin()
        self.root.priority = LEAST_PRIORITY  # no insertion raises it here, unlike `RadixCache`'s
        self.settings = there_is(self.tier.storage)
        self.least = max(self.settings.threshold, self.shape.page)  # prefetch_threshold
        more = self.tier.tokens - self.pool.size
        self.most = max(0, int(SHARE * more))  # prefetch_capacity_limit
        self.occupied = 0  # prefetch_tokens_occupied
        self.looks = 0  # the only clock that there is
        self.backups: Line[Backup] = Line(self.settings.lag)
        self.prefetches: Line[Prefetch] = Line(self.settings.lag)
        self.ongoing: dict[int, Prefetch] = {}  # ongoing_prefetch
        self.revoked: list[int] = []  # prefetch_revoke_queue
        self.released: list[Integers] = []  # host_mem_release_queue
        self.on_store: PageCopy | None = None
        self.on_fetch: PageCopy | None = None
        self._offsets = np.arange(self.shape.page, dtype=np.int64)

    def watch_storage(self, on_store: PageCopy, on_fetch: PageCopy) -> None:
        self.on_store, self.on_fetch = on_store, on_fetch

    # -- nodes have the keys of their pages --------------------------------------------------------

    def _hang(self, parent: Node, key: Integers, slots: Integers, extra: Hashable) -> Node:
        node = super()._hang(parent, key, slots, extra)
        prior = parent.hashes[-1] if parent.hashes else None
        node.hashes = hashes_of(key, prior, self.shape.page, bigrams=self.shape.bigrams)
        return node

    def _split(self, child: Node, length: int, extra: Hashable) -> Node:
        new, pages = super()._split(child, length, extra), length // self.shape.page
        new.hashes, child.hashes = child.hashes[:pages], child.hashes[pages:]
        return new

    # -- to the storage ----------------------------------------------------------------------------

    def _written(self, node: Node) -> None:
        """Follows `write_backup_storage`."""
        slots = NO_SLOTS if node.host_full is None else node.host_full
        self.backups.put(Backup(node, slots, node.hashes))
        node.locks[HOST + FULL] += 1

    def _store(self, backup: Backup) -> None:
        """Follows `_page_backup`; what the storage has already is not written again."""
        fresh = False
        for index, key in enumerate(backup.keys):
            place = self.storage.put(key)
            fresh = fresh or place is not None
            if place is not None and self.on_store is not None:
                self.on_store(FULL, self._page(backup.slots, index), self._place(place))
        if fresh:
            self._tell("stored", backup.node)

    def _page(self, slots: Integers, index: int) -> Integers:
        return slots[index * self.shape.page : (index + 1) * self.shape.page]

    def _place(self, place: int) -> Integers:
        return place * self.shape.page + self._offsets

    # -- from the storage --------------------------------------------------------------------------

    def prefetch(self, req: Req, match: Match, known_until: int | None = None) -> None:
        """Ask for what the tree lacks of a request. Follows `prefetch_from_storage`.

        Trap: the whole prompt is asked for, its last page too, and no match ends there. With full
        attention the node above it serves; a window behind it would not be whole (#27291).
        """
        del known_until
        if match.node is not self.root and match.node.host_full is None:
            return
        node, page = match.best or match.node, self.shape.page
        while node is not self.root and node.host_full is None:
            node = node.parent or self.root
        end = req.num_tokens - int(not self.rules.tree.asks_for_the_last_token)
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
        made = Prefetch(req.id, node, tokens, slots, prior, slots, began=self.looks)
        self.prefetches.put(made)
        self.ongoing[req.id] = made
        self.occupied += len(tokens)

    def _query(self, each: Prefetch) -> bool:
        """Whether the storage has enough of it. Follows `prefetch_thread_func`."""
        keys = hashes_of(each.tokens, each.prior, self.shape.page, bigrams=False)
        found = self.storage.known(keys)
        count = found * self.shape.page
        if count < self.least:
            self.revoked.append(each.request)
            self._release(each.slots)
            return False
        each.keys = keys[:found]
        self._release(each.slots[count:])
        each.wanted = each.slots[:count]
        return True

    def _fetch(self, each: Prefetch) -> None:
        """Follows `_page_transfer`: one that nobody waits for any more gets nothing."""
        if not each.terminated:
            for index, key in enumerate(each.keys):
                if self.on_fetch is not None:
                    place = self._place(self.storage.places[key])
                    self.on_fetch(FULL, self._page(each.wanted, index), place)
            each.completed = len(each.wanted)
        self._release(each.wanted[each.completed :])

    def _release(self, slots: Integers) -> None:
        if len(slots):
            self.released.append(slots)

    def look(self) -> None:
        """What the threads have done since is taken note of. Follows `check_hicache_events`."""
        super().look()
        self.looks += 1
        backups = self.backups.due()
        for backup in backups:
            self._store(backup)
        for each in [each for each in self.prefetches.due() if self._query(each)]:
            self._fetch(each)
        for request in self.revoked:
            gone = self.ongoing.pop(request, None)
            if gone is not None:
                gone.node.locks[HOST + FULL] -= 1
                self.occupied = max(0, self.occupied - len(gone.tokens))
        for backup in backups:
            backup.node.locks[HOST + FULL] -= 1
        self.host.free(joined(self.released))
        self.revoked, self.released = [], []

    def fetched(self, req: Req) -> bool:
        """Whether a request waits no longer. Follows `check_prefetch_progress`."""
        each = self.ongoing.get(req.id)
        if each is None:
            return True
        if not each.terminated and not self._may_end(each):
            return False
        each.terminated = True
        count = each.completed
        self.by_request = req.id
        known = self._insert_on_host(each, count)
        self.host.free(each.slots[:known])
        each.node.locks[HOST + FULL] -= 1
        del self.ongoing[req.id]
        self.occupied -= len(each.tokens)
        return True

    def _may_end(self, each: Prefetch) -> bool:
        """Whether what has come so far is enough. Follows `can_terminate_prefetch`.

        Trap: what is on its way counts once the storage was asked; until then there is the base
        alone.
        """
        settings, pages = self.settings, len(each.keys)
        if settings.policy == "best_effort":
            return True
        if pages and each.completed == pages * self.shape.page:
            return True
        per_page = self.shape.page / 1024 * settings.timeout_per_ki_token
        waited = self.looks - each.began
        return settings.policy == "timeout" and waited > settings.timeout_base + pages * per_page

    def _insert_on_host(self, each: Prefetch, count: int) -> int:
        """Hang what came below the node. Follows `_insert_helper_host`."""
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
            self._tell("fetched", new)
        return known

    def stop_fetching(self, req: Req) -> None:
        """Its client went away. Follows `release_aborted_request`."""
        each = self.ongoing.pop(req.id, None)
        if each is None:
            return
        each.terminated = True
        each.node.locks[HOST + FULL] -= 1
        self._release(each.slots[: each.completed])
        self.occupied -= len(each.tokens)

    def stored(self, key: Integers, extra: Hashable) -> int:
        del extra
        page = self.shape.page
        key = key[: len(key) // page * page]
        keys = hashes_of(key, None, page, bigrams=self.shape.bigrams)
        return self.storage.known(keys) * page

    def host_underway(self) -> dict[str, int]:
        asked = {id(each): each.slots for _, each in self.prefetches.waiting}
        asked |= {id(each): each.slots[: each.completed] for each in self.ongoing.values()} | asked
        count = sum(map(len, asked.values())) + sum(map(len, self.released))
        return {"host_tokens": count}


def extra_of(node: Node) -> Hashable:
    """The extra key under which a node hangs; the root has none."""
    return node.child_key[0] if isinstance(node.child_key, tuple) else None
