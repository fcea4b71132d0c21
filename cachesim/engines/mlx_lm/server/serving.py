"""Values that batches and single requests share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cachesim.engines.events import Event
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PromptCache
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import ServerRules
from cachesim.engines.mlx_lm.server.request import Job, Segment
from cachesim.engines.mlx_lm.server.store import ServerStore
from cachesim.engines.mlx_lm.vocabulary import RequestAdmitted
from cachesim.units import Count, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A model with the parts of its server."""

    model: Forward
    options: MlxOptions
    rules: ServerRules
    store: ServerStore
    emit: Callable[[Event], None]
    finish: Callable[[Job, str], None]
    draft: Forward | None = None

    def make_cache(self) -> PromptCache:
        """Fresh caches of the model, then those of the draft model."""
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
        """Report the lookup of `_generate` or `_serve_single`, and whether its cache is sound."""
        cached, checkpointed = job.cached or Count(0), self.rules.checkpoint and path == "batch"
        event = RequestAdmitted(
            task=job.ticket,
            path=path,
            prompt_tokens=Count(len(job.prompt)),
            cached=cached,
            reported=job.cached if self.rules.reports_cached else None,
            sound=self.store.soundness(job, cache, key[:cached]),
            segments=tuple((len(segment.tokens), segment.type) for segment in segments),
            checkpoint=(job.checkpoint.store, job.checkpoint.position) if checkpointed else None,
        )
        self.emit(event)
        return event


Serve: TypeAlias = Callable[[Serving, Job], None]
"""How a server answers a request that is served alone."""
