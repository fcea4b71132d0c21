"""One step after another: who computes how many tokens, in which blocks. Follows `scheduler.py`.

First come, first served; chunked prefill; every running request before any waiting one; when blocks
run out the request that came last is preempted and computed again from what the cache still has.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cachesim.engines.vllm.coordinator import Hit
from cachesim.engines.vllm.groups import checkpoint_position
from cachesim.engines.vllm.manager import KVCacheManager
from cachesim.engines.vllm.request import Request

PLACEHOLDER = -1
"""A draft slot that holds no proposal."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one request computes in a step: tokens `[start, start + count)`, drafts last."""

    request: Request
    start: int
    count: int
    drafts: tuple[int, ...] = ()
    blocks: tuple[list[int], ...] = ()  # of a fresh request all, of a running one the new ones
    fresh: bool = False  # it waited until now
    known: int = 0  # tokens of the request when the step was scheduled, drafts not counted

    @property
    def end(self) -> int:
        """One past the last token."""
        return self.start + self.count

    @property
    def tokens(self) -> list[int]:
        """What it computes; a slot without a proposal holds token 0."""
        drafts = [max(draft, 0) for draft in self.drafts]
        return self.request.tokens[self.start : self.end] + drafts

    def last_tokens(self, count: int) -> list[int]:
        """The last of them, without a copy of the rest."""
        drafts = [max(draft, 0) for draft in self.drafts]
        known = self.request.tokens[max(self.start, self.end - count) : self.end]
        return (known + drafts)[-count:]


@dataclass(slots=True)
class Step:
    """What goes to the runner."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)  # group, source, target
    preempted: list[Request] = field(default_factory=list)
    running: tuple[Chunk, ...] = ()  # those of requests that ran before this step


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one step may hold."""

    budget: int = 8192  # max_num_batched_tokens
    max_seqs: int = 256
    max_model_len: int = 1 << 16
    reserve_full: bool = True  # scheduler_reserve_full_isl
    drafts: int = 0  # num_speculative_tokens
    lookahead: int = 0
    use_eagle: bool = False


