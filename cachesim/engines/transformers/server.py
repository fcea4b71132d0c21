"""The engine: requests in, batches, replies and events out (`ContinuousBatchingManager`)."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from cachesim.engines import base
from cachesim.engines.base import Ticket
from cachesim.engines.causes import Ledger
from cachesim.engines.held import Amounts, BlockHeld, CellsHeld, Held, Marks, Run, runs_of
from cachesim.engines.job import SlotlessEngine
from cachesim.engines.tokens import PrefixTree
from cachesim.engines.transformers import vocabulary
from cachesim.engines.transformers.cache import CacheAllocator, Geometry, PagedAttentionCache
from cachesim.engines.transformers.options import TransformersOptions
from cachesim.engines.transformers.requests import FutureRequestState, Job, RequestState
from cachesim.engines.transformers.rules import Rules
from cachesim.engines.transformers.scheduler import Scheduler
from cachesim.errors import ContractError, UpstreamAbort, UpstreamEndless
from cachesim.model.arithmetic import Network, Place
from cachesim.model.counts import NOWHERE
from cachesim.model.store import ABSENT, Frame, Lanes, Ubatch, grown
from cachesim.units import Array, Count, Integers, Token


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
        """Append each request's token; return the finished ones. Follows `update_batch`."""
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


MOST_NEW: Final = 1024
"""Tokens of a reply where a request names no limit, as in `transformers serve`."""

F16_BYTES: Final = 2


