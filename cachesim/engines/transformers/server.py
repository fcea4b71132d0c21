"""The engine: requests in, batches, replies and events out (`ContinuousBatchingManager`)."""

from typing import Any, Final

from cachesim.engines import base
from cachesim.engines.base import Ticket
from cachesim.engines.held import Amounts, Held
from cachesim.engines.job import SlotlessEngine
from cachesim.engines.transformers import vocabulary
from cachesim.engines.transformers.account import Account
from cachesim.engines.transformers.cache import Geometry, PagedAttentionCache
from cachesim.engines.transformers.continuous_api import Processor, Runner
from cachesim.engines.transformers.observe import amounts, check_books, held, snapshot
from cachesim.engines.transformers.options import TransformersOptions
from cachesim.engines.transformers.requests import Job, RequestState
from cachesim.engines.transformers.rules import Rules
from cachesim.engines.transformers.scheduler import Scheduler
from cachesim.errors import UpstreamEndless
from cachesim.units import Count, Token

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
        self.account = Account(self.cache, options)

    # -- requests ----------------------------------------------------------------------------------

    def submit(self, request: base.Request) -> Ticket:
        declined = not request.cache_prompt
        self._check(request, drafts=request.drafts is not None, cache_prompt=declined)
        self._fields(request)
        ticket = self._jobs.ticket()
        state = RequestState(
            id=int(ticket),
            initial=[*map(int, request.prompt)],
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
        self.account.learn(job.state)
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
            self.account.learn(state)
            self.account.forget(state.id)
            job.done = True
            generated = Count(len(job.sampled))
            self._emit(vocabulary.RequestFinished(task=state.id, generated=generated))
        return True

    def remember(self, most: int) -> None:
        self.account.computed.remember(most)

    # -- events ------------------------------------------------------------------------------------

    def _looked_up(self, state: RequestState, matched: int) -> None:
        job = self._jobs[state.id]
        if not job.started:
            for request_state in self.scheduler.active.values():
                self.account.learn(request_state)
            job.cached = Count(matched)
            job.ledger = self.account.of(state, matched)
        if matched:
            self._emit(vocabulary.PrefixMatched(task=state.id, cached=Count(matched)))

    def _set_back(self, state: RequestState, again: RequestState) -> None:
        job = self._jobs[state.id]
        self.account.learn(state)
        self.account.forget(state.id)
        job.state = again
        self._emit(vocabulary.RequestSetBack(task=state.id, generated=Count(len(job.sampled))))

    # -- inspection --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self.cache, self.scheduler)

    def held(self) -> Held:
        return held(self.cache, self.runner.pages, self.network)

    def amounts(self) -> Amounts:
        return amounts(self.cache)

    def check_integrity(self) -> None:
        check_books(self.cache)