class Scheduler:
    """Waiting and running requests over a cache manager (`Scheduler`)."""

    def __init__(self, manager: KVCacheManager, limits: Limits) -> None:
        self.manager = manager
        self.limits = limits
        self.rules = manager.rules
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        mamba = next((each for each in manager.groups if each.kind == "mamba"), None)
        self.state_block = mamba.block if mamba else 0
        self.splits = mamba is not None and mamba.mode == "align"
        sizes = manager.sizes
        self.partial_states = (
            self.splits
            and sizes.hash_block < sizes.scheduler_block
            and manager.coordinator.partial_hits
        )
        self.tells_blocks = False  # whether anybody computes in them
        self.on_lookup: Callable[[Request, Hit], None] | None = None
        self.on_deferred: Callable[[Request, Hit, bool], None] | None = None
        self.external: Callable[[Request, Hit], tuple[Hit, int]] | None = None

    @property
    def busy(self) -> bool:
        """Whether any request is not done."""
        return bool(self.waiting or self.running)

    def add_request(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self.waiting.append(request)

    # -- one step ----------------------------------------------------------------------------------

    def schedule(self) -> Step:
        """Hand out the step's tokens and blocks. Follows `schedule`."""
        self.manager.new_step_starts()
        step = Step()
        budget = self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step, budget)
        step.copies = self.manager.take_copies()
        if step.copies:
            ends = (block for _, *pair in step.copies for block in pair)
            self.manager.pool.free_blocks(ends)
        for chunk in step.chunks:
            request = chunk.request
            request.num_computed += chunk.count
            request.is_prefill_chunk = request.num_computed < request.num_tokens
        return step

    def _schedule_running(self, step: Step) -> int:
        limits, budget, index = self.limits, self.limits.budget, 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            new = request.num_tokens + len(request.spec_tokens) - request.num_computed
            new = min(new, budget, limits.max_model_len - request.num_computed - 1)
            if self.splits:
                new = self._split(request, new, request.num_computed, 0)
            if new == 0:
                index += 1
                continue
            blocks = self._allocate_or_preempt(request, new, step)
            if blocks is None:
                break
            index += 1
            budget -= new
            drafts: tuple[int, ...] = ()
            if request.spec_tokens:
                count = new + request.num_computed - request.num_tokens
                drafts = tuple(request.spec_tokens[: max(count, 0)])
                request.spec_tokens = []
            chunk = Chunk(
                request, request.num_computed, new, drafts, blocks, known=request.num_tokens
            )
            step.chunks.append(chunk)
        step.running = tuple(step.chunks)
        return budget

    def _allocate_or_preempt(
        self, request: Request, new: int, step: Step
    ) -> tuple[list[int], ...] | None:
        """Blocks for a running request; the last in line give theirs up until there are enough."""
        while True:
            blocks = self.manager.allocate_slots(request, new, num_lookahead=self.limits.lookahead)
            if blocks is not None:
                return blocks
            victim = self.running.pop()
            self._preempt(victim)
            step.preempted.append(victim)
            if victim is request:
                return None

    def _preempt(self, request: Request) -> None:
        self.manager.free(request)
        request.status = "preempted"
        request.num_computed = 0
        request.spec_tokens = []
        request.preemptions += 1
        self.waiting.appendleft(request)

    def _schedule_waiting(self, step: Step, budget: int) -> None:
        limits = self.limits
        while self.waiting and budget > 0 and len(self.running) < limits.max_seqs:
            request = self.waiting[0]
            hit = self.manager.get_computed_blocks(request)
            uncached = hit.uncached
            if self.on_lookup is not None:
                self.on_lookup(request, hit)
            num_external = 0
            if self.external is not None:
                hit, num_external = self.external(request, hit)
            if self.rules.retention.keeps_junction:
                request.shared_prefix_boundary = hit.length + uncached if uncached else 0
            start = hit.length + num_external
            new = request.num_tokens - start
            padded = self._pads(new, start, step)
            if padded is None or (padded and 1 + limits.drafts > budget):
                break
            if padded:
                new = 1 + limits.drafts
            new = min(new, budget)
            if self.splits:
                new = self._split(request, new, start, uncached)
                if new == 0:
                    break
                if padded and new != 1 + limits.drafts:
                    new, padded = 1, False
            blocks = self.manager.allocate_slots(
                request,
                new,
                num_local_hit=hit.length,
                hit=hit.blocks,
                num_lookahead=self._lookahead(request),
                num_external=num_external,
                full_sequence_must_fit=limits.reserve_full,
            )
            if blocks is None:
                if self.on_deferred is not None:
                    self.on_deferred(request, hit, self.manager.waits_for_step(hit.blocks))
                break
            self.waiting.popleft()
            self.running.append(request)
            request.status = "running"
            request.num_computed = start
            drafts = (PLACEHOLDER,) * limits.drafts if padded else ()
            chunk = Chunk(
                request,
                start,
                new,
                drafts,
                self.manager.tables_of(request) if self.tells_blocks else (),
                fresh=True,
                known=request.num_tokens,
            )
            step.chunks.append(chunk)
            budget -= new

    def _pads(self, new: int, start: int, step: Step) -> bool | None:
        """Whether a request with one token to compute gets draft slots; None: it has to wait.

        So that a step of decodes stays one shape.
        """
        rule, limits = self.rules.scheduler.padding, self.limits
        if new != 1 or not limits.drafts or rule == "never":
            return False
        decoding = step.running
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

    # -- where prefill is cut ----------------------------------------------------------------------

    def _split(self, request: Request, new: int, start: int, uncached: int) -> int:
        """How many tokens a recurrent model's prefill takes now.

            start        block      block   junction     last boundary   prompt end
              |------------|----------|--------|--------------|-------------|
                 a state is left where a chunk ends, so chunks end where one is wanted

        Follows `_mamba_block_aligned_split`.
        """
        end_of_prefill = max(request.num_prompt, request.num_tokens - 1)
        if start >= end_of_prefill:
            return new
        if self.rules.scheduler.chunk_split == "stops":
            return self._split_at_stops(request, new, start, end_of_prefill)
        size = self.state_block
        last = self._last_boundary(request)
        after = start + new
        if after < last:
            new = new // size * size
        elif start < last < after:
            new = last - start
        if self.rules.scheduler.chunk_split == "uncached-prefix" and size <= uncached < new:
            new = uncached // size * size
        return new

    def _last_boundary(self, request: Request) -> int:
        size, eagle = self.state_block, self.limits.use_eagle
        if self.rules.scheduler.prompt_stop == "below-the-end":
            return checkpoint_position(request.num_tokens, size, drop_eagle_block=eagle)
        last = request.num_tokens - request.num_tokens % size
        return max(last - size, 0) if eagle else last

    def _tail_boundary(self, request: Request) -> int:
        unit, eagle = self.manager.sizes.hash_block, self.limits.use_eagle
        rule = self.rules.state.tail
        if rule == "checkpoint":
            return checkpoint_position(request.num_prompt, unit, drop_eagle_block=eagle)
        boundary = request.num_prompt // unit * unit
        return max(boundary - unit, 0) if eagle and rule == "prompt-eagle" else boundary

    def _split_at_stops(self, request: Request, new: int, start: int, end_of_prefill: int) -> int:
        size = self.state_block
        last = self._last_boundary(request)
        end = start + new
        if end < end_of_prefill:
            aligned = end // size * size
            if aligned > start or size <= self.limits.budget:
                end = aligned
        tail = self._tail_boundary(request) if self.partial_states else 0
        junction = request.shared_prefix_boundary
        stops = (
            (start // size + 1) * size if start % size else 0,
            last,
            tail if last < tail < request.num_prompt else 0,
            start + (junction - start) // size * size if start < junction < end else 0,
            self._next_of_interval(start),
        )
        end = min((stop for stop in stops if start < stop < end), default=end)
        return max(end - start, 0)

    def _next_of_interval(self, start: int) -> int:
        """The next position at which retention would keep a state, if there were one."""
        interval = self.manager.coordinator.retention
        if not (interval and self.rules.scheduler.stops_at_interval):
            return 0
        return (start // interval + 1) * interval

    # -- what came back ----------------------------------------------------------------------------

    def update_from_output(self, step: Step, sampled: Sequence[Sequence[int]]) -> list[Request]:
        """Take the step's tokens; the requests that are done. Follows `update_from_output`."""
        done = []
        for chunk, tokens in zip(step.chunks, sampled, strict=True):
            request = chunk.request
            if request.status != "running":
                continue
            if chunk.drafts and tokens:
                rejected = len(chunk.drafts) - (len(tokens) - 1)
                if request.num_computed > 0:
                    request.num_computed -= rejected
            if tokens and self._append(request, tokens):
                done.append(request)
        if done:
            self.running = [each for each in self.running if each.status == "running"]
        return done

    def _append(self, request: Request, tokens: Sequence[int]) -> bool:
        """Append sampled tokens up to a stop; True where the request is done and freed."""
        limits, rules = self.limits, self.rules.scheduler
        stopped = False
        for number, token in enumerate(tokens, 1):
            request.append(token)
            if (
                request.num_output >= request.max_tokens
                or request.num_tokens >= limits.max_model_len
            ):
                stopped = True
                if rules.returns_cut_tokens:
                    request.num_computed -= len(tokens) - number
                break
        if limits.drafts and rules.caches_after_drafts and self.manager.enable_caching:
            self.manager.cache_blocks(request, request.num_computed)
        if stopped:
            request.status = "finished"
            self.manager.free(request)
        return stopped

    def update_draft_token_ids(self, request: Request, drafts: Sequence[int]) -> None:
        """What the drafter proposes for the next step; nothing while the prompt is read."""
        if request.status == "running":
            request.spec_tokens = [] if request.is_prefill_chunk else list(drafts)

    def abort(self, request: Request) -> None:
        """The client went away. Follows `finish_requests`."""
        if request.status in ("finished", "aborted"):
            return
        if request.status == "running":
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.status = "aborted"
        self.manager.free(request)
