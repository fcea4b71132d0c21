"""Steps, chunks and their limits. Follows `sched/output.py`."""

from dataclasses import dataclass, field

from cachesim.engines.vllm.request import Request

PLACEHOLDER = -1
"""A draft slot that holds no proposal."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of a request in a step: `[start, start + count)`, drafts last."""

    request: Request
    start: int
    count: int
    drafts: tuple[int, ...] = ()
    blocks: tuple[list[int], ...] = ()  # of a fresh request all, of a running one the new ones
    fresh: bool = False  # it waited until now
    known: int = 0  # tokens of the request when the step was scheduled, drafts not counted

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + self.count

    @property
    def tokens(self) -> list[int]:
        """Tokens to compute; a slot without a proposal holds token 0."""
        drafts = [max(draft, 0) for draft in self.drafts]
        return self.request.tokens[self.start : self.end] + drafts

    def last_tokens(self, count: int) -> list[int]:
        """The last of them, without a copy of the rest."""
        drafts = [max(draft, 0) for draft in self.drafts]
        known = self.request.tokens[max(self.start, self.end - count) : self.end]
        return (known + drafts)[-count:]


@dataclass(slots=True)
class Step:
    """Chunks, copies and preemptions of a step, for the runner."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)  # group, source, target
    preempted: list[Request] = field(default_factory=list)
    running: tuple[Chunk, ...] = ()  # those of requests that ran before this step

    def has(self, request: Request) -> bool:
        """True if it has a chunk of the request."""
        return any(each.request is request for each in self.chunks)

    def drop(self, request: Request) -> list[Chunk]:
        """Take out what it has of a request."""
        out = [each for each in self.chunks if each.request is request]
        self.chunks = [each for each in self.chunks if each.request is not request]
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a step."""

    budget: int = 8192  # max_num_batched_tokens
    max_seqs: int = 256
    max_model_len: int = 1 << 16
    reserve_full: bool = True  # scheduler_reserve_full_isl
    drafts: int = 0  # num_speculative_tokens
    lookahead: int = 0
    use_eagle: bool = False  # a drafter, and the last block of its hits is dropped
    by_priority: bool = False  # policy
    overlaps: bool = False  # a step is scheduled before the one before it has come back
