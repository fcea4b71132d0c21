"""Requests, the ids of their blocks, and steps. Follows `vllm/v1/request.py`."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from cachesim.engines import job
from cachesim.engines.adapters import LoRARequest
from cachesim.engines.images import Image, within
from cachesim.units import Token, Tokens

# Block ids: an id includes that of its parent, and so identifies a whole prefix.
#
#     tokens   | b0        | b1        | b2        |
#     ids        h0 = (root, b0)   h1 = (h0, b1)   h2 = (h1, b2)
#
# The real server hashes; here prefixes are numbered: equal numbers are equal prefixes, without
# collisions. With a drafter an id may also cover tokens after its block, because the drafter
# computes the entry of a block's last token from the next token.
#
# The tokens of an image are the same placeholder for every image; its hash and its offset in the
# block are in the id of each block that it is part of:
#
#     tokens   | s s i i | i i q q |
#     ids        h0 = (root, s s . ., (i, 2))   h1 = (h0, . . q q, (i, -2))
#
# A long replay drops prefixes that are neither held nor used (`cut`):
#
#     recent   h0 h1 h2        used since the last cut
#     earlier  h0 h3 h4        used before it; the next cut keeps the held ones

ROOT: Final = -1

Content: TypeAlias = tuple[Hashable, ...]
"""The tokens of an id, and its extra keys."""

IMAGE: Final = -1
"""The token of every image."""


NO_ADAPTER: Final = LoRARequest()

Keys: TypeAlias = tuple[Hashable, ...]
"""Extra keys of an id."""


def adapter_keys(lora: LoRARequest, *, path: bool) -> Keys:
    """The keys that an adapter adds to each id of a request. Follows `_gen_lora_extra_hash_keys`.

    Trap: without the path, the key is a bare text. A request with the adapter's name as its
    `cache_salt` has the same key in its first block, and hits that of the adapter.
    """
    if not lora.name:
        return ()
    # Trap: without the path the key is a bare text. An adapter reloaded from elsewhere hits the old
    # one's blocks (#42125), and a `cache_salt` of the same text hits them, too.
    return (("lora", lora.name, lora.path),) if path else (lora.name,)


def keyed(tokens: Content, images: Sequence[Image], start: int) -> Content:
    """The content of a block with images (`_gen_mm_extra_hash_keys`)."""
    row, end = list(tokens), start + len(tokens)
    for image in within(images, start, end):
        first, last = max(image.start - start, 0), min(image.end, end) - start
        # Every image has the same placeholder token, so its hash and place tell prefixes apart.
        row[first:last] = [IMAGE] * (last - first)
        row.append((image.name, image.start - start))
    return tuple(row)


class Prefixes:
    """Numbers of whole prefixes, one per hash unit. Follows `get_request_block_hasher`."""

    __slots__ = ("_earlier", "_given", "_numbers", "_roots", "lookahead", "unit")

    def __init__(self, unit: int, lookahead: int = 0) -> None:
        """`lookahead`: tokens after a unit that its number also covers."""
        self.unit = unit
        self.lookahead = lookahead
        self._numbers: dict[tuple[int, Content], int] = {}
        self._earlier: dict[tuple[int, Content], int] = {}
        self._given = 0
        self._roots: dict[Keys, int] = {(): ROOT}

    def root(self, extra: Keys) -> int:
        """The parent id of a first block, by adapter and `cache_salt`."""
        return self._roots.setdefault(extra, ROOT - len(self._roots))

    def extend(
        self,
        hashes: list[int],
        tokens: Sequence[int],
        root: int = ROOT,
        images: Sequence[Image] = (),
        adapter: Keys = (),
    ) -> None:
        """Append the ids of the new whole units of `tokens` to `hashes`.

        Follows `generate_block_hash_extra_keys`; the keys of the first block are in `root`.
        """
        unit, numbers = self.unit, self._numbers
        known, give = numbers.get, hashes.append
        tokens = tuple(tokens) if isinstance(tokens, list) and not hashes else tokens
        start = len(hashes) * unit
        parent = hashes[-1] if hashes else root
        ahead = self.lookahead
        for end in range(start + unit, len(tokens) + 1 - ahead, unit):
            content: Content = tuple(tokens[end - unit : end + ahead])  # no copy of a tuple
            if images:
                content = keyed(content, images, end - unit)
            # The first block's extra keys are in its parent; ids include their parents, so
            # `cache_salt` is needed only there.
            key = (parent, content + adapter if adapter and end > unit else content)
            number = known(key)
            if number is None:
                number = numbers[key] = self._number(key)
            give(number)
            parent = number

    def known(self, tokens: Sequence[int]) -> list[int]:
        """The ids that the leading units of `tokens` have already; gives none."""
        unit, ahead, parent = self.unit, self.lookahead, ROOT
        hashes: list[int] = []
        for end in range(unit, len(tokens) + 1 - ahead, unit):
            key = (parent, tuple(tokens[end - unit : end + ahead]))
            number = self._numbers.get(key, self._earlier.get(key))
            if number is None:
                break
            hashes.append(number)
            parent = number
        return hashes

    def __len__(self) -> int:
        return len(self._numbers)

    def parents(self) -> dict[int, int]:
        """The parent id of every prefix."""
        both = (*self._earlier.items(), *self._numbers.items())
        return {number: parent for (parent, _), number in both}

    def _number(self, key: tuple[int, Content]) -> int:
        number = self._earlier.pop(key, None)
        if number is None:
            number, self._given = self._given, self._given + 1
        return number

    def cut(self, held: Iterable[int]) -> set[int]:
        """Drop prefixes unused since the last cut, except held ones and their parents.

        Returns the remaining numbers.
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


