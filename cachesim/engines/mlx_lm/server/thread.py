"""The generation thread of mlx-lm's server: admission, the batch, insertion, and its death.

A step admits all queued requests, then calls the batch generator once. (Upstream calls it for at
most half a second between two checks of the queue; a step is the shortest such slice.)
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Final

from cachesim.engines.events import Event
from cachesim.engines.mlx_lm import vocabulary
from cachesim.engines.mlx_lm.caches.layer_cache import (
    UpstreamRaise,
    name_of,
)
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    can_trim_prompt_cache,
)
from cachesim.engines.mlx_lm.generate.batch_generator import BatchGenerator, OldBatchGenerator
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PromptCache, Row, TokenResponse
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.mlx_lm.server.request import (
    Job,
    at_chunks,
    cut,
    prompt_checkpoint,
    snapshot_key,
    without_cached,
)
from cachesim.engines.mlx_lm.server.serving import Serve, Serving
from cachesim.engines.mlx_lm.server.store import ServerStore
from cachesim.engines.mlx_lm.store.lru_prompt_cache import LRUPromptCache

DEFAULT_TOKENS: Final = 128
"""Limit of the old generator for `max_tokens` 0."""

DISCONNECTED: Final = "disconnected"
"""Finish reason of a request whose client disconnected."""


class ServedBatch(ABC):
    """A live batch generator and the requests in it; upstream's `batch_results`."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.jobs: dict[int, Job] = {}
        self.left_over = 0  # finished requests that upstream still lists
        self._answered: list[int] = []

    @abstractmethod
    def admit(self, job: Job) -> None:
        """Look up a prompt, and submit the rest of it to the generator."""

    @abstractmethod
    def turn(self) -> None:
        """Call the generator once, and process its responses."""

    @abstractmethod
    def remove_stopped(self) -> None:
        """Remove requests of disconnected clients."""

    @abstractmethod
    def held(self) -> Iterator[tuple[list[Row], PromptCache]]:
        """The rows of each batch with their caches."""

    def add_token(self, response: TokenResponse) -> Job:
        """Add a token to a request."""
        job = self.jobs[response.uid]
        job.add_token(response.token)
        self._answered.append(response.uid)
        return job

    def stopped(self) -> list[int]:
        """Stopped requests with a response in this step."""
        answered, self._answered = dict.fromkeys(self._answered), []
        return [uid for uid in answered if uid in self.jobs and self.jobs[uid].should_stop]


class SegmentBatch(ServedBatch):
    """Since #1072: a state is stored at the end of every segment and of the reply."""

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        self.generator = BatchGenerator(serving.model, serving.rules, serving.options)

    def held(self) -> Iterator[tuple[list[Row], PromptCache]]:
        return self.generator.held()

    def admit(self, job: Job) -> None:
        """Follows `_generate`: tokenise, fetch, drop cached segments, insert, trim the store."""
        serving = self.serving
        segments = cut(job.tokenizer, job.messages, job.prompt)
        # #1667: where a state cannot be trimmed, each segment ends with a whole chunk.
        if serving.rules.segments_end_with_chunks and not can_trim_prompt_cache(
            serving.make_cache()
        ):
            segments = at_chunks(segments, serving.options.prefill_step_size)
        # Looked up at admission: parallel requests never find what another one will store.
        cache, _ = serving.store.look_up(job, job.prompt, self.jobs.values())
        cached = serving.admitted(job, "batch", cache, job.prompt, segments=segments).cached
        tokens, types = without_cached(segments, cached)
        job.uid = self.generator.insert_segments(
            tokens,
            sampler=job.sampler,
            stopper=job.stopper,
            max_tokens=job.max_tokens,
            cache=cache,
            # The tokens before the first fed one, so that a state's key lists all tokens in it.
            all_tokens=job.prompt[:cached],
        )
        job.segment_types = types[::-1]
        self.jobs[job.uid] = job
        # The generator's own bytes count as well, so the store shrinks while requests run.
        serving.store.trim(job, self.generator)

    def turn(self) -> None:
        prompts, tokens = self.generator.next()
        for prompt in prompts:
            done, total = prompt.progress
            task = self.jobs[prompt.uid].ticket
            self.serving.emit(vocabulary.PromptProgress(task=task, done=done, total=total))
            self._answered.append(prompt.uid)
        # The last token is a segment of its own, whose state is not stored: that of the reply
        # follows.
        in_parts = [prompt for prompt in prompts if not prompt.end_of_prompt]
        ended = [prompt.uid for prompt in in_parts if prompt.end_of_segment]
        uids = [uid for uid in ended if self.jobs[uid].segment_types]
        # Key and state come together, since #1072: earlier releases computed the key apart.
        for uid, (cache, key) in self.generator.extract_cache(uids).items():
            job = self.jobs[uid]
            self.serving.store.insert(job, key, cache, job.segment_types.pop())
        for token in tokens:
            job = self.add_token(token)
            # The end of a reply: the key has all tokens that were fed, the stop token too.
            if token.finish_reason is not None and token.prompt_cache is not None:
                self.serving.finish(job, token.finish_reason)
                self.serving.store.insert(job, token.all_tokens or (), token.prompt_cache)
                del self.jobs[token.uid]

    def remove_stopped(self) -> None:
        stopped = self.stopped()
        # #1072 drops the state of a disconnected client; #741 had stored it.
        self.generator.remove(stopped)
        for uid in stopped:
            job = self.jobs.pop(uid)
            self.serving.emit(vocabulary.RequestDropped(task=job.ticket, stored=False))
            self.serving.finish(job, DISCONNECTED)


