"""Requests that are served together, before and after #1072."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cachesim.engines.events import Event
from cachesim.engines.mlx_lm.caches.prompt_cache import can_trim_prompt_cache
from cachesim.engines.mlx_lm.events import PromptProgress, RequestAdmitted, RequestDropped
from cachesim.engines.mlx_lm.generate.batch_generator import BatchGenerator
from cachesim.engines.mlx_lm.generate.batch_generator_old import OldBatchGenerator
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PromptCache, TokenResponse
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import ServerRules
from cachesim.engines.mlx_lm.server.request import Job
from cachesim.engines.mlx_lm.server.segments import (
    Segment,
    cut,
    prompt_checkpoint,
    snapshot_key,
    without_cached,
)
from cachesim.engines.mlx_lm.server.store import ServerStore
from cachesim.units import Count, Tokens

DEFAULT_TOKENS: Final = 128
"""Limit of the old generator for `max_tokens` 0."""

DISCONNECTED: Final = "disconnected"
"""Why a request ended whose client went away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Values shared by all ways to serve a request."""

    model: Forward
    options: MlxOptions
    rules: ServerRules
    store: ServerStore
    tell: Callable[[Event], None]
    finish: Callable[[Job, str], None]
    draft: Forward | None = None

    def make_cache(self) -> PromptCache:
        """Fresh caches of the model, and behind them those of the draft model."""
        return self.model.make_cache() + ([] if self.draft is None else self.draft.make_cache())

    def admitted(
        self,
        job: Job,
        path: Literal["batch", "single"],
        cache: PromptCache | None,
        key: Tokens,
        *,
        segments: Sequence[Segment] = (),
    ) -> RequestAdmitted:
        """Tell what `_generate` or `_serve_single` found for a request, and whether it is sound."""
        cached, asked = job.cached or Count(0), self.rules.checkpoint and path == "batch"
        event = RequestAdmitted(
            task=job.ticket,
            path=path,
            prompt_tokens=Count(len(job.prompt)),
            cached=cached,
            reported=job.cached if self.rules.reports_cached else None,
            sound=self.store.soundness(cache, key[:cached]),
            segments=tuple((len(each.tokens), each.type) for each in segments),
            checkpoint=(job.checkpoint.store, job.checkpoint.position) if asked else None,
        )
        self.tell(event)
        return event


class ServedBatch(ABC):
    """A live batch generator and the requests in it; upstream's `batch_results`."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.jobs: dict[int, Job] = {}
        self.left_over = 0  # requests that are over and that upstream's books keep
        self._answered: list[int] = []

    @abstractmethod
    def admit(self, job: Job) -> None:
        """Look up a prompt and hand what is left of it to the generator."""

    @abstractmethod
    def turn(self) -> None:
        """Call the generator once and publish what it says."""

    @abstractmethod
    def remove_stopped(self) -> None:
        """Take out requests whose clients have gone."""

    def say(self, response: TokenResponse) -> Job:
        """Add a token to a request."""
        job = self.jobs[response.uid]
        job.say(response.token)
        self._answered.append(response.uid)
        return job

    def stopped(self) -> list[int]:
        """Requests that had something to say in this turn, to clients that are gone."""
        answered, self._answered = dict.fromkeys(self._answered), []
        return [uid for uid in answered if uid in self.jobs and self.jobs[uid].should_stop]


