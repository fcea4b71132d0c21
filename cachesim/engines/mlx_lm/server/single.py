"""Requests that are served alone: a seed, `--kv-bits`, a draft model, or caches without a batch.

prompt  [ cached | rest, in steps | last token ]   then one token after the other
"""

from contextlib import closing
from dataclasses import dataclass

import numpy as np

from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.prompt_cache import can_trim_prompt_cache, trim_prompt_cache
from cachesim.engines.mlx_lm.caches.quantized_kv_cache import QuantizedKVCache
from cachesim.engines.mlx_lm.caches.raised import (
    UpstreamRaise,
    UpstreamUnboundLocalError,
    UpstreamValueError,
    name_of,
)
from cachesim.engines.mlx_lm.caches.rotating_kv_cache import RotatingKVCache
from cachesim.engines.mlx_lm.events import PromptProgress
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PromptCache
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.server.batch import Serving
from cachesim.engines.mlx_lm.server.request import Job, Said
from cachesim.engines.mlx_lm.server.segments import cut, snapshot_key
from cachesim.model.arithmetic import Network
from cachesim.model.layers.rope import halves_order
from cachesim.units import Array, Token, Tokens


def quantize(options: MlxOptions, network: Network, cache: PromptCache) -> None:
    """Pack the layers of a list in place. Follows `maybe_quantize_kv_cache`.

    Rings refuse; recurrent layers, and lists of caches, are passed over.
    """
    if options.kv_bits is None:
        return
    for index, (shape, layer) in enumerate(zip(network.shapes, cache, strict=False)):
        long = getattr(layer, "offset", -1) >= options.quantized_kv_start
        if shape.marks or not long or isinstance(layer, QuantizedKVCache):
            continue
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
    cache: PromptCache  # a list of its own: what is packed in it, the store does not learn

    def feed(self, tokens: Tokens, outputs: int = 1) -> Array:
        """Feed tokens; the logits of the last ones."""
        columns = np.array([tokens], dtype=np.int64)
        logits: Array = self.model(columns, self.cache, outputs=outputs)[0]
        quantize(self.serving.options, self.model.network, self.cache)
        return logits

    def prefill(self, tokens: Tokens) -> Tokens:
        """Feed a prompt in steps, and hand back what is left for the first draft."""
        step = self.serving.options.prefill_step_size
        while len(tokens) > (1 if self.serving.rules.drafts_are_guarded else step):
            count = min(step, len(tokens) - 1)
            self.feed(tokens[:count])
            tokens = tokens[count:]
        return tokens


def speculate(serving: Serving, job: Job, rest: Tokens, cache: PromptCache) -> Said:
    """Tokens of a reply, drafted and verified. Follows `speculative_generate_step`."""
    if serving.draft is None:
        msg = "there is no draft model"
        raise ValueError(msg)
    count = len(serving.model.make_cache())
    model = Side(serving, serving.model, cache[:count])
    draft = Side(serving, serving.draft, cache[count:])
    if serving.rules.drafts_are_guarded and not can_trim_prompt_cache(model.cache):
        kinds = {type(layer).__name__ for layer in model.cache if not layer.is_trimmable()}
        msg = f"Speculative decoding requires a trimmable prompt cache (got {kinds})."
        raise UpstreamValueError(msg)
    draft_y, y = draft.prefill(rest), model.prefill(rest)
    said = drafted = accepted = step = 0
    try:
        while True:
            drafted = min(job.max_tokens - said, serving.options.num_draft_tokens)
            drafts = _drafts(job, draft, draft_y, drafted, step)
            rows = model.feed((*y, *drafts), drafted + 1)
            tokens = [job.sampler.choose(row, said + index) for index, row in enumerate(rows)]
            accepted, step, job.unfed = 0, step + 1, 0
            while accepted < drafted and tokens[accepted] == drafts[accepted]:
                accepted, said = accepted + 1, said + 1
                job.sampler.rows.append(rows[accepted - 1])
                yield tokens[accepted - 1]
                if said == job.max_tokens:
                    return
            if said == job.max_tokens:  # none was asked for, and whoever iterates has no token
                msg = "cannot access local variable 'token' where it is not associated with a value"
                raise UpstreamUnboundLocalError(msg)
            said += 1
            job.sampler.rows.append(rows[accepted])
            job.unfed = 1
            yield tokens[accepted]
            if said == job.max_tokens:
                return
            y = draft_y = (tokens[accepted],)
            if accepted == drafted:  # the last draft, which the draft model has not fed
                draft_y = (*drafts[-1:], *draft_y)
            _rewind(model, draft, drafted, accepted)
            drafted = accepted = 0
    finally:
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
    """Take back what was not accepted; a cache that cannot be trimmed keeps it, silently."""
    trim_prompt_cache(model.cache, drafted - accepted)
    trim_prompt_cache(draft.cache, max(drafted - accepted - 1, 0))


