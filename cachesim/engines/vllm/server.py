"""vLLM's engine core: requests go in, steps are scheduled and run, replies and events come out."""

from typing import Any, Final

from cachesim.engines import base
from cachesim.engines.base import Ticket
from cachesim.engines.held import Amounts, Held
from cachesim.engines.ledger import Ledger
from cachesim.engines.slotless import SlotlessEngine
from cachesim.engines.vllm import adapters, causes
from cachesim.engines.vllm import events as happened
from cachesim.engines.vllm.account import Account, Computed
from cachesim.engines.vllm.coordinator import Hit
from cachesim.engines.vllm.drafting import Drafter
from cachesim.engines.vllm.hashing import Prefixes
from cachesim.engines.vllm.held import amounts, held
from cachesim.engines.vllm.integrity import check_books
from cachesim.engines.vllm.manager import KVCacheManager, Published
from cachesim.engines.vllm.options import VllmOptions
from cachesim.engines.vllm.request import Job, Request
from cachesim.engines.vllm.rules import Rules
from cachesim.engines.vllm.runner import Runner
from cachesim.engines.vllm.scheduler import Scheduler
from cachesim.engines.vllm.step import Chunk, Step
from cachesim.engines.vllm.store import Connector
from cachesim.errors import UpstreamEndless
from cachesim.units import Array, Count

MOST_IDLE: Final = 2
"""Steps in a row that schedule nothing while requests wait: nothing can change any more."""


