"""The generation thread of mlx-lm's server: admission, the batch, insertion, and its death.

A step admits all queued requests, then calls the batch generator once. (Upstream calls it for at
most half a second between two checks of the queue; a step is the shortest such slice.)
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from cachesim.engines.events import Event
from cachesim.engines.mlx_lm import vocabulary
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache, QuantizedKVCache, RotatingKVCache
from cachesim.engines.mlx_lm.caches.layer_cache import (
    UpstreamRaise,
    UpstreamUnboundLocalError,
    UpstreamValueError,
    name_of,
)
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    can_trim_prompt_cache,
    copy_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.generate.batch_generator import BatchGenerator, OldBatchGenerator
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PromptCache, Row, TokenResponse
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.mlx_lm.server.request import (
    Job,
    ReplyTokens,
    at_chunks,
    cut,
    keyed,
    prompt_checkpoint,
    snapshot_key,
    stable_end,
    without_cached,
)
from cachesim.engines.mlx_lm.server.serving import Serving, serve_kit
from cachesim.engines.mlx_lm.server.store import ServerStore
from cachesim.engines.mlx_lm.store.disk_prompt_cache import DiskPromptCache
from cachesim.engines.mlx_lm.store.grid_prompt_cache import GridPromptCache
from cachesim.engines.mlx_lm.store.memory_prompt_cache import MemoryPromptCache, RapidPromptCache
from cachesim.engines.mlx_lm.store.mllm_prompt_cache import (
    MllmPromptCache,
    WholePromptCache,
    named,
    of_prompt,
    placed,
)
from cachesim.errors import OptionError
from cachesim.model.arithmetic import Network
from cachesim.model.parts import halves_order
from cachesim.units import Array, Count, Token, Tokens

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
        cache, found = serving.store.look_up(job, key, self.jobs.values())
        job.old_position = found.position
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


# Requests served alone: with a seed, `--kv-bits`, a draft model, or caches without a batch form.
#
# prompt  [ cached | rest, in steps | last token ]   then one token after the other


def quantize(options: MlxOptions, network: Network, cache: PromptCache) -> None:
    """Quantise the layers of a list in place. Follows `maybe_quantize_kv_cache`."""
    if options.kv_bits is None:
        return
    for index, (shape, layer) in enumerate(zip(network.shapes, cache, strict=False)):
        long = getattr(layer, "offset", -1) >= options.quantized_kv_start
        # Recurrent layers have no offset; a layer that is short yet stays as it is.
        if shape.marks or not long or isinstance(layer, QuantizedKVCache):
            continue
        # Raises: upstream has no quantised ring.
        if isinstance(layer, RotatingKVCache):
            layer.to_quantized(options.kv_group_size, options.kv_bits)
        elif isinstance(layer, KVCache):
            packed = QuantizedKVCache(layer.rules, options.kv_group_size, options.kv_bits)
            packed.key_order = halves_order(network.spec)
            packed.take(layer, shape.key)
            cache[index] = packed


@dataclass(slots=True)
class Side:
    """Target or draft model, with its part of the prompt cache."""

    serving: Serving
    model: Forward
    cache: PromptCache  # a list of its own: the store keeps the unquantised layers

    def feed(self, tokens: Tokens, outputs: int = 1) -> Array:
        """Feed tokens; return the logits of the last ones."""
        columns = np.array([tokens], dtype=np.int64)
        logits: Array = self.model(columns, self.cache, outputs=outputs)[0]
        quantize(self.serving.options, self.model.network, self.cache)
        return logits

    def prefill(self, tokens: Tokens) -> Tokens:
        """Feed a prompt in steps; return the rest for the first draft."""
        step = self.serving.options.prefill_step_size
        # #1109: the last token of a prompt is fed alone; before, a short rest went to the first
        # draft.
        while len(tokens) > (1 if self.serving.rules.drafts_are_guarded else step):
            count = min(step, len(tokens) - 1)
            self.feed(tokens[:count])
            tokens = tokens[count:]
        return tokens


def speculate(serving: Serving, job: Job, rest: Tokens, cache: PromptCache) -> ReplyTokens:
    """Tokens of a reply, drafted and verified. Follows `speculative_generate_step`."""
    if serving.draft is None:
        raise ValueError("there is no draft model")
    n_layers = len(serving.model.make_cache())
    model = Side(serving, serving.model, cache[:n_layers])
    draft = Side(serving, serving.draft, cache[n_layers:])
    # #1109: rejected drafts stay in caches that cannot be trimmed, so they are refused; before, a
    # reply silently depended on them.
    if serving.rules.drafts_are_guarded and not can_trim_prompt_cache(model.cache):
        kinds = {type(layer).__name__ for layer in model.cache if not layer.is_trimmable()}
        msg = f"Speculative decoding requires a trimmable prompt cache (got {kinds})."
        raise UpstreamValueError(msg)
    draft_y, y = draft.prefill(rest), model.prefill(rest)
    count = drafted = accepted = step = 0
    try:
        while True:
            drafted = min(job.max_tokens - count, serving.options.num_draft_tokens)
            drafts = _drafts(job, draft, draft_y, drafted, step)
            rows = model.feed((*y, *drafts), drafted + 1)
            # The target's tokens for all drafted positions, and one more.
            tokens = [job.sampler.choose(row, count + index) for index, row in enumerate(rows)]
            accepted, step, job.unfed = 0, step + 1, 0
            while accepted < drafted and tokens[accepted] == drafts[accepted]:
                accepted, count = accepted + 1, count + 1
                job.sampler.rows.append(rows[accepted - 1])
                yield tokens[accepted - 1]
                if count == job.max_tokens:
                    return
            if count == job.max_tokens:  # max_tokens is 0, and the caller has no token
                msg = "cannot access local variable 'token' where it is not associated with a value"
                raise UpstreamUnboundLocalError(msg)
            count += 1
            job.sampler.rows.append(rows[accepted])
            # Trap: the last token of a step is sampled, but not fed: a stored key may end with it.
            job.unfed = 1
            yield tokens[accepted]
            if count == job.max_tokens:
                return
            y = draft_y = (tokens[accepted],)
            # The last draft was proposed and never fed to the draft model.
            if accepted == drafted:  # the last draft, which the draft model has not fed
                draft_y = (*drafts[-1:], *draft_y)
            _rewind(model, draft, drafted, accepted)
            drafted = accepted = 0
    finally:
        # A client that stops in the middle of a step leaves the drafts that were not verified.
        _rewind(model, draft, drafted, accepted)
        job.quantized = any(isinstance(layer, QuantizedKVCache) for layer in model.cache)


def _drafts(job: Job, draft: Side, y: Tokens, count: int, step: int) -> Tokens:
    forced = job.drafts[step] if step < len(job.drafts) else ()
    found: list[Token] = []
    for index in range(count):
        logits = draft.feed(y)[0]
        token = forced[index] if index < len(forced) else draft.model.network.sample(logits)
        found.append(token)
        y = (token,)
    return tuple(found)


def _rewind(model: Side, draft: Side, drafted: int, accepted: int) -> None:
    """Remove rejected drafts."""
    # Trap: a cache that cannot be trimmed keeps them, without an error.
    trim_prompt_cache(model.cache, drafted - accepted)
    # The draft model has not fed its own last proposal, so it has one token less to remove.
    trim_prompt_cache(draft.cache, max(drafted - accepted - 1, 0))


def serve_single(serving: Serving, job: Job) -> None:
    """Look up, feed, decode, insert once: no segments, no checkpoints. Follows `_serve_single`."""
    try:
        _serve(serving, job)
    # Unlike in a batch, an error goes to the client, and the worker survives.
    except UpstreamRaise as error:
        if not job.done:
            job.error = name_of(error)
            job.message = str(error)


def _serve_whole(serving: Serving, job: Job, store: WholePromptCache) -> None:
    """Serve a prompt with images. Follows `chat` and `stream_chat` of vllm-mlx's default engine."""
    name, key = named(job.prompt, job.images, sorts=True), keyed(job.prompt, job.images)
    store.asked = name, job.streams
    cache, found = serving.store.look_up(job, key)
    serving.admitted(job, "single", cache, job.prompt)
    held = serving.make_cache() if cache is None else cache
    with closing(stream(serving, job, job.prompt, held)) as tokens:
        for token in tokens:
            job.add_token(token)
            if job.stopper.advance(token) or job.should_stop:
                break
    serving.finish(job, "stop" if job.should_stop else "length")
    if not job.streams and found.key is None and not job.should_stop:
        store.keys[name] = list(key)
        serving.store.insert(job, list(key), [of_prompt(layer, len(key)) for layer in held])