def serve_single(serving: Serving, job: Job) -> None:
    """Look up, feed, decode, insert once: no segments, no checkpoints. Follows `_serve_single`.

    What goes wrong here is told to the client; the worker lives on.
    """
    try:
        _serve(serving, job)
    except UpstreamRaise as error:
        if not job.done:
            job.error = name_of(error)
            job.message = str(error)


def _serve(serving: Serving, job: Job) -> None:
    key, job.boundaries = snapshot_key(serving.rules, job.tokenizer, job.messages, job.prompt)
    cache, found = serving.store.look_up(job, key)
    job.old_position = found.position
    job.cache_key = list(key)
    segments = cut(job.tokenizer, job.messages, job.prompt) if serving.rules.segments else ()
    admitted = serving.admitted(job, "single", cache, key, segments=segments)
    cached, sound = admitted.cached, admitted.sound
    held = serving.make_cache() if cache is None else cache
    rest = (*key[cached:], *job.prompt[len(key) :])
    reason = "length"
    following = stream if serving.draft is None else speculate
    with closing(following(serving, job, rest, held)) as tokens:
        for token in tokens:
            job.say(token)
            if serving.rules.snapshots is None:
                job.cache_key.append(token)
            stop = job.stopper.advance(token)
            if stop or job.should_stop or len(job.generated) == job.ends:
                reason = "stop" if stop or job.watcher is not None else reason
                break
    if serving.rules.key_is_what_was_fed and job.unfed:
        del job.cache_key[-job.unfed :]
    packed = job.quantized or any(isinstance(layer, QuantizedKVCache) for layer in held)
    job.quantized = packed and sound is not False  # packing excuses no wrong state
    serving.finish(job, reason)
    serving.store.insert(job, job.cache_key, held)


def stream(serving: Serving, job: Job, rest: Tokens, cache: PromptCache) -> Said:
    """Prefill in steps, the last token alone, then decode. Follows `generate_step`.

    Every token that is handed out has been fed already, so a key may always end with it.
    """
    if not rest:
        msg = "Either input_embeddings or prompt (or both) must be provided."
        raise UpstreamValueError(msg)
    if job.max_tokens == 0 and serving.rules.no_tokens == "dies":
        msg = "Maximum number of tokens must be non-zero (use -1 for no limit)."
        raise UpstreamValueError(msg)
    total, done = len(rest), 0
    _tell_progress(serving, job, done, total)
    while total - done > 1:
        count = min(serving.options.prefill_step_size, total - done - 1)
        serving.model(np.array([rest[done : done + count]], dtype=np.int64), cache)
        quantize(serving.options, serving.model.network, cache)
        done += count
        _tell_progress(serving, job, done, total)
    token = _step(serving, job, rest[-1], cache)
    if job.max_tokens == 0:
        _tell_progress(serving, job, total, total)
        msg = "cannot access local variable 'token' where it is not associated with a value"
        raise UpstreamUnboundLocalError(msg)
    for index in range(job.max_tokens):
        following = _step(serving, job, token, cache)
        if index == 0:
            _tell_progress(serving, job, total, total)
        yield token
        token = following


def _step(serving: Serving, job: Job, token: Token, cache: PromptCache) -> Token:
    logits = serving.model(np.array([[token]], dtype=np.int64), cache)
    quantize(serving.options, serving.model.network, cache)
    return job.sampler(logits[0])


def _tell_progress(serving: Serving, job: Job, done: int, total: int) -> None:
    serving.tell(PromptProgress(task=job.ticket, done=done, total=total))
