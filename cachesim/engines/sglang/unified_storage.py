"""The unified tree of 0.5.23 with a storage below the host.

    arrival   ask for what the tree lacks         no memory is taken yet
    a look    the storage has so much of it       the host's slots are taken for that
    a look    it has come                         it hangs below the node that the match ended at
    a pass    no hit, or no room on the host      asked again some passes later

Models of every kind have it: windows and states are stored beside their pages, and come whole or
not at all. Trap: a hit is known by a look, and what it fetches by the next one at the earliest;
with `best_effort` a request that need not wait gets nothing. Follows the parts of
`UnifiedRadixCache` that speak of storage.
"""

from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np

from cachesim.engines.sglang.fetching import Ack, Fetch, Ongoing, PartFetch, Wait
from cachesim.engines.sglang.grafting import Graft
from cachesim.engines.sglang.node import FULL, NO_SLOTS, PART, STATE, Node
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.retries import Retries
from cachesim.engines.sglang.storage import LEAST_PRIORITY, PageCopy, hashes_of, namespace
from cachesim.engines.sglang.storage_threads import NodeBackup, Threads, drained
from cachesim.engines.sglang.tree import Match, joined
from cachesim.engines.sglang.unified import UnifiedRadixCache
from cachesim.typed import there_is
from cachesim.units import Integers

PARTS: Final = {FULL: "host_tokens", PART: "host_window_tokens", STATE: "host_states"}


