"""Composition of the next prefill: the queue's order, and the admission of requests."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal, TypeAlias

import numpy as np

from cachesim.engines.sglang import sessions
from cachesim.engines.sglang.node import FULL, PART
from cachesim.engines.sglang.pools import TokenPool, WindowPool
from cachesim.engines.sglang.request import Batch, Limits, Req
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.tree import Match, Tree
from cachesim.errors import UpstreamAbort

Verdict: TypeAlias = Literal["continue", "no-token", "other"]
Chosen: TypeAlias = tuple[int, int, bool]
"""Tokens of a chunk, how many the request is promised beyond it, whether more is left to read."""

CLIP: Final = 4096
"""`SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`: no request is counted with more new tokens."""


@dataclass(slots=True)
class Adder:
    """The admission of one pass over the queue (`PrefillAdder`)."""

    tree: Tree
    pool: TokenPool
    rules: Rules
    running: Batch
    ratio: float  # new_token_ratio
    input_left: int  # rem_input_tokens
    chunk_left: int | None  # rem_chunk_tokens
    ignores_eos: bool = False
    most: int | None = None  # prefill_max_requests
    mixed: int = 0  # tokens of those that decode beside the prefill
    one_chunked: bool = False  # has_chunked_req, where the policy tracks one chunked request
    taken: list[Req] = field(default_factory=list)
    preempted: list[Req] = field(default_factory=list)  # preempt_list
    new_chunked: Req | None = None
    total_offset: float = 0.0
    current_offset: float = 0.0
    window_offset: int = 0

    def __post_init__(self) -> None:
        self.input_left -= self.mixed
        if self.chunk_left is not None:
            self.chunk_left -= self.mixed
        self.total_offset += self.mixed
        self.current_offset += self.mixed
        # Running requests will take more slots: a share of what they may still generate, since most
        # end earlier.
        self.total_offset += sum(map(self._promised, self.running.reqs))

    def _promised(self, req: Req) -> float:
        ratio = self.ratio
        # Without an end of text all of them are generated.
        if self.ignores_eos and self.rules.scheduler.ignoring_eos_counts_in_full:
            ratio = 1.0
        return min(req.max_new_tokens - req.num_output, CLIP) * ratio

    # -- how much there is -------------------------------------------------------------------------

    def ceil(self, tokens: int) -> int:
        """Round up to a whole page."""
        page = self.pool.page
        return -(-tokens // page) * page

    @property
    def page_extra(self) -> int:
        """Tokens reserved for each request beside its own."""
        return self.pool.page if self.rules.scheduler.reserves_a_page else 0

    def _available(self) -> float:
        pool, tree = self.pool, self.tree
        # Evictable slots count as free, so a full tree never blocks a prefill.
        full = pool.available + tree.evictable[FULL]
        if isinstance(pool, WindowPool) and not self.rules.scheduler.windows_have_their_budget:
            return min(full, pool.windows.available + tree.evictable[PART])
        return full

    @property
    def total_left(self) -> float:
        """`rem_total_tokens`: with all that may still be generated."""
        return self._available() - self.total_offset

    @property
    def current_left(self) -> float:
        """`cur_rem_tokens`: with what is computed now."""
        return self._available() - self.current_offset

    @property
    def own_windows(self) -> WindowPool | None:
        """The window pool, where it has a budget of its own."""
        if isinstance(self.pool, WindowPool) and self.rules.scheduler.windows_have_their_budget:
            return self.pool
        return None

    def _window_left(self, pool: WindowPool) -> int:
        return pool.windows.available + self.tree.evictable[PART] - self.window_offset

    def _window_tokens(self, extend: int, new: int, limit: int | None, on_host: int = 0) -> int:
        """The maximum of window slots of a request. Follows `estimate_swa_kv_tokens`."""
        window, page = self.tree.shape.window, self.pool.page
        # While a chunk is computed all of its tokens have window slots; afterwards one window.
        allocated = extend if limit is None else min(extend, limit)
        loaded = self.ceil(on_host)
        return max(allocated - window, 0) + min(extend + new, window) + page + loaded

    def state(self) -> Verdict:
        """The verdict on admitting more. Follows `budget_state`."""
        pool = self.own_windows
        if self.total_left <= 0 or self.current_left <= 0:
            return "no-token"
        if pool is not None and self._window_left(pool) <= 0:
            return "no-token"
        if self.input_left <= 0 or (self.chunk_left is not None and self.chunk_left <= 0):
            return "other"
        return "continue"

    def _reserve(self, extend: int, new: int) -> None:
        """Follows `_update_prefill_budget`."""
        limit = self.chunk_left
        extend = self.ceil(extend)
        immediate = extend + self.page_extra
        self.total_offset += immediate + new
        self.current_offset += immediate
        if self.own_windows is not None:
            self.window_offset += self._window_tokens(extend, new, limit)
        self.input_left -= extend
        if self.chunk_left is not None:
            self.chunk_left -= extend

    # -- what is taken -----------------------------------------------------------------------------

    def add_chunked(self, req: Req, most: int | None) -> Req | None:
        """Add the next chunk of a prompt; return the request if more is left.

        Follows `add_chunked_req`.
        """
        limit = self.chunk_left or 0
        left = min(limit, int(self.total_left))
        pool = self.own_windows
        if pool is not None:
            left = min(left, self._window_left(pool) - self.pool.page)
            # No window slot: it waits with what it has.
            if left <= 0:
                return req
        elif left <= 0:
            # Trap: without room the chunk is formed all the same, and the allocation must evict.
            left = limit
        if most is not None:
            left = min(left, most)
        wanted = req.num_tokens - req.prefix
        cut = wanted > left
        req.extend = min(wanted, left)
        self.taken.append(req)
        self._reserve(req.extend, 0 if cut else min(req.max_new_tokens, CLIP))
        return req if cut else None

    def add(self, req: Req) -> Verdict:
        """Admit a waiting request, whole or cut to the rest of the chunk. Follows `add_one_req`."""
        if self.most is not None and len(self.taken) >= self.most:
            return "other"
        new = min(max(req.max_new_tokens - req.num_output, 0), CLIP)
        extend = req.num_tokens - req.prefix
        total = extend + new + self.page_extra
        node = req.last_node or self.tree.root
        if not self.rules.scheduler.reserves_a_page:  # 0.5.9 looks before it holds the node too
            if total >= self.total_left:
                return "no-token"
            if self.ceil(extend - req.on_host) >= self.input_left and self.taken:
                return "other"
        # Locked while it is judged: the eviction for a load could take its own prefix.
        held = self.tree.lock(node)
        try:
            verdict = self._admit(req, total, new)
        finally:
            self.tree.unlock(node, held)
        return verdict

    def _admit(self, req: Req, total: int, new: int) -> Verdict:
        wants = bool(req.on_host or req.window_on_host or req.state_on_host)
        if self.rules.scheduler.loads_before_it_fits:
            if total >= self.total_left:
                return "no-token"
            if wants:
                self._load(req)
            wants = False
        shape = self._select(req, total, new, on_host=wants)
        if not isinstance(shape, str) and wants:
            came = self._load(req)
            # The load brought more than attention's match on the host: less is left to compute.
            if came > req.on_host:
                shape = self._shrunk(req, shape)
            elif came < req.on_host:
                # The load failed: the request is judged again by what the device has.
                shape = self._select(req, total, new, on_host=False)
        if isinstance(shape, str):
            return shape
        extend, promised, is_cut = shape
        if is_cut:
            self.new_chunked = req
        req.extend = extend
        self.taken.append(req)
        node = req.last_node or self.tree.root
        req.lock = self.tree.lock(node)
        self._reserve(extend, promised)
        return self.state()

    def _load(self, req: Req) -> int:
        came = self.tree.bring(req)
        req.prefix += came
        req.protected = req.prefix
        return came

    def _select(self, req: Req, total: int, new: int, *, on_host: bool) -> Chosen | Verdict:
        """Select the tokens of a request for this pass. Follows `_select_prefill_admission`."""
        prefix = req.prefix + (req.on_host if on_host else 0)
        extend = req.num_tokens - prefix
        whole = self.ceil(extend)
        fits, limit = self._fits(whole, total, new, req.window_on_host if on_host else 0)
        if not fits:
            return "no-token"
        # The first request of a batch is taken whatever its length, or it would wait forever.
        bounded = self.chunk_left is None or not self.rules.scheduler.reserves_a_page
        if bounded and self.taken and whole >= self.input_left:
            return "other"
        if limit is None or whole <= limit:
            return extend, min(req.max_new_tokens, CLIP), False
        # This policy has one partly prefilled prompt at a time.
        if self.one_chunked:
            return "other"
        cut = limit // self.pool.page * self.pool.page
        if self.rules.scheduler.reserves_a_page:
            end = (prefix + cut) // self.pool.page * self.pool.page
            # Chunks end on pages of the whole prompt, so that they can be inserted.
            cut = end - prefix
        return (cut, 0, True) if cut > 0 else "other"

    @staticmethod
    def _shrunk(req: Req, shape: Chosen) -> Chosen:
        """Shorten the chunk by attention that was loaded behind a state on the host."""
        extend, promised, is_cut = shape
        rest = req.num_tokens - req.prefix
        extend = min(extend, rest)
        if is_cut and extend == rest:
            return extend, min(req.max_new_tokens, CLIP), False
        return extend, promised, is_cut

    def _fits(self, whole: int, total: int, new: int, on_host: int = 0) -> tuple[bool, int | None]:
        """The longest chunk of a request that fits. Follows `check_prefill`."""
        if total >= self.total_left and not self.rules.scheduler.loads_before_it_fits:
            return False, None
        pool, limit = self.own_windows, self.chunk_left
        if pool is None:
            return True, limit
        needed = self._window_tokens(whole, new, limit, on_host)
        if needed < self._window_left(pool):
            return True, limit
        cap = 0
        # Longer than all windows together: it can only come in chunks.
        if needed >= pool.windows.size:
            room = self._window_left(pool) - self._window_tokens(0, new, None, on_host)
            cap = max(0, room // pool.page * pool.page)
        if limit is None or cap <= 0:
            return False, None
        return True, min(limit, cap)

    # -- who makes room ----------------------------------------------------------------------------

    def preempt(self, req: Req, limits: Limits, release: Callable[[Req, int], None]) -> bool:
        """Release running requests of lower priority for a waiting one; False if that frees too
        little. Follows `preempt_to_schedule`.

        Trap: a request counts with the tokens of its last match; one that was not matched yet has
        none.
        """
        sign = 1 if limits.low_first else -1
        running = [r for r in self.running.reqs if not r.finished and r not in self.preempted]
        # The lowest priority first, and of those the last to arrive.
        running.sort(key=lambda r: (-sign * r.priority, -r.queued))
        missing = (
            req.looked_up - req.prefix + min(req.max_new_tokens, CLIP) - self.total_left
        )  # min_tokens_to_remove
        chosen: list[Req] = []
        for other in running:
            # A small difference is not worth a prefill that starts over.
            if (req.priority - other.priority) * -sign <= limits.threshold:
                break
            chosen.append(other)
            missing -= self._promised(other)
            if missing <= 0:
                break
        if not chosen or missing > 0:
            return False
        kept, released = [], 0
        for other in self.running.reqs:
            if other in chosen:
                self.total_offset -= self._promised(other)
                released += 1
                release(other, len(self.running.reqs) - released)
            else:
                kept.append(other)
        self.running.reqs = kept
        self.preempted += chosen
        return True


CACHE_AWARE: Final = frozenset({"lpm", "dfs-weight", "hrrn", "shortest-prefill-first"})
"""Policies that match every waiting request in every pass (`CacheAwarePolicy`)."""

BOUNDED: Final = frozenset({"lpm", "hrrn"})
MOST_MATCHED: Final = 128
"""Policies that leave a longer queue as it is, and how long (`WAITING_QUEUE_PREFIX_MATCH_MAX`)."""

IN_BATCH: Final = 32
"""Tokens of a match up to which requests are compared with each other, and wait if as many match
(`IN_BATCH_PREFIX_CACHING_...`)."""


class Shuffler:
    """The generator of Python's `random.shuffle`, from a seed."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState([seed])

    def shuffle(self, reqs: list[Req]) -> None:
        """Shuffle in place."""
        for last in range(len(reqs) - 1, 0, -1):
            other = self._below(last + 1)
            reqs[last], reqs[other] = reqs[other], reqs[last]

    def _below(self, count: int) -> int:
        while True:
            word = int(self._state.randint(0, 1 << 32, dtype=np.uint32))
            number = word >> (32 - count.bit_length())
            if number < count:
                return number