Status: TypeAlias = Literal[
    "waiting", "loading", "running", "preempted", "finished", "aborted", "error"
]
"""`loading` is WAITING_FOR_REMOTE_KVS, `error` FINISHED_ERROR."""

ENDED: Final = frozenset({"finished", "aborted", "error"})


@dataclass(slots=True, eq=False)
class Request:
    """A request: its tokens, block ids and progress (`Request`)."""

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
    priority: int = 0  # smaller numbers first
    in_flight: int = 0  # tokens of steps without output yet
    placeholders: int = 0  # output tokens of those steps
    stale: int = 0  # tokens in flight from before a preemption
    refused: int = 0  # drafts that were taken back so far
    last_step: int = 0  # number of the last step with a chunk (`last_sched_seq`)
    dropped: bool = False  # what is stale does not count (`drop_stale_output`)
    lora: LoRARequest = NO_ADAPTER
    images: tuple[Image, ...] = ()  # mm_features
    adapter: Keys = ()  # of its ids
    foreseen: int = 0  # known tokens of its reply that the next chunk computes beside the first
    learned: int = 0  # units in the record of what was computed

    @classmethod
    def make(
        cls,
        number: int,
        prefixes: Prefixes,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        salt: str | None = None,
        lora: LoRARequest = NO_ADAPTER,
        adapter: Keys = (),
        reads_cache: bool = True,
        priority: int = 0,
        images: tuple[Image, ...] = (),
    ) -> "Request":
        """A request with the ids of its prompt's blocks."""
        request = cls(
            id=number,
            prefixes=prefixes,
            tokens=list(prompt),
            num_prompt=len(prompt),
            max_tokens=max_tokens,
            root=prefixes.root((*adapter, *((salt,) if salt else ()))),
            reads_cache=reads_cache,
            priority=priority,
            lora=lora,
            images=images,
            adapter=adapter,
        )
        prefixes.extend(request.hashes, tuple(prompt), request.root, images, adapter)
        return request

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key of the policy `priority`; ties by arrival."""
        return self.priority, self.id

    @property
    def num_tokens(self) -> int:
        """Number of prompt and generated tokens."""
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        """Number of generated tokens."""
        return len(self.tokens) - self.num_prompt

    def append(self, token: int) -> None:
        """Append a sampled token; it may complete the tokens of an id."""
        self.tokens.append(token)
        # Only whole units have ids; with a look-ahead, one needs the tokens after it, too.
        if (len(self.tokens) - self.prefixes.lookahead) % self.prefixes.unit == 0:
            self.prefixes.extend(self.hashes, self.tokens, self.root, self.images, self.adapter)

    def foresee(self, tokens: Sequence[int]) -> None:
        """Append known tokens of the reply, to be computed by one chunk."""
        self.tokens += tokens
        self.foreseen = len(tokens)
        self.prefixes.extend(self.hashes, self.tokens, self.root, self.images, self.adapter)


@dataclass(slots=True, kw_only=True)
class Job(job.Job):
    """A request and its result."""

    request: Request | None
    drafts: tuple[Tokens, ...] | None
    turns: int = 0  # drafting steps so far
    proposed: list[int] = field(default_factory=list)  # the last drafts
    proposals: dict[int, int] = field(default_factory=dict)  # generated tokens -> number of drafts

    @property
    def generated(self) -> Tokens:
        if self.request is None:
            return ()
        return tuple(Token(token) for token in self.request.tokens[self.request.num_prompt :])


PLACEHOLDER = -1
"""A draft slot without a proposal."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of a request in a step: `[start, start + count)`, drafts last."""

    request: Request
    start: int
    count: int
    drafts: tuple[int, ...] = ()
    blocks: tuple[list[int], ...] = ()  # all of a fresh request, the new ones of a running one
    fresh: bool = False  # the first chunk after waiting
    known: int = 0  # tokens of the request when the step was scheduled, without drafts
    refused: int = 0  # drafts of the request that had been taken back by then

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + self.count

    def settled(self, proposed: Sequence[int]) -> "Chunk":
        """The chunk as its step runs: from the last accepted token on, with the drafts after it.

        step n       | t d1 d2 |                      d2 is refused
        step n + 1             | .  .  . |            as scheduled, before the output of step n
                            | t' e1 e2 |              as it runs

        Follows `prepare_inputs` of the runner, whose counts and drafts stay on the device.
        """
        # With overlapping steps a chunk is scheduled before the drafts of the step before are
        # judged.
        if self.fresh:  # padded, or without drafts
            return self
        count = len(self.drafts)
        drafts = (*proposed, *[PLACEHOLDER] * count)[:count]
        return replace(
            self, start=self.start - (self.request.refused - self.refused), drafts=drafts
        )

    @property
    def tokens(self) -> list[int]:
        """Tokens to compute; token 0 for a placeholder."""
        drafts = [max(draft, 0) for draft in self.drafts]
        return self.request.tokens[self.start : self.end] + drafts

    def last_tokens(self, count: int) -> list[int]:
        """The last `count` tokens to compute, without a copy of the others."""
        drafts = [max(draft, 0) for draft in self.drafts]
        known = self.request.tokens[max(self.start, self.end - count) : self.end]
        return (known + drafts)[-count:]


