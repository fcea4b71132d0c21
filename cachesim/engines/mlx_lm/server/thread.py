"""The generation thread of mlx-lm's server: admission, the batch, insertion, and its death.

One turn admits everything that is queued, then calls the batch generator once. (Upstream calls it
for at most half a second between two looks at the queue; a turn is the shortest such slice.)
"""

from collections import deque
from collections.abc import Callable
from functools import cached_property
from typing import Final

from cachesim.engines.events import Event
from cachesim.engines.mlx_lm.caches.raised import UpstreamRaise, name_of
from cachesim.engines.mlx_lm.events import RequestFinished, WorkerDied, WorkerStuck
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.profiles import MlxRules
from cachesim.engines.mlx_lm.server.batch import OldBatch, SegmentBatch, ServedBatch, Serving
from cachesim.engines.mlx_lm.server.request import Job
from cachesim.engines.mlx_lm.server.single import serve_single
from cachesim.engines.mlx_lm.server.store import ServerStore

DEAD: Final = "generation thread died"
"""Error for requests after the worker's death, in releases that return one."""

ENDLESS: Final = "drains forever"
"""Our word for a thread that waits for a batch whose books keep a request that is over."""

UNANSWERED: Final = "no answer"
"""Our word for a request that waits for a worker that is gone."""


class ResponseGenerator:
    """Follows `ResponseGenerator`, without its threads."""

    def __init__(
        self,
        *,
        model: Forward,
        options: MlxOptions,
        rules: MlxRules,
        tell: Callable[[Event], None],
        draft: Forward | None = None,
    ) -> None:
        self.rules = rules.server
        self.store = ServerStore(model.network, options, rules, tell)
        self.serving = Serving(
            model=model,
            options=options,
            rules=rules.server,
            store=self.store,
            tell=tell,
            finish=self._finish,
            draft=draft,
        )
        self.requests: deque[Job] = deque()
        self.batch: ServedBatch | None = None
        self.dead: str | None = None
        self.turns = 0  # slices in which the live batch was served
        self._drain = False
        self._unprocessed: list[Job] = []
        self._admitting: Job | None = None

    @cached_property
    def is_batchable(self) -> bool:
        alone = self.serving.options.kv_bits is not None or self.serving.draft is not None
        return not alone and all(layer.merges for layer in self.serving.model.make_cache())

    def step(self) -> bool:
        """A turn; False when there was nothing to do. Follows `_generate`."""
        if self.dead is not None:
            return self._turn_away()
        try:
            return self._turn()
        except UpstreamRaise as error:
            self._die(error)
            return True

    def _turn(self) -> bool:
        admitted = False
        while not self._drain and (job := self._next_request()) is not None:
            self._admitting = job
            batchable = self.is_batchable and not job.seeded
            if self.batch is not None and batchable:
                self.batch.admit(job)
            elif self.batch is not None:
                self._drain = True
                self._unprocessed.append(job)
            elif batchable:
                form = SegmentBatch if self.rules.segments else OldBatch
                self.batch = form(self.serving)
                self._unprocessed.append(job)
            else:
                serve_single(self.serving, job)
            self._admitting = None
            admitted = True
        if self.batch is not None and self.batch.jobs:
            self.turns += 1
            self.batch.turn()
            self.batch.remove_stopped()
            return True
        if self._drain and self.batch is not None and self.batch.left_over:
            left_over = self.batch.left_over
            self.dead = ENDLESS
            self.serving.tell(WorkerStuck(left_over=left_over))
            self.requests.extendleft(self._unprocessed)
            self._unprocessed.clear()
            self._turn_away()
            return True
        if self._drain:
            self.batch, self._drain = None, False
            return True
        return admitted

    def _next_request(self) -> Job | None:
        if self._unprocessed:
            return self._unprocessed.pop()
        return self.requests.popleft() if self.requests else None

    def _finish(self, job: Job, reason: str) -> None:
        job.finish_reason = reason
        self.serving.tell(RequestFinished(task=job.ticket, reason=reason))

    def _die(self, error: UpstreamRaise) -> None:
        """An exception that nobody catches ends the thread: whoever waits gets nothing more.

        A client has its last token before its state is stored, and may be served to the end.
        """
        self.dead = name_of(error)
        self.serving.tell(WorkerDied(error=self.dead, why=str(error)))
        waiting = [*self.requests, *self._unprocessed]
        waiting += self.batch.jobs.values() if self.batch is not None else ()
        waiting += [] if self._admitting is None else [self._admitting]
        for job in waiting:
            if not job.done:
                job.error = f"worker died: {self.dead}"
                job.message = str(error)
        self.requests.clear()
        self._unprocessed.clear()

    def _turn_away(self) -> bool:
        """Requests to a dead worker: refused at once, or left without an answer."""
        turned = bool(self.requests)
        refuses = self.rules.when_dead == "refused"
        worker = "waits forever" if self.dead == ENDLESS else "is gone"
        for job in self.requests:
            job.error = DEAD if refuses else UNANSWERED
            job.message = (
                f"RuntimeError: {DEAD}"
                if refuses
                else f"the request stays in the queue of a thread that {worker}"
            )
        self.requests.clear()
        return turned