class OldBatch(ServedBatch):
    """Before #1072: one state at the end of the reply, from #911 on another near the prompt's."""

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        self.generator = OldBatchGenerator(
            serving.model,
            serving.rules,
            serving.options,
            progress=self._emit_progress,
            keep_checkpoint=self._keep_checkpoint,
        )

    def held(self) -> Iterator[tuple[list[Row], PromptCache]]:
        return self.generator.held()

    def admit(self, job: Job) -> None:
        """Follows `_generate` of those releases, #923 included."""
        serving = self.serving
        # #923: a key ends with the last whole message, so that a template's opening of the reply is
        # not part of it.
        key, job.boundaries = snapshot_key(serving.rules, job.tokenizer, job.messages, job.prompt)
        cache, fetched = serving.store.look_up(job, key, self.jobs.values())
        job.old_position = fetched.position
        job.cache_key = list(key)
        # #911: a state near the end of a chat's prompt is stored too.
        self._choose_checkpoint(job)
        cached = serving.admitted(job, "batch", cache, key).cached
        # What the key leaves out is fed too.
        job.uid = self.generator.insert(
            (*key[cached:], *job.prompt[len(key) :]),
            sampler=job.sampler,
            stopper=job.stopper,
            max_tokens=job.max_tokens or DEFAULT_TOKENS,
            cache=serving.model.make_cache() if cache is None else cache,
            checkpoint=job.checkpoint.position,
        )
        self.jobs[job.uid] = job
        serving.store.trim(job, self.generator)

    def _choose_checkpoint(self, job: Job) -> None:
        serving = self.serving
        if serving.rules.checkpoint:
            job.checkpoint = prompt_checkpoint(
                serving.rules,
                job.tokenizer,
                job.messages,
                job.prompt,
                trimmable=can_trim_prompt_cache(serving.model.make_cache()),
            )

    def _emit_progress(self, uid: int, done: int, total: int) -> None:
        task = self.jobs[uid].ticket
        self.serving.emit(vocabulary.PromptProgress(task=task, done=min(done, total), total=total))

    def _keep_checkpoint(self, uid: int, prompt_end: int, state: Callable[[], PromptCache]) -> None:
        """Store a state near the prompt's end. Follows `checkpoint_callback`."""
        job, rules = self.jobs[uid], self.serving.rules
        if not job.checkpoint.store:
            return
        # The last form of #1006 leaves out requests with another distance than the batch's.
        if rules.checkpoint_only_at_own_distance and -job.checkpoint.position != prompt_end:
            return
        # Trap: the batch's distance cuts every request's key, whatever its own is.
        self.serving.store.insert(job, job.cache_key[:-prompt_end], state(), "user")

    def turn(self) -> None:
        for token in self.generator.next():
            job = self.add_token(token)
            # #923 stores prompts without their replies, so their tokens are not part of the key.
            if self.serving.rules.snapshots is None:
                job.cache_key.append(token.token)
            if token.finish_reason is not None and token.prompt_cache is not None:
                self.serving.finish(job, token.finish_reason)
                self.serving.store.insert(job, job.cache_key, token.prompt_cache)
                del self.jobs[token.uid]

    def remove_stopped(self) -> None:
        """End the requests that were stopped by a stop word (#741)."""
        stored = self.serving.rules.forgets_stopped
        for uid, cache in self.generator.remove(self.stopped()).items():
            job = self.jobs.pop(uid)
            # Before #741 the state was discarded, and the request stayed listed: its batch never
            # drained.
            if stored:
                self.serving.store.insert(job, job.cache_key, cache)
            self.left_over += not stored
            self.serving.emit(
                vocabulary.RequestDropped(task=job.ticket, stored=stored, stop_word=True)
            )
            self.serving.finish(job, "stop")


DEAD: Final = "generation thread died"
"""Error of requests after the worker's death, in releases that return one."""

ENDLESS: Final = "drains forever"
"""cachesim's name for a thread that waits for a batch with an unlisted end of a request."""

UNANSWERED: Final = "no answer"
"""cachesim's name for a request that waits for a dead worker."""