@dataclass(frozen=True, slots=True)
class Copied:
    """Blocks of a group in the order of a request, and the slots of the chunks they are in."""

    group: int
    blocks: tuple[int, ...]
    first: int  # index of the first block in the request
    slots: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class TransferJob:
    """A load or a store (`TransferJob`, `TransferJobStatus`)."""

    number: int
    request: Request
    keys: Sequence[tuple[int, int]]
    stores: bool
    copied: tuple[Copied, ...]
    fenced: Sequence[int] = ()  # source blocks that may be taken again while the request runs
    deferred: Sequence[int] = ()  # and those that may be once it is done


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of a step (`OffloadingConnectorMetadata`)."""

    loads: tuple[TransferJob, ...] = ()
    stores: tuple[TransferJob, ...] = ()
    flushed: frozenset[int] = frozenset()  # those that end before the step runs


NO_JOBS: Final = Jobs()


@dataclass(slots=True)
class Step:
    """Chunks, copies and preemptions of a step, for the runner."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)  # group, source, target
    preempted: list[Request] = field(default_factory=list)
    running: tuple[Chunk, ...] = ()  # chunks of requests that were already running
    proposes: int = 0  # drafts of each request after it (`num_spec_tokens_to_schedule`)
    cut_to_none: bool = False  # a chunk of fewer tokens than a block was cut to whole blocks
    jobs: Jobs = NO_JOBS  # of native offloading

    def has(self, request: Request) -> bool:
        """True if the step has a chunk of the request."""
        return any(chunk.request is request for chunk in self.chunks)

    def drop(self, request: Request) -> list[Chunk]:
        """Remove and return the chunks of a request."""
        out = [chunk for chunk in self.chunks if chunk.request is request]
        self.chunks = [chunk for chunk in self.chunks if chunk.request is not request]
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a step."""

    budget: int = 8192  # max_num_scheduled_tokens
    max_seqs: int = 256
    batched: int = 0  # max_num_batched_tokens, where it is another number
    max_model_len: int = 1 << 16
    reserve_full: bool = True  # scheduler_reserve_full_isl
    drafts: int = 0  # num_speculative_tokens
    drafts_by_size: tuple[int, ...] = ()  # by the number of requests in a step; none: `drafts`
    lookahead: int = 0
    use_eagle: bool = False  # the last block of hits is dropped for a drafter
    by_priority: bool = False  # policy
    overlaps: bool = False  # a step is scheduled before the previous one's output
    recomputes: bool = False  # kv_load_failure_policy
    loras: int = 0  # max_loras; 0: no adapters
    threshold: int = 0  # long_prefill_token_threshold; 0: none
    adaptive: bool = False  # long_prefill_token_threshold_adaptive
    watermark: float = 0.0
    prefill_interval: int = 1  # prefill_schedule_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Transfers of a connector in a step's output (`KVConnectorOutput`)."""

    received: tuple[Request, ...] = ()  # finished_recving
    sent: tuple[Request, ...] = ()  # finished_sending
    failed: tuple[Request, ...] = ()  # failed_recving
    invalid: frozenset[int] = frozenset()  # invalid_block_ids


NO_TRANSFERS: Final = Transfers()
