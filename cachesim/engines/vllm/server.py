"""vLLM's engine core: requests in, steps, replies and events out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

from cachesim.engines import base
from cachesim.engines.adapters import LoadedAdapters, LoRARequest, maybe_get_adapters
from cachesim.engines.base import Ticket
from cachesim.engines.causes import Ledger
from cachesim.engines.held import Amounts, Held, sizes_of
from cachesim.engines.job import SlotlessEngine
from cachesim.engines.vllm import observe, vocabulary
from cachesim.engines.vllm.account import Account, Computed
from cachesim.engines.vllm.block_pool import GroupSpec
from cachesim.engines.vllm.connector import Connector, Load
from cachesim.engines.vllm.coordinator import Hit, KVCacheManager, Published
from cachesim.engines.vllm.nixl import Nixl
from cachesim.engines.vllm.offload_connector import Offloading
from cachesim.engines.vllm.offloading import OffloadingScheduler
from cachesim.engines.vllm.options import LATE, VllmOptions
from cachesim.engines.vllm.request import (
    ENDED,
    NO_ADAPTER,
    NO_TRANSFERS,
    PLACEHOLDER,
    ROOT,
    Chunk,
    Job,
    Prefixes,
    Request,
    Step,
    adapter_keys,
)
from cachesim.engines.vllm.rules import Rules
from cachesim.engines.vllm.runner import Runner
from cachesim.engines.vllm.scheduler import Scheduler
from cachesim.errors import OptionError, UpstreamEndless
from cachesim.model.counts import NO_ROW
from cachesim.model.spec import RECURRENT_KINDS
from cachesim.units import Array, Count, Tokens

NGRAM: Final = 2
"""Length of an n-gram that has to repeat (`prompt_lookup_min`)."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """The drafts of the next step.

    An EAGLE or MTP head proposes in every step, n-grams after a repeated one.
    """

    options: VllmOptions

    def propose(
        self, request: Request, forced: Tokens | None, given: tuple[Tokens, ...] | None, turn: int
    ) -> list[int]:
        """The drafts after the sampled tokens."""
        count = self.options.drafts
        if not count:
            return []
        if given is not None:
            drafts = [int(token) for token in given[turn]] if turn < len(given) else []
        elif self.options.speculative_method == "ngram":
            drafts = _lookup(request.tokens, count)
        elif forced is not None:
            drafts = [
                int(token) for token in forced[request.num_output : request.num_output + count]
            ]
        else:
            drafts = _lookup(request.tokens, count)
        drafts = drafts[:count]
        if self.options.use_eagle:
            drafts += [PLACEHOLDER] * (count - len(drafts))
        return drafts


def _lookup(tokens: list[int], count: int) -> list[int]:
    last = tokens[-NGRAM:]
    for end in range(len(tokens) - 1, NGRAM - 1, -1):
        if tokens[end - NGRAM : end] == last:
            return tokens[end : end + count]
    return []


FREED: Final = ENDED | {"preempted"}
"""Requests whose chunks in flight run without effect."""

MOST_IDLE: Final = 3
"""Consecutive steps without a chunk after which waiting requests can make no progress."""


class Vllm(SlotlessEngine[Rules, VllmOptions, Job]):
    """An engine core at one release, with one model (`EngineCore`)."""

    limit_flag = "max_tokens"
    erasing = " (a reset)"

    def _set_up(self) -> None:
        requested = self.options
        requested.check(self.rules)
        groups = requested.groups(self.network.spec, self.rules)
        self.options = requested.fitted(groups, self.rules)
        options = self.options
        batches = 1 + (options.overlaps(self.rules) and self.rules.scheduler.cap_counts_batches)
        # The interval thins windows and states; other models ignore it.
        sparse = any(group.kind in {"window", "mamba"} for group in groups)
        self.manager = KVCacheManager(
            groups,
            self.rules,
            num_blocks=options.num_gpu_blocks_override,
            unit=options.prefix_match_unit or None,
            retention=options.retention if sparse else None,
            enable_caching=options.enable_prefix_caching,
            use_eagle=options.drops_eagle_block(self.rules),
            hash_lookahead=options.hash_lookahead(self.rules),
            shared_prefix_checkpoint=options.enable_mamba_shared_prefix_checkpoint,
            most_in_flight=batches * options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
        )
        self.scheduler = Scheduler(self.manager, self.options.limits(self.rules))
        self.scheduler.passes_block_tables = self.computes or options.has_connector
        self.runner = Runner(
            self.network, groups, self.rules.runner, computes=self.scheduler.passes_block_tables
        )
        self.runner.v1 = self.options.runs_on_v1(self.rules)
        self.runner.scan_size = options.mamba_chunk_size
        self.runner.exports = self.manager.coordinator.exports
        self.prefixes = Prefixes(
            self.manager.sizes.hash_block, self.options.hash_lookahead(self.rules)
        )
        self.computed = Computed(self.manager.sizes.hash_block)
        self.drafter = Drafter(self.options)
        self.nixl = self._beside(requested) if options.connector == "nixl" else None
        self.offloading = (
            Offloading.beside(self.manager, self.runner, options, self.rules.offload)
            if options.offloads
            else None
        )
        self.connector = (
            self.nixl or self.offloading or Connector.open(options, self.manager, self.runner)
        )
        self._loads = LoadedAdapters()
        self._in_flight = list[Step]()  # scheduled steps without output, the oldest first
        self._published: dict[int, int] = {}  # published blocks of the scheduled step, by request
        self._released = set[Ticket]()  # tickets that are forgotten after the steps in flight
        self._lost: set[int] = set()  # keys that were evicted
        self._most: int | None = None  # number of prefixes at which the records are cut
        self.idle = 0
        self.most_turns = 1
        self._stops = self._stops_of(groups)
        self.scheduler.on_lookup = self._looked_up
        self.scheduler.on_deferred = self._deferred
        self.scheduler.requires_delivery = self.nixl is not None
        if self.connector is not None:
            self.scheduler.external = self.connector.find
            if self.offloading is not None:
                self.scheduler.offload_to(self.offloading.side)
            self.scheduler.on_external = self._from_store
        self.manager.pool.on_evict = self._evicted
        self.manager.on_published = self._was_published

    def _beside(self, options: VllmOptions) -> Nixl:
        """The connector to a prefill server with the same options."""
        ahead = copy(self)
        alone = replace(options, connector="none")
        ahead._open(self.rules, alone, None)  # noqa: SLF001 - our own class
        return Nixl.of(self.manager, self.runner, ahead, options)

    # -- requests ----------------------------------------------------------------------------------

    def submit(self, request: base.Request) -> Ticket:
        self._check(request)
        fields = self._fields(request)
        lora = self._loads.loaded(maybe_get_adapters(fields, self.options.adapters))
        ticket = self._jobs.ticket()
        job = Job(
            ticket=ticket,
            prompt=request.prompt,
            request=None,
            forced=request.reply,
            drafts=request.drafts,
            strengths=lora.strengths,
        )
        if fields.get("failed_block") is not None and self.options.connector not in LATE:
            raise OptionError(
                "request field 'failed_block' is for servers with connector 'store-async' or 'nixl'"
            )
        self._jobs.append(job)
        capacity = self.options.max_model_len - len(request.prompt)
        if capacity < 1:
            job.end(
                "BadRequestError",
                f"the maximum context length is {self.options.max_model_len} tokens; "
                f"the prompt has {len(request.prompt)}",
            )
            return ticket
        if self._most is not None and len(self.prefixes) >= self._most:
            self._cut_books()
        job.request = Request.make(
            int(ticket),
            self.prefixes,
            request.prompt,
            max_tokens=self._limit(request, capacity),
            salt=fields.get("cache_salt"),
            adapter=adapter_keys(lora, path=self.rules.lookup.adapter_path),
            lora=lora,
            reads_cache=request.cache_prompt,
            priority=fields.get("priority") or 0,
            images=request.images,
        )
        if self.connector is not None and fields.get("failed_block") is not None:
            self.connector.failing[job.request.id] = fields["failed_block"]
        if self.nixl is not None:
            self.nixl.begin(job.request, request)
        else:
            self.scheduler.add_request(job.request)
        return ticket

    def lora_of(self, ticket: Ticket) -> LoRARequest:
        """The adapter of a request, with its load."""
        request = self._jobs[ticket].request
        return NO_ADAPTER if request is None else request.lora

    def longest(self) -> int:
        return self.options.max_model_len

    def forget(self, ticket: Ticket) -> None:
        # A step in flight still samples for the request: its record goes with that step's output.
        if self._is_pending(ticket):
            self._events.clear()
            self._released.add(ticket)
        else:
            super().forget(ticket)

    def _is_pending(self, ticket: Ticket) -> bool:
        """True if a step or a load of the request is in flight."""
        request = self._jobs[ticket].request
        return request is not None and (self._is_in_flight(request) or ticket in self._loading)

    def cancel(self, ticket: Ticket) -> None:
        job = self._jobs[ticket]
        request = job.request
        if job.done or request is None:
            return
        elsewhere = self.nixl is not None and self.nixl.withdraw(request)
        scheduled = self._is_in_flight(request)
        # In every release the chunk of a step in flight runs; skipping it is an injected defect
        # (#56525).
        skipped = scheduled and self.rules.runner.skips_aborted
        for step in self._in_flight if skipped else ():
            step.drop(request)
        if not elsewhere:
            self.scheduler.abort(request)
        if skipped or not scheduled:
            self.runner.forget(request.id)
        job.end("cancelled")
        self._emit(vocabulary.RequestAborted(task=request.id, scheduled=scheduled, skipped=skipped))

    @property
    def in_flight(self) -> bool:
        """True if a scheduled step has no output yet."""
        return bool(self._in_flight)

    def _is_in_flight(self, request: Request) -> bool:
        return any(step.has(request) for step in self._in_flight)

    @property
    def _loading(self) -> Mapping[int, Load]:
        return self.connector.loading if self.connector is not None else {}

    @property
    def _transfers(self) -> bool:
        return self.connector is not None and self.connector.in_transit

    def reset_prefix_cache(self) -> bool:
        """Remove all ids, as `POST /reset_prefix_cache` does; False while blocks are in use."""
        done = self.manager.reset_prefix_cache()
        self._emit(vocabulary.CacheReset(done=done))
        return done

    def _empty(self) -> None:
        self.reset_prefix_cache()

    def _blank(self, ticket: Ticket) -> Job:
        return Job(ticket=ticket, prompt=(), request=None, drafts=None)

    # -- the loop ----------------------------------------------------------------------------------

    def step(self) -> bool:
        """Schedule a step and take the output of the oldest one.

                                 turn 1        turn 2              turn 3
            one at a time        A, output A   B, output B         C, output C
            asynchronous         A             B, output A         C, output B

        Follows `step` and `step_with_batch_queue`.
        """
        overlaps = self.scheduler.limits.overlaps
        # Nothing to schedule, and a step without output: only that is taken.
        if self._in_flight and not self.scheduler.busy and not self._transfers:
            self._take_output()
            return True
        if self.nixl is not None and self._prefill_elsewhere(self.nixl):
            return True
        if not self.scheduler.busy and not self._transfers:
            return False
        self._foresee()
        step = self._schedule()
        if not (step.chunks or step.preempted or self._transfers or self._in_flight):
            self.idle += 1
            # The real engine would loop without end: nothing that it waits for can happen.
            if self.idle > MOST_IDLE:
                where, why = "Scheduler.schedule", "a request waits for more blocks than there are"
                if step.cut_to_none:
                    why = "a chunk is cut to whole blocks, and a step has fewer tokens than one"
                raise UpstreamEndless(where, why)
            return True
        self.idle = 0
        if step.chunks or self._transfers or not overlaps:
            self._in_flight.append(step)
        # A transfer keeps a request known (`has_finished_requests`), so the queue fills up first.
        waits = self._transfers and self.offloading is None
        goes_on = bool(step.chunks) or waits
        first = goes_on and len(self._in_flight) == 1
        # Asynchronous: the first step stays in flight, so each output comes a step late.
        if self._in_flight and not (overlaps and first):
            self._take_output()
        return True

    def _foresee(self) -> None:
        """Steps of a known reply of which none takes, publishes or frees a block, as one chunk.

        block       | 0  1  2 .............. 15 | 16
        attention     takes          publishes      one chunk; a step of its own where any group
        window, state    frees one that it left     frees, and before it

        Of the only request: beside another one, or before a new one, each step is a decision.
        """
        scheduler, limits = self.scheduler, self.scheduler.limits
        for request in scheduler.running:
            request.foreseen = 0
        if len(scheduler.running) != 1 or self._stops is None or self.most_turns < 2:
            return
        forced = self._jobs[request.id].forced
        start, unit = request.num_computed, self.manager.sizes.hash_block
        decodes = start >= request.num_prompt
        decodes &= start == request.num_tokens + request.placeholders - 1
        # Behind several tokens in flight a window or a state frees its blocks one step later.
        decodes &= len(self._stops) == 1 or request.in_flight <= 1
        if not decodes or forced is None or scheduler.waiting or scheduler.holding:
            return
        end = start + min(self.most_turns, limits.budget, limits.threshold or limits.budget)
        end = min(end, *(start + 1 + (stop - start - 1) % unit for stop in self._stops))
        # The last token is left to a step of its own, which ends the request.
        end = min(end, request.num_prompt + request.max_tokens - 1, limits.max_model_len - 1)
        done = request.num_output
        tokens = [int(token) for token in forced[done : done + end - start - 1]]
        if tokens and not request.images:
            request.foresee(tokens)
            self._jobs[request.id].rows += [NO_ROW] * len(tokens)

    def _stops_of(self, groups: Sequence[GroupSpec]) -> frozenset[int] | None:
        """Places in a hash unit at which a step of a reply changes blocks; None: each is one."""
        options, stops = self.options, {0}
        plain = not (options.drafts or options.connector != "none" or options.offloads)
        if self.computes or not plain or self.scheduler.limits.prefill_interval > 1:
            return None
        for group in groups:
            if group.kind not in {"full", "mamba", "window"}:
                return None
            if group.kind != "full":
                # Blocks go by what is computed, with overlapping steps by what has an output.
                left = 1 if group.kind == "mamba" else group.window - 1
                stops |= {left, left + 1}
        return frozenset(stops)

    def limit_turns(self, most: int) -> None:
        self.most_turns = most

    def _schedule(self) -> Step:
        self._published.clear()
        if self.connector is not None:
            self.connector.steps_ahead = len(self._in_flight)
        step = self.scheduler.schedule()
        for request in step.preempted:
            if not self._is_in_flight(request):
                self.runner.forget(request.id)
            self._emit(
                vocabulary.RequestPreempted(
                    task=request.id,
                    unwritten=self._published.get(request.id, 0),
                    taken_back=self.rules.scheduler.withdraws_unwritten,
                )
            )
        for group, source, target in step.copies:
            self._emit(vocabulary.BlockCopied(group=group, source=source, target=target))
        if self.offloading is not None:
            self._offloaded(step, self.offloading.side)
        for chunk in step.chunks:
            job = self._jobs[chunk.request.id]
            if job.cached is None:
                job.cached = Count(chunk.start)
            self._emit(
                vocabulary.ChunkScheduled(
                    task=chunk.request.id,
                    start=chunk.start,
                    end=chunk.end,
                    drafts=len(chunk.drafts),
                )
            )
        return step

    def _offloaded(self, step: Step, side: OffloadingScheduler) -> None:
        """Events of a step's copies to the host."""
        for request in side.asked_later:
            self._emit(vocabulary.RequestAskedLater(task=request.id))
        for request in side.refused:
            self._emit(vocabulary.HostFull(task=request.id))
        for job in step.jobs.stores:
            self._emit(vocabulary.BlocksOffloaded(task=job.request.id, chunks=len(job.keys)))
        if side.evicted:
            self._emit(vocabulary.HostEvicted(chunks=len(side.evicted)))
        for done in (side.asked_later, side.refused, side.evicted):
            done.clear()

    def _prefill_elsewhere(self, nixl: Nixl) -> bool:
        """Step the prefill server, and add its finished requests; True if nothing else is."""
        done, ended = nixl.advance()
        for prefill in ended:
            self._emit(vocabulary.LeaseEnded(task=prefill.request.id))
        for prefill in done:
            tokens = prefill.made.num_prompt
            self.computed.learn(prefill.request, tokens)
            self._emit(vocabulary.PrefilledElsewhere(task=prefill.request.id, tokens=Count(tokens)))
            self.scheduler.add_request(prefill.request)
        return nixl.busy and not self.scheduler.busy and not self._loading

    def _take_output(self) -> None:
        """Run the oldest step in flight and process its output."""
        step = self._in_flight.pop(0)
        # The chunk was scheduled before the step ahead of it had verified its drafts.
        if self.scheduler.limits.overlaps and self.options.drafts:
            step.chunks = [
                chunk.settled(self._jobs[chunk.request.id].proposed) for chunk in step.chunks
            ]
        if self.connector is not None:
            self.connector.load(step)
        sampled = self.runner.run(step, self._sample)
        if step.chunks or not self._transfers:
            self._emit(vocabulary.StepWritten(chunks=len(step.chunks)))
        for chunk in step.chunks:
            self.computed.learn(chunk.request, min(chunk.end, chunk.request.num_tokens))
        transfers = NO_TRANSFERS if self.connector is None else self.connector.get_finished()
        # Noted before the scheduler cuts a request at its first invalid block.
        loaded = {request: request.num_computed for request in transfers.received}
        ended = {chunk.request.id for chunk in step.chunks if chunk.request.status in ENDED}
        finished = self.scheduler.update_from_output(step, sampled, transfers)
        for request, before in loaded.items():
            valid = request.num_computed
            if request.status == "error" or valid < before:
                self._emit(vocabulary.LoadFailed(task=request.id, valid=Count(valid)))
                self._jobs[request.id].ledger.apply(vocabulary.LOAD_FAILED, valid, valid=valid)
            elif self.offloading is not None:
                self._emit(vocabulary.LoadedFromHost(task=request.id, tokens=Count(before)))
            else:
                self._emit(vocabulary.LoadArrived(task=request.id, tokens=Count(before)))
        for chunk, tokens in zip(step.chunks, sampled, strict=True):
            request = chunk.request
            if chunk.drafts and tokens and request.id not in ended:
                self._emit(
                    vocabulary.DraftsVerified(
                        task=request.id, proposed=len(chunk.drafts), accepted=len(tokens) - 1
                    )
                )
            if tokens and request.status not in ENDED:
                job = self._jobs[request.id]
                proposed = self.drafter.propose(request, job.forced, job.drafts, job.turns)
                job.proposed = proposed[: step.proposes]
                job.proposals[request.num_output] = len(job.proposed)
                job.turns += 1
                if not self.scheduler.limits.overlaps:
                    self.scheduler.update_draft_token_ids(request, job.proposed)
        for request in (chunk.request for chunk in step.chunks):
            if request.status in FREED and not self._is_in_flight(request):
                self.runner.forget(request.id)
        for request in finished:
            if not self._is_in_flight(request):
                self.runner.forget(request.id)
            if request.status == "error":
                self._jobs[request.id].end("InternalServerError", "a load from the store failed")
                continue
            if self.connector is not None:
                self.connector.save(request)
            self._jobs[request.id].done = True
            self._emit(
                vocabulary.RequestFinished(task=request.id, generated=Count(request.num_output))
            )
        for ticket in [*self._released]:
            if not self._is_pending(ticket):
                self._released.remove(ticket)
                self._jobs.forget(ticket)

    def _sample(self, chunk: Chunk, logits: Array) -> list[int]:
        """Greedy or forced tokens, up to the first rejected draft."""
        request, job = chunk.request, self._jobs[chunk.request.id]
        tokens: list[int] = []
        for row in range(1 + len(chunk.drafts)):
            token = self._token(job, request.num_output + row, logits[row])
            job.rows.append(logits[row])
            tokens.append(token)
            # The rows after a refused draft continue a text that does not exist.
            if row == len(chunk.drafts) or chunk.drafts[row] != token:
                break
            if request.num_output + len(tokens) >= request.max_tokens:
                break
        return tokens

    def proposals(self, ticket: Ticket) -> Mapping[int, int]:
        """Numbers of drafts that were proposed for a request, by its generated tokens.

        Not each is in a chunk: the drafts of a request that is then preempted are in none, though
        the blocks that they would take may be the reason.
        """
        return self._jobs[ticket].proposals

    def remember(self, most: int) -> None:
        self._most = most

    def _cut_books(self) -> None:
        """Drop the records of prefixes that no block, store or request has."""
        groups = len(self.manager.groups)
        held = {key // groups for key in self.manager.pool.cached}
        if self.connector is not None:
            held |= self.connector.held
        for job in self._jobs:
            if job.request is not None:
                held.update(job.request.hashes)
        left = self.prefixes.cut(held)
        self.computed.cut(left)
        self._lost = {key for key in self._lost if key // groups in left}

    # -- events ------------------------------------------------------------------------------------

    def _looked_up(self, request: Request, hit: Hit) -> None:
        job = self._jobs[request.id]
        coordinator = self.manager.coordinator
        if job.cached is None:
            equal, who = self.computed.equal(request)
            job.ledger = Ledger(Count(equal), who)
            Account(job.ledger, request, coordinator, self._lost).of(hit)
        kinds = [group.spec.kind for group in coordinator.spec_groups]
        self._emit(
            vocabulary.CacheLookup(
                task=request.id,
                cached=Count(hit.length),
                by_group=tuple(zip(kinds, hit.by_group, strict=False)),
                junction=hit.length + hit.uncached if hit.uncached else 0,
            )
        )

    def _from_store(self, request: Request, local: int, tokens: int) -> None:
        job = self._jobs[request.id]
        if self.connector is not None:
            self.connector.promise(request, local, tokens)
        if job.cached is None:
            cause = vocabulary.FROM_STORE if self.offloading is None else vocabulary.FROM_HOST
            job.ledger.apply(cause, local + tokens, tokens=tokens)
            if local + tokens == (known := request.num_tokens):
                job.ledger.apply(vocabulary.LAST_TOKEN, known - 1, prompt_tokens=known)

    def _deferred(self, request: Request, hit: Hit) -> None:
        same_step = self.manager.waits_for_step(hit.blocks)
        self._emit(
            vocabulary.RequestDeferred(
                task=request.id, cached=Count(hit.length), same_step=same_step
            )
        )

    def _evicted(self, block: int, key: int) -> None:
        self._lost.add(key)
        group = key % len(self.manager.groups)
        self._emit(
            vocabulary.BlockEvicted(
                block=block,
                group=group,
                kind=self.manager.groups[group].kind,
                tokens=Count(self.manager.pool.key_tokens[block]),
            )
        )

    def _was_published(self, request: Request, published: Published) -> None:
        pool = self.manager.pool
        for group, blocks in published:
            if not blocks:
                continue
            self._published[request.id] = self._published.get(request.id, 0) + len(blocks)
            for block in blocks:
                key = pool.key[block]
                if key is not None:
                    self._lost.discard(key)
            self._emit(
                vocabulary.BlocksPublished(
                    task=request.id,
                    group=group,
                    kind=self.manager.groups[group].kind,
                    blocks=tuple(blocks),
                    ends=tuple(pool.key_tokens[block] for block in blocks),
                )
            )

    # -- inspection --------------------------------------------------------------------------------

    def peek(self, prompt: Tokens) -> Count | None:
        """The hit of `get_computed_blocks`; a store's part is unknown before it loads."""
        if self.connector is not None:
            return None
        if not self.options.enable_prefix_caching:
            return Count(0)
        hashes, coordinator = self.prefixes.known(prompt), self.manager.coordinator
        units = (len(prompt) - self.prefixes.lookahead) // self.prefixes.unit
        hashes += [ROOT] * (units - len(hashes))  # no block has such an id
        return Count(coordinator.find_longest_cache_hit(hashes, len(prompt) - 1).length)

    def snapshot(self) -> dict[str, Any]:
        return observe.snapshot(self.manager, self.scheduler)

    def held(self) -> Held:
        return observe.held(self.manager, self.runner, self.prefixes)

    def amounts(self) -> Amounts:
        return observe.amounts(self.manager)

    def pool_flags(self, memory: int) -> dict[str, int]:
        """Follows `get_kv_cache_config_from_groups`: each layer of a group has a page in a block.

        blocks = memory // (page x layers of the largest group)    a page is the largest of all
        """
        spec = self.network.spec
        groups, layers = self.manager.groups, Counter(spec.layers)
        token, window, state = sizes_of(spec)
        states = sum(layers[kind] for kind in RECURRENT_KINDS)
        page = max(
            state / states
            if group.kind == "mamba"
            else group.block * token / layers["attention"]
            if group.kind == "full"
            else group.block * window / layers["window"]
            for group in groups
        )
        most = max(len(group.layers) for group in groups)
        return {"num_gpu_blocks_override": int(memory // (page * most))}

    def check_integrity(self) -> None:
        manager, scheduler = self.manager, self.scheduler
        in_flight = [chunk for step in self._in_flight for chunk in step.chunks]
        live = {job.request.id: job.request for job in self._jobs if job.request}
        observe.check_books(manager, live, [blocks for _, blocks in scheduler.deferred])
        elsewhere = {*self._loading}
        if self.nixl is not None:  # one that left may have been on the prefill server alone
            elsewhere |= {
                *self.nixl.prefills,
                *(number for number in live if self._jobs[number].done),
            }
        observe.check_requests(scheduler, live, in_flight, elsewhere)
        observe.check_tables(scheduler, self.runner, in_flight)
        observe.check_encoder(scheduler.encoder, live)
        late = self.options.loads_late
        if not late:  # a loaded prompt's last token is computed again, perhaps behind a window
            observe.check_null_block(self.runner)
        removed = self.rules.scheduler.withdraws_unwritten or late
        observe.check_ids(manager, live.values(), removed=removed)
        if self.connector is None and self.options.enable_prefix_caching:
            observe.check_lookups(manager.coordinator, [*live.values()])
