"""A request as the scheduler sees it, and with it what came of it. Follows `vllm/v1/request.py`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from cachesim.engines import job
from cachesim.engines.vllm.hashing import Prefixes
from cachesim.model.adapters import Strengths
from cachesim.units import Token, Tokens

Status: TypeAlias = Literal["waiting", "running", "preempted", "finished", "aborted"]


@dataclass(slots=True, eq=False)
class Request:
    """Its tokens, their ids, and how far it is (`Request`)."""

    id: int
    prefixes: Prefixes
    tokens: list[int]
    num_prompt: int
    max_tokens: int
    root: int
    hashes: list[int] = field(default_factory=list)
    status: Status = "waiting"
    num_computed: int = 0
    spec_tokens: list[int] = field(default_factory=list)
    shared_prefix_boundary: int = 0
    preemptions: int = 0
    is_prefill_chunk: bool = False
    reads_cache: bool = True
    priority: int = 0  # the smaller, the earlier
    in_flight: int = 0  # tokens of steps that have not come back
    placeholders: int = 0  # tokens that those steps will say
    stale: int = 0  # of those in flight: from before it was preempted
    strengths: Strengths = ()  # of the adapters, while it is computed

    @classmethod
    def make(
        cls,
        number: int,
        prefixes: Prefixes,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        extra: object = None,
        strengths: Strengths = (),
        reads_cache: bool = True,
        priority: int = 0,
    ) -> "Request":
        """A request with the ids of its prompt's blocks."""
        request = cls(
            id=number,
            prefixes=prefixes,
            tokens=list(prompt),
            num_prompt=len(prompt),
            max_tokens=max_tokens,
            root=prefixes.root(extra),
            reads_cache=reads_cache,
            priority=priority,
            strengths=strengths,
        )
        prefixes.extend(request.hashes, tuple(prompt), request.root)
        return request

    @property
    def rank(self) -> tuple[int, int]:
        """Rank under the policy `priority`: equals in the order they came."""
        return self.priority, self.id

    @property
    def num_tokens(self) -> int:
        """The prompt and what was generated."""
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        """Number of generated tokens."""
        return len(self.tokens) - self.num_prompt

    def append(self, token: int) -> None:
        """Append a sampled token; a block that has all tokens of its id gets it."""
        self.tokens.append(token)
        if (len(self.tokens) - self.prefixes.lookahead) % self.prefixes.unit == 0:
            self.prefixes.extend(self.hashes, self.tokens, self.root)


@dataclass(slots=True, kw_only=True)
class Job(job.Job):
    """Evidence of a request."""

    request: Request | None
    drafts: tuple[Tokens, ...] | None
    turns: int = 0  # drafting steps so far

    @property
    def generated(self) -> Tokens:
        """Sampled tokens."""
        if self.request is None:
            return ()
        return tuple(Token(each) for each in self.request.tokens[self.request.num_prompt :])
