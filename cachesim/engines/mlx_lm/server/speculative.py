"""A draft model beside the model: drafts, one call that verifies them, and a rewind.

    model   [ fed | y d1 d2 d3 ]   d1 accepted, d2 not: two rows too many, which are trimmed
    draft   [ fed | y d1 d2 ]      its last draft it never feeds

The tokens that are said are d1 and the model's own next one. That one is fed with the next call,
so a reply that ends with it leaves a state that is one token short of its key.
"""

from dataclasses import dataclass

import numpy as np

from cachesim.engines.mlx_lm.caches.prompt_cache import can_trim_prompt_cache, trim_prompt_cache
from cachesim.engines.mlx_lm.caches.quantized_kv_cache import QuantizedKVCache
from cachesim.engines.mlx_lm.caches.raised import UpstreamUnboundLocalError, UpstreamValueError
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PromptCache
from cachesim.engines.mlx_lm.server.batch import Serving
from cachesim.engines.mlx_lm.server.packing import quantize
from cachesim.engines.mlx_lm.server.request import Job, Said
from cachesim.units import Array, Token, Tokens


@dataclass(slots=True)
class Side:
    """One of the two models with its part of the prompt cache."""

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