def _serve(serving: Serving, job: Job) -> None:
    if isinstance(serving.store.cache, WholePromptCache):
        _serve_whole(serving, job, serving.store.cache)
        return
    key, job.boundaries = snapshot_key(serving.rules, job.tokenizer, job.messages, job.prompt)
    fed = job.prompt if job.images else key
    mllm = serving.store.cache if isinstance(serving.store.cache, MllmPromptCache) else None
    if mllm is not None:
        fed, images = mllm.prepare(job.prompt, job.images)
        # An image stands in the key by its content: equal placeholders do not match other images.
        key = placed(fed, images)
    elif job.images:
        key = keyed(job.prompt, job.images)
    cache, found = serving.store.look_up(job, key)
    job.old_position = found.position
    job.cache_key = list(key)
    segments = cut(job.tokenizer, job.messages, job.prompt) if serving.rules.segments else ()
    admitted = serving.admitted(job, "single", cache, fed, segments=segments)
    cached, sound = admitted.cached, admitted.sound
    held = serving.make_cache() if cache is None else cache
    # Empty if the whole prompt is cached: `stream` refuses it, as it has nothing to feed.
    rest = (*fed[cached:], *job.prompt[len(key) :])
    grid = serving.store.cache if isinstance(serving.store.cache, GridPromptCache) else None
    if grid is not None:
        rest = _keep_positions(serving, job, grid.positions(len(key), cached, found.equal), held)
    memory = serving.store.cache if isinstance(serving.store.cache, MemoryPromptCache) else None
    rapid = memory if isinstance(memory, RapidPromptCache) else None
    if rapid is not None and rapid.rapid.uncut > 0:
        end = stable_end(job.tokenizer, job.messages)
        job.boundaries = (end,) if end > 0 else ()
        if not end and rapid.keeps_before_end(key, cached):
            end = Count(len(key) - 1)
        if cached < end < len(key):
            rest = _keep_positions(serving, job, [end], held)
    reason = "length"
    # 0.32.0 raises. In a batch the same error ends the thread.
    if job.max_tokens == 0 and serving.rules.no_tokens == "dies":
        raise UpstreamValueError("Maximum number of tokens must be non-zero (use -1 for no limit).")
    following = stream if serving.draft is None else speculate
    if mllm is not None and not rest:
        job.ready = mllm.trie.get(job.model, list(key)).logits
    with closing(following(serving, job, rest, held)) as tokens:
        for token in tokens:
            if memory is not None and rapid is None and mllm is None and not job.generated:
                _keep_uncut(serving, job, memory, (*job.prompt, token), held)
            job.add_token(token)
            # The reply is part of the key, so that the next turn finds it.
            if serving.rules.snapshots is None:
                job.cache_key.append(token)
            stop = job.stopper.advance(token)
            if stop or job.should_stop or len(job.generated) == job.ends:
                reason = "stop" if stop or job.watcher is not None else reason
                break
    # "draft-key", cachesim's own patch: in every release the key keeps the unfed token.
    if serving.rules.key_is_what_was_fed and job.unfed:
        del job.cache_key[-job.unfed :]
    packed = job.quantized or any(isinstance(layer, QuantizedKVCache) for layer in held)
    job.quantized = packed and sound is not False  # quantisation does not excuse a wrong state
    serving.finish(job, reason)
    if grid is not None and not grid.keeps_replies:
        return
    if mllm is not None:
        _keep_asked(serving, job, mllm, key[: len(key) - mllm.suffix], held)
        return
    if memory is None or (memory.keeps(job.cache_key, held) and not job.should_stop):
        serving.store.insert(job, job.cache_key, held)


