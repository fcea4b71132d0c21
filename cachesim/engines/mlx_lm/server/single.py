"""Requests that are served alone: a seed, `--kv-bits`, or layer caches that cannot be merged.

prompt  [ cached | rest, in steps | last token ]   then one token after the other
"""

from collections.abc import Iterator

import numpy as np

from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.quantized_kv_cache import QuantizedKVCache
from cachesim.engines.mlx_lm.caches.raised import (
    UpstreamRaise,
    UpstreamUnboundLocalError,
    UpstreamValueError,
    name_of,
)
from cachesim.engines.mlx_lm.caches.rotating_kv_cache import RotatingKVCache
from cachesim.engines.mlx_lm.events import PromptProgress, RequestAdmitted
from cachesim.engines.mlx_lm.generate.shared import PromptCache
from cachesim.engines.mlx_lm.server.batch import Serving
from cachesim.engines.mlx_lm.server.request import Job
from cachesim.engines.mlx_lm.server.segments import cut, snapshot_key
from cachesim.model.layers.rope import halves_order
from cachesim.units import Count, Token, Tokens


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
    key, job.boundaries = snapshot_key(serving.rules, serving.tokenizer, job.messages, job.prompt)
    cache, found = serving.store.look_up(job, key)
    cached = job.cached or Count(0)
    job.old_position = found.position
    job.cache_key = list(key)
    segments = cut(serving.tokenizer, job.messages, job.prompt) if serving.rules.segments else ()
    serving.tell(
        RequestAdmitted(
            task=job.ticket,
            path="single",
            prompt_tokens=Count(len(job.prompt)),
            cached=cached,
            reported=serving.reported(job),
            sound=serving.store.soundness(cache, key[:cached]),
            segments=tuple((len(each.tokens), each.type) for each in segments),
        )
    )
    held = serving.model.make_cache() if cache is None else cache
    rest = (*key[cached:], *job.prompt[len(key) :])
    reason = "length"
    for token in stream(serving, job, rest, held):
        job.say(token)
        if serving.rules.snapshots is None:
            job.cache_key.append(token)
        stop = job.stopper.advance(token)
        if stop or job.should_stop:
            reason = "stop" if stop or job.watcher is not None else reason
            break
    job.quantized = any(isinstance(layer, QuantizedKVCache) for layer in held)
    serving.finish(job, reason)
    serving.store.insert(job, job.cache_key, held)


def stream(serving: Serving, job: Job, rest: Tokens, cache: PromptCache) -> Iterator[Token]:
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
        _quantize(serving, cache)
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
    _quantize(serving, cache)
    return job.sampler(logits[0])


def _quantize(serving: Serving, cache: PromptCache) -> None:
    """`--kv-bits`: attention layers are packed once they are long enough.

    Follows `maybe_quantize_kv_cache`, which changes the list in place. Rings refuse; recurrent
    layers, and lists of caches, are passed over.
    """
    options = serving.options
    if options.kv_bits is None:
        return
    shapes = serving.model.network.shapes
    for index, (shape, layer) in enumerate(zip(shapes, cache, strict=False)):
        long = getattr(layer, "offset", -1) >= options.quantized_kv_start
        if shape.marks or not long or isinstance(layer, QuantizedKVCache):
            continue
        if isinstance(layer, RotatingKVCache):
            layer.to_quantized(options.kv_group_size, options.kv_bits)
        elif isinstance(layer, KVCache):
            packed = QuantizedKVCache(layer.rules, options.kv_group_size, options.kv_bits)
            packed.key_order = halves_order(serving.model.network.spec)
            packed.take(layer, shape.key)
            cache[index] = packed


def _tell_progress(serving: Serving, job: Job, done: int, total: int) -> None:
    serving.tell(PromptProgress(task=job.ticket, done=done, total=total))
