"""A request as the scheduler sees it, and with it what came of it. Follows `vllm/v1/request.py`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from cachesim.engines import job
from cachesim.model.adapters import Strengths
from cachesim.units import Token, Tokens

# Block ids: every id stands for a whole prefix, because it names its parent.
#
#     tokens   | b0        | b1        | b2        |
#     ids        h0 = (root, b0)   h1 = (h0, b1)   h2 = (h1, b2)
#
# The real server hashes; here prefixes are numbered, so equal numbers are equal prefixes and
# nothing can collide. With a drafter an id may cover the tokens after its block, too: what the
# drafter writes for a block's last token is computed from the next one.
#
# A long replay forgets prefixes that nothing holds and nobody asks for:
#
#     recent   h0 h1 h2        asked for since the last cut
#     earlier  h0 h3 h4        asked for before it; at the next cut those that are held stay

ROOT: Final = -1


class Prefixes:
    """Numbers whole prefixes, one hash unit at a time. Follows `get_request_block_hasher`."""

    __slots__ = ("_earlier", "_given", "_numbers", "_roots", "lookahead", "unit")

    def __init__(self, unit: int, lookahead: int = 0) -> None:
        """`lookahead`: tokens after a unit that its number stands for, too."""
        self.unit = unit
        self.lookahead = lookahead
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._earlier: dict[tuple[int, tuple[int, ...]], int] = {}
        self._given = 0
        self._roots: dict[Any, int] = {None: ROOT}

    def root(self, extra: object) -> int:
        """The parent of a first block: `cache_salt` and the adapter go in there."""
        return self._roots.setdefault(extra, ROOT - len(self._roots))

    def extend(self, hashes: list[int], tokens: Sequence[int], root: int = ROOT) -> None:
        """Number every whole unit of `tokens` that `hashes` does not have yet."""
        unit, numbers = self.unit, self._numbers
        known, give = numbers.get, hashes.append
        tokens = tuple(tokens) if isinstance(tokens, list) and not hashes else tokens
        start = len(hashes) * unit
        parent = hashes[-1] if hashes else root
        ahead = self.lookahead
        for end in range(start + unit, len(tokens) + 1 - ahead, unit):
            key = (parent, tuple(tokens[end - unit : end + ahead]))  # of a tuple: no second copy
            number = known(key)
            if number is None:
                number = numbers[key] = self._number(key)
            give(number)
            parent = number

    def __len__(self) -> int:
        return len(self._numbers)

    def parents(self) -> dict[int, int]:
        """The parent's number of every prefix."""
        both = (*self._earlier.items(), *self._numbers.items())
        return {number: parent for (parent, _), number in both}

    def _number(self, key: tuple[int, tuple[int, ...]]) -> int:
        number = self._earlier.pop(key, None)
        if number is None:
            number, self._given = self._given, self._given + 1
        return number

    def cut(self, held: Iterable[int]) -> set[int]:
        """Forget what was not asked for since the last cut, unless it is held or begins what is.

        Returns the numbers that are left.
        """
        known = self._numbers | self._earlier
        keys = {number: key for key, number in known.items()}
        left = set(self._numbers.values())
        for number in held:
            at = number
            while at in keys and at not in left:
                left.add(at)
                at = keys[at][0]
        self._earlier = {keys[number]: number for number in left}
        self._numbers = {}
        return left


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
        if self.request is None:
            return ()
        return tuple(Token(each) for each in self.request.tokens[self.request.num_prompt :])


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