def _keep_uncut(
    serving: Serving, job: Job, memory: MemoryPromptCache, key: Tokens, cache: PromptCache
) -> None:
    """Keep a state that cannot be cut. Follows vllm-mlx's `_store_prompt_only_cache`."""
    # Taken after the first token, so the state is that of the prompt and one token.
    if memory.keeps_first(key, int(job.cached or 0), cache):
        memory.evict_prefixes(job.model, key)
        serving.store.insert(job, key, copy_prompt_cache(cache))


def _keep_asked(
    serving: Serving, job: Job, mllm: MllmPromptCache, key: Tokens, cache: PromptCache
) -> None:
    """Keep a prompt without its reply. Follows vllm-mlx's `_maybe_store_prefix_cache`."""
    # Since vllm-mlx 0.5.0 (#718) prompts with images are not stored: before, placeholders alone
    # were compared.
    media = job.images and not mllm.mllm.reads_media
    if not media and not job.should_stop and mllm.keeps(key, cache):
        kept = copy_prompt_cache(cache)
        trim_prompt_cache(kept, len(job.generated) + mllm.suffix)
        mllm.evict_prefixes(job.model, list(key))
        serving.store.insert(job, list(key), kept)


def _keep_prompt(serving: Serving, job: Job, cache: PromptCache) -> None:
    """Keep the state of a whole prompt, unless only the one before its last token is kept.

    Follows Rapid-MLX's `_snapshot_promoted_prompts`, and `_process_prompts` of vllm-mlx.
    """
    memory = serving.store.cache
    if isinstance(memory, MllmPromptCache) and not job.images:
        if memory.keeps_logits(job.prompt, int(job.cached or 0), cache):
            serving.store.insert(job, list(job.prompt), copy_prompt_cache(cache))
            memory.trie.get(job.model, list(job.prompt)).logits = job.sampler.rows[-1]
        return
    if (
        isinstance(memory, RapidPromptCache)
        and (job.boundaries or not memory.keeps_before_end(job.prompt, int(job.cached or 0)))
        and memory.keeps(job.prompt, cache)
    ):
        serving.store.insert(job, job.prompt, copy_prompt_cache(cache))


