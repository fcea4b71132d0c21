"""SGLang's engine core: requests go in, batches are formed and run, replies and events come out."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from cachesim.engines import base
from cachesim.engines.adapters import LoadedAdapters, maybe_get_adapters
from cachesim.engines.base import Ticket
from cachesim.engines.held import (
    Amounts,
    Held,
    Texts,
    sizes_of,
)
from cachesim.engines.job import SlotlessEngine
from cachesim.engines.sglang import sessions, vocabulary
from cachesim.engines.sglang.account import Account
from cachesim.engines.sglang.build import Kind, Sizes, grid_of, make_tree
from cachesim.engines.sglang.node import FULL, PART, Node
from cachesim.engines.sglang.observe import (
    amounts,
    check_account,
    check_books,
    held,
    snapshot,
    texts,
)
from cachesim.engines.sglang.options import SglangOptions
from cachesim.engines.sglang.pools import HostAction, Storage, WindowPool
from cachesim.engines.sglang.request import Batch, Job, Limits, Req, Stream
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.runner import Contents, Runner
from cachesim.engines.sglang.scheduler import Scheduler
from cachesim.engines.sglang.tree import Lost, Match, Shape, Tree
from cachesim.errors import OptionError, UpstreamAbort, UpstreamEndless
from cachesim.units import Array, Count, Integers, Tokens, as_tokens

MAMBA_FULL_MEMORY_RATIO: Final = 0.9
"""Bytes of states for each byte of keys and values."""


def leaks(tree: Tree, records: Sequence[Req] = ()) -> bool:
    """True if an idle server's free slots, the tree's and its sessions' are not all slots."""
    pool, nodes = tree.pool, [*tree.nodes()]
    own = sum(-(-r.allocated // pool.page) * pool.page - r.protected for r in records)
    pools = [(pool, own + sum(len(node) for node in nodes if not node.evicted))]
    if isinstance(pool, WindowPool):
        own -= sum(max(0, r.window_evicted - r.protected) for r in records)
        pools.append((pool.windows, own + sum(len(node) for node in nodes if node.window)))
    whole_pages = [(part, part.size // part.page * part.page, held) for part, held in pools]
    return any(part.available + held != size for part, size, held in whole_pages)


MOST_IDLE: Final = 3
"""Steps in a row without a batch or a copy to the host while requests wait: nothing changes."""


PART_NAMES: Final = ("attention", "window", "state")


def _not(part: int, at: Integers, to: Integers) -> None:
    del part, at, to


class Sglang(SlotlessEngine[Rules, SglangOptions, Job]):
    """A scheduler at one release, with one model (`Scheduler`)."""

    limit_flag = "max_new_tokens"
    erasing = " (a flush)"

    def _set_up(self) -> None:
        # 0.5.9 has no tree for windows with states, and keeps windows whole as it does for models
        # that it does not list.
        spec = self.network.spec
        self.kind: Kind = "window" if spec.window_layers else "full"
        if spec.recurrent_layers:
            both = spec.window_layers and self.rules.tree.trees == "unified"
            self.kind = "window-mamba" if both else "mamba"
        states = self.kind in {"mamba", "window-mamba"}
        self.options.check(self.rules, states=states)
        self._overlaps = self.options.overlaps(self.rules, states=states)
        self._of_req: dict[int, Job] = {}
        self._idle = 0
        self._loads = LoadedAdapters()
        self._sessions: dict[str, sessions.Session] = {}
        self.storage, self.shelf = Storage(), Contents(self.network, None)
        self._start()

    def _start(self) -> None:
        self.tree = self._tree()
        for stream in sessions.streams(self._sessions):
            stream.holder = None
        pool = self.tree.pool
        options = self.options
        self.scheduler = Scheduler(
            self.tree,
            pool,
            self.rules,
            Limits(
                chunk=options.chunked_prefill_size,
                max_prefill=options.max_prefill_tokens,
                most_prefill=options.prefill_max_requests,
                conservativeness=options.schedule_conservativeness,
                max_running=options.running(
                    self.rules, tokens=self.sizes.tokens, states=self.tree.states is not None
                ),
                max_len=options.context_length,
                interval=options.mamba_track_interval,
                mixes=options.mixes(self.rules),
                loras=options.max_loras_per_batch if options.adapters else 0,
                policy=options.schedule_policy,
                seed=options.random_seed,
                prioritizes=options.enable_priority_scheduling,
                preempts=options.preempts,
                low_first=options.schedule_low_priority_values_first,
                threshold=options.priority_scheduling_preemption_threshold,
                retracts_by_priority=options.retraction_policy == "priority",
                drafts=options.drafts,
                overlaps=self._overlaps,
                track_slots=options.track_slots(self.rules),
            ),
        )
        windows = pool if isinstance(pool, WindowPool) else None
        self.contents = Contents(self.network, windows)
        host, grid = Contents(self.network, None), self.tree.shape.grid
        self.runner = Runner(self.network, self.contents, host, self.rules.runner, grid)
        self.runner.computes = self.computes
        if self.computes:
            self.runner.watch(self.tree.states)
        self._runs = deque[list[list[int]]]()
        self.account = Account(self.tree)
        self.scheduler.on_match = self._matched
        self.scheduler.on_retract = self._retracted
        self.scheduler.on_preempt = self._preempted
        self.scheduler.on_abort = self._out_of_memory
        self.scheduler.on_chunk = self.runner.stashing
        self.tree.on_kept = self._kept
        self.tree.on_state = self._kept_state
        self.tree.on_lost = self._lost
        copies = (self.runner.to_host, self.runner.from_host) if self.computes else (_not, _not)
        self.tree.watch_host(*copies, self._moved)
        if self.tree.stores and self.computes:
            self.runner.shelf = self.shelf
            if self.options.sparse_indexer and not self.rules.runner.stores_indexer:
                self.runner.unstored = frozenset(self.network.spec.attention_layers[-1:])
            self.tree.watch_storage(self.runner.to_storage, self.runner.from_storage)

    def _tree(self) -> Tree:
        options = self.options
        page = options.tree_page
        tokens = options.max_total_tokens // page * page
        windows = int(tokens * options.swa_full_tokens_ratio) // page * page
        self.sizes = sizes = Sizes(
            tokens=tokens, window_tokens=max(windows, page), states=options.max_mamba_cache_size
        )
        shape = Shape(
            page=page,
            bigrams=options.speculative_algorithm == "EAGLE" and "mamba" not in self.kind,
            extra_buffer=options.extra_buffer(self.rules),
            grid=grid_of(options.page_size if self.rules.tree.tracks_by_chunks else page),
            window=max(self.network.spec.window - 1, 1),
            states_per_path=options.mamba_max_states_per_path,
            policy=options.radix_eviction_policy,
            host=options.host(self.rules, self.kind, sizes, self.network.spec),
        )
        return make_tree(self.kind, shape, sizes, self.rules, self.storage)

    # -- requests ----------------------------------------------------------------------------------

    @property
    def _most_drafts(self) -> int:
        """Drafts that one step may accept: the length of a path of the tree."""
        drafts = self.options.drafts
        return 0 if drafts is None else min(drafts.steps, drafts.tokens - 1)

    def longest(self) -> int:
        """Maximum length of a request in the context and the pool (`max_req_len`)."""
        pool = self.tree.pool
        size = pool.size
        if isinstance(pool, WindowPool):
            size = min(size, pool.windows.size)
        return min(self.options.context_length, size) - 1

    def peek(self, prompt: Tokens) -> Count | None:
        """The length of `init_next_round_input`'s match."""
        tokens = np.array(prompt, np.int64)[: max(len(prompt) - 1, 0)]
        matched = self.tree.peek(self.tree.key_of(tokens))
        return None if matched is None else Count(matched)

    def submit(self, request: base.Request) -> Ticket:
        cache_prompt = not request.cache_prompt
        drafts = request.drafts is not None and self.options.drafts is None
        self._check(request, drafts=drafts, cache_prompt=cache_prompt)
        fields = self._fields(request)
        lora = maybe_get_adapters(fields, self.options.adapters)
        ticket = self._jobs.ticket()
        job = Job(
            ticket=ticket, prompt=request.prompt, forced=request.reply, strengths=lora.strengths
        )
        self._jobs.append(job)
        refuses = self.options.abort_on_priority_when_disabled
        if refuses and "priority" in fields and not self.options.enable_priority_scheduling:
            job.end("ServiceUnavailable", "using priority is disabled for this server")
            return ticket
        if sessions.FIELD in fields:
            return self._submit_to_session(job, request, fields)
        room = self.longest() - len(request.prompt) - 1
        if room < 1:
            job.end(
                "BadRequestError",
                f"the input ({len(request.prompt)} tokens) is longer than the model's context "
                f"length ({self.longest()} tokens)",
            )
            return ticket
        self._queue(job, request, fields, room)
        return ticket

    def _queue(
        self,
        job: Job,
        request: base.Request,
        fields: dict[str, Any],
        room: int,
        *,
        stream: Stream | None = None,
        refused: bool = False,
    ) -> Req:
        lora = self._loads.loaded(maybe_get_adapters(fields, self.options.adapters))
        job.req = Req.make(
            int(job.ticket),
            np.array(job.prompt, np.int64),
            self._limit(request, room),
            extra_key=fields.get("extra_key"),
            priority=self.options.priority_of(fields.get("priority")),
            lora_id=f"{lora.load:032x}" if lora.load else "",  # of a load (`LoRARef`)
            strengths=lora.strengths,
            routing_key=fields.get("routing_key", ""),
            images=request.images,
            pads_apart=self.rules.scheduler.pads_images_apart,
            beyond=self._most_drafts,
        )
        if request.drafts is not None:
            job.req.drafts = tuple(draft[: self._most_drafts] for draft in request.drafts)
        job.req.stream, job.req.to_finish = stream, refused
        reasons = fields.get("require_reasoning", self.options.reasoning_parser != "none")
        job.req.strips = self.options.strip_thinking_cache and reasons
        self._of_req[int(job.ticket)] = job
        self.scheduler.add(job.req)
        return job.req

    def _submit_to_session(self, job: Job, request: base.Request, fields: dict[str, Any]) -> Ticket:
        """Queue a request behind the tokens of the one that it continues."""
        if request.images:
            raise OptionError("a request of a session has no images here: leave them out")
        params = sessions.SessionParams.of(fields[sessions.FIELD])
        name = fields.get("rid", str(job.ticket))
        if params.streaming and not self.options.enable_streaming_session:
            job.end("BadRequestError", "streaming sessions are disabled")
            return job.ticket
        session = self._sessions.setdefault(params.id, sessions.Session.of(params))
        prompt = session.prompt(params, np.array(request.prompt, np.int64))
        fits = prompt is not None and len(prompt) < self.longest() - 1
        job.prompt = as_tokens((prompt if fits and prompt is not None else sessions.STUB).tolist())
        if not self.rules.scheduler.sessions_keep_keys:
            fields = {name: fields[name] for name in fields if name == "lora"}
        stream = None if session.closes else session.stream
        session.closes |= params.close
        room = self.longest() - len(job.prompt) - 1
        req = self._queue(job, request, fields, room, stream=stream, refused=not fits)
        req.in_session = True
        if prompt is not None:
            session.join(params, name, req)
        if not fits:
            words = "Invalid request session id" if prompt is None else "the input is too long"
            job.end("BadRequestError", words)
        return job.ticket

    def forget(self, ticket: Ticket) -> None:
        if self._jobs[ticket].done:
            self._of_req.pop(int(ticket), None)
        super().forget(ticket)

    def remember(self, most: int) -> None:
        self.account.remember(most)

    def cancel(self, ticket: Ticket) -> None:
        job = self._jobs[ticket]
        if job.req is None:
            return
        self.scheduler.abort(job.req)  # one that its session refused may still wait, too
        if job.done:
            return
        job.end("cancelled")
        self._emit(vocabulary.RequestAborted(task=job.req.id, why="its client disconnected"))

    def flush_cache(self) -> bool:
        """Empty the tree, as `POST /flush_cache` does; refused while requests run."""
        done = not self.scheduler.busy
        if done:
            self.tree.settle()
            self._start()
        self._emit(vocabulary.CacheFlushed(done=done))
        return done

    def _empty(self) -> None:
        self.flush_cache()

    def _blank(self, ticket: Ticket) -> Job:
        return Job(ticket=ticket, prompt=())

    # -- the loop ----------------------------------------------------------------------------------

    def step(self) -> bool:
        sessions.reap(self._sessions, self.scheduler.close)
        if not self.scheduler.busy:
            self.scheduler.idle()
            return False
        scheduler, last = self.scheduler, self.scheduler.last
        batch = scheduler.next_batch()
        if batch is not None:
            self._begin(batch)
            self._launch(batch)
        scheduler.last = batch
        taken = last is not None if scheduler.limits.overlaps else batch is not None
        if taken:
            self._take()
        if batch is not None or (taken and scheduler.busy):
            self._idle = 0
            return True
        if not taken:
            scheduler.idle()
        self._idle = 0 if any(self.tree.held_by_host()) else self._idle + 1
        if self._idle > MOST_IDLE and scheduler.busy:
            where = f"Scheduler.event_loop_{'overlap' if scheduler.limits.overlaps else 'normal'}"
            beside = " beside open sessions" if sessions.records(self._sessions) else ""
            raise UpstreamEndless(where, f"a request waits for more memory than there is{beside}")
        return self._goes_on()

    def limit_turns(self, most: int) -> None:
        host = self.options.enable_hierarchical_cache
        plain = not (self.computes or host or isinstance(self.tree.pool, WindowPool))
        self.scheduler.known_ahead = self._known_ahead if plain else None
        self.scheduler.most_turns = most

    def _known_ahead(self, req: Req) -> int:
        forced = self._of_req[req.id].forced
        return 0 if forced is None else len(forced) - (req.sampled - req.num_prompt)

    def _launch(self, batch: Batch) -> None:
        """Run a batch; its result waits in the queue."""
        proposals = [() if batch.extend else req.proposed for req in batch.reqs]
        runs = self.runner.run(batch, self._sample)
        for req, proposed, run in zip(batch.reqs, proposals, runs, strict=True):
            if proposed:
                self._emit(
                    vocabulary.DraftsVerified(
                        task=req.id, proposed=len(proposed), accepted=len(run) - 1
                    )
                )
        self.scheduler.launch(batch)
        self._runs.append(runs)

    def _take(self) -> None:
        """Process the first result of the queue."""
        batch = self.scheduler.result_queue[0]
        done = self.scheduler.take(self._runs.popleft())
        for req in batch.reqs:
            self.account.learn(req)
        for req in done:
            if self._of_req[req.id].done:  # its client is gone
                continue
            self._of_req[req.id].done = True
            generated = Count(len(self._of_req[req.id].generated))
            self._emit(vocabulary.RequestFinished(task=req.id, generated=generated))

    def _goes_on(self) -> bool:
        sessions.reap(self._sessions, self.scheduler.close)  # as in the next pass
        busy = self.scheduler.busy
        if not busy and any(not self._of_req[req.id].done for req in self.scheduler.forgotten):
            where = "Scheduler._get_new_batch_prefill_raw"
            raise UpstreamEndless(where, "a request was preempted and is in no queue")
        if not busy:
            self.scheduler.idle()
        if not busy and self.options.strict_mem_check_during_idle:
            self._check_pools()
        return busy

    def _check_pools(self) -> None:
        """Check that an idle server's free slots and the tree's are all slots. Follows
        `_check_all_pools`.
        """
        pool, evictable = self.tree.pool, self.tree.evictable
        pools = {"full": (pool, FULL)}
        if isinstance(pool, WindowPool):
            pools["swa"] = (pool.windows, PART)
        if any(self.tree.held_by_host()):
            return
        records = sessions.records(self._sessions)
        if records and not leaks(self.tree, records):
            return
        for name, (token_pool, part) in pools.items():
            total = token_pool.size // token_pool.page * token_pool.page
            if token_pool.available + evictable[part] != total:
                where = "SchedulerInvariantChecker"
                numbers = f"available={token_pool.available}, evictable={evictable[part]}"
                raise UpstreamAbort(where, f"{name} pool memory leak detected! {total=}, {numbers}")

    def _begin(self, batch: Batch) -> None:
        for req in filter(batch.reads, batch.reqs):
            job = self._of_req[req.id]
            if job.cached is None:
                job.cached = Count(req.prefix)
                wanted = job.ledger.usable
                if req.prefix < wanted:
                    restored = req.prefix
                    job.ledger.apply(vocabulary.NOT_LOADED, restored, wanted=wanted, found=restored)
            self._emit(vocabulary.ChunkScheduled(task=req.id, start=req.prefix, end=req.fill))

    def _sample(self, req: Req, row: Array, more: int) -> int:
        job, index = self._of_req[req.id], req.sampled - req.num_prompt + more
        del job.rows[index:]  # of a batch in flight when the request was retracted
        job.rows.append(row)
        return self._token(job, index, row)

    # -- reports -----------------------------------------------------------------------------------

    def _matched(self, req: Req, match: Match) -> None:
        job = self._of_req[req.id]
        if job.cached is None:
            job.ledger = self.account.of(req, match)
        self._emit(
            vocabulary.PrefixMatched(
                task=req.id,
                cached=Count(match.usable),
                on_host=match.usable - match.length,
                attention=Count(match.attention),
                branch=match.branch or match.window_branch or 0,
            )
        )

    def _retracted(self, req: Req) -> None:
        self._emit(vocabulary.RequestRetracted(task=req.id))

    def _preempted(self, req: Req) -> None:
        self._emit(vocabulary.RequestPreempted(task=req.id))

    def _out_of_memory(self, req: Req) -> None:
        words = "out of memory even after retracting all other requests in the decode batch"
        self._of_req[req.id].end("InternalServerError", words)
        self._emit(vocabulary.RequestAborted(task=req.id, why="memory is too small for it alone"))

    def _kept(self, tokens: int, fresh: int) -> None:
        req = self._of_req[self.tree.by_request].req
        if req is None:
            return
        length = tokens + int(self.tree.shape.bigrams) if tokens else 0
        self.account.kept.learn(req.tokens[:length], req.extra_key, req.id)
        if fresh:
            self._emit(vocabulary.PrefixKept(task=req.id, tokens=Count(tokens), fresh=Count(fresh)))

    def _kept_state(self, node: Node) -> None:
        req, depth = self._of_req[self.tree.by_request].req, node.depth()
        if req is not None:
            self.account.states.learn(req.tokens[:depth], req.extra_key)
            self._emit(vocabulary.StateKept(task=req.id, tokens=Count(depth)))

    def _lost(self, what: Lost, node: Node) -> None:
        end = node.depth()
        start, request = end - len(node), node.request
        if what == "node":
            self._emit(vocabulary.NodeEvicted(request=request, start=start, end=end))
        elif what == "window":
            self._emit(vocabulary.WindowEvicted(request=request, start=start, end=end))
        else:
            self._emit(vocabulary.StateEvicted(request=request, tokens=Count(end)))

    def _moved(self, action: HostAction, part: int, node: Node) -> None:
        end = node.depth()
        self._emit(
            vocabulary.MOVED[action](
                request=node.request, start=end - len(node), end=end, part=PART_NAMES[part]
            )
        )

    # -- looking in --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self.tree, self.scheduler)

    def held(self) -> Held:
        return held(self.tree, self.contents, self.runner.host, self.network)

    def texts(self) -> Texts:
        return texts(self.tree)

    def amounts(self) -> Amounts:
        return amounts(self.tree, self.network.spec)

    def pool_flags(self, memory: int) -> dict[str, int]:
        """Follows the configurator's `mamba_full_memory_ratio`, with the pool's padding slot.

        | states: 0.9 parts | tokens: 1 part, windows by their ratio |
        """
        token, window, state = sizes_of(self.network.spec)
        flags, left = {}, memory
        if state:
            ratio = MAMBA_FULL_MEMORY_RATIO
            flags["max_mamba_cache_size"] = int((memory * ratio / (1 + ratio) - state) // state)
            left -= (flags["max_mamba_cache_size"] + 1) * state
        each = token + self.options.swa_full_tokens_ratio * window
        return flags | ({"max_total_tokens": int(left // each)} if each else {})

    def check_integrity(self) -> None:
        alive = [job.req for job in self._jobs if job.req is not None]
        check_books(self.tree, alive, sessions.streams(self._sessions))
        check_account(self.account, self.tree)