class Vllm(SlotlessEngine[Rules, VllmOptions, Job]):
    """An engine core at one release, with one model (`EngineCore`)."""

    limit_flag = "max_tokens"
    erasing = " (a reset)"

    def _set_up(self) -> None:
        asked = self.options
        asked.check(self.rules)
        groups = asked.groups(self.network.spec, self.rules)
        self.options = asked.fitted(groups, self.rules)
        options = self.options
        batches = 1 + (options.async_scheduling and self.rules.scheduler.cap_counts_batches)
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
            most_in_flight=batches * options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
        )
        self.scheduler = Scheduler(self.manager, self.options.limits(self.rules))
        self.scheduler.tells_blocks = self.computes or self.options.connector != "none"
        self.runner = Runner(
            self.network, groups, self.rules.runner, computes=self.scheduler.tells_blocks
        )
        self.runner.v1 = self.options.runs_on_v1(self.rules)
        self.prefixes = Prefixes(
            self.manager.sizes.hash_block, self.options.hash_lookahead(self.rules)
        )
        self.computed = Computed(self.manager.sizes.hash_block)
        self.drafter = Drafter(self.options)
        self.connector = Connector.open(self.options, self.manager, self.runner)
        self._pending: Step | None = None
        self._published: dict[int, int] = {}  # blocks of the step that is scheduled, by request
        self._lost: set[int] = set()  # keys that were evicted
        self._most: int | None = None  # prefixes after which the books are cut
        self._idle = 0
        self.scheduler.on_lookup = self._looked_up
        self.scheduler.on_deferred = self._deferred
        if self.connector is not None:
            self.scheduler.external = self.connector.find
            self.scheduler.on_external = self._from_store
        self.manager.pool.on_evict = self._evicted
        self.manager.on_published = self._was_published

    # -- requests ----------------------------------------------------------------------------------

    def submit(self, request: base.Request) -> Ticket:
        self._check(request)
        fields = self._fields(request)
        lora = adapters.read(fields, self.options.adapters)
        ticket = self._jobs.ticket()
        job = Job(
            ticket=ticket,
            prompt=request.prompt,
            request=None,
            forced=request.reply,
            drafts=request.drafts,
            strengths=lora.strengths,
        )
        self._jobs.append(job)
        room = self.options.max_model_len - len(request.prompt)
        if room < 1:
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
            max_tokens=self._limit(request, room),
            extra=lora.keyed(fields.get("cache_salt")),
            strengths=lora.strengths,
            reads_cache=request.cache_prompt,
            priority=fields.get("priority") or 0,
        )
        self.scheduler.add_request(job.request)
        return ticket

    def _is_over(self, job: Job) -> bool:
        runs = self._pending is not None and job.request and self._pending.has(job.request)
        return job.done and not runs

    def cancel(self, ticket: Ticket) -> None:
        job = self._jobs[ticket]
        request = job.request
        if job.done or request is None:
            return
        scheduled = self._pending is not None and self._pending.has(request)
        skipped = scheduled and self.rules.runner.skips_aborted
        if skipped and self._pending is not None:
            self._pending.drop(request)
        self.scheduler.abort(request)
        if skipped or not scheduled:
            self.runner.forget(request.id)
        job.end("cancelled")
        self._tell(happened.RequestAborted(task=request.id, scheduled=scheduled, skipped=skipped))

    def reset_prefix_cache(self) -> bool:
        """Forget all ids, as `POST /reset_prefix_cache` does; refused while blocks are in use."""
        done = self.manager.reset_prefix_cache()
        self._tell(happened.CacheReset(done=done))
        return done

    def _empty(self) -> None:
        self.reset_prefix_cache()

    def _blank(self, ticket: Ticket) -> Job:
        return Job(ticket=ticket, prompt=(), request=None, drafts=None)

    # -- the loop ----------------------------------------------------------------------------------

    def step(self) -> bool:
        if self._pending is not None:
            self._execute(self._pending)
            return True
        if not self.scheduler.busy:
            return False
        self._published.clear()
        step = self.scheduler.schedule()
        for request in step.preempted:
            self.runner.forget(request.id)
            self._tell(
                happened.RequestPreempted(
                    task=request.id,
                    unwritten=self._published.get(request.id, 0),
                    taken_back=self.rules.scheduler.withdraws_unwritten,
                )
            )
        for group, source, target in step.copies:
            self._tell(happened.BlockCopied(group=group, source=source, target=target))
        for chunk in step.chunks:
            job = self._jobs[chunk.request.id]
            if job.cached is None:
                job.cached = Count(chunk.start)
            self._tell(
                happened.ChunkScheduled(
                    task=chunk.request.id,
                    start=chunk.start,
                    end=chunk.end,
                    drafts=len(chunk.drafts),
                )
            )
        if not step.chunks and not step.preempted:
            self._idle += 1
            if self._idle > MOST_IDLE:
                where = "Scheduler.schedule"
                raise UpstreamEndless(where, "a request waits for more blocks than there are")
            return True
        self._idle = 0
        self._pending = step
        if not self.options.async_scheduling:
            self._execute(step)
        return True

    def _execute(self, step: Step) -> None:
        self._pending = None
        if self.connector is not None:
            self.connector.load(step)
        sampled = self.runner.run(step, self._sample)
        self._tell(happened.StepWritten(chunks=len(step.chunks)))
        for chunk in step.chunks:
            self.computed.learn(chunk.request, min(chunk.end, chunk.known))
        finished = self.scheduler.update_from_output(step, sampled)
        for chunk, tokens in zip(step.chunks, sampled, strict=True):
            request = chunk.request
            if chunk.drafts and tokens:
                self._tell(
                    happened.DraftsVerified(
                        task=request.id, proposed=len(chunk.drafts), accepted=len(tokens) - 1
                    )
                )
            if tokens and request.status == "running":
                job = self._jobs[request.id]
                proposed = self.drafter.propose(request, job.forced, job.drafts, job.turns)
                job.turns += 1
                self.scheduler.update_draft_token_ids(request, proposed)
        for request in (each.request for each in step.chunks):
            if request.status == "aborted":
                self.runner.forget(request.id)
        for request in finished:
            if self.connector is not None:
                self.connector.save(request)
            self.runner.forget(request.id)
            self._jobs[request.id].done = True
            self._tell(
                happened.RequestFinished(task=request.id, generated=Count(request.num_output))
            )

    def _sample(self, chunk: Chunk, logits: Array) -> list[int]:
        """Greedy, or the tokens that the request brought; drafts count as far as they agree."""
        request, job = chunk.request, self._jobs[chunk.request.id]
        tokens: list[int] = []
        for row in range(1 + len(chunk.drafts)):
            token = self._token(job, request.num_output + row, logits[row])
            job.rows.append(logits[row])
            tokens.append(token)
            if row == len(chunk.drafts) or chunk.drafts[row] != token:
                break
            if request.num_output + len(tokens) >= request.max_tokens:
                break
        return tokens

    def remember(self, most: int) -> None:
        self._most = most

    def _cut_books(self) -> None:
        """Forget prefixes that no block, store or request has, and what was noted of them."""
        groups = len(self.manager.groups)
        held = {key // groups for key in self.manager.pool.cached}
        if self.connector is not None:
            held |= {number for number, _ in self.connector.kept}
        for job in self._jobs:
            if job.request is not None:
                held.update(job.request.hashes)
        left = self.prefixes.cut(held)
        self.computed.cut(left)
        self._lost = {key for key in self._lost if key // groups in left}

    # -- what is told ------------------------------------------------------------------------------

    def _looked_up(self, request: Request, hit: Hit) -> None:
        job = self._jobs[request.id]
        coordinator = self.manager.coordinator
        if job.cached is None:
            equal, who = self.computed.equal(request)
            job.ledger = Ledger(Count(equal), who)
            Account(job.ledger, request, coordinator, self._lost).of(hit)
        kinds = [group.spec.kind for group in coordinator.spec_groups]
        self._tell(
            happened.CacheLookup(
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
            job.ledger.apply(causes.FROM_STORE, local + tokens, tokens=tokens)

    def _deferred(self, request: Request, hit: Hit) -> None:
        same_step = self.manager.waits_for_step(hit.blocks)
        self._tell(
            happened.RequestDeferred(task=request.id, cached=Count(hit.length), same_step=same_step)
        )

    def _evicted(self, block: int, key: int) -> None:
        self._lost.add(key)
        group = key % len(self.manager.groups)
        self._tell(
            happened.BlockEvicted(
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
            self._tell(
                happened.BlocksPublished(
                    task=request.id,
                    group=group,
                    kind=self.manager.groups[group].kind,
                    blocks=tuple(blocks),
                    ends=tuple(pool.key_tokens[block] for block in blocks),
                )
            )

    # -- looking in --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        pool, count = self.manager.pool, len(self.manager.groups)
        return {
            "slots": [],
            "prompt_cache": [],
            "blocks": [
                {
                    "block": block,
                    "kind": self.manager.groups[key % count].kind,
                    "n_tokens": pool.key_tokens[block],
                    "references": pool.ref[block],
                }
                for block, key in enumerate(pool.key)
                if key is not None
            ],
            "free": pool.num_free,
            "running": [request.id for request in self.scheduler.running],
            "waiting": [request.id for request in self.scheduler.waiting],
        }

    def held(self) -> Held:
        return held(self.manager, self.runner)

    def amounts(self) -> Amounts:
        return amounts(self.manager)

    def check_integrity(self) -> None:
        check_books(
            self.manager, {job.request.id: job.request for job in self._jobs if job.request}
        )
