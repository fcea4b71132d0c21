"""Requests as the scheduler sees them, and batches of them. Follows `schedule_batch.py`."""

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np

from cachesim.engines import job
from cachesim.engines.images import Image
from cachesim.engines.sglang.node import NO_SLOTS, Node
from cachesim.model.adapters import Strengths
from cachesim.units import Integers, Token, Tokens

FIRST_PAD: Final = 1_000_000
"""MM_PAD_SHIFT_VALUE: no token of a text has such an id."""

PADS: Final = 4
"""Ids that an image's tokens have in turn."""


def pad_values(names: str) -> list[int]:
    """The ids of an image's tokens, of its hash (`_compute_pad_values`).

    Upstream's have 62 bits since 0.5.23; here 30, as before, for pairs of ids in one number.
    """
    digest = hashlib.sha256(names.encode()).digest()
    words = (digest[at : at + 8] for at in range(0, 8 * PADS, 8))
    return [FIRST_PAD + int.from_bytes(word) % (1 << 30) for word in words]


def pad_input_tokens(tokens: Integers, images: Sequence[Image], *, apart: bool) -> None:
    """Write the ids of images. Follows `pad_mm_tokens`."""
    together = " ".join(image.name for image in images)
    for image in images:
        values = pad_values(image.name) if apart else pad_values(together)[:1]
        tokens[image.start : image.end] = np.resize(values, image.count)


