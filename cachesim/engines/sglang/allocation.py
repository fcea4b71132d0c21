"""Slots for what the next step computes, with room made for them. Follows `mem_cache/common.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cachesim.engines.sglang.pools import TokenPool, WindowPool
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.tree import Tree
from cachesim.errors import UpstreamAbort


@dataclass(slots=True)
class Allocation:
    """Hands out slots; where there are too few, the tree gives up some (`mem_cache.common`)."""

    tree: Tree
    pool: TokenPool
    rules: Rules

    def make_room(self, count: int) -> None:
        """Follows `evict_from_tree_cache`."""
        pool, whole = self.pool, self.rules.scheduler.evicts == "whole-demand"
        if isinstance(pool, WindowPool):
            full = max(0, count - pool.available)
            windows = max(0, count - pool.windows.available)
            if full or windows:
                self.tree.evict(tokens=full, window=windows)
        elif pool.available < count:
            self.tree.evict(tokens=count if whole else count - pool.available)

    def available(self) -> int:
        """Free slots, of both pools."""
        if isinstance(self.pool, WindowPool):
            return min(self.pool.available, self.pool.windows.available)
        return self.pool.available

    def can_decode(self, reqs: Sequence[Req]) -> bool:
        """Room for one more token of each. Follows `check_decode_mem`."""
        page = self.pool.page
        needed = sum(1 for req in reqs if req.committed % page == 0) * page
        self.make_room(needed)
        return self.available() >= needed

    def for_extend(self, reqs: Sequence[Req], longest: int) -> None:
        """Rows, states and slots for a prefill. Follows `alloc_for_extend`."""
        self._rows(reqs, longest)
        total, page = sum(req.extend for req in reqs), self.pool.page
        if page == 1:
            self.make_room(total)
            slots = self.pool.alloc(total)
        else:
            most = total + len(reqs) * page
            self.make_room(most)
            counted = self.rules.scheduler.window_pages_are_counted
            fits = counted or not isinstance(self.pool, WindowPool) or most <= self.available()
            slots = self.pool.alloc_extend([self._span(req) for req in reqs]) if fits else None
        if slots is None:
            where = "alloc_for_extend"
            raise UpstreamAbort(where, "RuntimeError: Prefill out of memory")
        at = 0
        for req in reqs:
            req.write(req.prefix, slots[at : at + req.extend])
            at += req.extend
            req.committed = req.fill

    def _span(self, req: Req) -> tuple[int, int, int]:
        last = int(req.row[req.prefix - 1]) if req.prefix else -1
        return req.prefix, req.fill, last

    def for_decode(self, reqs: Sequence[Req]) -> None:
        """Allocate a slot for each request. Follows `alloc_for_decode`."""
        page = self.pool.page
        self.make_room(len(reqs) * page)
        if page == 1:
            slots = self.pool.alloc(len(reqs))
        else:
            spans = [(r.committed, r.committed + 1, int(r.row[r.committed - 1])) for r in reqs]
            slots = self.pool.alloc_extend(spans)
        if slots is None:
            where = "alloc_for_decode"
            raise UpstreamAbort(where, "RuntimeError: Decode out of memory")
        for req, slot in zip(reqs, slots, strict=True):
            req.row[req.committed] = slot
            req.committed += 1

    def let_windows_go(self, reqs: Sequence[Req]) -> None:
        """Window slots that nobody will look at any more are freed. Follows `maybe_evict_swa`."""
        if not isinstance(self.pool, WindowPool):
            return
        window, steps = self.tree.shape.window, self.rules.scheduler.window_steps
        self.pool.begin_group()
        for req in reqs:
            length = req.num_tokens - 1
            if not steps:
                if req.decode_steps % window == 1:
                    self._let_go(req, self.pool, length - window)
            elif req.decode_steps >= 1 and length - window >= req.window_evicted + steps:
                self.tree.let_windows_go(req, length)
        self.pool.end_group()

    def _let_go(self, req: Req, pool: WindowPool, until: int) -> None:
        """Follows `_evict_swa` of 0.5.9."""
        start = max(req.window_evicted, req.protected)
        end = max(start, until) // pool.page * pool.page
        req.window_evicted = start
        if end > start:
            pool.free_window(req.row[start:end].copy())
            req.window_evicted = end

    def _rows(self, reqs: Sequence[Req], longest: int) -> None:
        """A row for each request, and its states. Follows `alloc_req_slots`."""
        if self.tree.has_states:
            pool, per_request = self.tree.state_pool, self.rules.scheduler.states_per_request
            if per_request:
                needed = len(reqs) * per_request
            else:
                tracks = 2 if self.tree.shape.extra_buffer else 0
                needed = sum((r.state is None) + (tracks if r.tracks is None else 0) for r in reqs)
            if pool.available < needed:
                self.tree.evict(states=needed - pool.available)
        for req in reqs:
            if not req.has_row:
                req.row = np.zeros(min(longest, len(req.tokens)) + 1, np.int64)
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
        if self.tree.shape.extra_buffer and req.tracks is None:
            if pool.available < 2:
                raise UpstreamAbort(where, "assert: Not enough space for mamba ping pong idx")
            tracks = [pool.alloc(), pool.alloc()]
            req.tracks = [slot for slot in tracks if slot is not None]
            req.next_track, req.kept_track = 0, 1
            req.tracked_before = None