def _keep_positions(
    serving: Serving, job: Job, positions: Sequence[int], cache: PromptCache
) -> Tokens:
    """Prefill up to each position and keep a copy there; return the rest of the prompt.

    Follows Ollama's `attachPrefillSnapshots`, and Rapid-MLX's `_snapshot_boundary_segments`.
    """
    # The steps end at each position, because the state of a position is the one just fed.
    done, step = int(job.cached or 0), serving.options.prefill_step_size
    for end in positions:
        while done < end:
            count = min(step, end - done)
            serving.model(np.array([job.prompt[done : done + count]], dtype=np.int64), cache)
            done += count
        kept, kind = copy_prompt_cache(cache), serving.store.cache.type_at_positions
        serving.store.insert(job, job.prompt[:end], kept, kind)
    return job.prompt[done:]


def stream(serving: Serving, job: Job, rest: Tokens, cache: PromptCache) -> ReplyTokens:
    """Prefill in steps, the last token alone, then decode. Follows `generate_step`."""
    # An exact hit leaves no token to feed, and there are no logits to sample from.
    if not rest and job.ready is None:
        raise UpstreamValueError("Either input_embeddings or prompt (or both) must be provided.")
    total, done = len(rest), 0
    _emit_progress(serving, job, done, total)
    # The last token is fed alone, as its logits give the first token.
    while total - done > 1:
        count = min(serving.options.prefill_step_size, total - done - 1)
        serving.model(np.array([rest[done : done + count]], dtype=np.int64), cache)
        quantize(serving.options, serving.model.network, cache)
        done += count
        _emit_progress(serving, job, done, total)
    token = job.sampler(job.ready) if job.ready is not None else None
    if token is None:
        token = _step(serving, job, rest[-1], cache)
        _keep_prompt(serving, job, cache)
    if job.max_tokens == 0:
        _emit_progress(serving, job, total, total)
        msg = "cannot access local variable 'token' where it is not associated with a value"
        raise UpstreamUnboundLocalError(msg)
    for index in range(job.max_tokens):
        # Fed before the token is returned, so a key may always end with a returned token.
        following = _step(serving, job, token, cache)
        if index == 0:
            _emit_progress(serving, job, total, total)
        yield token
        token = following


def _step(serving: Serving, job: Job, token: Token, cache: PromptCache) -> Token:
    logits = serving.model(np.array([[token]], dtype=np.int64), cache)
    quantize(serving.options, serving.model.network, cache)
    return job.sampler(logits[0])


def _emit_progress(serving: Serving, job: Job, done: int, total: int) -> None:
    serving.emit(vocabulary.PromptProgress(task=job.ticket, done=done, total=total))


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
        draft: Forward | None = None,
    ) -> None:
        self.rules = rules.server
        networks = {name: model.network for name, model in models.items()}
        self.store = ServerStore(networks, options, rules, emit)
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
        if isinstance(self.store.cache, GridPromptCache):
            self._fit(self.store.cache, models[""])
        if isinstance(self.store.cache, DiskPromptCache) and not all(
            layer.merges for model in models.values() for layer in model.make_cache()
        ):
            msg = "mlx-engine serves a model whose caches have no batch form by its other kit: "
            msg += "name the patch +one-request"
            raise OptionError(msg)
        self.requests: deque[Job] = deque()
        self.batch: ServedBatch | None = None
        self.dead: str | None = None
        self.turns = 0  # steps of the live batch
        self._drain = False
        self._unprocessed: list[Job] = []
        self._admitting: Job | None = None

    @staticmethod
    def _fit(store: GridPromptCache, model: Forward) -> None:
        """Pass the store the layers with states, and those with too few arrays."""
        layers = model.make_cache()
        real = [
            (index, layer)
            for index, (shape, layer) in enumerate(zip(model.network.shapes, layers, strict=False))
            if not shape.marks and isinstance(layer, ArraysCache)
        ]
        few = [at for at, layer in real if len(layer.cache) < store.grid.fewest_arrays]
        store.counted = any(hasattr(layer, "offset") for layer in layers)
        store.sliceable, store.placeholder = not real, few[0] if few else None

    @property
    def serving(self) -> Serving:
        """The part of the loaded model."""
        return self.servings[self.loaded]

    @cached_property
    def _merging(self) -> frozenset[str]:
        """Models whose caches can be merged, if requests are batched at all."""
        # Another server's stores and these two options know no batches.
        alone = (
            self.rules.grid is not None
            or self.rules.memory is not None
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
            names = [each or "the first" for each in (job.model, self.loaded)]
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
        elif isinstance(self.store.cache, DiskPromptCache):
            serve_kit(self.serving, job, self.store.cache)
        else:
            serve_single(self.serving, job)

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
