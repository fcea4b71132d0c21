"""SGLang's engine core: requests go in, batches are formed and run, replies and events come out."""

from typing import Any, Final

import numpy as np

from cachesim.engines import base
from cachesim.engines.base import Ticket
from cachesim.engines.held import Amounts, Held, Texts
from cachesim.engines.sglang import causes
from cachesim.engines.sglang import events as happened
from cachesim.engines.sglang.account import Account
from cachesim.engines.sglang.build import Kind, Sizes, grid_of, make_tree
from cachesim.engines.sglang.contents import Contents
from cachesim.engines.sglang.held import amounts, held, texts
from cachesim.engines.sglang.host_pool import Deed
from cachesim.engines.sglang.integrity import check_books
from cachesim.engines.sglang.node import FULL, PART, Node
from cachesim.engines.sglang.options import SglangOptions
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.request import Batch, Job, Limits, Req
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.runner import Runner
from cachesim.engines.sglang.scheduler import Scheduler
from cachesim.engines.sglang.storage import Storage
from cachesim.engines.sglang.tree import Lost, Match, Shape, Tree
from cachesim.engines.slotless import SlotlessEngine
from cachesim.errors import UpstreamAbort, UpstreamEndless
from cachesim.model.spec import ModelSpec
from cachesim.units import Array, Count, Integers

MOST_IDLE: Final = 3
"""Steps in a row that schedule nothing while requests wait: nothing can change any more."""


PART_NAMES: Final = ("attention", "window", "state")


def _not(part: int, at: Integers, to: Integers) -> None:
    del part, at, to


