"""The tree for every kind of model: insertion of requests, and a storage below the host.

    arrival   query what the tree lacks           no memory is allocated yet
    a poll    the stored length is known          the host's slots are allocated
    a poll    the transfer is complete            inserted below the node of the match
    a pass    no hit, or no room on the host      queried again some passes later

Windows and states are stored beside their pages, and fetched whole or not at all. Trap: a hit is
known by a poll, its pages by the next one at the earliest; with `best_effort` a request that need
not wait gets none. Follows `UnifiedRadixCache` of 0.5.23.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cachesim.engines.sglang.hicache import HostTier
from cachesim.engines.sglang.node import FULL, NO_SLOTS, PART, STATE, Node
from cachesim.engines.sglang.pools import (
    LEAST_PRIORITY,
    MOST_PRIORITY,
    Copy,
    PageCopy,
    StorageShape,
)
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.storage_threads import (
    Ack,
    Fetch,
    NodeBackup,
    Ongoing,
    PartFetch,
    Retries,
    Threads,
    Wait,
    drained,
)
from cachesim.engines.sglang.tree import Match, OnHostAction, joined, matching
from cachesim.engines.sglang.unified_core import Insertion, UnifiedTreeCore
from cachesim.errors import UpstreamAbort
from cachesim.typed import there_is
from cachesim.units import Integers

HOST_NAMES: Final = {FULL: "host_tokens", PART: "host_window_tokens", STATE: "host_states"}


class UnifiedRadixCache(UnifiedTreeCore):
    """The scheduler's interface to the tree (`UnifiedRadixCache`)."""

    def _begin(self) -> None:
        super()._begin()
        shape, settings = self.shape.host, None
        if shape is not None:
            self.host, settings = HostTier(self, shape), shape.storage
            self.most = shape.tokens // 2  # prefetch_capacity_limit
        self.stores = settings is not None
        if self.stores:
            self.root.priority = LEAST_PRIORITY
        self.settings = settings = settings or StorageShape()
        self.occupied = 0  # prefetch_tokens_occupied
        self.polls = 0  # the only clock that there is
        self.threads = Threads(self.storage, settings, self.shape.page, self.shape.bigrams)
        self.retries = Retries(settings.interval, settings.attempts)
        self.ongoing: dict[int, Ongoing] = {}  # ongoing_prefetch
        self.waits: dict[int, Wait] = {}  # _storage_prefetch_wait
        self.moving: list[Fetch] = []  # whose slots are taken, and whose transfer is not over

    @property
    def tier(self) -> HostTier:
        """The host tier of a tree that has one."""
        return there_is(self.host)

    def take_state(self, req: Req, node: Node) -> None:
        """A slot for the state that is copied when the request runs (`cow_mamba`)."""
        if node.state is None:
            return
        if req.state is None:
            slot = self.state_pool.alloc()
            # Locked, or the eviction could take the state that is to be copied.
            if slot is None:
                held = self.lock(node)
                slot = self.state_or_room("MambaComponent.finalize_match_result_in_cache")
                self.unlock(node, held)
            req.state = slot
        req.state_source = node.state

    # -- requests ----------------------------------------------------------------------------------

    def track_interval(self, interval: int) -> int:
        """The interval of saved positions, rounded to the grid. Follows `mamba_track_grid`."""
        grid, wanted = self.shape.grid, interval
        while interval % grid:
            interval += wanted
        return interval

    def let_windows_go(self, req: Req, length: int) -> None:
        """Free the window slots before the window. Follows `free_swa_out_of_window_slots`.

        [ protected .... | gone already | .......... | one window, whole pages ) length
                                         ^ freed now ^
        """
        page, window = self.shape.page, self.shape.window
        if self.windows is None or not req.has_row or length - window < req.window_evicted + 1:
            return
        # The protected part is the tree's own: its window goes by eviction, not here.
        start = max(req.window_evicted, self._dead_from(req))
        least = max(window, page)
        # A window of half a page leaves a leaf that no match can end at.
        if self.rules.tree.keeps_whole_pages:
            least = -(-least // page) * page
        until = length - least
        # The tree is to get the tracked state with a whole window before it.
        if self.has_states and req.tracked is not None:
            until = min(until, req.tracked - window)
        req.window_evicted = start
        end = max(start, until) // page * page
        if end > start:
            self.windows.free_window(req.row[start:end].copy())
            req.window_evicted = end

    def _dead_from(self, req: Req) -> int:
        page = self.shape.page
        return -(-req.protected // page) * page

    def cache_unfinished(self, req: Req) -> None:
        """Follows `checkpoint_kv_cache`."""
        until = req.fill
        self._checkpoint(req, until)
        req.prefix = until

    def cache_finished(self, req: Req, *, insert: bool = True) -> None:
        """Follows `release_kv_cache`."""
        owned = req.committed
        if insert:
            # Committed tokens only: the last sampled one was never computed.
            self._checkpoint(req, owned)
        self.free_row(req, req.protected, owned)
        if req.last_node is not None:
            self.unlock(req.last_node, req.lock)
        req.lock = None
        if not insert:
            self._free_states(req, kept=None, donated=False)

    def free_row(self, req: Req, start: int, end: int) -> None:
        if end <= start:
            return
        if self.windows is None:
            self.pool.free(req.row[start:end].copy())
            return
        low = min(max(self._dead_from(req), start), end)
        high = min(max(req.window_evicted, low), end)
        if high > low:
            self.windows.free_full(req.row[low:high].copy())
            pieces = [(start, low), (high, end)]
        else:
            pieces = [(start, end)]
        for first, last in pieces:
            if last > first:
                self.windows.free(req.row[first:last].copy())

    def _checkpoint(self, req: Req, until: int) -> None:
        """Insert the computed tokens of a request. Follows `checkpoint_into_tree`."""
        finished = req.finished
        count, state, kept = self._length_to_cache(req, until)
        key = self.key_of(req.tokens[:count]) if count > 0 else self.key_of(req.tokens[:0])
        # Before the insertion, so that the tree gets only windows that are alive.
        if self.windows is not None and not finished:
            self.let_windows_go(req, max(count - self._unpaired, 0) - 1)
        # `extra_buffer` without a tracked state: nothing that a later match could resume from.
        if count <= 0:
            self._after(req, state, kept, inserted=False)
            return
        if self.has_states and state is None:
            state = self._state_to_donate(req)
        self.by_request = req.id
        insertion = Insertion(
            self,
            key,
            req.row[: len(key)].copy(),
            req.extra_key,
            own=req.protected,
            # Trap (#31486): freed window slots count as alive, and are freed twice.
            gone=0 if self.rules.tree.inserts_gone_windows else req.window_evicted,
            inserted=req.inserted,
            state=state,
            priority=req.priority,
        )
        insertion.run()
        req.inserted = max(req.inserted, len(key))
        self._prefer_prompt(req, key)
        node = insertion.node
        # Trap: until 0.5.22 a match, which a short last window cuts.
        if not self.rules.tree.holds_what_it_inserts:
            node = self.match(key, req.extra_key).node
        slots = self.slots_to(node)
        if req.protected > len(slots) + self.shape.page - 1:
            # Of a retracted request its reply was inserted, too, before it is stripped.
            raise UpstreamAbort(
                "UnifiedRadixCache.checkpoint_into_tree",
                "assert: the request's protected prefix is longer than what it inserts",
            )
        # From here on the request uses the tree's slots: its own duplicates are free.
        req.write(req.protected, slots[req.protected :])
        if req.last_node is not None:
            self.unlock(req.last_node, req.lock)
        req.lock = self.lock(node)
        req.protected = len(slots)
        req.last_node = node
        branch = req.window_branch
        if self.has_windows and branch is not None and len(key) >= branch and not self.has_states:
            req.window_branch = None
            if not finished:
                self.let_windows_go(req, until - self._unpaired - 1)
        self._after(req, state, kept, inserted=not insertion.state_was_there)

    @property
    def _unpaired(self) -> int:
        """Tokens at the end without a key of their own (#34870)."""
        return int(self.shape.bigrams and not self.rules.tree.windows_go_by_tokens)

    def _length_to_cache(self, req: Req, until: int) -> tuple[int, int | None, int | None]:
        """The length to insert, and for a finished request the state to donate with its track.

        Follows `prepare_for_caching_req` of each part.
        """
        count, branch = until, req.window_branch
        if not self.has_states:
            # Up to where attention matched: a window ends there for the next prompt.
            if self.has_windows and branch is not None and branch > req.protected:
                count = min(branch + int(self.shape.bigrams), until)
            return count, None, None
        if not self.shape.extra_buffer:
            if req.finished and self.rules.tree.key_without_reply:
                count = min(count, req.num_prompt)
            return count, req.state if req.finished else None, None
        if not req.finished:
            return req.tracked or 0, None, None
        # The last track, or the one before where that is beyond what is committed.
        #
        # Follows `_select_finished_checkpoint`.
        length, kept = req.tracked or 0, req.kept_track
        # With overlap a step in flight may have tracked a state beyond what is committed.
        if length > until:
            before = req.tracked_before
            alone = not self.rules.scheduler.keeps_previous_track or len(req.tracks or ()) != 2
            if alone or before is None or before > until:
                return 0, None, None
            length, kept = before, 1 - (kept or 0)
        if self.rules.tree.key_without_reply:
            length = min(length, req.num_prompt)
        if req.tracks is None or kept is None:
            return 0, None, None
        return length, req.tracks[kept], kept

    def _state_to_donate(self, req: Req) -> int:
        """The state of a running request: a copy, or the track, with a new slot in turn.

        Follows `donate_mamba_ping_pong_slot`.
        """
        new = self.state_or_room("MambaComponent._alloc_mamba_slot")
        # The track is given away, and the request gets a new one: no copy.
        if self.shape.extra_buffer and req.tracks is not None and req.kept_track is not None:
            given, req.tracks[req.kept_track] = req.tracks[req.kept_track], new
            return given
        if req.state is not None:
            self.state_pool.copy(req.state, new)
        return new

    def _after(self, req: Req, state: int | None, kept: int | None, *, inserted: bool) -> None:
        """Follows `cleanup_after_caching_req` of the state's part."""
        if not self.has_states:
            return
        if req.finished:
            self._free_states(req, kept=kept if inserted else None, donated=inserted)
            return
        if state is not None and not inserted:
            self.state_pool.free(state)
        req.tracked = req.tracked_before = None

    def _free_states(self, req: Req, *, kept: int | None, donated: bool) -> None:
        if not self.has_states:
            return
        # With `no_buffer` the running state itself was donated; a track never is the running state.
        if self.shape.extra_buffer or not donated:
            if req.state is not None:
                self.state_pool.free(req.state)
            for number, slot in enumerate(req.tracks or ()):
                if number != kept:
                    self.state_pool.free(slot)
        req.state = req.tracks = None

    def _prefer_prompt(self, req: Req, key: Integers) -> None:
        """Split at the end of the prompt, whose part is evicted last (attention alone)."""
        if self.has_windows or self.has_states or not self.rules.tree.keeps_prompt_end:
            return
        # A repeated prompt is likelier than its reply: its part has a higher priority.
        prompt = self.key_of(req.tokens[: req.num_prompt])
        if 0 < len(prompt) < len(key):
            again = Insertion(
                self,
                prompt,
                req.row[: len(prompt)].copy(),
                req.extra_key,
                own=len(prompt),
                gone=0,
                inserted=len(prompt),
                state=None,
                priority=min(req.priority + 1, MOST_PRIORITY),
            )
            again.run()

    # -- the host ----------------------------------------------------------------------------------

    def watch_host(self, on_backup: Copy, on_load: Copy, on_action: OnHostAction) -> None:
        if self.host is not None:
            self.host.on_backup, self.host.on_load = on_backup, on_load
            self.host.on_action = on_action

    def flush(self) -> None:
        """Follows `flush_pending_backups`."""
        if self.host is not None:
            self.host.writes.submit()

    def held_by_host(self) -> Iterator[Node]:
        if self.host is not None:
            yield from (copy.node for copy in self.host.writing.values() if copy.is_held)
            yield from (copy.node for copy, _ in self.host.loaded.values())

    def host_free(self) -> dict[str, int]:
        if self.host is None:
            return {}
        pools = {name: self.host.pools.of(part) for part, name in HOST_NAMES.items()}
        return {name: pool.available for name, pool in pools.items() if pool is not None}

    def begin_loading(self) -> None:
        """Follows `ready_to_load_host_cache`."""
        if self.host is not None:
            self.host.loads.submit()

    def bring(self, req: Req) -> int:
        """Follows `init_load_back`."""
        return self.host.bring(req) if self.host is not None else 0

    def watch_storage(self, on_store: PageCopy, on_fetch: PageCopy) -> None:
        self.threads.on_store, self.threads.on_fetch = on_store, on_fetch

    def hang_on_host(self, parent: Node, key: Integers, extra: Hashable) -> Node:
        """Add a leaf that only the host holds."""
        node = self._hang(parent, key, NO_SLOTS, extra)
        node.value = None
        return node

    # -- to the storage ----------------------------------------------------------------------------

    def written(self, node: Node) -> None:
        """Queue a node of the host for the storage. Follows `write_backup_storage`."""
        if not self.stores or node.host_full is None:
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
        """Query the storage for the tokens of a request that the tree lacks. Follows
        `_prefetch_kvcache` and `prefetch_from_storage`.

        Tokens known to be stored up to some end are not queried, nor those beyond.
        """
        anchor, matched = match.best or match.node, match.length + match.on_host
        req.matched = matched
        # Pages from the storage are inserted on the host, below a node that the host holds.
        if anchor is not self.root and anchor.host_full is None:
            return
        self.retries.cancel(req.id)
        if self.waits.get(req.id, Wait()).expired or req.id in self.ongoing:
            return
        # A match ends below the last token, so its page would be fetched for nothing (#27291).
        limit = max(req.num_tokens - int(not self.rules.tree.fetches_last_page), 0)
        tokens, pair = req.tokens[matched:limit], int(self.shape.bigrams)
        assumed = known_until is not None and matched < known_until <= limit - pair
        if assumed and known_until is not None:
            tokens = tokens[: known_until - matched + pair]
        key = self.key_of(tokens).copy()
        assumed = assumed and matched + len(key) == known_until
        if len(key) < self.settings.threshold:
            return
        # Half of the host at most, or fetches would evict what others are about to load.
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
            since=self.polls,
        )
        self.threads.queries.put(fetch)
        self.ongoing[req.id] = Ongoing(fetch)
        self.occupied += len(key)

    def _parts(self, anchor: Node, pages: int) -> list[PartFetch]:
        """The windows and the state of a fetch. Follows `prepare_prefetch` of each part.

        Trap: less than a window below a node is fetched without one, and no match ends there.
        """
        parts, page = list[PartFetch](), self.shape.page
        window = -(-self.shape.window // page)
        # Trap: less than a window below a node is fetched without one, and no match ends there.
        # From the root on a short prefix is a whole window.
        if self.has_windows and (pages >= window or anchor is self.root):
            parts.append(PartFetch(PART, page, [b""] * min(pages, window)))
        if self.has_states:
            parts.append(PartFetch(STATE, 1, [b""]))
        return parts

    def storage_retries(self, waiting: Sequence[Req]) -> list[tuple[Req, int | None]]:
        """Follows `_process_storage_prefetch_retries`."""
        return self.retries.ready(waiting)

    def shrank(self, req: Req) -> bool:
        """True where a match is shorter than at the last query. Follows
        `_prefetch_after_device_hit_loss`.
        """
        matched = req.prefix + req.on_host
        if not req.matched or matched >= req.matched:
            return False
        if req.reissues < self.retries.attempts:
            return True
        req.matched = matched
        return False

    # -- polls -------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take the results of the threads. Follows `check_hicache_events` and
        `_drain_storage_control_queues_impl`.

        Slots returned by this poll are free after the next one.
        """
        if self.host is None:
            return
        if not self.stores:
            self.host.poll()
            return
        threads = self.threads
        self.polls += 1
        # Slots returned by this poll are free after the next one.
        threads.run()
        released = drained(threads.released)
        self.host.poll()
        for action, part, node in drained(threads.stored):
            self.host.notify(action, part, node)
        for fetch in drained(threads.found):
            self._take_hit(fetch)
        for ack in drained(threads.news):
            self._take_news(ack)
        for backup in drained(threads.saved):
            self.tier.release(backup.held)
        for part in HOST_NAMES:
            pool = self.tier.pools.of(part)
            if pool is not None:
                pool.free(joined([slots for owner, slots in released if owner == part]))

    def settle(self) -> None:
        while (self.stores and self.tier.writing) or self.threads.busy or self.threads.released:
            self.poll()

    def _take_hit(self, fetch: Fetch) -> None:
        """Allocate the host's slots for a hit that is long enough. Follows
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
        """Allocate the host's slots for a hit, or for as much of it as fits. Follows
        `allocate_storage_hit`.
        """
        pool, page = self.tier.pools.full, self.shape.page
        slots = self.tier.room(FULL, count)
        left = min(count, pool.available // page * page)
        if slots is None and left >= self.settings.threshold:
            slots = pool.alloc(left)
        return slots

    def _room_for_parts(self, parts: Sequence[PartFetch], hit: int) -> bool:
        """Allocate the host's slots for windows and state, all or none. Follows
        `_alloc_prefetch_aux_staging`.
        """
        taken: list[PartFetch] = []
        for part in parts:
            count = min(len(part.keys), hit // self.shape.page) * part.page
            if part.slots is not None or not count:
                continue
            part.slots = self.tier.room(part.part, count)
            if part.slots is None:
                # A window without its state, or the reverse, is no place to resume from.
                self.threads.release_parts(taken)
                for other in taken:
                    other.slots = None
                return False
            taken.append(part)
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
        """True once a request need not wait. Follows `check_prefetch_progress`."""
        info = self.ongoing.get(req.id)
        if info is None:
            return True
        fetch = info.fetch
        if not fetch.terminated:
            # Trap: with `best_effort` nobody waits, so a hit that a later poll reports is lost.
            if not self._may_end(fetch):
                return False
            if self.settings.policy == "timeout" and self.rules.tree.one_wait_per_request:
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
        """True if a fetch ends without its result. Follows `_can_terminate_prefetch`."""
        settings, page = self.settings, self.shape.page
        if settings.policy != "timeout":
            return settings.policy == "best_effort"
        per_page = page / 1024 * settings.timeout_per_ki_token
        if not self.rules.tree.one_wait_per_request:
            limit = settings.timeout_base + len(fetch.keys) * per_page
            return Wait(fetch.since, limit).over(self.polls)
        wait, pages = self.waits.get(fetch.request), len(fetch.key) // page
        landed = fetch.slots is not None and fetch.completed >= len(fetch.keys) * page
        if not landed and wait is not None and wait.over(self.polls):
            return True
        limit = settings.timeout_base + pages * per_page
        self.waits.setdefault(fetch.request, Wait(self.polls, limit))
        return False

    def _handle(self, info: Ongoing) -> None:
        """Insert the result of a fetch. Follows `_handle_prefetch_result`."""
        fetch, page, done = info.fetch, self.shape.page, info.fetch.completed
        slots = NO_SLOTS if info.slots is None else info.slots
        whole = done == len(fetch.keys) * page and all(
            fetch.hits.get(part.part, 0) == len(part.keys) for part in fetch.parts
        )
        fetch.handled = True
        # Attention's pages without their window and state: no match could end there.
        if fetch.parts and not whole:
            self._retire(fetch, slots[:done], fetch.parts_here)
            return
        self.by_request = fetch.request
        graft = Graft(self, self.tier, self.threads, fetch)
        made = graft.insert(slots[:done], fetch.keys[: done // page])
        # Inserted below a node that the host has dropped since: its pages have no prefix there.
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
        """Revoke a fetch. Follows `revoke_pending_prefetch`."""
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
        """Drop the fetch of an aborted request. Follows `release_aborted_request`."""
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
        counts = dict.fromkeys(HOST_NAMES.values(), 0)
        for fetch in self.moving:
            counts[HOST_NAMES[FULL]] += len(fetch.own)
            if not (fetch.handled and fetch.parts_done):
                for fetched in fetch.parts:
                    size = 0 if fetched.slots is None else len(fetched.slots)
                    counts[HOST_NAMES[fetched.part]] += size
        for part, slots in self.threads.released:
            counts[HOST_NAMES[part]] += len(slots)
        return counts


@dataclass(slots=True)
class Grafted:
    """The result of an insertion (`InsertResult`)."""

    known: int = 0  # prefix_len: tokens whose slots are not needed
    total: int = 0
    node: Node | None = None  # inserted_host_node
    dropped: bool = False


@dataclass(slots=True)
class Graft:
    """The insertion of a fetch into the tree."""

    tree: UnifiedRadixCache
    host: HostTier
    threads: Threads
    fetch: Fetch

    def insert(self, slots: Integers, keys: list[bytes]) -> Grafted:
        """Insert the attention slots of a fetch. Follows `insert_host`."""
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
            # The device holds this node and the host does not: the fetched slots become its copy.
            if not back and node.host_full is None:
                node.host_full = slots[:length]
                self.tree.update_leaf(node)
                if node.parent is not None:
                    self.tree.update_leaf(node.parent)
                self.host.track_twice(node)
                self.host.notify("fetched", FULL, node)
                refilled = True
            elif not back:
                # With write-through a child has a copy only if its parent has: upstream asserts it.
                if refilled:
                    where = "UnifiedTreeCore.insert_host"
                    raise UpstreamAbort(where, "assert: write-through host-prefix invariant broken")
                made.known += length
            key, slots, keys = key[length:], slots[length:], keys[length // page :]
            walked += length
        # `write_back`: the device's nodes need no copy, so their slots are not used.
        if back:
            made.known = walked
        if not len(key):
            made.node = node if made.total and node.host_full is not None else None
        elif node is not tree.root and node.host_full is None and not back:
            made.dropped = True
        else:
            made.node = self._hang(node, key, slots, keys)
        return made

    def _hang(self, parent: Node, key: Integers, slots: Integers, keys: list[bytes]) -> Node:
        node = self.tree.hang_on_host(parent, key, self.fetch.extra)
        node.priority, node.hashes, node.host_full = parent.priority, keys, slots
        self.tree.update_leaf(node)
        self.tree.update_leaf(parent)
        self.host.notify("fetched", FULL, node)
        return node

    def commit(self, made: Grafted) -> None:
        """Commit the windows and the state of a fetch. Follows `commit_hicache_transfers`."""
        for part in self.fetch.parts:
            if part.part == PART:
                self._commit_window(part, made)
            else:
                self._commit_state(part, made)

    def _commit_state(self, each: PartFetch, made: Grafted) -> None:
        node = made.node
        loaded = self.fetch.hits.get(STATE, 0) >= 1
        if each.slots is None or node is None or not loaded or node.host_state is not None:
            self.threads.release(STATE, each.slots)
            return
        node.host_state = int(each.slots[0])
        if node.state is None:
            self.host.left(node, STATE)
        self.host.notify("fetched", STATE, node)

    def _commit_window(self, each: PartFetch, made: Grafted) -> None:
        """Commit a window, whole or not at all. Follows `_commit_prefetch`.

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
                node.host_window = own
                if not node.window:
                    self.host.left(node, PART)
                self.tree.update_leaf(node)
                if node.parent is not None:
                    self.tree.update_leaf(node.parent)
                self.host.notify("fetched", PART, node)
            else:
                self.threads.release(PART, own)
            at, node = first, above
        if at > start:
            self.threads.release(PART, slots[: at - start])