@dataclass(slots=True, eq=False)
class Req:
    """A request: its tokens, its computed prefix, and its slots.

    Upstream's `prefix_indices` is `prefix`, `fill_ids` the first `fill` tokens, and its line of
    `req_to_token` is `row`.
    """

    id: int
    tokens: Integers  # prompt, then what was generated, then room
    num_prompt: int
    max_new_tokens: int
    extra_key: Hashable = None
    priority: int = 0
    in_session: bool = False
    strips: bool = False  # strip_thinking_cache, of a request that reasons
    stream: "Stream | None" = None  # its streaming session
    lora_id: str = ""
    strengths: Strengths = ()  # of the adapters
    routing_key: str = ""
    arrived: int = 0  # arrival_processed_tokens
    queued: int = 0  # wait_queue_entry_time, as a count
    looked_up: int = 0  # len(full_untruncated_fill_ids): its tokens when it was last matched
    contents: Integers | None = None  # the prompt, with the tokens that stand for its images

    num_tokens: int = 0
    row: Integers = field(default_factory=lambda: NO_SLOTS)
    has_row: bool = False
    prefix: int = 0  # tokens that are not computed in the next chunk
    shared: Integers = field(default_factory=lambda: NO_SLOTS)  # their slots, as the tree has them
    extend: int = 0
    last_node: Node | None = None
    best: Node | None = None  # best_match_node: with what is on the host only
    on_host: int = 0  # host_hit_length
    window_on_host: int = 0  # swa_host_hit_length
    state_on_host: bool = False  # mamba_host_hit_length
    matched: int | None = None  # storage_prefetch_last_match_len
    reissues: int = 0  # storage_prefetch_retry_attempts
    half_read: bool = False  # more of its prompt is to come
    skipped: int = 0  # tokens of its prompt that no chunk has, though it generates
    lock: object = None
    protected: int = 0  # cache_protected_len
    inserted: int = 0  # cache_inserted_len
    is_chunked: int = 0
    committed: int = 0  # kv_committed_len
    stripped: int = 0  # the same, before a reply with reasoning was dropped
    allocated: int = 0  # kv_allocated_len: with what is reserved for drafts
    drafts: tuple[Tokens, ...] | None = None  # proposals of each round
    rounds: int = 0  # spec_verify_ct
    sampled: int = 0  # num_tokens, with what batches in flight have sampled (FutureMap)
    verified: int = 0  # rounds, with those of batches in flight
    finished_len: int | None = None
    finished: bool = False
    dropped: bool = False  # finished without a reason: aborted while it waited, or for memory
    to_finish: bool = False  # its client is gone: the next token is its last
    retracted: bool = False
    retractions: int = 0
    decode_steps: int = 0
    window_evicted: int = 0  # swa_evicted_seqlen
    window_branch: int | None = None  # swa_branching_seqlen

    state: int | None = None  # mamba_pool_idx
    state_source: int | None = None  # mamba_cow_src_index: copied when the chunk runs
    tracks: list[int] | None = None  # mamba_ping_pong_track_buffer
    next_track: int = 0
    tracked: int | None = None  # mamba_last_track_seqlen
    tracked_before: int | None = None  # mamba_prev_track_seqlen
    kept_track: int | None = None  # mamba_last_track_idx
    branch: int | None = None  # mamba_branching_seqlen
    track_at: int | None = None  # where this chunk leaves a state in a track
    track_every: int = 0  # mamba_track_grid, while it decodes

    @classmethod
    def make(
        cls,
        number: int,
        prompt: Integers,
        max_new_tokens: int,
        *,
        extra_key: Hashable = None,
        priority: int = 0,
        routing_key: str = "",
        lora_id: str = "",
        strengths: Strengths = (),
        images: tuple[Image, ...] = (),
        pads_apart: bool = True,
        beyond: int = 0,
    ) -> "Req":
        """A waiting request, with room behind its last token for two runs of drafts."""
        tokens = np.zeros(len(prompt) + max_new_tokens + 2 * (beyond + 1), np.int64)
        tokens[: len(prompt)] = prompt
        made = cls(number, tokens, len(prompt), max_new_tokens, extra_key, priority)
        made.num_tokens = len(prompt)
        made.routing_key = routing_key
        made.lora_id, made.strengths = lora_id, strengths
        # An adapter's keys and values are its own, so its name is part of the tree's key.
        if lora_id:
            made.extra_key = f"{extra_key or ''}{lora_id}"
        if images:
            made.contents = prompt
            pad_input_tokens(tokens, images, apart=pads_apart)
        return made

    @property
    def num_output(self) -> int:
        """Tokens generated."""
        return self.num_tokens - self.num_prompt

    @property
    def fill(self) -> int:
        """The end of the chunk."""
        return self.prefix + self.extend

    def read(self, start: int, end: int) -> Integers:
        """The tokens that the network computes; the model replaces an image's by its embeddings."""
        # An image's ids are only for the tree: the network gets its embeddings.
        if self.contents is None or start >= self.num_prompt:
            return self.tokens[start:end]
        return np.concatenate((self.contents[start:end], self.tokens[self.num_prompt : end]))

    def append(self, run: Sequence[int]) -> bool:
        """Append sampled tokens; True if they include the last. Follows `update_finish_state`.

        Trap: a run may go beyond the last token, and of a request whose client is gone all counts.
        """
        end = self.num_tokens + len(run)
        self.tokens[self.num_tokens : end] = run
        self.num_tokens = end
        if not self.to_finish and self.num_output >= self.max_new_tokens:
            self.finished_len = self.max_new_tokens
        self.finished = self.to_finish or self.finished_len is not None
        return self.finished

    @property
    def other_track(self) -> int:
        """The slot that was tracked in last. Follows `get_mamba_ping_pong_other_idx`."""
        return 1 - self.next_track if self.tracks and len(self.tracks) > 1 else self.next_track

    @property
    def proposed(self) -> Tokens:
        """The drafts of this step."""
        if self.drafts is None or self.verified >= len(self.drafts):
            return ()
        return self.drafts[self.verified]

    @property
    def owned(self) -> int:
        """Tokens that a finished request may leave. Follows `owned_kv_len`.

        Each token counts as reasoning until it ends, so a request that reasons and has generated
        one has `reasoning_tokens`.
        """
        if self.strips and self.num_output:
            return min(self.committed, self.num_prompt)
        return self._until_the_last

    @property
    def _until_the_last(self) -> int:
        if self.finished_len is None:
            return self.committed
        return min(self.committed, self.num_prompt + self.finished_len)

    def drop_beyond_the_last(self) -> None:
        """Commit what the tree may have of a finished request."""
        if self.strips:
            self.stripped = self._until_the_last
        self.committed = self.owned

    def write(self, start: int, slots: Integers) -> None:
        self.row[start : start + len(slots)] = slots

    def reset_for_retract(self) -> None:
        """Start over. Follows `reset_for_retract`."""
        self.retractions += 1
        self.retracted = True
        self.prefix = self.extend = self.skipped = 0
        self.shared = NO_SLOTS
        self.last_node = self.lock = self.best = None
        self.on_host = self.window_on_host = 0
        self.state_on_host = False
        self.protected = self.inserted = 0
        self.is_chunked = 0
        self.state = self.state_source = self.tracks = None
        self.next_track = 0
        self.tracked = self.tracked_before = self.kept_track = None
        self.branch = self.window_branch = None
        self.committed = self.allocated = 0
        self.window_evicted = 0
        self.decode_steps = 0