class ResponseGenerator:
    """Follows `ResponseGenerator`, without its threads."""

    def __init__(
        self,
        *,
        models: Mapping[str, Forward],
        options: MlxOptions,
        rules: MlxRules,
        emit: Callable[[Event], None],
        cache: LRUPromptCache,
        serve: Serve,
        draft: Forward | None = None,
    ) -> None:
        self.rules = rules.server
        networks = {name: model.network for name, model in models.items()}
        self.store = ServerStore(networks, options, rules, emit, cache)
        self.servings = {
            name: Serving(
                model=model,
                options=options,
                rules=rules.server,
                store=self.store,
                emit=emit,
                finish=self._finish,
                draft=draft,
            )
            for name, model in models.items()
        }
        self.loaded = ""  # upstream: `model_provider.model_key`
        self._ever_loaded = {self.loaded}
        self._serve_alone = serve
        self.requests: deque[Job] = deque()
        self.batch: ServedBatch | None = None
        self.dead: str | None = None
        self.turns = 0  # steps of the live batch
        self._drain = False
        self._unprocessed: list[Job] = []
        self._admitting: Job | None = None

    @property
    def serving(self) -> Serving:
        """The part of the loaded model."""
        return self.servings[self.loaded]

    @cached_property
    def _merging(self) -> frozenset[str]:
        """Models whose caches can be merged, if requests are batched at all."""
        # A prefix cache of another server and these two options know no batches.
        alone = (
            self.rules.prefix_cache is not None
            or self.serving.options.kv_bits is not None
            or self.serving.draft is not None
        )
        return frozenset(
            name
            for name, serving in self.servings.items()
            if not alone and all(layer.merges for layer in serving.model.make_cache())
        )

    def _is_batchable(self, job: Job) -> bool:
        """Follows `_is_batchable`, which asks about a model that may not be the request's."""
        # Until #743 the caches of every model loaded so far decide, not those of the request's
        # model.
        asked = self._ever_loaded if self.rules.batches_by == "all loaded" else {self.loaded}
        return asked <= self._merging and not job.seeded and not job.images

    def _load(self, job: Job) -> None:
        """Replace the loaded model, not its entries. Follows `ModelProvider.load`."""
        if job.model != self.loaded:
            names = [model or "the first" for model in (job.model, self.loaded)]
            self.serving.emit(
                vocabulary.ModelLoaded(task=job.ticket, model=names[0], before=names[1])
            )
            self.loaded = job.model
            self._ever_loaded.add(job.model)

    def step(self) -> bool:
        """An iteration; False if there was nothing to do. Follows `_generate`."""
        if self.dead is not None:
            return self._refuse_requests()
        try:
            return self._turn()
        except UpstreamRaise as error:
            # An uncaught exception ends the thread: waiting requests get no more tokens.
            #
            # A client has its last token before its state is stored, and may have a complete reply.
            self.dead = name_of(error)
            self.serving.emit(vocabulary.WorkerDied(error=self.dead, why=str(error)))
            waiting = [*self.requests, *self._unprocessed]
            waiting += self.batch.jobs.values() if self.batch is not None else ()
            waiting += [] if self._admitting is None else [self._admitting]
            for job in waiting:
                if not job.done:
                    job.error = f"worker died: {self.dead}"
                    job.message = str(error)
            self.requests.clear()
            self._unprocessed.clear()
            return True

    def _turn(self) -> bool:
        admitted = False
        while not self._drain and (job := self._next_request()) is not None:
            self._admitting = job
            self._admit(job)
            self._admitting = None
            admitted = True
        if self.batch is not None and self.batch.jobs:
            self.turns += 1
            self.batch.turn()
            self.batch.remove_stopped()
            return True
        # Trap: before #741 a request ended by a stop word stays listed, and its batch never drains.
        if self._drain and self.batch is not None and self.batch.left_over:
            left_over = self.batch.left_over
            self.dead = ENDLESS
            self.serving.emit(vocabulary.WorkerStuck(left_over=left_over))
            self.requests.extendleft(self._unprocessed)
            self._unprocessed.clear()
            self._refuse_requests()
            return True
        if self._drain:
            self.batch, self._drain = None, False
            return True
        return admitted

    def _admit(self, job: Job) -> None:
        """Add a request to the batch of its model, start one, serve it alone, or let it wait."""
        batchable = self._is_batchable(job)
        if self.batch is not None and job.model == self.loaded and batchable:
            self.batch.admit(job)
            return
        # Another model, or a request served alone: the batch is finished first, and nothing is
        # admitted meanwhile.
        if self.batch is not None:
            self._drain = True
            self._unprocessed.append(job)
            return
        self._load(job)
        # #842: the model is loaded first, so its own caches decide.
        if self.rules.batches_by == "asked":
            batchable = self._is_batchable(job)
        if batchable:
            form = SegmentBatch if self.rules.segments else OldBatch
            self.batch = form(self.serving)
            # It is admitted once more as the next request, now to the new batch.
            self._unprocessed.append(job)
        else:
            self._serve_alone(self.serving, job)

    def _next_request(self) -> Job | None:
        if self._unprocessed:
            # Put back requests come first, the newest of them before the others.
            return self._unprocessed.pop()
        return self.requests.popleft() if self.requests else None

    def _finish(self, job: Job, reason: str) -> None:
        job.finish_reason = reason
        self.serving.emit(vocabulary.RequestFinished(task=job.ticket, reason=reason))

    def _refuse_requests(self) -> bool:
        """Refuse requests to a dead worker, or leave them without an answer."""
        turned = bool(self.requests)
        # Since 0.32.0 such a request fails; before, it waited forever.
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
