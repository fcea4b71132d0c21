"""A request from outside, and the scheduler's view of it."""

from dataclasses import dataclass

from cachesim.engines import base, job
from cachesim.engines.sglang.request import Req
from cachesim.units import Token, Tokens


@dataclass(slots=True, kw_only=True)
class Job(job.Job):
    """One request's evidence."""

    req: Req | None = None

    @property
    def generated(self) -> Tokens:
        """What was sampled."""
        if self.req is None:
            return ()
        found = self.req.tokens[self.req.num_prompt : self.req.num_tokens]
        return tuple(Token(int(each)) for each in found)


def check(request: base.Request, vocabulary: int | None) -> None:
    """Refuse what a request to SGLang cannot have; None: tokens may be any numbers."""
    foreign = {"drafts": request.drafts is not None, "cache_prompt": not request.cache_prompt}
    job.check(request, "sglang", vocabulary, foreign)