class SchedulePolicy:
    """The order of the waiting queue (`SchedulePolicy`)."""

    def __init__(self, tree: Tree, limits: Limits, *, counts_host: bool) -> None:
        self.tree, self.limits = tree, limits
        self.random = Shuffler(limits.seed)
        self.counts_host = counts_host  # since 0.5.22
        self.matched: dict[int, Match] = {}  # by request, in this pass
        self.waits: set[int] = set()  # temporary_deprioritized

    def sort(self, waiting: list[Req], running: Sequence[Req], processed: int) -> bool:
        """Sort the queue; True if all of its requests were matched. Follows `calc_priority`."""
        name, limits = self.limits.policy, self.limits
        # Matching a long queue in each pass costs more than its order saves.
        if name in BOUNDED and len(waiting) > MOST_MATCHED:
            return False
        is_aware = name in CACHE_AWARE
        if is_aware:
            self._match(waiting)
        if name == "fcfs" and limits.prioritizes:
            waiting.sort(key=lambda req: (self._rank(req), req.queued))
        elif name == "lof":
            waiting.sort(key=lambda req: (self._rank(req), -req.max_new_tokens))
        elif name == "random":
            self.random.shuffle(waiting)
        elif name == "routing-key":
            _by_routing_key(waiting, running)
        elif name == "lpm":
            waiting.sort(key=self._unmatched)
        elif name == "dfs-weight":
            self._by_weight(waiting)
        elif name == "hrrn":
            waiting.sort(key=lambda req: (self._ratio(req, processed), req.id))
        elif is_aware:
            waiting.sort(key=lambda req: (req.id in self.waits, self._work(req), req.queued))
        return is_aware

    def _rank(self, req: Req) -> int:
        sign = 1 if self.limits.low_first else -1
        return sign * req.priority if self.limits.prioritizes else 0

    def _match(self, waiting: Sequence[Req]) -> None:
        """Match the whole prompts; of those that start alike and match little, only one does not
        wait. Follows `_compute_prefix_matches`.
        """
        self.matched, self.waits = {}, set()
        starts: set[tuple[Hashable, bytes]] = set()
        for req in waiting:
            tokens = req.tokens[: req.num_tokens]
            lent = sessions.match(self.tree, req, req.num_tokens)
            if lent is not None and self.limits.policy == "dfs-weight":
                where = "UnifiedTreeCore.dfs_weight_order"
                raise UpstreamAbort(where, "KeyError: _VirtualNode")
            match = lent or self.tree.match(self.tree.key_of(tokens), req.extra_key)
            self.matched[req.id] = match
            start = (req.extra_key, tokens[:IN_BATCH].tobytes())
            # If one of several equal starts is computed first, the others find it in the tree.
            if match.length > IN_BATCH or len(tokens) < IN_BATCH:
                continue
            if start in starts:
                self.waits.add(req.id)
            starts.add(start)

    def _known(self, req: Req) -> int:
        """Matched tokens, on device and host (`num_matched_prefix_tokens`)."""
        match = self.matched[req.id]
        return min(match.length + match.on_host, max(req.num_tokens - 1, 0))

    def _unmatched(self, req: Req) -> float:
        if req.id in self.waits:
            return inf
        on_device = self.matched[req.id].length
        return -(self._known(req) if self.counts_host else on_device)

    def _work(self, req: Req) -> int:
        return max(1, req.num_tokens - self._known(req))

    def _ratio(self, req: Req, processed: int) -> float:
        """Negative waiting time for the tokens that it needs."""
        if req.id in self.waits:
            return inf
        uncached = req.num_prompt - self._known(req)
        # The wait counts against the work, so a long prompt comes first in the end.
        return -max(0, processed - req.arrived) / uncached if uncached > 0 else -inf

    def _by_weight(self, waiting: list[Req]) -> None:
        """Follows `_sort_by_dfs_weight`: the subtrees of many requests first, leaves first."""
        below: dict[int, list[Req]] = {}
        for req in waiting:
            below.setdefault(id(self.matched[req.id].node), []).append(req)
        weights: dict[int, int] = {}
        order = [self.tree.root]
        for node in order:
            order += node.children.values()
        for node in reversed(order):
            own = len(below.get(id(node), ()))
            weights[id(node)] = own + sum(weights[id(child)] for child in node.children.values())
        waiting.clear()
        stack = [(self.tree.root, False)]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                waiting += below.get(id(node), ())
                continue
            stack.append((node, True))
            children = sorted(node.children.values(), key=lambda child: -weights[id(child)])
            stack += [(child, False) for child in reversed(children)]

    def chunk_limit(self, chunked: Req, waiting: Sequence[Req], budget: int) -> int | None:
        """The longest chunk that leaves room for shorter prompts. Follows
        `shortest_prefill_chunk_limit`.
        """
        page, reserved = self.tree.shape.page, 0
        if self.limits.policy != "shortest-prefill-first" or budget < 2 * page:
            return None
        for req in waiting:
            work = self._work(req)
            charge = -(-work // page) * page
            if work >= chunked.num_tokens - chunked.prefix or reserved + charge > budget - page:
                break
            reserved += charge
        return (budget - reserved) // page * page if reserved else None


def _by_routing_key(waiting: list[Req], running: Sequence[Req]) -> None:
    """Requests whose key most of the running ones have come first. Follows
    `_sort_by_routing_key`.
    """
    counts = Counter(req.routing_key for req in running if req.routing_key)
    if counts:
        waiting.sort(key=lambda r: (-counts.get(r.routing_key, 0), r.routing_key))