class Transformers(SlotlessEngine[Rules, TransformersOptions, Job]):
    """Continuous batching, a batch per step (`ContinuousBatchingManager`)."""

    limit_flag = "max_new_tokens"
    erasing = " (an eviction)"

    def _set_up(self) -> None:
        spec, options = self.network.spec, self.options
        geometry = Geometry(
            layers=spec.layers,
            window=spec.window,
            token_bytes=2 * F16_BYTES * spec.kv_heads * spec.head_size,
            page=options.page_size,
            num_blocks=options.num_blocks,
            sharing=options.allow_block_sharing,
        )
        self.cache = PagedAttentionCache(geometry, self._emit)
        self.scheduler = Scheduler(
            self.cache,
            kind=options.scheduler_type,
            margin=options.safety_margin,
            most_requests=min(options.max_requests_per_batch, options.max_batch_tokens),
        )
        self.processor = Processor(
            self.cache, self.scheduler, rules=self.rules, max_batch_tokens=options.max_batch_tokens
        )
        self.runner = Runner(self.network, self.cache, computes=self.computes)
        self.scheduler.on_lookup = self._looked_up
        self.processor.on_set_back = self._set_back
        self._computed = PrefixTree()
        self._learned: dict[int, int] = {}  # tokens of an active request in `_computed`

    # -- requests ----------------------------------------------------------------------------------

    def submit(self, request: base.Request) -> Ticket:
        declined = not request.cache_prompt
        self._check(request, drafts=request.drafts is not None, cache_prompt=declined)
        self._fields(request)
        ticket = self._jobs.ticket()
        state = RequestState(
            id=int(ticket),
            initial=[int(each) for each in request.prompt],
            most=self._limit(request, MOST_NEW if request.predict < 0 else request.predict),
        )
        self._jobs.append(
            Job(ticket=ticket, prompt=request.prompt, state=state, forced=request.reply)
        )
        self.scheduler.add_waiting_request(state)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        job = self._jobs[ticket]
        if job.done or job.state is None:
            return
        self._learn(job.state)
        self.scheduler.cancel(job.state.id)
        job.end("cancelled")
        self._emit(vocabulary.RequestAborted(task=int(ticket)))

    def _empty(self) -> None:
        self.cache.evict_cached_blocks()

    def _blank(self, ticket: Ticket) -> Job:
        return Job(ticket=ticket, prompt=())

    # -- the loop ----------------------------------------------------------------------------------

    def step(self) -> bool:
        if not self.scheduler.has_pending_requests():
            return False
        batch = self.processor.prepare_next_batch()
        if not batch:
            where = "ContinuousBatchingManager._generation_loop_body"
            raise UpstreamEndless(where, "new requests are blocked until one finishes; none runs")
        sampled: list[int] = []
        for chunk in batch:
            job = self._jobs[chunk.state.id]
            job.started = True
            end = chunk.start + chunk.query
            self._emit(vocabulary.ChunkScheduled(task=chunk.state.id, start=chunk.start, end=end))
            logits = self.runner.run(chunk)
            if chunk.has_new_token:
                token = self._token(job, len(job.sampled), logits[-1])
                job.rows.append(logits[-1])
                job.sampled.append(Token(token))
                sampled.append(token)
        for state in self.processor.update_batch(batch, sampled):
            job = self._jobs[state.id]
            self._learn(state)
            self._learned.pop(state.id, None)
            job.done = True
            generated = Count(len(job.sampled))
            self._emit(vocabulary.RequestFinished(task=state.id, generated=generated))
        return True

    def remember(self, most: int) -> None:
        self._computed.remember(most)

    # -- events ------------------------------------------------------------------------------------

    def _looked_up(self, state: RequestState, matched: int) -> None:
        job = self._jobs[state.id]
        if not job.started:
            for each in self.scheduler.active.values():
                self._learn(each)
            job.cached = Count(matched)
            job.ledger = self._account(state, matched)
        if matched:
            self._emit(vocabulary.PrefixMatched(task=state.id, cached=Count(matched)))

    def _learn(self, state: RequestState) -> None:
        if self._learned.get(state.id) != state.position_offset and state.position_offset:
            self._learned[state.id] = state.position_offset
            self._computed.learn(np.array(state.computed(), np.int64), None, state.id)

    def _account(self, state: RequestState, matched: int) -> Ledger:
        """The rules between the tokens computed before and the match."""
        prompt, page = state.initial, self.options.page_size
        best, by = self._computed.find(np.array(prompt, np.int64), None)
        name = f"request {by}" if best else "nothing"
        if matched > best:  # older than the record of computed tokens
            best, name = matched, "an earlier request"
        ledger = Ledger(Count(best), name)
        if not self.cache.use_prefix_sharing:
            allowed = self.options.allow_block_sharing
            ledger.apply(vocabulary.WINDOW_LAYERS if allowed else vocabulary.SHARING_OFF, 0)
            return ledger
        if best > len(prompt) - 1:
            ledger.apply(vocabulary.LAST_TOKEN, len(prompt) - 1, prompt_tokens=len(prompt))
        ledger.apply(vocabulary.WHOLE_PAGES, ledger.usable // page * page, page=page)
        if matched < ledger.usable:
            [full] = self.cache.allocators.values()
            missing = full.hashes(prompt)[matched // page : ledger.usable // page]
            evicted = not full.ledger.lost.isdisjoint(missing)
            cause = vocabulary.EVICTED if evicted else vocabulary.NOT_HASHED
            ledger.apply(cause, matched, wanted=ledger.usable, found=matched)
        return ledger

    def _set_back(self, state: RequestState, again: RequestState) -> None:
        job = self._jobs[state.id]
        self._learn(state)
        self._learned.pop(state.id, None)
        job.state = again
        self._emit(vocabulary.RequestSetBack(task=state.id, generated=Count(len(job.sampled))))

    # -- inspection --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return {
            "slots": [],
            "prompt_cache": [],
            "blocks": {
                name: {"tables": dict(each.tables), "cached": list(each.ledger.cached)}
                for name, each in self.cache.allocators.items()
            },
            "free": self.cache.compute_free_capacity(),
            "running": list(self.scheduler.active),
            "waiting": list(self.scheduler.order),
        }

    def held(self) -> Held:
        return held(self.cache, self.runner.pages, self.network)

    def amounts(self) -> Amounts:
        return amounts(self.cache)

    def check_integrity(self) -> None:
        check_books(self.cache)


def held(cache: PagedAttentionCache, pages: Pages, network: Network) -> Held:
    """The hashed blocks, with positions and owners."""
    marks = Marks.of(network)
    return Held(
        cells=tuple(
            _cells(kind, each, cache, pages, marks) for kind, each in cache.allocators.items()
        )
    )


SHOWN: Final = (1 << 52) - 1
"""The bits of a hash that a page shows: a browser's numbers hold no more."""


def _cells(
    kind: str, allocator: CacheAllocator, cache: PagedAttentionCache, pages: Pages, marks: Marks
) -> CellsHeld:
    ledger, page = allocator.ledger, allocator.page
    used = {block for table in allocator.tables.values() for block in table}
    order = sorted(ledger.block_to_hash, key=lambda each: (ledger.origins[each][0], each))
    blocks: list[BlockHeld] = []
    runs: list[Run] = []
    for block in order:
        start, parent = ledger.origins[block]
        blocks.append(
            BlockHeld(
                block=block,
                cell=block * page,
                position=start,
                count=page,
                hash=ledger.block_to_hash[block] & SHOWN,
                parent=-1 if parent is None else parent & SHOWN,
            )
        )
        births = None
        if block in pages.rows[kind]:
            first = pages.rows[kind][block] * page
            births = marks.births(pages.keys, kind, slice(first, first + page))
        at = np.arange(page, dtype=np.int64)
        owners = np.full(page, int(block in used), np.int64)
        runs.extend(runs_of(block * page + at, start + at, owners, births))
    return CellsHeld(
        part=kind,
        stream=0,
        size=cache.pool.num_sectors * allocator.blocks_per_sector * page,
        window=allocator.window or None,
        runs=tuple(runs),
        blocks=tuple(blocks),
    )


def amounts(cache: PagedAttentionCache) -> Amounts:
    """Tokens of blocks that are in use or cached."""
    found = {}
    for kind, each in cache.allocators.items():
        used = {block for table in each.tables.values() for block in table}
        found[kind] = (len(used) + len(each.ledger.cached)) * each.page
    return Amounts(attention=found.get("attention", 0), window=found.get("window", 0))


def check_books(cache: PagedAttentionCache) -> None:
    """Raise ContractError if blocks are lost or counted twice."""
    sectors = len(cache.pool.free_sectors)
    for kind, each in cache.allocators.items():
        ledger = each.ledger
        owners = Counter(block for table in each.tables.values() for block in table)
        free = [leaf for tree in cache.pool.free[each.index].trees.values() for leaf in tree]
        groups = (set(free), set(owners), set(ledger.cached))
        total = len(free) + len(owners) + len(ledger.cached)
        shared = {block: count for block, count in owners.items() if count > 1}
        sound = (
            len(set().union(*groups)) == total
            and total % each.blocks_per_sector == 0
            and len(free) == each.num_free
            and shared == ledger.shared
            and {number: block for block, number in ledger.block_to_hash.items()}
            == ledger.hash_to_block
        )
        if not sound:
            raise ContractError(f"transformers: the {kind} blocks disagree with tables and ledger")
        sectors += total // each.blocks_per_sector
    if sectors != cache.pool.num_sectors:
        msg = f"transformers: {sectors} of {cache.pool.num_sectors} sectors are accounted for"
        raise ContractError(msg)