class Sglang(SlotlessEngine[Rules, SglangOptions, Job]):
    """A scheduler at one release, with one model (`Scheduler`)."""

    limit_flag = "max_new_tokens"
    erasing = " (a flush)"

    def _set_up(self) -> None:
        self.kind = self._kind(self.network.spec)
        states = self.kind in {"mamba", "window-mamba"}
        self.options.check(self.rules, states=states)
        self._of_req: dict[int, Job] = {}
        self._idle = 0
        self.storage, self.shelf = Storage(), Contents(self.network, None)
        self._start()

    def _kind(self, spec: ModelSpec) -> Kind:
        """Which tree a model gets; 0.5.9 has none for windows with states, and keeps windows whole
        as it does for models that it does not list.
        """
        if spec.recurrent_layers:
            both = spec.window_layers and self.rules.tree.trees == "unified"
            return "window-mamba" if both else "mamba"
        return "window" if spec.window_layers else "full"

    def _start(self) -> None:
        self.tree = self._tree()
        pool = self.tree.pool
        self.scheduler = Scheduler(self.tree, pool, self.rules, self._limits())
        windows = pool if isinstance(pool, WindowPool) else None
        self.contents = Contents(self.network, windows)
        host, grid = Contents(self.network, None), self.tree.shape.grid
        self.runner = Runner(self.network, self.contents, host, self.rules.runner, grid)
        self.runner.computes = self.computes
        if self.computes:
            self.runner.watch(self.tree.states)
        self.account = Account(self.tree)
        self.scheduler.on_match = self._matched
        self.scheduler.on_retract = self._retracted
        self.scheduler.on_abort = self._out_of_memory
        self.scheduler.on_chunk = self.runner.stashing
        self.tree.on_kept = self._kept
        self.tree.on_state = self._kept_state
        self.tree.on_lost = self._lost
        copies = (self.runner.to_host, self.runner.from_host) if self.computes else (_not, _not)
        self.tree.watch_host(*copies, self._moved)
        if self.tree.stores and self.computes:
            self.runner.shelf = self.shelf
            self.tree.watch_storage(self.runner.to_storage, self.runner.from_storage)

    def _tree(self) -> Tree:
        options = self.options
        page = options.page_size
        tokens = options.max_total_tokens // page * page
        windows = int(tokens * options.swa_full_tokens_ratio) // page * page
        self.sizes = sizes = Sizes(
            tokens=tokens,
            window_tokens=max(windows, page),
            states=options.max_mamba_cache_size,
        )
        shape = Shape(
            page=page,
            bigrams=options.speculative_algorithm == "EAGLE" and "mamba" not in self.kind,
            extra_buffer=options.extra_buffer(self.rules),
            grid=grid_of(page),
            window=max(self.network.spec.window - 1, 1),
            states_per_path=options.mamba_max_states_per_path,
            policy=options.radix_eviction_policy,
            host=options.host(self.rules, self.kind, sizes, self.network.spec),
        )
        return make_tree(self.kind, shape, sizes, self.rules, self.storage)

    def _limits(self) -> Limits:
        options = self.options
        return Limits(
            chunk=options.chunked_prefill_size,
            max_prefill=options.max_prefill_tokens,
            max_running=options.running(
                self.rules, tokens=self.sizes.tokens, states=self.tree.states is not None
            ),
            max_len=options.context_length,
            interval=options.mamba_track_interval,
            mixes=options.mixes(self.rules),
        )

    # -- requests ----------------------------------------------------------------------------------

    @property
    def _longest(self) -> int:
        """`max_req_len`: what context and pool allow of one request."""
        pool = self.tree.pool
        size = pool.size
        if isinstance(pool, WindowPool):
            size = min(size, pool.windows.size)
        return min(self.options.context_length, size) - 1

    def submit(self, request: base.Request) -> Ticket:
        cache_prompt = not request.cache_prompt
        self._check(request, drafts=request.drafts is not None, cache_prompt=cache_prompt)
        fields = self._fields(request)
        ticket = self._jobs.ticket()
        job = Job(ticket=ticket, prompt=request.prompt, forced=request.reply)
        self._jobs.append(job)
        room = self._longest - len(request.prompt) - 1
        if room < 1:
            job.end(
                "BadRequestError",
                f"the input ({len(request.prompt)} tokens) is longer than the model's context "
                f"length ({self._longest} tokens)",
            )
            return ticket
        job.req = Req.make(
            int(ticket),
            np.array(request.prompt, np.int64),
            self._limit(request, room),
            extra_key=fields.get("extra_key"),
            priority=fields.get("priority", 0),
        )
        self._of_req[int(ticket)] = job
        self.scheduler.add(job.req)
        return ticket

    def forget(self, ticket: Ticket) -> None:
        if self._jobs[ticket].done:
            self._of_req.pop(int(ticket), None)
        super().forget(ticket)

    def remember(self, most: int) -> None:
        self.account.remember(most)

    def cancel(self, ticket: Ticket) -> None:
        job = self._jobs[ticket]
        if job.done or job.req is None:
            return
        self.scheduler.abort(job.req)
        job.end("cancelled")
        self._tell(happened.RequestAborted(task=job.req.id, why="its client went away"))

    def flush_cache(self) -> bool:
        """Empty the tree, as `POST /flush_cache` does; refused while requests run."""
        done = not self.scheduler.busy
        if done:
            self.tree.settle()
            self._start()
        self._tell(happened.CacheFlushed(done=done))
        return done

    def _empty(self) -> None:
        self.flush_cache()

    def _blank(self, ticket: Ticket) -> Job:
        return Job(ticket=ticket, prompt=())

    # -- the loop ----------------------------------------------------------------------------------

    def step(self) -> bool:
        if not self.scheduler.busy:
            return False
        batch = self.scheduler.next_batch()
        if batch is None:
            self.scheduler.last = None
            self._idle += 1
            if self._idle > MOST_IDLE and self.scheduler.busy:
                where = "Scheduler.event_loop_normal"
                raise UpstreamEndless(where, "a request waits for more memory than there is")
            return self._goes_on()
        self._idle = 0
        self._begin(batch)
        tokens = self.runner.run(batch, self._sample)
        for req in batch.reqs:
            self.account.computed.learn(req.tokens[: req.committed], req.extra_key, req.id)
        for req in self.scheduler.take(batch, tokens):
            if self._of_req[req.id].done:  # its client is gone
                continue
            self._of_req[req.id].done = True
            self._tell(happened.RequestFinished(task=req.id, generated=Count(req.num_output)))
        return True

    def _goes_on(self) -> bool:
        busy = self.scheduler.busy
        if not busy and self.options.strict_mem_check_during_idle:
            self._check_pools()
        return busy

    def _check_pools(self) -> None:
        """At rest, free slots and the tree's are all there are. Follows `_check_all_pools`."""
        pool, evictable = self.tree.pool, self.tree.evictable
        pools = {"full": (pool, FULL)}
        if isinstance(pool, WindowPool):
            pools["swa"] = (pool.windows, PART)
        if any(self.tree.held_by_host()):
            return
        for name, (each, part) in pools.items():
            total = each.size // each.page * each.page
            if each.available + evictable[part] != total:
                where = "SchedulerInvariantChecker"
                numbers = f"available={each.available}, evictable={evictable[part]}"
                raise UpstreamAbort(where, f"{name} pool memory leak detected! {total=}, {numbers}")

    def _begin(self, batch: Batch) -> None:
        for req in filter(batch.reads, batch.reqs):
            job = self._of_req[req.id]
            if job.cached is None:
                job.cached = Count(req.prefix)
                wanted = job.ledger.usable
                if req.prefix < wanted:
                    found = req.prefix
                    job.ledger.apply(causes.NOT_LOADED, found, wanted=wanted, found=found)
            self._tell(happened.ChunkScheduled(task=req.id, start=req.prefix, end=req.fill))

    def _sample(self, req: Req, row: Array) -> int:
        job, index = self._of_req[req.id], req.num_output
        if index >= len(job.rows):  # what is computed again was sampled before
            job.rows.append(row)
        return self._token(job, index, row)

    # -- what is told ------------------------------------------------------------------------------

    def _matched(self, req: Req, match: Match) -> None:
        job = self._of_req[req.id]
        if job.cached is None:
            job.ledger = self.account.of(req, match)
        self._tell(
            happened.PrefixMatched(
                task=req.id,
                cached=Count(match.usable),
                on_host=match.usable - match.length,
                attention=Count(match.attention),
                branch=match.branch or match.window_branch or 0,
            )
        )

    def _retracted(self, req: Req) -> None:
        self._tell(happened.RequestRetracted(task=req.id))

    def _out_of_memory(self, req: Req) -> None:
        words = "out of memory even after retracting all other requests in the decode batch"
        self._of_req[req.id].end("InternalServerError", words)
        self._tell(happened.RequestAborted(task=req.id, why="memory is too small for it alone"))

    def _kept(self, tokens: int, fresh: int) -> None:
        req = self._of_req[self.tree.by_request].req
        if req is None:
            return
        length = tokens + int(self.tree.shape.bigrams) if tokens else 0
        self.account.kept.learn(req.tokens[:length], req.extra_key, req.id)
        if fresh:
            self._tell(happened.PrefixKept(task=req.id, tokens=Count(tokens), fresh=Count(fresh)))

    def _kept_state(self, node: Node) -> None:
        req, depth = self._of_req[self.tree.by_request].req, node.depth()
        if req is not None:
            self.account.states.learn(req.tokens[:depth], req.extra_key)
            self._tell(happened.StateKept(task=req.id, tokens=Count(depth)))

    def _lost(self, what: Lost, node: Node) -> None:
        end = node.depth()
        start, request = end - len(node), node.request
        if what == "node":
            self._tell(happened.NodeEvicted(request=request, start=start, end=end))
        elif what == "window":
            self._tell(happened.WindowEvicted(request=request, start=start, end=end))
        else:
            self._tell(happened.StateEvicted(request=request, tokens=Count(end)))

    def _moved(self, deed: Deed, part: int, node: Node) -> None:
        end = node.depth()
        self._tell(
            happened.MOVED[deed](
                request=node.request, start=end - len(node), end=end, part=PART_NAMES[part]
            )
        )

    # -- looking in --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return {
            "slots": [],
            "prompt_cache": [],
            "nodes": [
                {
                    "request": node.request,
                    "n_tokens": node.depth(),
                    "own": len(node),
                    "state": node.state is not None,
                    "window": node.window,
                    "locks": node.locks[0],
                }
                for node in self.tree.nodes()
            ],
            "free": self.tree.pool.available,
            "running": [req.id for req in self.scheduler.running.reqs],
            "waiting": [req.id for req in self.scheduler.waiting],
        }

    def held(self) -> Held:
        return held(self.tree, self.contents, self.runner.host, self.network)

    def texts(self) -> Texts:
        return texts(self.tree)

    def amounts(self) -> Amounts:
        return amounts(self.tree, self.network.spec)

    def check_integrity(self) -> None:
        check_books(self.tree, [job.req for job in self._jobs if job.req is not None])
