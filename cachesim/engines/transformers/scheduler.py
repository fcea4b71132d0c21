"""Selection of requests for the next batch, and the tokens taken of each.

candidates   fifo: decoding, then prefilling, then waiting requests; prefill_first: prefilling
             before decoding ones
budget       max_batch_tokens of queries, the tokens of the whole cache of keys
margin       with less free memory than `safety_margin`: evict every block without a reference;
             if that is too little, one prefill a batch, only if it comes first
"""

from collections.abc import Callable

from cachesim.engines.transformers.cache import PagedAttentionCache
from cachesim.engines.transformers.requests import FutureRequestState, RequestState, Status

MARGINS = {"fifo": 0.15, "prefill_first": 0.0}
"""Safety margin of each scheduler where none is given."""


class Scheduler:
    """Both schedulers (`FIFOScheduler`, `PrefillFirstScheduler`)."""

    def __init__(
        self, cache: PagedAttentionCache, *, kind: str, margin: float, most_requests: int
    ) -> None:
        self.cache = cache
        self.prefill_first = kind == "prefill_first"
        self.margin = MARGINS[kind] if margin < 0 else margin
        self.most_requests = most_requests
        self.active: dict[int, RequestState] = {}
        self.waiting: dict[int, RequestState] = {}
        self.order: list[int] = []
        self.block_new = False
        self.starved: list[tuple[RequestState, int]] = []
        self.on_lookup: Callable[[RequestState, int], None] | None = None

    def add_waiting_request(self, state: RequestState) -> None:
        self.waiting[state.id] = state
        self.order.append(state.id)

    def has_pending_requests(self) -> bool:
        """True if a request is active or waits."""
        return bool(self.active or self.waiting)

    def finish_request(self, request: int) -> None:
        """Release a request's blocks."""
        self.cache.free_blocks(request)
        self.active.pop(request, None)

    def cancel(self, request: int) -> None:
        """Forget a request, and release its blocks. Follows `clear_cancelled_requests`."""
        self.active.pop(request, None)
        self.waiting.pop(request, None)
        # Trap: `block_new` stays set if the last active request is cancelled, so nothing runs any
        # more.
        if request in self.order:
            self.order.remove(request)
        self.cache.free_blocks(request)

    def schedule_batch(
        self, token_budget: int, cache_budget: int
    ) -> list[FutureRequestState] | None:
        """The next batch; None if there is no room for any request. Follows `schedule_batch`."""
        decoding = [state for state in self.active.values() if state.status == Status.DECODING]
        others = [state for state in self.active.values() if state.status == Status.PREFILLING]
        first, second = (others, decoding) if self.prefill_first else (decoding, others)
        candidates = first + second
        # After a request was set back no other one begins, or it would take the room again.
        if not self.block_new:
            candidates += [self.waiting[request] for request in self.order]
        left: set[int] = set()
        scheduled, failed = self._process_candidates(candidates, token_budget, cache_budget, left)
        self.order = [request for request in self.order if request not in left]
        return None if not scheduled and failed else scheduled

    def _process_candidates(
        self, candidates: list[RequestState], token_budget: int, cache_budget: int, left: set[int]
    ) -> tuple[list[FutureRequestState], bool]:
        """Schedule candidates; and whether one found no room. Follows `_process_candidates`."""
        scheduled: list[FutureRequestState] = []
        failed = False
        self.starved = []
        request_budget = self.most_requests
        in_margin = self._try_to_meet_safety_margin()
        for state in candidates:
            # With little memory one prefill a batch, and only as its first request; decoding ones
            # continue.
            if not in_margin and scheduled and state.status != Status.DECODING:
                break
            tokens = self._infer_request_tokens(state, left)
            query = min(len(tokens), token_budget)
            read = state.position_offset
            if self.cache.read_cache_limit is not None:
                read = min(read, self.cache.read_cache_limit)
            # Passed over: a later request with a shorter prefix may still fit.
            if cache_budget < read:
                continue
            if not self.cache.can_store_request_tokens(state, query):
                failed = True
                # Active and without room: it may be set back, newest first.
                if state.id in self.active:
                    self.starved.append((state, query))
                continue
            self._schedule_request(state, tokens, token_budget, left)
            query = len(state.to_process)
            token_budget -= query
            cache_budget -= read
            request_budget -= 1
            scheduled.append(
                FutureRequestState(
                    state=state,
                    has_new_token=not state.remaining,
                    complete_blocks=self.cache.count_new_complete_blocks(state, query),
                    query=query,
                )
            )
            if self.waiting.pop(state.id, None) is not None:
                left.add(state.id)
            if token_budget == 0 or cache_budget <= 0 or request_budget <= 0:
                break
        return scheduled, failed

    def _try_to_meet_safety_margin(self) -> bool:
        """Free memory; True if there is enough. Follows `_try_to_meet_safety_margin`."""
        cache = self.cache
        cache.pool.try_to_free_sectors()
        enough = cache.compute_free_capacity() >= self.margin
        # All hashed blocks without a reference at once: there is no order of last use.
        if not enough and cache.evict_cached_blocks():
            cache.pool.try_to_free_sectors()
            enough = cache.compute_free_capacity() >= self.margin
        return enough

    def _infer_request_tokens(self, state: RequestState, left: set[int]) -> list[int]:
        """The tokens that a request has to compute. Follows `_infer_request_tokens`.

        A waiting request is matched here. Trap: a match makes it active before there is room.
        """
        if state.status == Status.PENDING:
            matched = 0
            if self.cache.use_prefix_sharing:
                matched = self.cache.search_prefix_match(state.id, state.remaining)
            if self.on_lookup is not None:
                self.on_lookup(state, matched)
            # Trap: a match makes the request active before there is room for the rest of its
            # prompt.
            if matched:
                self.active[state.id] = state
                self.waiting.pop(state.id, None)
                left.add(state.id)
                state.status = Status.PREFILLING
                state.remaining = state.remaining[matched:]
                state.position_offset += matched
        return state.to_process if state.status == Status.DECODING else state.remaining

    def _schedule_request(
        self, state: RequestState, tokens: list[int], token_budget: int, left: set[int]
    ) -> None:
        """Take a request's tokens, as many as fit. Follows `_schedule_request`."""
        if state.status == Status.PENDING:
            self.active[state.id] = state
            left.add(state.id)
        if len(tokens) <= token_budget:
            # A decoding request already has its next token here.
            if state.status <= Status.PREFILLING:
                state.to_process = state.remaining
                state.remaining = []
                state.status = Status.DECODING
        else:
            if state.status == Status.PENDING:
                state.status = Status.PREFILLING
            state.remaining = tokens[token_budget:]
            state.to_process = tokens[:token_budget]
