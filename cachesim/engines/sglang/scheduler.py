"""Batches in turn: a prefill where a prompt can be processed, else a token for each request.

First come, first served; chunked prefill; when memory runs out in decode, the requests that have
generated least start over (retraction). Follows `Scheduler.get_next_batch_to_run` and
`process_batch_result_*`.

    event_loop_normal    batch 1 | its result | batch 2 | its result
    event_loop_overlap   batch 1 | batch 2 | result of 1 | batch 3 | result of 2
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from cachesim.engines.sglang import sessions
from cachesim.engines.sglang.allocation import Allocation
from cachesim.engines.sglang.node import NO_SLOTS
from cachesim.engines.sglang.pools import TokenPool
from cachesim.engines.sglang.request import (
    Batch,
    ChunkListener,
    DecodeTrack,
    Limits,
    Req,
    Stream,
    plan_track,
    tracked_in_decode,
)
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.schedule_policy import Adder, SchedulePolicy
from cachesim.engines.sglang.tree import Match, Tree
from cachesim.errors import UpstreamAbort

FIRST_RATIO: Final = 0.7
LEAST_FACTOR: Final = 0.14
DECAY_STEPS: Final = 600
"""`SGLANG_INIT_NEW_TOKEN_RATIO`, `..._MIN_NEW_TOKEN_RATIO_FACTOR`, `..._DECAY_STEPS`."""

RETRACT_STEPS: Final = 20
"""`SGLANG_RETRACT_DECODE_STEPS`."""

MOST_TOUCHED: Final = 128
"""`WAITING_QUEUE_PREFIX_MATCH_MAX`."""


@dataclass(slots=True)
class Scheduler:
    """Waiting and running requests over a tree (`Scheduler`)."""

    tree: Tree
    pool: TokenPool
    rules: Rules
    limits: Limits
    waiting: list[Req] = field(default_factory=list)
    running: Batch = field(default_factory=lambda: Batch([]))
    last: Batch | None = None
    result_queue: deque[Batch] = field(default_factory=deque)  # run, and not processed
    chunked: Req | None = None
    pending_abort: Req | None = None  # _pending_chunked_abort_req
    ratio: float = field(init=False)  # new_token_ratio
    room: Allocation = field(init=False)
    policy: SchedulePolicy = field(init=False)
    processed: int = 0  # processed_tokens_counter
    most_turns: int = 1  # steps of a known reply at once
    known_ahead: Callable[[Req], int] | None = None  # tokens left of a known reply
    rows: int = 0  # requests that hold one
    queued: int = 0  # requests so far
    forgotten: list[Req] = field(default_factory=list)  # preempted, and in no queue
    refreshes: int = 0  # how often the queue's prefixes could have been refreshed
    on_match: Callable[[Req, Match], None] | None = None
    on_retract: Callable[[Req], None] | None = None
    on_preempt: Callable[[Req], None] | None = None
    on_abort: Callable[[Req], None] | None = None
    on_chunk: ChunkListener | None = None

    def __post_init__(self) -> None:
        limits = self.limits
        self.ratio = self._first_ratio
        self.room = Allocation(self.tree, self.pool, self.rules, limits.drafts, limits.track_slots)
        counts = self.rules.scheduler.counts_host_matches
        self.policy = SchedulePolicy(self.tree, self.limits, counts_host=counts)

    @property
    def _first_ratio(self) -> float:
        """Follows `NewTokenRatioTracker.from_config`."""
        return min(FIRST_RATIO * self.limits.conservativeness, 1.0)

    def idle(self) -> None:
        """A pass without a batch, and results to process: the ratio is the first one again.

        Follows `on_idle`; in 0.5.9 `self_check_during_idle`, whatever waits.
        """
        # Until 0.5.9 any pass without a batch resets it, whatever waits.
        if self.rules.scheduler.resets_beside_a_queue or not self.busy:
            self.ratio = self._first_ratio

    @property
    def busy(self) -> bool:
        """True while any request is not done."""
        return bool(
            self.waiting
            or self.running.reqs
            or self.chunked
            or self.result_queue
            or (self.last is not None and any(not req.finished for req in self.last.reqs))
        )

    def add(self, req: Req) -> None:
        """Append a request to the queue. Follows `_add_request_to_queue`."""
        self._prefetch(req)
        self.queued += 1
        req.queued, req.arrived = self.queued, self.processed
        self.waiting.append(req)

    def _prefetch(self, req: Req, known_until: int | None = None) -> None:
        """Query the storage for tokens that the tree lacks."""
        if self.tree.stores:
            match = self._look_up(req, copies=False)
            # A session's record is no node of the tree, so upstream finds no host node for it.
            if sessions.borrowed(req) is not None:
                where = "UnifiedTreeCore.is_backuped"
                raise UpstreamAbort(where, "KeyError: _VirtualNode")
            self.tree.prefetch(req, match, known_until)

    # -- the next batch ----------------------------------------------------------------------------

    def next_batch(self) -> Batch | None:
        """Follows `get_next_batch_to_run`."""
        self._abort_chunked()
        rules, excluded = self.rules.scheduler, []
        if rules.polls_every_pass:
            self.tree.poll()
            for req, known_until in self.tree.storage_retries(self.waiting):
                req.reissues += 1
                self._prefetch(req, known_until)
        # Its last chunk enters the tree before anything is matched, and it stays out of the batch.
        if self.chunked is not None:
            excluded.append(self.chunked)
            if self.chunked.extend:
                self._stash_chunk(self.chunked)
        last, running = self.last, self.running
        # A prefill that is done joins the requests that decode.
        if last is not None and last.extend:
            if last.chunked is not None:
                excluded.append(last.chunked)
            if last.keep(excluded):
                running.is_full = False
            if last.reqs and last is not running:
                if running.reqs:
                    running.reqs.extend(last.reqs)
                else:
                    self.running = running = last
                    running.extend = False
        if rules.filters_before_prefill and running.keep():
            running.is_full = False
        batch = self._new_prefill()
        # Prefills come first: a decode runs only where no prompt can.
        if batch is None and self.running.reqs:
            batch = self._decode_batch()
        if batch is not None:
            self.check_loras(batch)
        return batch

    def _stash_chunk(self, req: Req) -> None:
        """Insert the computed chunk of a prompt into the tree. Follows `stash_chunked_request`."""
        if self.on_chunk is not None:
            self.on_chunk(begins=True)
        req.half_read = True
        self._stash(req)
        req.half_read = False
        if self.on_chunk is not None:
            self.on_chunk(begins=False)

    def _stash(self, req: Req) -> None:
        sessions.checkpoint(self.tree, req)
        req.extend = 0

    def _allocatable(self, held: int = 0) -> int:
        limit = self.limits.max_running
        count = limit - len(self.running.reqs)
        if self.rules.scheduler.rows_bound_admission:
            held = held if self.rules.scheduler.counts_held_rows else 0
            count = min(count, limit - self.rows + held)
        return count

    def _new_prefill(self) -> Batch | None:
        """Follows `_get_new_batch_prefill_raw`."""
        rules, running = self.rules.scheduler, self.running
        preempts = self.limits.preempts
        # Windows free slots while their requests decode, so the mark of an earlier pass may be
        # wrong.
        cleared = rules.clears_full_flag and (self.tree.has_windows or not running.reqs)
        if preempts or cleared:
            running.is_full = False
        if (running.is_full or not self.waiting) and self.chunked is None:
            return None
        unread = self.chunked is None
        # Trap: 0.5.9 stops here only while a prompt is partly prefilled.
        no_row = self._allocatable() <= 0 and unread == rules.full_flag_needs_no_chunk
        if no_row and not preempts:
            running.is_full = True
            return None
        if not rules.polls_every_pass:
            self.tree.poll()
        matched = self.policy.sort(self.waiting, running.reqs, self.processed)
        # What waiting requests will match is otherwise the oldest of the tree, and evicted first.
        if rules.refreshes_waiting and not matched and self.tree.shape.policy == "lru":
            self._touch_waiting()
        adder = Adder(
            tree=self.tree,
            pool=self.pool,
            rules=self.rules,
            running=running,
            ratio=self.ratio,
            input_left=self.limits.max_prefill,
            chunk_left=self.limits.chunk if self.limits.chunk > 0 else None,
            ignores_eos=self.limits.ignores_eos,
            mixed=len(running.reqs) if self.limits.mixes else 0,
            most=self.limits.most_prefill,
        )
        if self.chunked is not None:
            most = self.policy.chunk_limit(self.chunked, self.waiting, adder.chunk_left or 0)
            # Before the queue: it holds slots already.
            self.chunked = adder.add_chunked(self.chunked, most)
            unfinished = self.chunked is not None
            adder.one_chunked = unfinished and self.limits.policy == "shortest-prefill-first"
        self._admit(adder)
        for req in adder.taken:
            self.tree.admitted(req)
        taken = {id(req) for req in adder.taken}
        self.waiting = [req for req in self.waiting if id(req) not in taken]
        if adder.taken or rules.requeues_all_preempted:
            for req in adder.preempted:
                self.add(req)
        else:
            # Trap: 0.5.9 loses them if the request that they made room for is not admitted.
            self.forgotten += adder.preempted
        if not adder.taken:
            return None
        if adder.new_chunked is not None:
            if self.chunked is not None:
                where = "Scheduler._get_new_batch_prefill_raw"
                raise UpstreamAbort(where, "assert self.chunked_req is None")
            self.chunked = adder.new_chunked
        if self.chunked is not None:
            self.chunked.is_chunked += 1
        batch = Batch(adder.taken, extend=True, chunked=self.chunked)
        self.tree.begin_loading()
        self._prepare_for_extend(batch)
        if self.limits.mixes and running.reqs:
            self._mix(batch)
        return batch

    def _mix(self, batch: Batch) -> None:
        """Join decoding requests to a prefill. Follows `mix_with_running` and its caller."""
        running = self.running
        finishing = self._finishing_inflight(running)
        running.keep(finishing)
        if finishing:
            running.is_full = False
        # 0.5.22 leaves out who decodes where memory is short; 0.5.9 joins them, and may end.
        fits = self.room.can_decode(running.reqs) if running.reqs else False
        if self.rules.scheduler.mixes_what_fits and not fits:
            return
        if running.reqs:
            self._prepare_for_decode(running)
            for req in running.reqs:
                req.track_every = 0  # it tracks the prefill's states alone
            # Trap: until 0.5.22 the prefill's tracking is lost, and the tree gets slots that nobody
            # wrote.
            if self.rules.runner.mixing_drops_tracks:
                for req in batch.reqs:
                    req.track_at = None
            batch.decoding = running.reqs
            batch.tokens += len(running.reqs)
            batch.reqs = batch.reqs + running.reqs
        self.running = Batch([], is_full=running.is_full)

    def _touch_waiting(self) -> None:
        """Count the matches of the first waiting requests as used. Follows
        `_touch_waiting_prefixes`.
        """
        if not self.waiting:
            return
        self.refreshes += 1
        if (self.refreshes - 1) % self.rules.scheduler.refreshes_waiting:
            return
        for req in reversed(self.waiting[:MOST_TOUCHED]):
            self.tree.match(self.tree.key_of(req.tokens[: req.num_tokens]), req.extra_key)

    def _admit(self, adder: Adder) -> None:
        rules, running = self.rules.scheduler, self.running
        states = self.tree.state_pool if self.tree.has_states else None
        if states is not None and rules.reserves_states_for_the_queue:
            states.begin_group(len(self.waiting))
        loras = self._running_loras(adder)
        for req in self.waiting:
            if rules.checks_budget_before_each and adder.state() == "other":
                break
            most = self.limits.loras
            # Others may pass it: an adapter gets free only when its requests end.
            if most and req.lora_id not in loras and len(loras) >= most:
                continue  # validate_lora_batch
            held = sum(req.has_row for req in adder.taken)
            if len(adder.taken) >= self._allocatable(held):
                running.is_full = True
            preempts = self.limits.preempts
            if running.is_full and not (
                preempts and adder.preempt(req, self.limits, self._preempt)
            ):
                break
            # Its pages are on their way from the storage; later requests may pass it.
            if not self.tree.fetched(req):
                continue
            match = self._look_up(req)
            if self.on_match is not None:
                self.on_match(req, match)
            # What it matched before was evicted: the storage is asked once more.
            if self.tree.shrank(req):
                req.reissues += 1
                self._prefetch(req)
                continue
            verdict = adder.add(req)
            loras.add(req.lora_id)
            if verdict == "continue":
                continue
            # Full until somebody ends, except on an idle server, where nobody will.
            if verdict == "no-token":
                idle = not adder.taken and not running.reqs
                waits = rules.clears_full_flag or self.tree.shape.host is not None
                running.is_full = not (waits and idle)
            # It was matched, so a slot for its state is taken: a request that only waits must not
            # hold it.
            if rules.returns_unused_state and not (adder.taken and adder.taken[-1] is req):
                req.state_source = None
                if req.state is not None and not req.in_session:
                    self.tree.state_pool.free(req.state)
                    req.state = None
            break
        if states is not None and rules.reserves_states_for_the_queue:
            states.end_group()

    def _running_loras(self, adder: Adder) -> set[str]:
        """The adapters that run; no adapter is one of them (`running_loras`)."""
        if not self.rules.scheduler.counts_adapters_of_chunks:
            return {req.lora_id for req in self.running.reqs}
        running = [req for req in self.running.reqs if not req.finished]
        return {req.lora_id for req in (*running, *adder.taken)}

    def check_loras(self, batch: Batch) -> None:
        """Refuse a batch of more adapters than there is room for. Follows `fetch_new_loras`."""
        if self.limits.loras and len({req.lora_id for req in batch.reqs}) > self.limits.loras:
            where = "LoRAManager.fetch_new_loras"
            raise UpstreamAbort(where, "assert len(cur_uids) <= self.max_loras_per_batch")

    def _look_up(self, req: Req, *, copies: bool = True) -> Match:
        """Match a request, and allocate a slot for the state that it continues from.

        Follows `init_next_round_input`.
        """
        # The last token is computed for its logits.
        limit = max(req.num_tokens - 1, 0)
        # A streaming session's turn continues in its own slots, not in the tree's.
        lent = sessions.match(self.tree, req, limit)
        match = lent or self.tree.match_tokens(req.tokens[:limit], req, copies=copies)
        req.looked_up = req.num_tokens
        req.shared = match.slots
        req.prefix = match.length
        if lent is None:
            req.protected = match.length
        req.last_node = match.node if lent is None else None
        req.best = match.best
        req.on_host, req.window_on_host = match.on_host, match.window_on_host
        req.state_on_host = match.state_on_host
        req.branch = match.branch
        req.window_branch = match.window_branch
        return match

    def _prepare_for_extend(self, batch: Batch) -> None:
        """Follows `prepare_for_extend`."""
        self.rows += sum(not req.has_row for req in batch.reqs)
        batch.tokens = sum(req.extend for req in batch.reqs)
        self.room.for_extend(batch.reqs, self.limits.max_len)
        for req in batch.reqs:
            req.shared = NO_SLOTS
            req.retracted = False
            req.track_at = None
            if self.tree.has_states and self.tree.shape.extra_buffer:
                plan_track(req, self.tree.shape.grid)

    # -- decode ------------------------------------------------------------------------------------

    def _finishing_inflight(self, batch: Batch) -> list[Req]:
        """Requests that the result in the queue ends at `max_new_tokens`, if it is a single token.

        Follows `_reqs_finishing_inflight`.
        """
        if not (self.rules.scheduler.skips_finishing and self.result_queue):
            return []
        queued = {id(req) for req in self.result_queue[0].reqs}
        # Their last token is being sampled: a further step would compute a token that nobody reads.
        ends = (req for req in batch.reqs if req.num_output + 1 >= req.max_new_tokens)
        return [req for req in ends if id(req) in queued]

    def _decode_batch(self) -> Batch | None:
        """Follows `update_running_batch`."""
        batch = self.running
        before, batch.steps = len(batch.reqs), 1
        finishing = self._finishing_inflight(batch)
        batch.keep(finishing)
        if not batch.reqs:
            batch.is_full = False
            return None
        fits = self.room.can_decode(batch.reqs)
        # Their slots come free with the result: nobody has to start over for that.
        if not fits and finishing:
            batch.is_full = False
            return None
        if not fits:
            self._retract(batch)
        else:
            # Each step without a shortage lets admission promise fewer new tokens.
            first = self._first_ratio
            least = min(first * LEAST_FACTOR, 1.0)
            batch.steps = self._steps_at_once(batch)
            for _ in range(batch.steps):
                self.ratio = max(self.ratio - (first - least) / DECAY_STEPS, least)
        if len(batch.reqs) < before:
            batch.is_full = False
        if not batch.reqs:
            return None
        self._prepare_for_decode(batch)
        return batch

    def _steps_at_once(self, batch: Batch) -> int:
        """Steps of a known reply of which none evicts or tracks, and the first of those that may.

        page    | 0  1  2 ......... 15 | 0        where slots are short, a step makes room for a
                  takes, evicts  at once          page, though only the first in a page takes one

        Of the only request: beside another one, or before a new one, each step is a decision.
        """
        if (
            self.known_ahead is None
            or self.most_turns < 2
            or len(batch.reqs) != 1
            or self.waiting
            or self.chunked
        ):
            return 1
        [req], page, free = batch.reqs, self.pool.page, self.pool.available
        held = req.committed
        # The last steps are taken one by one: the result in flight may end the request.
        count = min(self.known_ahead(req), req.num_prompt + req.max_new_tokens - req.sampled) - 4
        if free < count + 2 * page:
            roomy = held % page and page > 1
            count = min(count, page - held % page if roomy else max(free - 2 * page, 1))
        if self.tree.has_states and self.tree.shape.extra_buffer:
            # Up to the step before one that prepares a tracked state.
            interval = self.tree.track_interval(self.limits.interval)
            left = held % interval
            count = min(count, interval - 2 - left if left < interval - 2 else 1)
        return max(min(count, self.most_turns), 1)

    def _prepare_for_decode(self, batch: Batch) -> None:
        if not all(req.has_row for req in batch.reqs):
            # Two turns of a streaming session at once, of which one was aborted.
            raise UpstreamAbort("release_kv_cache", "assert: a turn of a session holds no row")
        batch.extend = False
        self.room.let_windows_go(batch.reqs)
        drafts = self.limits.drafts
        if drafts is None:
            self.room.for_decode(batch.reqs, batch.steps)
        elif self.rules.scheduler.keeps_reserve:
            self.room.for_drafts(batch.reqs)
        else:
            self.room.for_verification(batch.reqs, drafts)
        tracks = self.tree.has_states and self.tree.shape.extra_buffer
        interval = self.tree.track_interval(self.limits.interval) if tracks else 0
        for req in batch.reqs:
            req.decode_steps += batch.steps
            req.track_every = interval
        batch.interval, batch.tracks = interval, []
        if interval and drafts is None:
            batch.tracks = [DecodeTrack.of(req, interval) for req in batch.reqs]

    def _retract(self, batch: Batch) -> None:
        """Retract requests with the fewest generated tokens until there is room.

        Follows `retract_decode`.
        """
        order = list(batch.reqs)
        if self.limits.drafts is None or self.rules.scheduler.sorts_drafting:
            # Who has generated least loses least.
            order.sort(key=self._worth, reverse=True)
        # At least one, even if the sum would fit by now.
        gone, first = [], True
        while (first or not self.room.can_decode(order)) and len(order) > 1:
            first = False
            req = order.pop()
            gone.append(req)
            self._start_over(req, len(order))
        # The last one does not fit alone: 0.5.22 aborts it, 0.5.9 ends.
        if len(order) <= 1 and not self.room.can_decode(order):
            if not self.rules.scheduler.aborts_last:
                where = "retract_decode"
                why = "ValueError: Out of memory even after retracting all other requests"
                raise UpstreamAbort(where, why)
            req = order.pop()
            self._end(req)
            req.dropped = True
            req.retractions += 1
            if self.on_abort is not None:
                self.on_abort(req)
        batch.reqs = order
        # Admission was too hopeful: from now on it reserves what these requests really take.
        decoded = sum(req.num_output for req in order) + RETRACT_STEPS * len(order)
        self.ratio = min(1.0, decoded / (sum(req.max_new_tokens for req in order) + 1))
        for req in gone:
            if self.on_retract is not None:
                self.on_retract(req)
            req.matched, req.reissues = None, 0
            self.add(req)

    def _worth(self, req: Req) -> tuple[int, ...]:
        """Sort key in retraction, the last goes first. Follows `_get_decode_retraction_order`."""
        by_length = (req.num_output, -req.num_prompt)
        if not self.limits.retracts_by_priority:
            return by_length
        return (-req.priority if self.limits.low_first else req.priority, *by_length)

    def _start_over(self, req: Req, left: int) -> None:
        """Free a request's memory. Follows `release_req`."""
        # Nothing is inserted: its slots are needed, and the tree would only have to evict them.
        self._release(req, insert=False)
        self.room.make_room(left * RETRACT_STEPS)
        req.reset_for_retract()
        if not self.rules.scheduler.counts_retracted_tokens:
            req.looked_up = 0

    def _preempt(self, req: Req, left: int) -> None:
        self._start_over(req, left)
        if self.on_preempt is not None:
            self.on_preempt(req)

    # -- what came back ----------------------------------------------------------------------------

    def launch(self, batch: Batch) -> None:
        """Queue a batch that runs. Follows `run_batch`."""
        # Trap: a running batch that was a prefill adds its tokens again in each step.
        self.processed += batch.tokens * batch.steps
        self.result_queue.append(batch.copy())

    def take(self, runs: Sequence[Sequence[int]]) -> list[Req]:
        """Append the tokens sampled in the first batch of the queue; return the finished requests.

        Follows `process_batch_result_*`.
        """
        batch = self.result_queue.popleft()
        done: list[Req] = []
        drafting = self.limits.drafts is not None
        if drafting and not batch.extend and not self.rules.scheduler.keeps_reserve:
            runs = [self._verify(req, run) for req, run in zip(batch.reqs, runs, strict=True)]
        grouped = not batch.extend or self.rules.scheduler.groups_prefill_frees
        if grouped:
            self.pool.begin_group()
        for number, (req, run) in enumerate(zip(batch.reqs, runs, strict=True)):
            # Between chunks nothing is sampled.
            if batch.extend and req.is_chunked > 0:
                req.is_chunked -= 1
                continue
            # With overlap it was in this batch before its end was known.
            if req.finished or req.retracted:
                continue
            if drafting and not batch.extend:
                self._commit(req, len(run), batch.interval)
            is_done = req.append(run)
            if batch.tracks and not batch.extend:
                self._track(req, batch.tracks[number])
            if is_done:
                self._release(req, insert=self._may_insert(req, batch), aborted=req.to_finish)
                done.append(req)
            elif drafting and batch.extend and req in batch.decoding:
                req.committed += 1  # a mixed step is without drafts; trap: of the last none counts
            elif batch.reads(req):
                self._stash(req)
        if grouped:
            self.pool.end_group()
        self.tree.flush()
        return done

    def _track(self, req: Req, track: DecodeTrack) -> None:
        """Record a tracked state, and switch slots (`_handle_finish_state_updated_req`)."""
        # Trap: the slots are switched before a step that tracks is processed if it was in flight
        # then, and once more with its own result if no decode is in flight.
        ahead = req.decode_steps - track.step
        if track.at is not None:
            tracked_in_decode(req, track.at, track.slot)
        switches_ahead = self.rules.scheduler.switches_slots_ahead
        if track.next_due if ahead and switches_ahead else track.at is not None:
            req.next_track = req.other_track if switches_ahead else 1 - req.next_track

    def _verify(self, req: Req, run: Sequence[int]) -> Sequence[int]:
        """Cut a run at the request's last token, and free the slots of what was rejected.

        Follows `EagleVerifyInput.verify` of 0.5.9.
        """
        run = run[: 1 if req.to_finish else req.max_new_tokens - req.num_output]
        self.room.free_reserve(req, req.committed + len(run))
        req.allocated = req.committed + len(run)
        return run

    def _commit(self, req: Req, count: int, every: int) -> None:
        """Count a verified run, and whether a state was tracked in it. Follows
        `_resolve_spec_v2_tokens` and `_mamba_check_track_boundary`.
        """
        before = req.committed
        req.committed += count
        req.rounds += 1
        whole = self.rules.scheduler.tracks_whole_runs
        # A verified run may pass a boundary anywhere; 0.5.9 overlooks one at its first token.
        if every and req.committed // every != (before + (not whole)) // every:
            at = req.committed // every * every
            if whole:
                tracked_in_decode(req, at, req.next_track)
                req.next_track = req.other_track
            else:
                req.tracked = at

    def _may_insert(self, req: Req, batch: Batch) -> bool:
        """False for a state of more tokens than its key. Follows
        `_mamba_can_cache_finished_req`.

        Only a verified run is looked at. A reply that `strip_thinking_cache` drops is in the state
        too, but its node, at the end of the prompt, has a state already.
        """
        verified = self.limits.drafts is not None and not batch.extend
        # A run beyond the last token is in the state and not in the key: no node may have it.
        if not self.rules.scheduler.leaves_no_later_state or not verified:
            return True
        if not self.tree.has_states:
            return True
        return self.tree.shape.extra_buffer or req.owned == req.committed

    def _release(self, req: Req, *, insert: bool, aborted: bool = False) -> None:
        """Follows `release_kv_cache`."""
        if not req.has_row:
            if req.state is not None:
                self.tree.state_pool.free(req.state)
                req.state = None
            return
        if sessions.keep_turn(self.tree, req, aborted=aborted):
            return
        if self.rules.scheduler.drops_beyond_the_last:
            req.drop_beyond_the_last()
        self.tree.cache_finished(req, insert=insert)
        self.room.free_reserve(req, req.committed)
        req.has_row = False
        req.row = np.zeros(0, np.int64)
        self.rows -= 1

    # -- clients that disconnect -------------------------------------------------------------------

    def abort(self, req: Req) -> None:
        """Abort a request. Follows `abort_request`."""
        # 0.5.22 ends a partly prefilled prompt before its next chunk and keeps the earlier ones;
        # 0.5.9 prefills it to its end.
        if self.rules.scheduler.aborts_chunks and self.chunked is req:
            self.pending_abort = req
        if req in self.waiting:
            self.waiting.remove(req)
            self.tree.stop_fetching(req)
            if req.stream is not None:
                req.stream.inflight = False
            # It was matched once, and holds a slot with a copied state.
            if req.state is not None:
                self._release(req, insert=False)
            req.finished = req.dropped = True
        last = self.last.reqs if self.last is not None else []
        if not req.finished and (req in self.running.reqs or req in last):
            # A running request runs once more, and is kept as if finished.
            req.to_finish = True

    def _abort_chunked(self) -> None:
        """Follows `process_pending_chunked_abort`."""
        req, self.pending_abort = self.pending_abort, None
        if req is None:
            return
        if self.chunked is not req:
            if not req.finished and req.has_row:
                self.abort(req)
            return
        req.to_finish = False
        self.chunked = None
        self._end(req, aborted=True)

    def _end(self, req: Req, *, aborted: bool = False) -> None:
        self._release(req, insert=False, aborted=aborted)
        req.finished = True

    def close(self, stream: Stream) -> None:
        """Free the memory of a streaming session."""
        self.rows -= sessions.release(self.tree, stream)
