"""A request to the kit of LM Studio's mlx-engine that keeps records on disk."""

import numpy as np

from cachesim.engines.lm_studio.prompt_cache import DiskPromptCache, Saver, extracted
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.server.request import Job
from cachesim.engines.mlx_lm.server.serving import Serving
from cachesim.engines.mlx_lm.vocabulary import PromptProgress
from cachesim.typed import of_kind
from cachesim.units import Array, Tokens


def next_prompt_step_size(
    processed: int, remaining: int, step: int, chunk: int, *, has_states: bool
) -> int:
    """Tokens of the next call before a prompt's last one. Follows `_next_prompt_step_size`."""
    most, past = min(step, remaining - 1), processed % step
    if most > 0 and past and step - past <= most:
        return step - past  # after a partial restore
    if remaining > step:
        return most
    # Where a layer has a state, a call ends at a chunk, so that the state can be kept there.
    end = (processed + remaining - 1) // chunk * chunk
    return max(0, end - processed) if has_states else 0


def serve_kit(serving: Serving, job: Job) -> None:
    """Serve a request of the kit of July 2026; the cache stays unless it was stopped.

        prompt   [cached)[ rest of a step ][ step ][ step ][ to a multiple of 256 ][ the rest ]
                                                            where a layer has a state

    Follows `BatchedVisionModelKit` with `_PromptPrefill` and `GenerationBatch` for a batch of one,
    without the smaller steps that a fitted context may ask for: `_insert_prepared_request`, then
    `_finish_response`. A stop string ends a request as a client does that disconnects; an end mark
    does not.
    """
    disk = of_kind(DiskPromptCache, serving.store.cache)
    cache, _ = serving.store.look_up(job, job.prompt)
    serving.admitted(job, "single", cache, job.prompt)
    job.cache_key, done, length = list(job.prompt), int(job.cached or 0), len(job.prompt)
    held = serving.make_cache() if cache is None else cache
    saver = Saver(disk.store(job.model), job.prompt, done)
    states = any(isinstance(layer, ArraysCache) for layer in held)

    def feed(tokens: Tokens) -> Array:
        row: Array = serving.model(np.array([tokens], dtype=np.int64), held)[0]
        return row

    step, chunk = serving.options.prefill_step_size, disk.disk.interval
    logits: Array | None = None
    while logits is None:
        count = next_prompt_step_size(done, length - done, step, chunk, has_states=states)
        following = feed(job.prompt[done : done + count] if count else job.prompt[done:])
        logits, done = (None, done + count) if count else (following, length)
        saver.after_call(held, job.prompt, done)
        serving.emit(PromptProgress(task=job.ticket, done=done, total=length))
    reason, stopped = "length", False
    for left in reversed(range(max(1, job.max_tokens))):
        token = job.sampler(logits)
        logits = feed((token,))
        job.cache_key.append(token)
        saver.after_call(held, job.cache_key, len(job.cache_key))
        stop = job.stopper.advance(token)
        stopped = job.should_stop or (stop and token != job.tokenizer.eos)
        # A stop string ends a request as a client does that disconnects: nothing of it is kept.
        if (stop or left == 0) and not stopped:
            extracted(held)
        job.add_token(token)
        if stop or job.should_stop:
            reason = "stop" if stop else reason
            break
    serving.finish(job, reason)
    if not stopped:
        disk.store(job.model).observe(held)
        serving.store.insert(job, job.cache_key, held)