class SegmentBatch(ServedBatch):
    """Since #1072: a state is stored at the end of every segment and of the reply."""

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        self.generator = BatchGenerator(serving.model, serving.rules, serving.options)

    def admit(self, job: Job) -> None:
        """Follows `_generate`: tokenise, fetch, drop what is cached, insert, trim the store."""
        serving = self.serving
        segments = cut(job.tokenizer, job.messages, job.prompt)
        cache, _ = serving.store.look_up(job, job.prompt, self.jobs.values())
        cached = serving.admitted(job, "batch", cache, job.prompt, segments=segments).cached
        tokens, types = without_cached(segments, cached)
        job.uid = self.generator.insert_segments(
            tokens,
            sampler=job.sampler,
            stopper=job.stopper,
            max_tokens=job.max_tokens,
            cache=cache,
            all_tokens=job.prompt[:cached],
        )
        job.segment_types = types[::-1]
        self.jobs[job.uid] = job
        serving.store.trim(job, self.generator)

    def turn(self) -> None:
        prompts, tokens = self.generator.next()
        for prompt in prompts:
            done, total = prompt.progress
            task = self.jobs[prompt.uid].ticket
            self.serving.tell(PromptProgress(task=task, done=done, total=total))
            self._answered.append(prompt.uid)
        ended = [each.uid for each in prompts if each.end_of_segment and not each.end_of_prompt]
        self._keep_states([uid for uid in ended if self.jobs[uid].segment_types])
        for token in tokens:
            job = self.say(token)
            if token.finish_reason is not None and token.prompt_cache is not None:
                self.serving.finish(job, token.finish_reason)
                self.serving.store.insert(job, token.all_tokens or (), token.prompt_cache)
                del self.jobs[token.uid]

    def _keep_states(self, uids: list[int]) -> None:
        """Key and state travel together: the key is what the generator says it has fed."""
        for uid, (cache, key) in self.generator.extract_cache(uids).items():
            job = self.jobs[uid]
            self.serving.store.insert(job, key, cache, job.segment_types.pop())

    def remove_stopped(self) -> None:
        gone = self.stopped()
        self.generator.remove(gone)
        for uid in gone:
            job = self.jobs.pop(uid)
            self.serving.tell(RequestDropped(task=job.ticket, stored=False))
            self.serving.finish(job, DISCONNECTED)


class OldBatch(ServedBatch):
    """Before #1072: one state at the end of the reply, from #911 on another near the prompt's."""

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        self.generator = OldBatchGenerator(
            serving.model,
            serving.rules,
            serving.options,
            progress=self._tell_progress,
            keep_checkpoint=self._keep_checkpoint,
        )

    def admit(self, job: Job) -> None:
        """Follows `_generate` of those releases, #923 included."""
        serving = self.serving
        key, job.boundaries = snapshot_key(serving.rules, job.tokenizer, job.messages, job.prompt)
        cache, found = serving.store.look_up(job, key, self.jobs.values())
        job.old_position = found.position
        job.cache_key = list(key)
        self._choose_checkpoint(job)
        cached = serving.admitted(job, "batch", cache, key).cached
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

    def _tell_progress(self, uid: int, done: int, total: int) -> None:
        task = self.jobs[uid].ticket
        self.serving.tell(PromptProgress(task=task, done=min(done, total), total=total))

    def _keep_checkpoint(self, uid: int, prompt_end: int, state: Callable[[], PromptCache]) -> None:
        """Follows `checkpoint_callback`: the batch's distance cuts every request's key.

        #1006 in its last form leaves out requests whose own distance is another.
        """
        job, rules = self.jobs[uid], self.serving.rules
        if not job.checkpoint.store:
            return
        if rules.checkpoint_only_at_own_distance and -job.checkpoint.position != prompt_end:
            return
        self.serving.store.insert(job, job.cache_key[:-prompt_end], state(), "user")

    def turn(self) -> None:
        for token in self.generator.next():
            job = self.say(token)
            if self.serving.rules.snapshots is None:
                job.cache_key.append(token.token)
            if token.finish_reason is not None and token.prompt_cache is not None:
                self.serving.finish(job, token.finish_reason)
                self.serving.store.insert(job, job.cache_key, token.prompt_cache)
                del self.jobs[token.uid]

    def remove_stopped(self) -> None:
        """The state of a request that was stopped is stored with what was said so far (#741).

        Before, it was thrown away, and the request stayed in the books of the batch.
        """
        stored = self.serving.rules.forgets_stopped
        for uid, cache in self.generator.remove(self.stopped()).items():
            job = self.jobs.pop(uid)
            if stored:
                self.serving.store.insert(job, job.cache_key, cache)
            self.left_over += not stored
            self.serving.tell(RequestDropped(task=job.ticket, stored=stored, stop_word=True))
            self.serving.finish(job, "stop")