class StoringRadixCache(UnifiedRadixCache):
    """Nodes are written to the storage, and come back while a request waits.

    Follows what `UnifiedRadixCache` does where a storage is attached.
    """

    stores = True

    def _begin(self) -> None:
        super()._begin()
        self.root.priority = LEAST_PRIORITY
        self.tier = there_is(self.host)
        self.settings = settings = there_is(self.tier.shape.storage)
        self.most = self.tier.shape.tokens // 2  # prefetch_capacity_limit
        self.occupied = 0  # prefetch_tokens_occupied
        self.looks = 0  # the only clock that there is
        self.threads = Threads(self.storage, settings, self.shape.page, self.shape.bigrams)
        self.retries = Retries(settings.interval, settings.attempts)
        self.ongoing: dict[int, Ongoing] = {}  # ongoing_prefetch
        self.waits: dict[int, Wait] = {}  # _storage_prefetch_wait
        self.moving: list[Fetch] = []  # whose slots are taken, and whose transfer is not over

    def watch_storage(self, on_store: PageCopy, on_fetch: PageCopy) -> None:
        self.threads.on_store, self.threads.on_fetch = on_store, on_fetch

    # -- nodes have the keys of their pages --------------------------------------------------------

    def hang(self, parent: Node, key: Integers, slots: Integers, extra: Hashable) -> Node:
        """A new leaf, with the keys of its pages (`compute_node_hash_values`)."""
        node = super().hang(parent, key, slots, extra)
        prior = parent.hashes[-1] if parent.hashes else namespace(extra)
        node.hashes = hashes_of(key, prior, self.shape.page, bigrams=self.shape.bigrams)
        return node

    def hang_on_host(self, parent: Node, key: Integers, extra: Hashable) -> Node:
        """A new leaf that the device has nothing of."""
        node = self._hang(parent, key, NO_SLOTS, extra)
        node.value = None
        return node

    def split(self, child: Node, length: int, extra: Hashable) -> Node:
        pages = length // self.shape.page
        new = super().split(child, length, extra)
        new.hashes, child.hashes = child.hashes[:pages], child.hashes[pages:]
        return new

    # -- to the storage ----------------------------------------------------------------------------

    def written(self, node: Node) -> None:
        """The host has a node: the storage gets it. Follows `write_backup_storage`."""
        if node.host_full is None:
            return
        page, parts = self.shape.page, list[PartFetch]()
        if node.host_window is not None:
            parts.append(PartFetch(PART, page, node.hashes, node.host_window))
        if node.host_state is not None:
            slots = np.array([node.host_state], np.int64)
            parts.append(PartFetch(STATE, 1, node.hashes[-1:], slots))
        parts.append(PartFetch(FULL, page, node.hashes, node.host_full))
        self.threads.backups.put(NodeBackup(node, self.tier.hold(node), parts))

    # -- asking ------------------------------------------------------------------------------------

    def prefetch(self, req: Req, match: Match, known_until: int | None = None) -> None:
        """Ask for what the tree lacks of a request. Follows `_prefetch_kvcache` and
        `prefetch_from_storage`.

        What is known to be stored up to some end is not asked for, and not beyond it.
        """
        anchor, matched = match.best or match.node, match.length + match.on_host
        req.matched = matched
        if anchor is not self.root and anchor.host_full is None:
            return
        self.retries.cancel(req.id)
        if self.waits.get(req.id, Wait()).expired or req.id in self.ongoing:
            return
        limit = max(req.num_tokens - int(not self.rules.tree.asks_for_the_last_token), 0)
        tokens, pair = req.tokens[matched:limit], int(self.shape.bigrams)
        assumed = known_until is not None and matched < known_until <= limit - pair
        if assumed and known_until is not None:
            tokens = tokens[: known_until - matched + pair]
        key = self.key_of(tokens).copy()
        assumed = assumed and matched + len(key) == known_until
        if len(key) < self.settings.threshold:
            return
        if self.occupied >= self.most:
            self.retries.missed(req.id, known_until)
            return
        fetch = Fetch(
            request=req.id,
            anchor=anchor,
            held=self.tier.hold(anchor),
            extra=req.extra_key,
            key=key,
            prior=anchor.hashes[-1] if anchor.hashes else None,
            start=matched,
            assumed=assumed,
            parts=self._parts(anchor, len(key) // self.shape.page),
        )
        self.threads.queries.put(fetch)
        self.ongoing[req.id] = Ongoing(fetch)
        self.occupied += len(key)

    def _parts(self, anchor: Node, pages: int) -> list[PartFetch]:
        """What has to come besides attention. Follows `prepare_prefetch` of each part.

        Trap: less than a window below a node is fetched without one, and no match ends there.
        """
        parts, page = list[PartFetch](), self.shape.page
        window = -(-self.shape.window // page)
        if self.has_windows and (pages >= window or anchor is self.root):
            parts.append(PartFetch(PART, page, [b""] * min(pages, window)))
        if self.has_states:
            parts.append(PartFetch(STATE, 1, [b""]))
        return parts

    def asks_again(self, waiting: Sequence[Req]) -> list[tuple[Req, int | None]]:
        """Who asks in this pass. Follows `_process_storage_prefetch_retries`."""
        return self.retries.ready(waiting)

    def shrank(self, req: Req) -> bool:
        """Whether a match is shorter than at the last asking. Follows
        `_prefetch_after_device_hit_loss`.
        """
        matched = req.prefix + req.on_host
        if not req.matched or matched >= req.matched:
            return False
        if req.reissues < self.retries.attempts:
            return True
        req.matched = matched
        return False

    # -- looks -------------------------------------------------------------------------------------

    def look(self) -> None:
        """What the threads have done since is taken note of. Follows `check_hicache_events` and
        `_drain_storage_control_queues_impl`.

        Slots that are given back by this look are free after the next one.
        """
        threads = self.threads
        self.looks += 1
        threads.run()
        released = drained(threads.released)
        super().look()
        for deed, part, node in drained(threads.stored):
            self.tier.tell(deed, part, node)
        for fetch in drained(threads.found):
            self._take_hit(fetch)
        for ack in drained(threads.news):
            self._take_news(ack)
        for backup in drained(threads.saved):
            self.tier.release(backup.held)
        for part in PARTS:
            pool = self.tier.pools.of(part)
            if pool is not None:
                pool.free(joined([slots for each, slots in released if each == part]))

    def settle(self) -> None:
        while self.tier.writing or self.threads.busy or self.threads.released:
            self.look()

    def _take_hit(self, fetch: Fetch) -> None:
        """So much is stored: is it worth it, and is there room? Follows
        `_drain_and_alloc_storage_hit`.
        """
        info = self.ongoing.get(fetch.request)
        if info is None:
            return
        if fetch.terminated or fetch.hit < self.settings.threshold:
            if not (fetch.terminated and fetch.late):
                self.retries.missed(fetch.request)
            self._revoke(fetch.request)
            return
        slots = self._room(fetch.hit)
        if slots is None or not self._room_for_parts(info.fetch.parts, fetch.hit):
            self.threads.release(FULL, slots)
            self._revoke(fetch.request)
            self.retries.missed(fetch.request, fetch.start + fetch.hit)
            return
        fetch.hit, fetch.slots = len(slots), slots
        fetch.keys = fetch.keys[: len(slots) // self.shape.page]
        info.slots = slots
        self.moving.append(fetch)
        self.threads.transfers.put(fetch)

    def _room(self, count: int) -> Integers | None:
        """The host's slots for a hit, or for as much of it as there is room for. Follows
        `allocate_storage_hit`.
        """
        pool, page = self.tier.pools.full, self.shape.page
        slots = self.tier.room(FULL, count)
        left = min(count, pool.available // page * page)
        if slots is None and left >= self.settings.threshold:
            slots = pool.alloc(left)
        return slots

    def _room_for_parts(self, parts: Sequence[PartFetch], hit: int) -> bool:
        """All of them or none. Follows `_alloc_prefetch_aux_staging`."""
        taken: list[PartFetch] = []
        for each in parts:
            count = min(len(each.keys), hit // self.shape.page) * each.page
            if each.slots is not None or not count:
                continue
            each.slots = self.tier.room(each.part, count)
            if each.slots is None:
                self.threads.release_parts(taken)
                for other in taken:
                    other.slots = None
                return False
            taken.append(each)
        return True

    def _take_news(self, ack: Ack) -> None:
        """Follows `_drain_ack_prefetch`."""
        fetch, info = ack.fetch, self.ongoing.get(ack.fetch.request)
        is_current = info is not None and info.fetch is fetch
        if is_current and ack.completed is not None:
            fetch.completed = ack.completed
        if is_current and ack.hits is not None:
            fetch.hits.update(ack.hits)
            fetch.parts_done = True
        if not ack.done:
            return
        if is_current and info is not None:
            self._handle(info)
        fetch.handled = True
        self.threads.release(FULL, fetch.own)
        if not fetch.parts_done:
            self.threads.release_parts(fetch.parts)
        self.moving.remove(fetch)

    # -- what a waiting request gets ---------------------------------------------------------------

    def fetched(self, req: Req) -> bool:
        """Whether a request waits no longer. Follows `check_prefetch_progress`."""
        info = self.ongoing.get(req.id)
        if info is None:
            return True
        fetch = info.fetch
        if not fetch.terminated:
            if not self._may_end(fetch):
                return False
            if self.settings.policy == "timeout":
                fetch.late = True
                self.retries.cancel(req.id)
                self.waits.setdefault(req.id, Wait()).expired = True
        fetch.terminated = True
        if fetch.slots is not None:
            self._handle(info)
            return True
        if not fetch.late:
            self.retries.missed(req.id)
        self._revoke(req.id)
        return True

    def _may_end(self, fetch: Fetch) -> bool:
        """Whether it is over although it has not come. Follows `_can_terminate_prefetch`."""
        settings = self.settings
        if settings.policy != "timeout":
            return settings.policy == "best_effort"
        wait, pages = self.waits.get(fetch.request), len(fetch.key) // self.shape.page
        landed = fetch.slots is not None and fetch.completed >= len(fetch.keys) * self.shape.page
        if not landed and wait is not None and wait.over(self.looks):
            return True
        per_page = self.shape.page / 1024 * settings.timeout_per_ki_token
        limit = settings.timeout_base + pages * per_page
        self.waits.setdefault(fetch.request, Wait(self.looks, limit))
        return False

    def _handle(self, info: Ongoing) -> None:
        """What has come goes into the tree. Follows `_handle_prefetch_result`."""
        fetch, page, done = info.fetch, self.shape.page, info.fetch.completed
        slots = NO_SLOTS if info.slots is None else info.slots
        whole = done == len(fetch.keys) * page and all(
            fetch.hits.get(each.part, 0) == len(each.keys) for each in fetch.parts
        )
        fetch.handled = True
        if fetch.parts and not whole:
            self._retire(fetch, slots[:done], fetch.parts_here)
            return
        self.by_request = fetch.request
        graft = Graft(self, self.tier, self.threads, fetch)
        made = graft.insert(slots[:done], fetch.keys[: done // page])
        if made.dropped:
            self.threads.release(FULL, slots[:done])
            self.threads.release_parts(fetch.parts)
        else:
            graft.commit(made)
            self.tier.pools.full.free(slots[: made.known])
        self.tier.release(fetch.held)
        del self.ongoing[fetch.request]
        self.occupied -= len(fetch.key)

    def _revoke(self, request: int) -> None:
        """Nothing comes of it. Follows `revoke_pending_prefetch`."""
        info = self.ongoing.get(request)
        if info is not None:
            self._retire(info.fetch, NO_SLOTS, info.fetch.parts)

    def _retire(self, fetch: Fetch, slots: Integers, parts: Sequence[PartFetch]) -> None:
        """Follows `_retire_ongoing_prefetch`."""
        del self.ongoing[fetch.request]
        self.tier.release(fetch.held)
        self.threads.release(FULL, slots)
        self.threads.release_parts(parts)
        self.occupied = max(0, self.occupied - len(fetch.key))

    def admitted(self, req: Req) -> None:
        self.waits.pop(req.id, None)
        self.retries.cancel(req.id)

    def stop_fetching(self, req: Req) -> None:
        """Its client went away. Follows `release_aborted_request`."""
        self.admitted(req)
        info = self.ongoing.get(req.id)
        if info is None:
            return
        fetch = info.fetch
        fetch.terminated = True
        if info.slots is None:
            self._revoke(req.id)
            return
        fetch.handled = True
        self._retire(fetch, info.slots[: fetch.completed], fetch.parts_here)

    # -- looking in --------------------------------------------------------------------------------

    def stored(self, key: Integers, extra: Hashable) -> int:
        return self.threads.known(key, extra)

    def host_underway(self) -> dict[str, int]:
        counts = dict.fromkeys(PARTS.values(), 0)
        for fetch in self.moving:
            counts[PARTS[FULL]] += len(fetch.own)
            if not (fetch.handled and fetch.parts_done):
                for each in fetch.parts:
                    counts[PARTS[each.part]] += 0 if each.slots is None else len(each.slots)
        for part, slots in self.threads.released:
            counts[PARTS[part]] += len(slots)
        return counts
