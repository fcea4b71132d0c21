"""Requests that are served alone: a seed, `--kv-bits`, a draft model, or caches without a batch.

prompt  [ cached | rest, in steps | last token ]   then one token after the other
"""

from contextlib import closing

import numpy as np

from cachesim.engines.mlx_lm.caches.quantized_kv_cache import QuantizedKVCache
from cachesim.engines.mlx_lm.caches.raised import (
    UpstreamRaise,
    UpstreamUnboundLocalError,
    UpstreamValueError,
    name_of,
)
from cachesim.engines.mlx_lm.events import PromptProgress
from cachesim.engines.mlx_lm.generate.shared import PromptCache
from cachesim.engines.mlx_lm.server.batch import Serving
from cachesim.engines.mlx_lm.server.packing import quantize
from cachesim.engines.mlx_lm.server.request import Job, Said
from cachesim.engines.mlx_lm.server.segments import cut, snapshot_key
from cachesim.engines.mlx_lm.server.speculative import speculate
from cachesim.units import Token, Tokens


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
