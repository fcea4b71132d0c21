"""Slots, rows and states of requests, from pools that the tree makes room in.

Follows `mem_cache.common` and `mem_cache.allocation`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cachesim.engines.sglang import sessions
from cachesim.engines.sglang.pools import TokenPool, WindowPool
from cachesim.engines.sglang.request import Drafts, Req
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.tree import Tree
from cachesim.errors import UpstreamAbort


@dataclass(slots=True)
class Allocation:
    """Allocator of slots; evicts from the tree where too few are free (`mem_cache.common`)."""

    tree: Tree
    pool: TokenPool
    rules: Rules
    drafts: Drafts | None = None
    track_slots: int = 2

    def make_room(self, count: int) -> None:
        """Follows `evict_from_tree_cache`."""
        pool, whole = self.pool, self.rules.scheduler.evicts == "whole-demand"
        if isinstance(pool, WindowPool):
            # Each pool by its own shortage: evicting for one may leave the other as it is.
            full = max(0, count - pool.available)
            windows = max(0, count - pool.windows.available)
            if full or windows:
                self.tree.evict(tokens=full, window=windows)
        # 0.5.9 evicts as many as are wanted, although some are free.
        elif pool.available < count:
            self.tree.evict(tokens=count if whole else count - pool.available)

    def available(self) -> int:
        """Free slots, of both pools."""
        if isinstance(self.pool, WindowPool):
            return min(self.pool.available, self.pool.windows.available)
        return self.pool.available

    def can_decode(self, reqs: Sequence[Req]) -> bool:
        """True if there is room for one more token of each request. Follows `check_decode_mem`."""
        page = self.pool.page
        # Only a request at a page's end takes a new page.
        needed = sum(1 for req in reqs if req.committed % page == 0) * page
        if self.drafts is not None:
            kept = self.rules.scheduler.keeps_reserve
            each = self.drafts.in_pages(page)
            needed = sum(self._missing(req) if kept else each for req in reqs)
        self.make_room(needed)
        return self.available() >= needed

    @property
    def reserve(self) -> int:
        """Slots beyond the committed ones of a request (`get_alloc_reserve_per_decode`)."""
        return 0 if self.drafts is None else 2 * self.drafts.per_decode(self.pool.page)

    def _missing(self, req: Req) -> int:
        """Slots of the pages that a request lacks for its reserve. Follows
        `_new_tokens_required_next_decode_spec_v2`.
        """
        page = self.pool.page
        end = max(req.allocated, req.committed + self.reserve)
        return -(-end // page) * page - -(-req.allocated // page) * page

    def for_extend(self, reqs: Sequence[Req], longest: int) -> None:
        """Allocate rows, states and slots for a prefill. Follows `alloc_for_extend`."""
        self._rows(reqs, longest)
        if not self._write([(req, req.prefix, req.fill) for req in reqs]):
            where = "alloc_for_extend"
            raise UpstreamAbort(where, "RuntimeError: Prefill out of memory")
        for req in reqs:
            # Counted when its slots are taken, before the chunk is computed.
            req.committed = req.allocated = req.fill
            sessions.take(req)

    def _write(self, spans: Sequence[tuple[Req, int, int]]) -> bool:
        """Allocate slots for parts of rows; False where there are too few. Follows
        `alloc_token_slots` and `alloc_paged_token_slots_extend`.
        """
        total, page = sum(end - start for _, start, end in spans), self.pool.page
        if page == 1:
            self.make_room(total)
            slots = self.pool.alloc(total)
        else:
            # Upstream's bound: each request may begin one more page than its tokens fill.
            most = total + len(spans) * page
            self.make_room(most)
            counted = self.rules.scheduler.window_pages_are_counted
            fits = counted or not isinstance(self.pool, WindowPool) or most <= self.available()
            lasts = [(s, e, int(req.row[s - 1]) if s else -1) for req, s, e in spans]
            slots = self.pool.alloc_extend(lasts) if fits else None
        if slots is None:
            return False
        for req, start, end in spans:
            req.write(start, slots[: end - start])
            slots = slots[end - start :]
        return True

    def for_verification(self, reqs: Sequence[Req], drafts: Drafts) -> None:
        """Allocate a step's slots; those of its drafts were allocated before, and are free again.

        Follows `_draft_preprocess_decode` and `prepare_for_verify` of 0.5.9.
        """
        page = self.pool.page
        ends = [req.committed + drafts.branches(req.committed, page) for req in reqs]
        count = sum(end - req.committed for req, end in zip(reqs, ends, strict=True))
        most = count + (len(reqs) * page if page > 1 else 0)
        self.make_room(most)
        pages = (-(-e // page) - -(-r.committed // page) for r, e in zip(reqs, ends, strict=True))
        least = most if isinstance(self.pool, WindowPool) else sum(pages) * page
        spans = [(req, req.committed, req.committed + drafts.tokens) for req in reqs]
        if self.available() < least or not self._write(spans):
            where = "EagleVerifyInput.prepare_for_verify"
            raise UpstreamAbort(where, "RuntimeError: Out of memory")
        for req, _, end in spans:
            req.allocated = end

    def for_drafts(self, reqs: Sequence[Req]) -> None:
        """Allocate what each request lacks of its reserve, in whole pages. Follows
        `eagle_prepare_for_decode`.
        """
        page, spans = self.pool.page, []
        for req in reqs:
            end = max(req.allocated, -(-(req.committed + self.reserve) // page) * page)
            spans.append((req, req.allocated, end))
        if any(end > start for _, start, end in spans) and not self._write(spans):
            where = "alloc_for_spec_decode"
            raise UpstreamAbort(where, "RuntimeError: Out of memory")
        for req, _, end in spans:
            req.allocated = end

    def free_reserve(self, req: Req, start: int) -> None:
        """Free the slots beyond those that a request owns. Follows
        `_release_overallocated_kv_indices`.
        """
        # The last page is shared with committed tokens.
        start = -(-start // self.pool.page) * self.pool.page
        if start < req.allocated:
            self.pool.free(req.row[start : req.allocated].copy())

    def for_decode(self, reqs: Sequence[Req], steps: int = 1) -> None:
        """Allocate slots for a step of each request, or several of one. Follows
        `alloc_for_decode`.
        """
        page = self.pool.page
        self.make_room(len(reqs) * page)
        if page == 1:
            slots = self.pool.alloc(len(reqs) * steps)
        else:
            spans = [(r.committed, r.committed + steps, int(r.row[r.committed - 1])) for r in reqs]
            slots = self.pool.alloc_extend(spans)
        if slots is None:
            where = "alloc_for_decode"
            raise UpstreamAbort(where, "RuntimeError: Decode out of memory")
        for at, req in enumerate(reqs):
            end = req.committed + steps
            req.row[req.committed : end] = slots[at * steps : (at + 1) * steps]
            req.committed = req.allocated = end

    def let_windows_go(self, reqs: Sequence[Req]) -> None:
        """Free window slots outside the windows of all requests. Follows `maybe_evict_swa`."""
        if not isinstance(self.pool, WindowPool):
            return
        window, steps = self.tree.shape.window, self.rules.scheduler.window_steps
        self.pool.begin_group()
        for req in reqs:
            length = req.num_tokens - 1
            # 0.5.9: once for each window that is decoded, so up to two windows are held.
            if not steps:
                # The first decode frees what the prefill left.
                if req.decode_steps % window == 1:
                    # Follows `_evict_swa` of 0.5.9.
                    pool = self.pool
                    until = length - window
                    start = max(req.window_evicted, req.protected)
                    end = max(start, until) // pool.page * pool.page
                    req.window_evicted = start
                    if end > start:
                        pool.free_window(req.row[start:end].copy())
                        req.window_evicted = end
            elif req.decode_steps >= 1 and length - window >= req.window_evicted + steps:
                self.tree.let_windows_go(req, length)
        self.pool.end_group()

    def _rows(self, reqs: Sequence[Req], longest: int) -> None:
        """Allocate a row for each request, and its states. Follows `alloc_req_slots`."""
        if self.tree.has_states:
            pool, per_request = self.tree.state_pool, self.rules.scheduler.states_per_request
            # Trap: 0.5.9 makes room for three states, whatever the request holds already.
            if per_request:
                needed = len(reqs) * per_request
            else:
                tracks = self.track_slots if self.tree.shape.extra_buffer else 0
                needed = sum((r.state is None) + (tracks if r.tracks is None else 0) for r in reqs)
            if pool.available < needed:
                self.tree.evict(states=needed - pool.available)
        for req in reqs:
            room = 1 + self.reserve + self.pool.page
            missing = min(longest, len(req.tokens)) + room - len(req.row)
            if missing > 0:  # or lent by a session
                req.row = np.concatenate((req.row, np.zeros(missing, np.int64)))
            if not req.has_row:
                req.has_row = True
                req.write(0, req.shared)
            if self.tree.has_states:
                self._states(req)

    def _states(self, req: Req) -> None:
        pool = self.tree.state_pool
        where = "HybridReqToTokenPool.alloc"
        if req.state is None:
            req.state = pool.alloc()
            if req.state is None:
                raise UpstreamAbort(where, "assert: Not enough space for mamba cache")
        # Written in turn: one can be given to the tree while the other is written.
        if self.tree.shape.extra_buffer and req.tracks is None:
            count = self.track_slots
            if pool.available < count:
                raise UpstreamAbort(where, "assert: Not enough space for mamba ping pong idx")
            tracks = [pool.alloc() for _ in range(count)]
            req.tracks = [slot for slot in tracks if slot is not None]
            req.next_track, req.kept_track = 0, count - 1
            req.tracked_before = None