@dataclass(slots=True, eq=False)
class Stream:
    """A streaming session: its last turn, and the record that turns borrow (`SessionSlot`)."""

    last: Req | None = None
    turn: Req | None = None  # accepted, and perhaps still under way
    inflight: bool = False
    holder: Req | None = None  # has the record: a turn, or between turns nobody's request
    node: Node | None = None
    lock: object = None
    publishes: bool = False  # publishes_prompt


@dataclass(slots=True, kw_only=True)
class Job(job.Job):
    """A request's reply and ledger."""

    req: Req | None = None

    @property
    def generated(self) -> Tokens:
        if self.req is None:
            return ()
        end = min(self.req.num_tokens, self.req.num_prompt + self.req.max_new_tokens)
        tokens = self.req.tokens[self.req.num_prompt : end]
        return tuple(Token(int(token)) for token in tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Sizes of speculative decoding."""

    steps: int = 3  # speculative_num_steps
    topk: int = 1  # speculative_eagle_topk
    tokens: int = 4  # speculative_num_draft_tokens

    def per_decode(self, page: int) -> int:
        """Slots that one decode step may take. Follows `get_alloc_len_per_decode`."""
        if page == 1 or self.topk == 1:
            return max(self.steps * self.topk, self.tokens)
        pages = (page - 1 + self.steps + page - 1) // page
        return max(pages * page * self.topk, self.tokens)

    def in_pages(self, page: int) -> int:
        """Maximum tokens of a step of 0.5.9. Follows its `new_tokens_required_next_decode`."""
        most = self.steps + (page if page > 1 and self.topk > 1 else 0)
        return max(-(-most // page) * page * self.topk, -(-self.tokens // page) * page)

    def branches(self, committed: int, page: int) -> int:
        """Slots for branches of drafts, each with a copy of the last page in 0.5.9."""
        if page == 1 or self.topk == 1:
            return self.steps * self.topk
        pages = -(-(committed % page + self.steps) // page)
        return pages * page * self.topk - committed % page


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a batch."""

    chunk: int = 8192  # chunked_prefill_size
    max_prefill: int = 16384  # max_prefill_tokens
    max_running: int = 8
    max_len: int = 4096
    interval: int = 256  # mamba_track_interval
    most_prefill: int | None = None  # prefill_max_requests
    conservativeness: float = 1.0  # schedule_conservativeness
    ignores_eos: bool = False
    mixes: bool = False  # enable_mixed_chunk
    loras: int = 0  # max_loras_per_batch; 0: no adapters
    policy: str = "fcfs"  # schedule_policy
    seed: int = 0  # random_seed
    prioritizes: bool = False  # enable_priority_scheduling
    preempts: bool = False  # enable_priority_preemption, try_preemption
    low_first: bool = False  # schedule_low_priority_values_first
    threshold: int = 10  # priority_scheduling_preemption_threshold
    retracts_by_priority: bool = False  # retraction_policy
    drafts: Drafts | None = None
    overlaps: bool = False  # enable_overlap
    track_slots: int = 2  # mamba_ping_pong_track_buffer_size


class DecodeTrack(NamedTuple):
    """A decode step of a request, whose result is processed after the next one is prepared."""

    at: int | None  # mamba_track_mask: the position of the tracked state
    slot: int  # mamba_track_buffer_indices
    step: int  # mamba_decode_batch_idx_cpu
    next_due: bool  # mamba_track_mask_next_cpu

    @classmethod
    def of(cls, req: Req, interval: int) -> "DecodeTrack":
        """A prepared step."""
        left = req.committed % interval
        at = None if left else req.committed
        return cls(at, req.next_track, req.decode_steps, left == interval - 1)


@dataclass(slots=True, eq=False)
class Batch:
    """Requests that run together."""

    reqs: list[Req]
    extend: bool = False
    decoding: list[Req] = field(default_factory=list)  # of a prefill: those that only decode
    chunked: Req | None = None
    is_full: bool = False
    tokens: int = 0  # extend_num_tokens: of the prefill that it was, also while it decodes
    tracks: list[DecodeTrack] = field(default_factory=list)  # of a decode without drafts
    interval: int = 0  # mamba_track_grid, of a decode
    steps: int = 1  # of a decode: known tokens of its only request that it computes

    def copy(self) -> "Batch":
        """A snapshot for processing the result."""
        made = Batch([*self.reqs], self.extend, self.decoding, self.chunked)
        made.tokens, made.tracks, made.interval = self.tokens, self.tracks, self.interval
        return made

    def reads(self, req: Req) -> bool:
        """True if the batch holds a chunk of the request's prompt; else the request decodes."""
        return self.extend and req not in self.decoding

    def keep(self, excluded: Sequence[Req] = ()) -> bool:
        """Remove finished and excluded requests; True if any was. Follows `filter_batch`."""
        before = len(self.reqs)
        gone = {id(req) for req in excluded}
        self.reqs = [r for r in self.reqs if not r.finished and id(r) not in gone]
        return len(self.reqs) < before


class ChunkListener(Protocol):
    """Callbacks before and after a chunk of a prompt is stashed."""

    def __call__(self, *, begins: bool) -> None: ...


def plan_track(req: Req, grid: int) -> None:
    """Choose the position at which a chunk of `extra_buffer` tracks a state, and the slot in turn.

    chunk      [ prefix ....... |64 ....... |128 ....... |192 .. )
    saved                                     ^ the last grid position in it
    branch                        ^ or where attention would have resumed, instead

    Follows `_mamba_radix_cache_v2_req_prepare_for_extend`.
    """
    # No grid position in this chunk, so no state of it enters the tree.
    if req.extend < grid:
        return
    at = req.prefix + req.extend // grid * grid
    # The slots take turns: the state of the last chunk stays readable.
    req.kept_track = req.next_track
    req.next_track = req.other_track
    branch = req.branch
    reached = branch is not None and req.prefix < branch < end_of_tracking(req, at)
    # A state where attention already matched serves the next prompt with this prefix, instead of
    # this prompt's own end: a repeated prompt hits less.
    if branch is not None and reached and (branch - req.prefix) % grid == 0:
        at = branch
    req.tracked = req.track_at = at


def end_of_tracking(req: Req, at: int) -> int:
    """The limit of a branching point: the chunk's end, or one beyond a forced position."""
    # Trap: where pages are larger than the kernel's chunk, the position is forced and the end
    # moves.
    fine = req.prefix + req.extend // 64 * 64
    return at + 1 if fine != at else req.fill


def tracked_in_decode(req: Req, at: int, slot: int) -> None:
    """Record that a decoding request has saved a state in one of its slots."""
    req.kept_track = slot
    req.tracked_before, req.tracked = req.tracked, at
