"""Requests that mlx-lm's server serves alone: with a seed, `--kv-bits`, a draft model, or caches
without a batch form.

    prompt  [ cached | rest, in steps | last token ]   then one token after the other
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np

from cachesim.engines.mlx_lm import vocabulary
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
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PromptCache
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.server.request import Job, ReplyTokens, cut, snapshot_key
from cachesim.engines.mlx_lm.server.serving import Serve, Serving
from cachesim.model.arithmetic import Network
from cachesim.model.parts import halves_order
from cachesim.units import Array, Token, Tokens


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
    drafts: list[Token] = []
    for index in range(count):
        logits = draft.feed(y)[0]
        token = forced[index] if index < len(forced) else draft.model.network.sample(logits)
        drafts.append(token)
        y = (token,)
    return tuple(drafts)


def _rewind(model: Side, draft: Side, drafted: int, accepted: int) -> None:
    """Remove rejected drafts."""
    # Trap: a cache that cannot be trimmed keeps them, without an error.
    trim_prompt_cache(model.cache, drafted - accepted)
    # The draft model has not fed its own last proposal, so it has one token less to remove.
    trim_prompt_cache(draft.cache, max(drafted - accepted - 1, 0))


def serve_single(serving: Serving, job: Job) -> None:
    """Look up, feed, decode, insert once: no segments, no checkpoints. Follows `_serve_single`."""
    answered(_serve, serving, job)


def answered(serve: Serve, serving: Serving, job: Job) -> None:
    """Serve a request; an error of upstream's becomes its answer."""
    try:
        serve(serving, job)
    # Unlike in a batch, an error goes to the client, and the worker survives.
    except UpstreamRaise as error:
        if not job.done:
            job.error = name_of(error)
            job.message = str(error)


def _serve(serving: Serving, job: Job) -> None:
    store = serving.store.cache

    def insert(key: Sequence[Token], state: PromptCache, cache_type: str = "assistant") -> None:
        serving.store.insert(job, key, state, cache_type)

    key, job.boundaries = snapshot_key(serving.rules, job.tokenizer, job.messages, job.prompt)
    fed, key = store.as_fed(job, key)
    cache, fetched = serving.store.look_up(job, key)
    job.old_position = fetched.position
    job.cache_key = list(key)
    segments = cut(job.tokenizer, job.messages, job.prompt) if serving.rules.segments else ()
    admitted = serving.admitted(job, "single", cache, fed, segments=segments)
    held = serving.make_cache() if cache is None else cache
    # Empty if the whole prompt is cached: `stream` refuses it, as it has nothing to feed.
    rest = (*fed[admitted.cached :], *job.prompt[len(key) :])
    if positions := store.positions(job, key, fetched.equal):
        rest = _keep_positions(serving, job, positions, held)
    reason = "length"
    # 0.32.0 raises. In a batch the same error ends the thread.
    if job.max_tokens == 0 and serving.rules.no_tokens == "dies":
        raise UpstreamValueError("Maximum number of tokens must be non-zero (use -1 for no limit).")
    following = stream if serving.draft is None else speculate
    if not rest:
        job.ready = store.logits_after(job, key)
    with closing(following(serving, job, rest, held)) as tokens:
        for token in tokens:
            if not job.generated:
                store.after_first(job, token, held, insert)
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
    # Quantisation does not excuse a wrong state.
    job.quantized = packed and admitted.sound is not False
    serving.finish(job, reason)
    store.at_end(job, key, held, insert)


def _keep_positions(
    serving: Serving, job: Job, positions: Sequence[int], cache: PromptCache
) -> Tokens:
    """Prefill up to each position and keep a copy there; return the rest of the prompt.

    mlx-lm itself keeps none: its store names no `positions`.
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
        serving.store.cache.after_prompt(job, cache, partial(serving.store.insert, job))
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
