"""One tree for every kind of model. Follows `UnifiedRadixCache` over `UnifiedTreeCore` of 0.5.23.

A node has parts: attention's slots, the window's, a state. A match is legal where every part says
so. Losing one part takes those of less worth on the same node with it (attention, window, state);
a leaf goes with all its parts. A leaf may stay without a state.
"""

from collections.abc import Hashable, Iterator
from math import inf

from cachesim.engines.sglang.node import FULL, PART, STATE, LruList, Node
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.tree import Match, joined, matching
from cachesim.engines.sglang.unified_evict import EvictingTree
from cachesim.engines.sglang.unified_host import HostTier
from cachesim.engines.sglang.unified_insert import Insertion
from cachesim.units import Integers


class UnifiedRadixCache(EvictingTree):
    """Matches, locks, and what requests leave (`UnifiedRadixCache`)."""

    def _begin(self) -> None:
        super()._begin()
        self.windows = self.pool if isinstance(self.pool, WindowPool) else None
        self.has_windows = self.windows is not None
        self.has_states = self.states is not None
        self.window_lru = LruList(PART)
        self.state_lru = LruList(STATE)
        self._marks = 0
        if self.shape.host is not None:
            self.host = HostTier(self, self.shape.host)

    # -- match -------------------------------------------------------------------------------------

    def match(self, key: Integers, extra: Hashable) -> Match:
        """The deepest node that every part can go on from. Follows `_match_prefix_helper`."""
        if not len(key):
            return Match(joined([]), self.root)
        page, node, found, attention = self.shape.page, self.root, [], 0
        best, usable, alive, tiered = node, 0, inf, self.host is not None
        beyond, reach, there = node, 0, inf  # the same with what is on the host only
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None or (child.value is None and child.host_full is None):
                break
            length = matching(child, key, page)
            attention += length
            partly = length < len(child)
            node = self.split(child, length, extra) if partly else child
            if node.value is not None:
                found.append(node.slots)
            alive = alive + len(node) if node.window else 0.0
            if node.value is not None and self._legal(alive, has_state=node.state is not None):
                best, usable = node, len(found)
            if tiered:
                there = there + len(node) if node.window or node.host_window is not None else 0.0
                has_state = node.state is not None or node.host_state is not None
                if self._legal(there, has_state=has_state):
                    beyond, reach = node, attention
            if partly:
                break
            key = key[length:]
        slots = joined(found[:usable])
        if not tiered:
            beyond, reach = best, len(slots)
        self._used(beyond)
        on_host = self.host.tokens_between(best, beyond) if self.host is not None else 0
        boundary = len(slots) + on_host
        return Match(
            slots,
            best,
            attention,
            self._beyond(attention, self.shape.grid, boundary) if self.has_states else None,
            self._beyond(attention, page, boundary) if self.has_windows else None,
            best=beyond,
            reach=reach,
            on_host=on_host,
            window_on_host=self.host.window_tokens(beyond) if self.host is not None else 0,
            state_on_host=beyond.state is None and beyond.host_state is not None,
        )

    def _legal(self, alive: float, *, has_state: bool) -> bool:
        window_fits = alive >= self.shape.window or self.rules.tree.matches_without_window
        if self.has_windows and not window_fits:
            return False
        return not self.has_states or has_state

    @staticmethod
    def _beyond(attention: int, grid: int, usable: int) -> int | None:
        aligned = attention // grid * grid
        return aligned if aligned > usable else None

    def _used(self, best: Node) -> None:
        """Follows `_match_post_processor`: only what was used counts as used."""
        if self.has_windows:
            self.window_lru.use_path(self.near(best))
        if self.has_states:
            if self.rules.tree.uses_path_states:
                self.state_lru.use_path(best.path())
            elif best in self.state_lru:
                self.state_lru.use(best)
        self._used_path(best)

    def near(self, node: Node) -> Iterator[Node]:
        """A node and those above it, as far as a window and a page reach."""
        reach, passed = self.shape.window + self.shape.page, 0
        for each in node.path():
            if passed >= reach:
                return
            yield each
            passed += len(each)

    def take_state(self, req: Req, node: Node) -> None:
        """A slot for the state that is copied when the request runs (`cow_mamba`)."""
        if node.state is None:
            return
        if req.state is None:
            slot = self.state_pool.alloc()
            if slot is None:
                held = self.lock(node)
                slot = self.state_or_room("MambaComponent.finalize_match_result_in_cache")
                self.unlock(node, held)
            req.state = slot
        req.state_source = node.state

    # -- locks -------------------------------------------------------------------------------------

    def lock(self, node: Node) -> int:
        for each in node.path():
            if not each.locks[FULL] and each.value is not None:
                self.evictable[FULL] -= len(each)
            each.locks[FULL] += 1
        self.leaves.difference_update(node.path())
        mark = self._lock_window(node) if self.has_windows else 0
        if self.has_states and node is not self.root:
            if not node.locks[STATE] and node.state is not None:
                self.evictable[STATE] -= 1
            node.locks[STATE] += 1
        if self.host is not None:
            self.host.update_leaf(node)
        return mark

    def _lock_window(self, node: Node) -> int:
        covered, mark = 0, 0
        for each in node.path():
            if covered >= self.shape.window:
                break
            if not each.locks[PART] and each.window:
                self.evictable[PART] -= len(each)
            each.locks[PART] += 1
            covered += len(each)
            if covered >= self.shape.window:
                if not each.window_mark:
                    self._marks += 1
                    each.window_mark = self._marks
                mark = each.window_mark
        return mark

    def unlock(self, node: Node, held: object = None) -> None:
        if self.has_states and node is not self.root:
            if node.locks[STATE] == 1 and node.state is not None:
                self.evictable[STATE] += 1
            node.locks[STATE] -= 1
        if self.has_windows:
            for each in node.path():
                if each.locks[PART] == 1 and each.window:
                    self.evictable[PART] += len(each)
                each.locks[PART] -= 1
                self.update_leaf(each)
                if held and each.window_mark == held:
                    break
        for each in node.path():
            if each.locks[FULL] == 1 and each.value is not None:
                self.evictable[FULL] += len(each)
            each.locks[FULL] -= 1
            if not each.locks[FULL]:
                self.update_leaf(each)

    # -- requests ----------------------------------------------------------------------------------

    def track_interval(self, interval: int) -> int:
        """A saved position lies on the grid as well. Follows `mamba_track_grid`."""
        grid, wanted = self.shape.grid, interval
        while interval % grid:
            interval += wanted
        return interval

    def let_windows_go(self, req: Req, length: int) -> None:
        """Free what lies before the window. Follows `free_swa_out_of_window_slots`.

        [ protected .... | gone already | .......... | one window, whole pages ) length
                                         ^ freed now ^
        """
        page, window = self.shape.page, self.shape.window
        if self.windows is None or not req.has_row or length - window < req.window_evicted + 1:
            return
        start = max(req.window_evicted, self._dead_from(req))
        least = max(window, page)
        if not self.rules.tree.windows_go_by_tokens:
            least = -(-least // page) * page
        until = length - least
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
            self._checkpoint(req, owned)
        self._free_row(req, req.protected, owned)
        if req.last_node is not None:
            self.unlock(req.last_node, req.lock)
        req.lock = None
        if not insert:
            self._free_states(req, kept=None, donated=False)

    def _free_row(self, req: Req, start: int, end: int) -> None:
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
        """Put what a request has computed into the tree. Follows `checkpoint_into_tree`."""
        finished = req.finished
        count, state, kept = self._length_to_cache(req, until)
        key = self.key_of(req.tokens[:count]) if count > 0 else self.key_of(req.tokens[:0])
        if self.windows is not None and not finished:
            self.let_windows_go(req, max(count - self._unpaired, 0) - 1)
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
            gone=0 if self.rules.tree.inserts_gone_windows else req.window_evicted,
            inserted=req.inserted,
            state=state,
            priority=req.priority,
        )
        insertion.run()
        req.inserted = max(req.inserted, len(key))
        self._prefer_prompt(req, key)
        node = insertion.node
        if self.rules.tree.windows_go_by_tokens and not finished:
            node = self.match(key, req.extra_key).node  # the match that followed an insertion
        slots = self.slots_to(node)
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
        """How many tokens at the end have no key of their own (#34870)."""
        return int(self.shape.bigrams and not self.rules.tree.windows_go_by_tokens)

    def _length_to_cache(self, req: Req, until: int) -> tuple[int, int | None, int | None]:
        """How much goes in, with the state to donate and its track where a request is done.

        Follows `prepare_for_caching_req` of each part.
        """
        count, branch = until, req.window_branch
        if not self.has_states:
            if self.has_windows and branch is not None and branch > req.protected:
                count = min(branch + int(self.shape.bigrams), until)
            return count, None, None
        if not self.shape.extra_buffer:
            if req.finished and self.rules.tree.key_without_reply:
                count = min(count, req.num_prompt)
            return count, req.state if req.finished else None, None
        if not req.finished:
            return req.tracked or 0, None, None
        return self._track_to_donate(req, until)

    def _track_to_donate(self, req: Req, until: int) -> tuple[int, int | None, int | None]:
        """The last track, or the one before where that lies beyond what is committed.

        Follows `_select_finished_checkpoint`.
        """
        length, kept = req.tracked or 0, req.kept_track
        if length > until:
            before = req.tracked_before
            if not self.rules.scheduler.keeps_previous_track or before is None or before > until:
                return 0, None, None
            length, kept = before, 1 - (kept or 0)
        if self.rules.tree.key_without_reply:
            length = min(length, req.num_prompt)
        if req.tracks is None or kept is None:
            return 0, None, None
        return length, req.tracks[kept], kept

    def _state_to_donate(self, req: Req) -> int:
        """What a running request gives: a copy of its state, or the track, with a new slot in turn.

        Follows `donate_mamba_ping_pong_slot`.
        """
        new = self.state_or_room("MambaComponent._alloc_mamba_slot")
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
        if self.shape.extra_buffer or not donated:
            if req.state is not None:
                self.state_pool.free(req.state)
            for number, slot in enumerate(req.tracks or ()):
                if number != kept:
                    self.state_pool.free(slot)
        req.state = req.tracks = None

    def _prefer_prompt(self, req: Req, key: Integers) -> None:
        """Attention alone: the node ends where the prompt does, and the prompt's part goes last."""
        if self.has_windows or self.has_states or not self.rules.tree.keeps_prompt_end:
            return
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
                priority=req.priority + 1,
            )
            again.run()
