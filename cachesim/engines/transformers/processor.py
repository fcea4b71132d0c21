"""Batches: scheduled, run by someone else, updated (`ContinuousBatchProcessor`, without threads).

A batch without room for any request sets active requests back until there is room:

    starved, newest last    A  B  C
    set back                      C     its blocks are free at once, hashed or not; it waits again,
                                        with the tokens that it generated as part of its prompt
"""

from collections.abc import Callable, Sequence
from typing import Final

from cachesim.engines.transformers.cache import PagedAttentionCache
from cachesim.engines.transformers.family import Rules
from cachesim.engines.transformers.requests import FutureRequestState, RequestState
from cachesim.engines.transformers.scheduler import Scheduler
from cachesim.errors import UpstreamAbort

TEMPORARY: Final = -1
"""The token in the place of one that the batch will generate."""


class Processor:
    """The two halves of a batch around its forward pass (`ContinuousBatchProcessor`)."""

    def __init__(
        self,
        cache: PagedAttentionCache,
        scheduler: Scheduler,
        *,
        rules: Rules,
        max_batch_tokens: int,
    ) -> None:
        self.cache, self.scheduler, self.rules = cache, scheduler, rules
        self.max_batch_tokens = max_batch_tokens
        self.on_set_back: Callable[[RequestState, RequestState], None] | None = None

    def prepare_next_batch(self) -> list[FutureRequestState]:
        """The next batch, empty if no request may run. Follows `prepare_next_batch`."""
        batch = self._schedule()
        while batch is None:
            if not self.offload_requests():
                where = "ContinuousBatchProcessor.prepare_next_batch"
                why = "No requests can be scheduled and no requests can be offloaded."
                raise UpstreamAbort(where, why)
            batch = self._schedule()
        if not batch:
            return []
        if self.scheduler.starved:
            self.offload_requests()
        for each in batch:
            state = each.state
            each.start, each.tokens = state.position_offset, state.to_process
            state.position_offset += each.query
            if each.has_new_token:
                state.to_process = [TEMPORARY]
        return batch

    def _schedule(self) -> list[FutureRequestState] | None:
        return self.scheduler.schedule_batch(self.max_batch_tokens, self.cache.max_tokens_read)

    def update_batch(
        self, batch: Sequence[FutureRequestState], tokens: Sequence[int]
    ) -> list[RequestState]:
        """Give each request its token; the finished ones. Follows `update_batch`."""
        finished: list[RequestState] = []
        sampled = iter(tokens)
        for each in batch:
            state = each.state
            if not each.has_new_token:
                self.cache.mark_complete_blocks(state, each.complete_blocks)
                continue
            done = state.update_and_check_completion(next(sampled))
            if done and self.rules.registers_last_batch and each.complete_blocks:
                self.cache.register(state, each.complete_blocks)
            self.cache.mark_complete_blocks(state, each.complete_blocks)
            if done:
                self.scheduler.finish_request(state.id)
                self.scheduler.block_new = False
                finished.append(state)
        return finished

    def offload_requests(self) -> bool:
        """Evict cached blocks, then set starved requests back; True if anything was freed.

        Follows `offload_requests`, without memory of the CPU to offload to.
        """
        scheduler, cache = self.scheduler, self.cache
        starved = scheduler.starved
        evicted = cache.evict_cached_blocks()
        if not starved:
            return evicted
        wanted = [
            {
                name: each.needs_new_blocks(state.id, state.position_offset, query)
                for name, each in cache.allocators.items()
            }
            for state, query in starved
        ]
        active = len(scheduler.active)
        back: list[RequestState] = []
        while starved and active - len(back) > 1:
            if cache.count_storable_requests(wanted) == len(starved):
                break
            state, _ = starved.pop()
            wanted.pop()
            back.append(state)
            cache.free_blocks(state.id, no_cache=True)
        if not back:
            return evicted
        for state in reversed(back):
            again = state.create_equivalent_initial_request()
            scheduler.finish_request(state.id)
            scheduler.add_waiting_request(again)
            if self.on_set_back is not None:
                self.on_set_back(state, again)
        scheduler.block_new = True
        return True
