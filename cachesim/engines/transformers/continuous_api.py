"""Batches, and the keys and values that they read and write. Follows `continuous_api.py`."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from cachesim.engines.transformers.cache import CacheAllocator, PagedAttentionCache
from cachesim.engines.transformers.requests import FutureRequestState, RequestState
from cachesim.engines.transformers.rules import Rules
from cachesim.engines.transformers.scheduler import Scheduler
from cachesim.errors import UpstreamAbort
from cachesim.model.arithmetic import Network, Place
from cachesim.model.counts import NOWHERE
from cachesim.model.store import ABSENT, Frame, Lanes, Ubatch, grown
from cachesim.units import Array, Integers


class Pages:
    """Keys and values of the blocks and rings that were used, by layer.

        full      block 7   block 3            position p: block table[p // page], place p % page
                  0 .. 3    4 .. 7
        window    ring of `window` places      position p: place p % window, read before the chunk
                  8 9 2 3 4 5 6 7              overwrites what leaves the window

    The allocators' content is kept apart here; upstream keeps it in one tensor. No request reads
    what another allocator wrote.
    """

    def __init__(self, network: Network, cache: PagedAttentionCache) -> None:
        self.place: dict[int, Place] = {shape.layer: shape.place for shape in network.shapes}
        self.rows: dict[str, dict[int, int]] = {kind: {} for kind in cache.allocators}
        self.page = next(iter(cache.allocators.values())).page
        self.keys: dict[int, Array] = {}
        self.values: dict[int, Array] = {}
        for shape in network.shapes:
            self.keys[shape.layer] = np.zeros((0, *shape.key), shape.dtype)
            self.values[shape.layer] = np.zeros((0, *shape.value), shape.dtype)

    def cells(self, kind: str, blocks: Sequence[int]) -> Integers:
        """The first cell of each block; blocks get cells when they are first used."""
        rows = self.rows[kind]
        for block in blocks:
            rows.setdefault(block, len(rows))
        needed = len(rows) * self.page
        for held in (self.keys, self.values):
            for layer in held:
                if self.place[layer] == kind and len(held[layer]) < needed:
                    held[layer] = grown(held[layer], 2 * needed)
        return np.array([rows[block] for block in blocks], np.int64) * self.page


class Cells(NamedTuple):
    """Cells that a chunk reads and writes, of all layers of a kind."""

    frame: Frame
    first: int  # the position of the lane's first place
    read: Integers  # cells
    at: Integers  # their places in the lane
    written: Integers  # cells
    kept: slice  # rows of the chunk that are written


class ChunkStore:
    """Reads and writes of a request's chunk (`update` of both allocators)."""

    planes = 1

    def __init__(self, pages: Pages, cache: PagedAttentionCache, chunk: FutureRequestState) -> None:
        self.pages, self.cache = pages, cache
        self.request, self.start = chunk.state.id, chunk.start
        self.end = chunk.start + chunk.query
        self._cells: dict[str, Cells] = {}

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Read the rows' visible cache, then write the chunk."""
        kind = self.pages.place[layer]
        cells = self._cells.get(kind)
        if cells is None:
            cells = self._cells[kind] = self._of(kind, self.cache.allocators[kind])
        first = cells.first
        lanes = []
        for held, new in ((self.pages.keys[layer], keys), (self.pages.values[layer], values)):
            lane = np.zeros((len(cells.frame.positions), *new.shape[1:]), new.dtype)
            lane[cells.at] = held[cells.read]
            lane[self.start - first : self.end - first] = new
            held[cells.written] = new[cells.kept]
            lanes.append(lane)
        return (cells.frame.lane(*lanes),)

    def _of(self, kind: str, allocator: CacheAllocator) -> Cells:
        """Follows `get_read_indices` and `get_write_indices`."""
        start, end, window = self.start, self.end, allocator.window
        bases = self.pages.cells(kind, allocator.tables[self.request])
        frame = Frame.of_run(start, end, window)
        first = int(frame.positions[0])
        oldest = max(first, start - window + 1, 0) if window else first
        frame.positions[: oldest - first] = ABSENT
        last = max(start, end - window) if window else start
        old, new = np.arange(oldest, start), np.arange(last, end)
        ring = window or end
        return Cells(
            frame=frame,
            first=first,
            read=bases[old % ring // self.pages.page] + old % ring % self.pages.page,
            at=old - first,
            written=bases[new % ring // self.pages.page] + new % ring % self.pages.page,
            kept=slice(last - start, end - start),
        )

    def states(self, layer: int) -> Array:
        """Never called: the cache has no recurrent states."""
        raise NotImplementedError(layer)

    def keep_states(self, layer: int, states: Array) -> None:
        """Never called: the cache has no recurrent states."""
        raise NotImplementedError(layer, states)


class Runner:
    """The network over the pages."""

    def __init__(self, network: Network, cache: PagedAttentionCache, *, computes: bool) -> None:
        self.network, self.cache, self.computes = network, cache, computes
        self.pages = Pages(network, cache)

    def run(self, chunk: FutureRequestState) -> Array:
        """Run a chunk; the logits after its last token, none within a prefill."""
        wanted = [chunk.query - 1] if chunk.has_new_token else []
        ubatch = Ubatch(
            tokens=np.array(chunk.tokens, np.int64),
            positions=np.arange(chunk.start, chunk.start + chunk.query, dtype=np.int64),
            outputs=np.array(wanted, np.int64),
        )
        store = ChunkStore(self.pages, self.cache, chunk) if self.computes else NOWHERE
        return self.network.run(ubatch, store).logits


TEMPORARY: Final = -1
"""The token in the place of one that the batch will generate."""


class Processor:
    """Batches: scheduled, run by a caller, updated (`ContinuousBatchProcessor`, without threads).

    A batch without room for any request sets active requests back until there is room:

        starved, newest last    A  B  C
        preempted                     C     its blocks are free at once, hashed or not; it waits
                                            again, with the tokens that it generated as part of its
                                            prompt
    """

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
        for future_request_state in batch:
            state = future_request_state.state
            future_request_state.start, future_request_state.tokens = (
                state.position_offset,
                state.to_process,
            )
            state.position_offset += future_request_state.query
            if future_request_state.has_new_token:
                state.to_process = [TEMPORARY]
        return batch

    def _schedule(self) -> list[FutureRequestState] | None:
        return self.scheduler.schedule_batch(self.max_batch_tokens, self.cache.max_tokens_read)

    def update_batch(
        self, batch: Sequence[FutureRequestState], tokens: Sequence[int]
    ) -> list[RequestState]:
        """Append each request's token; return the finished ones. Follows `update_batch`."""
        finished: list[RequestState] = []
        sampled = iter(tokens)
        for future_request_state in batch:
            state = future_request_state.state
            if not future_request_state.has_new_token:
                self.cache.mark_complete_blocks(state, future_request_state.complete_blocks)
                continue
            done = state.update_and_check_completion(next(sampled))
            if done and self.rules.registers_last_batch and future_request_state.complete_blocks:
                self.cache.register(state, future_request_state.complete_blocks)
            self.cache.mark_complete_blocks(state, future_request_state.complete_blocks)
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
                name: allocator.needs_new_blocks(state.id, state.position_offset, query)
                for name, allocator in cache.allocators.items()
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
