"""A request from outside, and the scheduler's view of it."""

from dataclasses import dataclass

from cachesim.engines import base, job
from cachesim.engines.vllm.request import Request
from cachesim.units import Token, Tokens


@dataclass(slots=True, kw_only=True)
class Job(job.Job):
    """One request's evidence."""

    request: Request | None
    drafts: tuple[Tokens, ...] | None
    turns: int = 0  # drafting steps so far

    @property
    def generated(self) -> Tokens:
        """What was sampled."""
        if self.request is None:
            return ()
        return tuple(Token(each) for each in self.request.tokens[self.request.num_prompt :])


def check(request: base.Request, vocabulary: int | None) -> None:
    """Refuse what a request to vLLM cannot have; None: tokens may be any numbers."""
    job.check(request, "vllm", vocabulary, {})
