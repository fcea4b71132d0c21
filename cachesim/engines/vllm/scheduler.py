"""Steps: the tokens and blocks of each request. Follows `scheduler.py`.

First come, first served; chunked prefill; running requests before waiting ones; without enough
blocks the last request is preempted, and recomputed later from its cached prefix on.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from cachesim.engines.images import Image
from cachesim.engines.vllm.block_pool import cdiv
from cachesim.engines.vllm.coordinator import Hit, KVCacheManager
from cachesim.engines.vllm.encoder import EncoderCache
from cachesim.engines.vllm.offloading import OffloadingScheduler
from cachesim.engines.vllm.request import (
    ENDED,
    NO_TRANSFERS,
    PLACEHOLDER,
    Chunk,
    Limits,
    Request,
    Status,
    Step,
    Transfers,
)
from cachesim.engines.vllm.splitter import Splitter
from cachesim.errors import UpstreamAbort

Stored: TypeAlias = tuple[int | None, bool]
"""Tokens that a store has beyond a hit, None to be asked again, and whether they are loaded in
later steps.
"""

NOTHING_STORED: Final[Stored] = (0, False)


@dataclass(slots=True)
class Cadence:
    """The steps with prefills: of `prefill_schedule_interval` steps one, unless requests queue up.

        step        1        2        3        4        interval 3
        prefill     a        -        -        b        decodes of others run in every step

    Follows `local_prefill_interval`, `last_prefill_step` and `prefill_capacity_bound`.
    """

    interval: int
    bound: bool = False  # the last step with prefills left requests behind
    executed: int = 0
    last: int = field(init=False)

    def __post_init__(self) -> None:
        self.last = -self.interval

    def defers(self, running: Iterable[Request]) -> bool:
        """True if a step is for decodes alone."""
        # Requests left over mean that prefills limit the server: they run in each step, then.
        if self.interval == 1 or self.bound or self.executed + 1 - self.last >= self.interval:
            return False
        # Without a decode to spare, waiting gains nothing.
        return any(not request.is_prefill_chunk for request in running)

    def count(self, step: Step, *, prefills: bool) -> None:
        """Count a step that has tokens; the interval begins with one that has prefills."""
        self.executed += bool(step.chunks)
        if prefills:
            self.last = self.executed


@dataclass(slots=True)
class _Turn:
    """Progress of the loop over the running requests."""

    step: Step
    budget: int
    embeddings: int  # that the encoder may still make
    threshold: int = 0  # tokens of the longest chunk; 0: no bound
    defers: bool = False  # no prefill in this step
    prefills: bool = False  # the step has a part of a prefill
    index: int = 0
    unencoded: bool = False  # the encoder left no token of the last chunk


class Scheduler:
    """Waiting and running requests over a cache manager (`Scheduler`)."""

    def __init__(self, manager: KVCacheManager, limits: Limits) -> None:
        self.manager = manager
        self.limits = limits
        self.rules = manager.rules
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        longest = min(limits.budget, limits.threshold or limits.budget)
        self.splitter = Splitter.of(manager, budget=longest, use_eagle=limits.use_eagle)
        ahead = int(limits.lookahead > 0)
        self.encoder = EncoderCache(limits.batched or limits.budget, ahead, self.rules.scheduler)
        self.passes_block_tables = False  # pass block tables to the runner
        self.on_lookup: Callable[[Request, Hit], None] | None = None
        self.on_deferred: Callable[[Request, Hit], None] | None = None
        self.external: Callable[[Request, int], Stored] | None = None
        self.on_external: Callable[[Request, int, int], None] | None = None
        self.delays_free: Callable[[Request], bool] | None = None
        # Waiting with blocks (`kv_holding_waiting`), or passed over (`skipped_waiting`).
        self.holding: deque[Request] = deque()
        self.scheduled = self.processed = 0  # steps so far (`sched_step_seq`)
        self.deferred = deque[tuple[int, list[int]]]()  # freed with the output of a step
        self.requires_delivery = False  # `requires_kv_delivery` of the connector
        self.offloading: OffloadingScheduler | None = None
        self.passed_over = set[int]()  # by later requests (`deferred_waiting`)
        self.received: set[int] = set()
        self.failed: set[int] = set()
        self.prefills: set[Request] = set()  # `_inflight_prefills`
        self.uncached = 0  # of the last lookup (`num_uncached_common_prefix_tokens`)
        self.watermark_blocks = int(limits.watermark * manager.pool.size)
        self.cadence = Cadence(limits.prefill_interval)

    @property
    def busy(self) -> bool:
        """True while a request is unfinished."""
        return bool(self.waiting or self.running or self.holding)

    def add_request(self, request: Request) -> None:
        """Queue a request, by arrival or by priority."""
        self.encoder.fit(request.images)
        self.waiting.append(request)
        self._sort_waiting()
        if self.offloading is not None:
            self.offloading.on_new_request(request)

    def offload_to(self, offloading: OffloadingScheduler) -> None:
        """Store blocks on the host, and ask it about requests."""
        self.offloading = offloading
        self.external = offloading.get_num_new_matched_tokens
        self.delays_free = offloading.request_finished

    def _sort_waiting(self) -> None:
        if self.limits.by_priority:
            self.waiting = deque(sorted(self.waiting, key=lambda request: request.rank))

    # -- one step ----------------------------------------------------------------------------------

    def schedule(self) -> Step:
        """Assign the step's tokens and blocks. Follows `schedule`."""
        self.manager.new_step_starts()
        step = Step()
        limits = self.limits
        turn = _Turn(
            step,
            budget=limits.budget,
            embeddings=self.encoder.size,
            threshold=self._threshold(),
            defers=self.cadence.defers(self.running),
        )
        while turn.index < len(self.running) and turn.budget > 0:
            request = self.running[turn.index]
            # A request that surely ends with its tokens in flight takes no further step.
            least = request.num_computed + 2 - request.placeholders
            if request.placeholders > 0 and least >= request.num_prompt + request.max_tokens:
                turn.index += 1
                continue
            if turn.defers and request.is_prefill_chunk:
                turn.index += 1
                continue
            known = request.num_tokens + request.placeholders
            new = known + len(request.spec_tokens) - request.num_computed
            new = min(new, turn.threshold or new, turn.budget)
            new = min(new, limits.max_model_len - request.num_computed - 1)
            new, images = self._cut(request, new, request.num_computed, 0, turn)
            # Later requests may still have a chunk: an encoder without room, or a cut to whole
            # blocks, concerns this one alone.
            if new == 0:
                turn.index += 1
                continue
            blocks = self._allocate_or_preempt(request, new, turn)
            if blocks is None:
                itself = limits.by_priority and request.status == "preempted"
                # The victim was the request itself, so the index is at the next one now.
                if itself and self.rules.scheduler.goes_on_without_itself:
                    continue
                break
            self._encode(request, images, turn)
            turn.prefills |= request.is_prefill_chunk
            turn.index += 1
            turn.budget -= new
            drafts: tuple[int, ...] = ()
            if request.spec_tokens:
                # The budget may cut the chunk inside the drafts: the rest is not verified.
                count = new + request.num_computed - known
                drafts = tuple(request.spec_tokens[: max(count, 0)])
                request.spec_tokens = []
            chunk = Chunk(
                request,
                request.num_computed,
                new,
                drafts,
                blocks,
                known=request.num_tokens,
                refused=request.refused,
            )
            step.chunks.append(chunk)
        step.running = tuple(step.chunks)
        loras = self._running_loras(step)
        # After a preemption no request is admitted: blocks are short.
        if not step.preempted:
            self._schedule_waiting(turn, loras)
        self.cadence.count(step, prefills=turn.prefills)
        if self.external is not None and self.rules.scheduler.pins_tails:
            self.manager.pin_tails()
        step.copies = self.manager.take_copies()
        # Referenced until copied; a step in flight must not find new content.
        if step.copies:
            ends = [block for _, *pair in step.copies for block in pair]
            if self.frees_late:  # the copies run with the next step
                self.deferred.append((self.scheduled + 1, ends[::-1]))
            else:
                self.manager.pool.free_blocks(ends)
        if self.offloading is not None:
            step.jobs = self.offloading.build_connector_meta(step)
        self.scheduled += bool(step.chunks)
        step.proposes = self._proposes(step)
        for chunk in step.chunks:
            # Count a chunk as computed, and with overlapping steps its output as generated. Follows
            # `_update_after_schedule`, also that of `AsyncScheduler`.
            request = chunk.request
            request.num_computed += chunk.count
            request.in_flight += chunk.count
            request.last_step = self.scheduled
            known = request.num_tokens + request.placeholders
            request.is_prefill_chunk = request.num_computed < known
            if not request.is_prefill_chunk:
                self.prefills.discard(request)
            if request.images and not self.rules.scheduler.encoder_frees_with_output:
                self.encoder.free(request, request.num_computed)
            if self.limits.overlaps and not request.is_prefill_chunk:
                request.placeholders += 1 + len(chunk.drafts)
                request.spec_tokens = [PLACEHOLDER] * step.proposes
        return step

    def _proposes(self, step: Step) -> int:
        """Drafts that are proposed after a step (`dynamic_sd_lookup`)."""
        by_size = self.limits.drafts_by_size
        if not by_size or not step.chunks:
            return self.limits.drafts
        return by_size[min(len(step.chunks), len(by_size)) - 1]

    def _allocate_or_preempt(
        self, request: Request, new: int, turn: "_Turn"
    ) -> tuple[list[int], ...] | None:
        """Allocate blocks for a running request; preempt requests until there are enough."""
        while True:
            blocks = self.manager.allocate_slots(request, new, num_lookahead=self.limits.lookahead)
            if blocks is not None:
                return blocks
            spares = self.rules.scheduler.spares_unsettled
            # Its blocks would come free only with the output of a step in flight: too late for this
            # one.
            if spares and not self._is_settled(self._lowest()):
                return None
            victim = self._victim(turn)
            self._free_blocks(victim)
            self.encoder.free(victim)
            self.prefills.discard(victim)
            victim.status = "preempted"
            # Only its ids are kept: looked up again, they usually hit the blocks it just freed.
            victim.num_computed = 0
            victim.spec_tokens = []
            victim.dropped = self.requires_delivery or (victim.dropped and victim.stale > 0)
            # Their output arrives after the preemption: its tokens count, what it wrote does not.
            victim.stale = victim.in_flight  # before 0.28 tracked differently, with the same effect
            victim.placeholders = 0
            victim.preemptions += 1
            self.waiting.appendleft(victim)
            self._sort_waiting()
            turn.step.preempted.append(victim)
            if victim is request:
                return None

    def _lowest(self) -> Request:
        """The last arrival, or the lowest priority, of the running requests."""
        ranks = self.limits.by_priority
        return max(self.running, key=lambda request: request.rank) if ranks else self.running[-1]

    def _victim(self, turn: "_Turn") -> Request:
        """The running request to preempt."""
        if not self.limits.by_priority:
            return self.running.pop()
        victim = self._lowest()
        place = self.running.index(victim)
        del self.running[place]
        # Under priorities the victim may have a chunk in this step. It is removed and never runs,
        # but the ids of its blocks stay, so that others hit what nobody wrote (#57580).
        withdrawn = turn.step.drop(victim)
        turn.budget += sum(chunk.count for chunk in withdrawn)
        # The list is one shorter: without a step back the next request would be skipped.
        if place < turn.index if self.rules.scheduler.steps_back_by_place else withdrawn:
            turn.index -= 1
        return victim

    def _running_loras(self, step: Step) -> set[int]:
        """The loads of adapters that run (`scheduled_loras`)."""
        every = self.rules.scheduler.counts_running_adapters
        running = self.running if every else [chunk.request for chunk in step.chunks]
        loras = {request.lora.load for request in running if request.lora.load}
        # Trap: until 0.32 a running request without a chunk in this step does not count, so another
        # adapter gets in, and its next chunk ends the engine core.
        if len(loras) > self.limits.loras:
            where = "Scheduler.schedule"
            msg = "assert len(scheduled_loras) <= self.lora_config.max_loras"
            raise UpstreamAbort(where, msg)
        return loras

    def _first_queue(self) -> deque[Request]:
        """The queue that is served next. Follows `_select_waiting_queue_for_scheduling`."""
        compared = self.rules.scheduler.skips_into_own_queue and self.limits.by_priority
        if compared and self.holding and self.waiting:
            return min(self.waiting, self.holding, key=lambda queue: queue[0].rank)
        # Trap: until 0.30 a request that was passed over comes before preempted ones, too.
        return self.holding or self.waiting

    def _schedule_waiting(self, turn: "_Turn", loras: set[int]) -> None:
        limits, step, budget = self.limits, turn.step, turn.budget
        skipped, requeued = list[Request](), list[Request]()

        def skip() -> None:
            own = self.rules.scheduler.skips_into_own_queue
            holds = request.num_computed > 0 or request.status == "loading"  # `_holds_kv_blocks`
            (skipped if own or holds else requeued).append(queue.popleft())

        while budget > 0 and len(self.running) < limits.max_seqs:
            queue = self._first_queue()
            if not queue:
                break
            request = queue[0]
            if request.status == "loading" and not self._has_arrived(request):
                skip()
                continue
            if request.lora.load and len(loras | {request.lora.load}) > limits.loras:
                skip()
                continue
            hit, (num_external, loads) = Hit(self.manager.nothing, 0), NOTHING_STORED
            if not request.num_computed:  # else its load has arrived
                hit, (num_external, loads) = self._prefix_hit(request)
            if num_external is None:  # a copy to or from the host has not ended
                skip()
                continue
            start = request.num_computed + hit.length + num_external
            if turn.defers and not loads and start < request.num_tokens - 1:
                break
            new, padded = (0, False) if loads else self._count(request, start, turn, budget)
            images: Sequence[Image] = ()
            if not loads and new:
                if self.splitter is not None:
                    self.splitter.check_external(num_external)
                new, images = self._cut(request, new, start, hit.uncached, turn)
                if padded and new and new != 1 + limits.drafts:
                    new, padded = 1, False
            if not new and not loads:
                if turn.unencoded and self.rules.scheduler.skips_unencoded:
                    skip()
                    continue
                break
            blocks = self.manager.allocate_slots(
                request,
                new,
                num_local_hit=hit.length,
                hit=hit.blocks,
                num_lookahead=0 if loads else self._lookahead(request),
                num_external=num_external,
                full_sequence_must_fit=limits.reserve_full,
                delay_cache_blocks=loads,
                reserved_blocks=self._reserved_blocks() if loads else 0,
                watermark_blocks=self.watermark_blocks if self.running else 0,
            )
            # First come, first served: a shorter prompt does not pass one that lacks blocks.
            if blocks is None:
                self.encoder.free(request)
                if self.on_deferred is not None:
                    self.on_deferred(request, hit)
                break
            self._encode(request, images, turn)
            if self.offloading is not None:
                self.offloading.update_state_after_alloc(request, num_external)
            if num_external and self.on_external is not None:
                self.on_external(request, hit.length, num_external)
            queue.popleft()
            request.num_computed = start
            if loads:
                request.status = "loading"
                self.prefills.add(request)
                skipped.append(request)
                continue
            self.running.append(request)
            loras |= {request.lora.load} - {0}
            self.passed_over.discard(request.id)
            turn.prefills |= start < request.num_tokens - 1
            request.status = "running"
            if start + new < request.num_tokens:
                self.prefills.add(request)
            drafts = (PLACEHOLDER,) * limits.drafts if padded else ()
            chunk = Chunk(
                request,
                start,
                new,
                drafts,
                self.manager.tables_of(request) if self.passes_block_tables else (),
                fresh=True,
                known=request.num_tokens,
            )
            step.chunks.append(chunk)
            budget -= new
        self.waiting.extendleft(reversed(requeued))
        self._sort_waiting()
        self.holding.extendleft(reversed(skipped))
        if limits.by_priority:
            self.holding = deque(sorted(self.holding, key=lambda request: request.rank))
        self.passed_over |= {passed.id for passed in (*requeued, *skipped)}
        if not turn.defers:
            self.cadence.bound = len(self.waiting) + len(self.holding) > len(self.passed_over)

    def _cut(
        self, request: Request, new: int, start: int, uncached: int, turn: "_Turn"
    ) -> tuple[int, Sequence[Image]]:
        """Number of tokens that whole blocks and the encoder leave of a chunk, and its images."""
        images: Sequence[Image] = ()
        first = self.rules.scheduler.encoder_before_split
        # Until 0.27 what the encoder leaves of a chunk is cut to whole blocks, perhaps to nothing
        # (#51603).
        if request.images and first:
            new, images = self.encoder.take(request, new, start, turn.embeddings)
        if self.splitter is not None and new:
            wanted, new = new, self.splitter.take(request, new, start, uncached)
            turn.step.cut_to_none |= wanted > new == 0
        turn.unencoded = False
        if request.images and new and not first:
            new, images = self.encoder.take(request, new, start, turn.embeddings)
            turn.unencoded = not new
        return new, images

    def _encode(self, request: Request, images: Sequence[Image], turn: "_Turn") -> None:
        self.encoder.allocate(request, images)
        turn.embeddings -= sum(image.count for image in images)

    def _count(self, request: Request, start: int, turn: "_Turn", budget: int) -> tuple[int, bool]:
        """Tokens to compute of a waiting request, 0 if it has to wait; and if it is padded."""
        new = request.num_tokens - start
        padded = self._pads(new, start, turn.step)
        if padded is None or (padded and 1 + self.limits.drafts > budget):
            return 0, False
        new = 1 + self.limits.drafts if padded else new
        return min(new, turn.threshold or new, budget), padded

    def _threshold(self) -> int:
        """Tokens of the longest chunk, 0 for no bound (`long_prefill_token_threshold`)."""
        limits = self.limits
        requests = len(self.running) + len(self.waiting) + len(self.holding)
        if not limits.threshold:
            return 0
        # Nobody else waits for the budget, so short chunks would only add steps.
        if requests <= 1 and self.rules.scheduler.threshold_spares_the_only_one:
            return 0
        share = (limits.batched or limits.budget) // max(requests, 1) if limits.adaptive else 0
        return max(limits.threshold, share)

    def _has_arrived(self, request: Request) -> bool:
        """Give the blocks of a load their ids once it has ended; False before.

        Follows `_handle_blocked_waiting_request` and `_update_waiting_for_remote_kv`.
        """
        if request.id not in self.received:
            return False
        # Nothing arrived: the blocks hold what others left in them, so none may get an id.
        if request.id in self.failed and not request.num_computed:
            self.manager.free(request)
        elif self.manager.enable_caching:
            self.manager.cache_blocks(request, request.num_computed)
        self.failed.discard(request.id)
        if request.num_computed == request.num_tokens:
            # All of the prompt is loaded, but its last token has to run for the logits.
            request.num_computed -= 1
        self.received.remove(request.id)
        request.status = "preempted" if request.preemptions else "waiting"
        return True

    def _reserved_blocks(self) -> int:
        """Blocks that a load leaves to prompts in progress, and to drafts.

        Follows `_inflight_prefill_reserved_blocks` and `_spec_decode_step_blocks`.
        """
        limits = self.limits
        slots = 1 + limits.drafts + limits.lookahead if limits.drafts else 0
        attention = (group.block for group in self.manager.groups if group.kind != "mamba")
        return sum(
            self.manager.remaining_blocks(prefill, slots) for prefill in self.prefills
        ) + sum(cdiv(slots, block) for block in attention)

    def _prefix_hit(self, request: Request) -> tuple[Hit, Stored]:
        """Prefix hit of a waiting request, and the tokens of a store beyond it.

            |   whole blocks of the hit   | tail |
                                          |  the store's tokens  |   longer: the tail is dropped

        Follows the part of `schedule` around `get_num_new_matched_tokens`.
        """
        rules, manager = self.rules.scheduler, self.manager
        states = bool(manager.coordinator.mamba) and len(manager.groups) > 1
        diverged = False
        if self.external is not None and states and rules.store_hit == "longest-group":
            hit = manager.longest_group(request)
        elif self.external is not None and states and rules.store_hit == "attention":
            hit, diverged = manager.attention_hit(request)
        else:
            hit = manager.get_computed_blocks(request)
            if rules.keeps_junction_of_last and not request.reads_cache:
                # Trap: the junction is that of another request's lookup.
                hit = replace(hit, uncached=self.uncached)
            self.uncached = hit.uncached
        self._looked_up(request, hit)
        if self.external is None:
            return hit, NOTHING_STORED
        size = manager.sizes.scheduler_block
        # A store counts in whole scheduler blocks; a partial hit's tail is inside one of them.
        tail = hit.length % size if rules.store_hit in {"attention", "whole-blocks"} else 0
        found, loads = self.external(request, hit.length - tail)
        if found is None:
            return hit, (None, False)
        if diverged and found <= tail:  # no state at the end of attention's hit
            hit = manager.get_computed_blocks(request)
            self._looked_up(request, hit)
            return hit, NOTHING_STORED
        if not tail:
            return hit, (found, loads)
        if found > tail:
            return manager.shortened(hit, hit.length - tail), (found, loads)
        return hit, NOTHING_STORED

    def _looked_up(self, request: Request, hit: Hit) -> None:
        if self.on_lookup is not None:
            self.on_lookup(request, hit)
        # On the request, since the mask asks for it in later steps: until 0.25 it is forgotten
        # there.
        if self.rules.retention.keeps_junction:
            request.shared_prefix_boundary = hit.length + hit.uncached if hit.uncached else 0

    def _pads(self, new: int, start: int, step: Step) -> bool | None:
        """True if a request with one token to compute gets draft slots; None: it has to wait."""
        rule, limits = self.rules.scheduler.padding, self.limits
        if new != 1 or not limits.drafts or limits.drafts_by_size or rule == "never":
            return False
        decoding = step.running
        # One prefill already breaks the shape that all requests of a decoding step share.
        if any(chunk.request.is_prefill_chunk for chunk in decoding):
            return False
        if not decoding and not (rule == "resumed" and start > 0):
            return False
        margin = 1 if rule == "resumed" else 0
        if start + 1 + limits.drafts + margin <= limits.max_model_len:
            return True
        return None if rule == "beside-running" else False

    def _lookahead(self, request: Request) -> int:
        if request.num_computed == 0 and not self.rules.scheduler.lookahead_for_new:
            return 0
        return self.limits.lookahead

    # -- outputs -----------------------------------------------------------------------------------

    def update_from_output(
        self, step: Step, sampled: Sequence[Sequence[int]], transfers: Transfers = NO_TRANSFERS
    ) -> list[Request]:
        """Process a step's tokens and its transfers; return the finished requests.

        Follows `update_from_output`.
        """
        done = []
        self.processed += bool(step.chunks)
        # No step in flight can write to these blocks any more.
        while self.deferred and self.deferred[0][0] <= self.processed:
            self.manager.pool.free_blocks(reversed(self.deferred.popleft()[1]))
        failed = self._failed_loads(
            transfers, {chunk.request: chunk.count for chunk in step.chunks}
        )
        for chunk, tokens in zip(step.chunks, sampled, strict=True):
            request = chunk.request
            self.manager.written(request)
            request.in_flight -= chunk.count
            is_stale = request.stale > 0
            request.stale -= chunk.count if is_stale else 0
            # A prefill server passes on blocks with its reply, and those of a stale one are gone.
            drops = is_stale and request.dropped
            if request in failed or request.status in ENDED or drops:
                continue
            if chunk.drafts and tokens and not is_stale:
                # Counted as computed when scheduled; their slots are written again by the next
                # tokens.
                rejected = len(chunk.drafts) - (len(tokens) - 1)
                if request.num_computed > 0:
                    request.num_computed -= rejected
                    request.refused += rejected
                if request.placeholders > 0:
                    request.placeholders -= rejected
            ahead = self.encoder.lookahead * self.rules.scheduler.encoder_stops_ahead
            late = self.rules.scheduler.encoder_waits_for_tokens
            waits = (request.placeholders + ahead) * late
            frees = request.images and self.rules.scheduler.encoder_frees_with_output
            if frees and request.num_computed > waits:
                self.encoder.free(request, request.num_computed - waits)
            if tokens and self._append(request, tokens, is_stale=is_stale):
                done.append(request)
        if done:
            self.running = [request for request in self.running if request.status == "running"]
            self.waiting = deque(
                request for request in self.waiting if request.status != "finished"
            )
        # Policy `fail`: the request ends; under `recompute` it computes what did not arrive.
        for request in () if self.limits.recomputes else failed:
            self.abort(request, "error")
            done.append(request)
        for request in transfers.received:
            if request.status == "loading":
                self.received.add(request.id)
            else:
                # Aborted while it loaded: the transfer wrote to its blocks until now.
                self._free_blocks(request)
        for request in transfers.sent:
            self._free_blocks(request)
        return done

    # -- failed loads ------------------------------------------------------------------------------

    def _failed_loads(
        self, transfers: Transfers, counts: Mapping[Request, int]
    ) -> dict[Request, None]:
        """The requests whose tokens of this step do not count.

            | loaded | invalid | loaded |     recompute: from here on
                     ^                        fail: the request ends with an error

        Follows `_handle_failed_recving` and `_handle_invalid_blocks`.
        """
        failed: dict[Request, None] = {}
        for request in transfers.failed:
            if request.status == "loading" and self.limits.recomputes:
                request.num_computed = 0
                self.failed.add(request.id)
            elif request.status == "loading":
                failed[request] = None
        if not transfers.invalid:
            return failed
        if len(self.manager.groups) > 1:
            # Upstream looks a block up in one table only.
            where = "Scheduler._handle_invalid_blocks"
            raise UpstreamAbort(where, "invalid blocks of a model with several groups")
        loading = [request for request in self.holding if request.status == "loading"]
        later, _ = self._truncate(loading, transfers.invalid, counts)
        now, evicted = self._truncate(self.running, transfers.invalid, counts)
        if self.limits.recomputes:
            self.failed |= {request.id for request in later}
            return failed | now
        # Trap: only under `fail`. Under `recompute` the blocks keep their ids, and others may hit
        # them.
        for block in evicted:
            self.manager.pool.evict(block)
        return failed | later | now

    def _truncate(
        self, requests: Iterable[Request], invalid: frozenset[int], counts: Mapping[Request, int]
    ) -> tuple[dict[Request, None], set[int]]:
        """Cut requests at their first invalid block; the blocks from there on are returned, too.

        Follows `_update_requests_with_invalid_blocks`.
        """
        [group], [manager] = self.manager.groups, self.manager.managers
        affected: dict[Request, None] = {}
        evicted, marked = set[int](), set[int]()
        for request in requests:
            computed = request.num_computed - counts.get(request, 0)
            table = manager.tables.get(request.id, [])
            cut = None
            for index, block in enumerate(table[: cdiv(computed, group.block)]):
                if block not in invalid:
                    continue
                affected[request] = None
                # An earlier request will compute it again: computed, for the others.
                if block not in marked:
                    marked.add(block)
                    if cut is None:
                        cut = index
                        evicted.update(table[index:])
            if request in affected:
                request.num_computed = computed if cut is None else cut * group.block
        return affected, evicted

    def _append(self, request: Request, tokens: Sequence[int], *, is_stale: bool) -> bool:
        """Append sampled tokens up to a stop; True if the request is finished and freed."""
        limits, rules = self.limits, self.rules.scheduler
        runs = request.status == "running" and not is_stale
        stopped = False
        for number, token in enumerate(tokens, 1):
            request.append(token)
            if (
                request.num_output >= request.max_tokens
                or request.num_tokens >= limits.max_model_len
            ):
                # Drafts after the stop are no part of the request; until 0.32 they count as
                # computed.
                stopped = True
                if rules.returns_cut_tokens and not is_stale:
                    request.num_computed -= len(tokens) - number
                break
        # A stale output is of a step before the preemption: its tokens count, not its slots.
        if runs and limits.overlaps:
            request.placeholders -= len(tokens)
        # When the chunk was scheduled these tokens were not known, so their blocks had no ids.
        again = limits.overlaps or (limits.drafts and rules.caches_after_drafts)
        if runs and again and self.manager.enable_caching:
            self.manager.cache_blocks(request, request.num_computed - request.in_flight)
        if stopped:
            request.status = "finished"
            self._free(request)
        return stopped

    def _free(self, request: Request, *, delays: bool = False) -> None:
        """Free a request's blocks. Follows `_free_request` and `_connector_finished`."""
        self.prefills.discard(request)
        self.passed_over.discard(request.id)
        self.encoder.free(request)
        if self.external is not None:
            rules = self.rules.scheduler
            known = rules.store_frees == "known-tokens"
            # A store gets the blocks that are not out of the window of any settled token.
            count = request.num_tokens if known else request.num_computed
            unsettled = request.in_flight if rules.frees_settled else 0
            self.manager.remove_skipped_blocks(request, max(0, count - unsettled))
        # A transfer reads or writes the blocks: the connector frees them when it ends.
        if self.delays_free is not None:
            delays |= self.delays_free(request)
        if not delays:
            self._free_blocks(request)

    @property
    def frees_late(self) -> bool:
        """True if blocks that a step in flight may write to wait (`defer_block_free`)."""
        # A store may write to a freed block at once, without waiting for the steps in flight.
        overlaps = self.limits.overlaps and self.external is not None
        return overlaps and self.rules.scheduler.frees_behind_steps

    def _is_settled(self, request: Request) -> bool:
        """True if no step in flight delays the freeing of a request's blocks.

        Follows `_request_blocks_can_be_freed`.
        """
        return not self.frees_late or request.last_step <= self.processed

    def _free_blocks(self, request: Request) -> None:
        """Free a request's blocks, perhaps with the output of a step in flight.

        Follows `_free_request_blocks`.
        """
        if self._is_settled(request):
            self.manager.free(request)
        elif blocks := self.manager.pop_blocks_for_free(request):
            self.deferred.append((self.scheduled, blocks))

    def update_draft_token_ids(self, request: Request, drafts: Sequence[int]) -> None:
        """Set a request's drafts for the next step; none during prefill."""
        if request.status == "running":
            # In the middle of a prompt the next token is known: nothing to draft.
            request.spec_tokens = [] if request.is_prefill_chunk else list(drafts)

    def abort(self, request: Request, status: Status = "aborted") -> None:
        """Remove a request before its end. Follows `finish_requests`."""
        if request.status in ENDED:
            return
        if request.status == "running":
            self.running.remove(request)
        elif request in self.holding:
            self.holding.remove(request)
        else:
            self.waiting.remove(request)
        # A load still writes to its blocks: they are freed when it has ended.
        delays = request.status == "loading" and request.id not in self.received
        self.received.discard(request.id)
        self.failed.discard(request.id)
        request.status = status
        self._free(request, delays=delays)
