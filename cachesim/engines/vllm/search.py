"""What a search draws for vLLM's server, and the laws that it checks request by request.

Each law is for a request sent alone, and holds on every release and patch but where a rule of
theirs is named here.
"""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, takewhile
from operator import eq
from typing import Final

from cachesim.engines.search import ACTS, STATES, Corner, Guide, Scope, Search
from cachesim.engines.seen import Breach, Seen
from cachesim.engines.vllm import rules
from cachesim.engines.vllm.options import DENSE, VllmOptions
from cachesim.engines.vllm.request import Job, Request
from cachesim.engines.vllm.server import Vllm
from cachesim.engines.vllm.vocabulary import (
    BlockEvicted,
    BlocksPublished,
    CacheLookup,
    ChunkScheduled,
    DraftsVerified,
    LoadArrived,
    LoadFailed,
    RequestDeferred,
    RequestFinished,
    RequestPreempted,
)
from cachesim.errors import UpstreamAbort

STORES: Final = frozenset({"store", "store-async"})
"""Connectors that keep the blocks of every finished request."""


class VllmLaws:
    """The laws, with the server whose hits they read."""

    def __init__(self, engine: Vllm) -> None:
        self._engine, self._rules, self._options = engine, engine.rules, engine.options

    def begin_anew(self) -> None:
        """Do nothing: no law compares two requests."""

    def broken(self, seen: Seen) -> Breach | None:
        """The first law that a request breaks."""
        kinds = {type(event) for event in seen.events}
        if seen.reply.error is not None:
            return None
        detail = self._chunks(seen)
        ended = RequestFinished in kinds and RequestPreempted not in kinds
        job = self._job(seen) if detail is None and seen.alone and ended else None
        request = None if job is None else job.request
        if job is not None and request is not None:
            detail = (
                self._lookups(seen)
                or self._drafts(seen, job)
                or self._published(seen)
                or self._stops(seen)
                or self._images(seen, request)
                or self._stored(seen, request)
            )
        if detail is not None:
            return Breach(kind="broken invariant", detail=detail)
        cut = seen.images and self._engine.scheduler.splitter is not None
        return (
            None if request is None or BlockEvicted in kinds or cut else self._lost(seen, request)
        )

    def _job(self, seen: Seen) -> Job | None:
        number = next(event.task for event in seen.events if isinstance(event, RequestFinished))
        jobs = self._engine._jobs  # noqa: SLF001 - its own server
        return next((job for job in jobs if job.ticket == number), None)

    # -- chunks ------------------------------------------------------------------------------------

    def _chunks(self, seen: Seen) -> str | None:
        """Chunks that are not consecutive; alone, also of fewer tokens than fit a step.

        chunk          | prompt ... | t d1 d2 |         d2 is refused
        the next one                     | t' d1' d2' |
        """
        limits, splits = self._engine.scheduler.limits, self._engine.scheduler.splitter is not None
        count, at, fresh, loads = len(seen.reply.prompt), 0, True, False
        for event in seen.events:
            if isinstance(event, CacheLookup):
                at, loads = event.cached, self._options.has_connector
            if isinstance(event, DraftsVerified):
                at -= event.proposed - event.accepted
            if not isinstance(event, ChunkScheduled):
                continue
            at, loads = event.start if loads else at, False
            if event.start != at:
                return f"a chunk begins at {event.start}, after {at} computed tokens"
            at, size, decodes = event.end, event.end - event.start, event.start >= count
            if size > limits.budget or event.end > limits.max_model_len:
                return f"a chunk of {size} tokens up to {event.end}, beyond the limits"
            whole = decodes or not (splits or seen.images)
            wanted = 1 if decodes else count - event.start
            pads = fresh and self._rules.scheduler.padding == "resumed"
            pads &= 0 < event.start == count - 1 and not limits.drafts_by_size
            fresh = False
            fills = self._options.use_eagle or limits.overlaps  # a drafter proposes all drafts
            if fills if decodes else pads and self._has_room(event.start):
                wanted += self._proposed
            room = min(wanted, self._least, limits.max_model_len - event.start - 1)
            if seen.alone and whole and size < room:
                return f"a chunk of {size} tokens from {event.start} on, of {room}"
        return None

    @property
    def _least(self) -> int:
        """Tokens of a request that a step surely has room for, where the request is alone."""
        limits, spares = self._engine.scheduler.limits, self._rules.scheduler
        if spares.threshold_spares_the_only_one or not limits.threshold:
            return limits.budget
        return min(limits.budget, limits.threshold)

    @property
    def _proposed(self) -> int:
        """Drafts that are proposed after a step, where the request is alone in it."""
        limits = self._engine.scheduler.limits
        return limits.drafts_by_size[0] if limits.drafts_by_size else limits.drafts

    @property
    def _longest(self) -> tuple[int, ...]:
        """Tokens of the longest chunks: those of a step, or of a request beside others."""
        limits = self._engine.scheduler.limits
        return limits.budget, min(limits.budget, limits.threshold or limits.budget)

    def _has_room(self, start: int) -> bool:
        """True if a request that resumes with one token may be padded with drafts."""
        limits = self._engine.scheduler.limits
        return start + limits.drafts + 2 <= limits.max_model_len

    def _stops(self, seen: Seen) -> str | None:
        """Chunks beside states: a prompt's end with a step's tokens or whole blocks, or where a
        state is wanted.

        prompt        |-----|-----|-----|--~--|-----|---|       a junction ~
        a step has    |---------------|
        ends                      ^     ^     ^     ^           the last blocks' may be inside, too

        With the rule `uncached-prefix` the first chunk ends as many tokens after its start as a
        lookup lacks up to the junction: a store's tokens move that end beyond the junction.
        """
        scheduler, splitter = self._engine.scheduler, self._engine.scheduler.splitter
        if splitter is None or seen.images or scheduler.limits.adaptive:
            return None
        count, size, junction, shared = len(seen.reply.prompt), splitter.size, 0, 0
        manager, rules = splitter.manager, self._rules.scheduler
        grid = manager.coordinator.retention if rules.stops_at_interval else None
        for event in seen.events:
            if isinstance(event, CacheLookup) and rules.chunk_split == "uncached-prefix":
                shared = max(event.junction - event.cached, 0)
            elif isinstance(event, CacheLookup):
                junction = event.junction
            if not isinstance(event, ChunkScheduled) or event.end >= count:
                continue
            start, end = event.start, event.end
            ends = {(start // size + bool(start % size)) * size, start + shared // size * size}
            shared = 0
            for full in (min(count, start + most) for most in self._longest):
                ends |= {full, full // size * size}
            wanted = junction - size < end <= junction or end >= count - 2 * size
            wanted |= bool(grid and end % grid == 0)
            if end not in ends and (end % manager.sizes.hash_block or not wanted):
                return f"a chunk from {start} on ends at {end}, where nothing asks for it"
        return None

    def _images(self, seen: Seen, request: Request) -> str | None:
        """Chunks that end before an image, for which the encoder has no room beside the others.

        prompt      | text [ image a ] text [ image b ] text |
        chunk       |---------------------|                        no room for a and b
        """
        scheduler = self._engine.scheduler
        encoder, budget, rules = scheduler.encoder, scheduler.limits.budget, self._rules.scheduler
        late = rules.encoder_waits_for_tokens and rules.encoder_stops_ahead
        kept = encoder.lookahead * late  # tokens after an image for which it is kept
        if scheduler.limits.overlaps:
            kept += budget  # those of the step in flight
        if scheduler.limits.adaptive:
            return None
        for event in seen.events if seen.images and scheduler.splitter is None else ():
            if not isinstance(event, ChunkScheduled) or event.end >= request.num_prompt:
                continue
            start, end = event.start, event.end
            stops = {end, end + encoder.lookahead * rules.encoder_stops_ahead}
            after = next((image for image in request.images if image.start in stops), None)
            full = end - start in self._longest
            if after is None and not full:
                return f"a chunk from {start} on ends at {end}, before no image"
            if after is None or full:
                continue
            needed = {e.name: e.count for e in request.images if start - kept < e.end <= after.end}
            if sum(needed.values()) <= encoder.size:
                return f"a chunk ends at {end}, though the image at {after.start} has room"
        return None

    # -- drafts ------------------------------------------------------------------------------------

    def _drafts(self, seen: Seen, job: Job) -> str | None:
        """N-grams: what followed the latest earlier pair of tokens like the last one is drafted.

        known       x y a b ... x y c d ... x y       drafts  c d ...

        A step that is scheduled before the output of the last one has places for all drafts, and
        begins as many tokens earlier as that one's drafts are refused.
        """
        if self._options.speculative_method != "ngram" or job.drafts is not None:
            return None
        limits, count = self._engine.scheduler.limits, len(seen.reply.prompt)
        if limits.overlaps and any(isinstance(event, RequestPreempted) for event in seen.events):
            return None  # what is refused of a step in flight is not taken back then
        tokens = list[int](seen.reply.prompt + seen.reply.generated)
        under_way, refused = list[tuple[int, int]](), 0
        for event in seen.events:
            if isinstance(event, ChunkScheduled) and (event.start >= count or event.drafts):
                drafted = _after_latest(tokens[: event.start + 1])
                room = min(self._least - 1, limits.max_model_len - event.start - 2)
                wanted = min(len(drafted), self._proposed, room)
                decodes = event.start >= count and not limits.overlaps
                if decodes and event.drafts != wanted:
                    return f"{event.drafts} drafts after {event.start + 1} tokens, of {wanted}"
                if event.drafts:
                    under_way.append((event.start, refused))
            if isinstance(event, DraftsVerified) and under_way:
                start, before = under_way.pop(0)
                known = start - (refused - before) + 1
                refused += event.proposed - event.accepted
                drafts = _after_latest(tokens[:known])[: event.proposed] if start >= count else []
                equal = map(eq, drafts, tokens[known:-1])
                if event.accepted != (wanted := sum(takewhile(bool, equal))):
                    return f"{event.accepted} drafts accepted after {known} tokens, of {wanted}"
        return None

    # -- ids and lookups ---------------------------------------------------------------------------

    def _lookups(self, seen: Seen) -> str | None:
        """One lookup until a request is deferred, or its load ends."""
        kinds = Counter(map(type, seen.events))
        most = 1 + kinds[RequestDeferred] + kinds[LoadArrived] + kinds[LoadFailed]
        if self._rules.scheduler.store_hit == "attention" or kinds[CacheLookup] <= most:
            return None
        return f"{kinds[CacheLookup]} lookups of a request, of {most}"

    def _published(self, seen: Seen) -> str | None:
        """Blocks with ids end where every group can, but for a drafter's.

        computed     |-----------|-----------|------->        whole blocks of all groups
        ids          | b0  | b1  | b2  | b3  |                not of b4
        """
        coordinator = self._engine.manager.coordinator
        floors = self._rules.retention.floors_to_scheduler_block and not coordinator.partial_hits
        computed = max((e.end for e in seen.events if isinstance(e, ChunkScheduled)), default=0)
        most = computed // coordinator.scheduler_block * coordinator.scheduler_block
        for event in seen.events if floors and not coordinator.eagle_ids else ():
            if isinstance(event, BlocksPublished) and max(event.ends) > most:
                return f"blocks with ids end at {event.ends}, of {most} tokens in whole ones"
        return None

    # -- hits --------------------------------------------------------------------------------------

    def _lost(self, seen: Seen, request: Request) -> Breach | None:
        """Tokens of a prompt and its answer that a repeated prompt would not hit."""
        manager = self._engine.manager
        kinds = {group.kind for group in manager.groups}
        if not manager.enable_caching or (self._options.connector == "nixl" and kinds != {"full"}):
            return None  # what is read is in blocks of the prompt's end
        for tokens, due in self._due(seen, request):
            try:
                hit = manager.coordinator.find_longest_cache_hit(request.hashes, tokens - 1).length
            except UpstreamAbort:  # of a request that did not look up, or beside a store
                return None
            if hit < due:
                detail = f"{hit} of {due} tokens would be found of the {tokens} computed ones"
                return Breach(kind="lost reuse", detail=detail)
        return None

    def _stored(self, seen: Seen, request: Request) -> str | None:
        """The blocks of attention of a finished request, which a store never loses."""
        manager, reply = self._engine.manager, seen.reply
        kept = self._options.connector in STORES and not self._options.drafts
        attends = {group.kind for group in manager.groups} == {"full"}
        if not (kept and attends and manager.enable_caching and request.reads_cache):
            return None
        jobs = [job.request for job in self._engine._jobs]  # noqa: SLF001 - its own server
        name, block = reply.equal_with, manager.sizes.scheduler_block
        by = next((job for job in jobs if job and name == f"request {job.id}"), request)
        due = min(reply.equal, request.num_prompt - 1) // block * block
        images = by.images or request.images  # which are in ids, not in the number of equal tokens
        if by.status != "finished" or by is request or images or "failed_block" in seen.fields:
            return None
        cached = reply.cached or 0
        return None if cached >= due else f"{cached} of {due} stored tokens cached"

    def _due(self, seen: Seen, request: Request) -> Iterator[tuple[int, int]]:
        """Numbers of computed tokens, and of those that must be hit again.

        A state in mode `align` is one at the last whole block of a prompt; a prompt of whole blocks
        had its only one at its end until 0.31. Since 0.26 another is where attention's hit ended.
        Other groups have all that a retention interval leaves them, the prompt's last position
        included.
        """
        manager, rules = self._engine.manager, self._rules
        coordinator, groups = manager.coordinator, manager.groups
        block, count = manager.sizes.scheduler_block, request.num_prompt
        modes, marked = (
            {group.mode for group in groups if group.kind == "mamba"},
            coordinator.eagle_ids,
        )
        sizes, exact = {group.block for group in groups}, rules.scheduler.prompt_stop != "floor"
        drops = len(sizes) == 1 and rules.retention.boundaries != "prompt-end"
        stored = self._options.has_connector  # windows, without a drafter's block
        if "none" in modes or (marked and (stored or not drops)):
            return
        small = min(self._longest) < block
        if "align" in modes and (len(sizes) > 1 or small or not (exact or count % block)):
            return
        less = block if marked else 0
        partly = coordinator.partial_hits and rules.state.tail == "checkpoint" and not marked
        unit = coordinator.alignment if partly else block
        yield count, (count - 1) // unit * unit - less
        junction = max(event.junction for event in seen.events if isinstance(event, CacheLookup))
        if "align" in modes and rules.retention.keeps_junction and junction >= block and not marked:
            at = junction // block * block
            yield at + 1, at
        interval = coordinator.retention
        dropped = bool(marked and interval)  # nothing is kept for the block before
        if interval == 0 or "align" in modes or stored or dropped:
            return
        late = self._options.drafts and not rules.scheduler.caches_after_drafts
        end = count if late or interval else request.num_tokens
        step = block if interval is None else math.lcm(interval, block)
        first = next(event.start for event in seen.events if isinstance(event, ChunkScheduled))
        for at in range(step, end, step):
            if at - less > first:  # before a hit, ids of windows and states may have gone
                yield at + 1, at - less


def _after_latest(tokens: list[int]) -> list[int]:
    """What followed the latest earlier pair of tokens like the last one."""
    pairs = [*pairwise(tokens)]
    after = [at + 2 for at, pair in enumerate(pairs[:-1]) if pair == pairs[-1]]
    return tokens[after[-1] :] if after else []


TINY: Final = {"block_size": 4, "max_num_batched_tokens": 8}
"""Blocks of four tokens, and steps of two blocks."""

SMALL: Final = {"block_size": 4, "num_gpu_blocks_override": 40}
"""A pool of 39 blocks of four tokens."""

FEW: Final = 32
"""Tokens of a step in which not all images of a drawn prompt have room."""


def _guided_corners() -> Iterator[Corner]:
    """Requests whose blocks have ids of their own, and loads that arrive late or in part."""
    yield Corner(fields={"cache_salt": ("a", "b")})
    adapters = (
        {"name": "L", "path": "A"},
        {"name": "L", "path": "B"},
        {"name": "M", "path": "B"},
        {"name": "M", "path": "B", "weights": "A"},
    )
    for most in (1, 2):
        flags = {**SMALL, "lora": "A,B", "max_loras": most}
        yield Corner(flags=flags, fields={"lora": adapters, "cache_salt": ("L",)}, crowd=True)
    store = {**SMALL, "connector": "store-async", "load_steps": 2}
    for policy in ("fail", "recompute"):
        failing = store | {"kv_load_failure_policy": policy}
        yield Corner(flags=failing, fields={"failed_block": (0, 1, 2)})
    yield Corner(flags=store | {"max_num_batched_tokens": 8}, crowd=True)
    remote = {**SMALL, "connector": "nixl"}
    yield Corner(flags=remote, fields={"failed_block": (0, 1, 2)})
    slow = {"load_steps": 3, "kv_load_failure_policy": "recompute"}
    yield Corner(flags=remote | slow, fields={"failed_block": (0, 1, 2)}, crowd=True)
    grams = {"block_size": 4, "speculative_method": "ngram", "num_speculative_tokens": 3}
    yield Corner(flags=grams, replies=12)
    yield Corner(flags={"block_size": 4, "mamba_cache_mode": "all"}, layers=STATES)
    yield Corner(flags=grams | {"mamba_cache_mode": "all"}, layers=STATES, replies=12)
    yield Corner(flags={**SMALL, "mamba_cache_mode": "align"}, layers=STATES)
    yield Corner(flags={"block_size": 8, "prefix_match_unit": 4}, layers=STATES)
    partly = {"block_size": 8, "prefix_match_unit": 2, "max_num_batched_tokens": 16}
    yield Corner(flags=partly | {"num_gpu_blocks_override": 40}, layers=STATES, crowd=True)
    scanned = {"block_size": 6, "mamba_cache_mode": "all", "mamba_chunk_size": 4}
    yield Corner(flags=scanned | {"max_num_batched_tokens": 8}, layers=STATES)
    yield Corner(flags={"block_size": 4, "max_num_batched_tokens": 12})
    dense = {"prefix_cache_retention_interval": DENSE}
    yield Corner(flags=grams | dense, layers=STATES, replies=12)
    heads = {"block_size": 4, "speculative_method": "eagle", "num_speculative_tokens": 2}
    yield Corner(flags=heads | dense | {"max_num_batched_tokens": 12}, replies=12)
    windows = {"block_size": 8, "window_block_size": 4}
    yield Corner(flags=windows | dense, layers=frozenset({"window"}))
    interval = {"prefix_cache_retention_interval": 16}
    yield Corner(flags={"block_size": 4, "mamba_cache_mode": "all"} | interval, layers=STATES)
    yield Corner(flags=windows | interval, layers=frozenset({"window"}))


def _further_corners() -> Iterator[Corner]:
    """Options that few servers set, where they show: beside others, with drafts, with windows."""
    yield Corner(flags={**SMALL, "watermark": 0.25}, crowd=True)
    yield Corner(flags={**SMALL, "long_prefill_token_threshold": 8}, crowd=True)
    yield Corner(flags={**SMALL, "prefill_schedule_interval": 3}, crowd=True, replies=12)
    yield Corner(flags={**SMALL, "max_num_active_seqs": 2}, crowd=True)
    windows = frozenset({"window"})
    yield Corner(flags={**SMALL, "disable_hybrid_kv_cache_manager": True}, layers=windows)
    heads = {"block_size": 8, "speculative_method": "eagle", "num_speculative_tokens": 2}
    yield Corner(flags=heads | {"disable_eagle_block_drop": True}, replies=12)
    yield Corner(
        flags=heads
        | {
            "prefix_match_unit": 2,
            "disable_lookahead_block_hashes": True,
            "enable_mamba_shared_prefix_checkpoint": True,
        },
        layers=STATES,
    )
    grams = {**SMALL, "speculative_method": "ngram", "num_speculative_tokens": 3}
    ranges = {"num_speculative_tokens_per_batch_size": "[[1, 1, 3], [2, 8, 1]]"}
    yield Corner(flags=grams | ranges, crowd=True, replies=12)


def _guide(_rules: rules.Rules, flags: VllmOptions) -> Guide:
    """Images where a step has few tokens: the encoder then has room for one or two of them."""
    return Guide(images="some" if flags.max_num_batched_tokens <= FEW else "none")


SEARCH: Final[Search[rules.Rules, VllmOptions]] = Search(
    laws=VllmLaws,
    asks={"priority": -1},
    reuse_flags=("enable_prefix_caching",),
    finds_again=lambda flags: flags.block_size,
    aborts_at_once=True,
    interrupts=True,
    draft_flag="speculative_method",
    corners=(
        Corner(),
        Corner(flags={"block_size": 4, "num_gpu_blocks_override": 27, "connector": "store"}),
        Corner(
            flags={
                "block_size": 4,
                "num_gpu_blocks_override": 27,
                "max_num_batched_tokens": 8,
                "scheduling_policy": "priority",
                "scheduler_reserve_full_isl": False,
            },
            crowd=True,
        ),
        Corner(
            flags={
                "block_size": 32,
                "drafter_block_size": 16,
                "speculative_method": "eagle",
                "num_speculative_tokens": 2,
            }
        ),
    ),
    guided_corners=(*_guided_corners(), *_further_corners()),
    guide=_guide,
    chunked_flags={"rings": True},
    further_layers=(("delta", "attention", "window"), ("ssm", "window", "attention")),
    scopes=(
        Scope(
            flags={**TINY, "num_gpu_blocks_override": 7},  # the first block is never used
            lengths=(4, 5, 8),
            acts=(*ACTS, "together", "cancel"),
            without=STATES,
            window=4,
        ),
        Scope(
            flags={**TINY, "num_gpu_blocks_override": 12},  # a group of states takes four
            lengths=(4, 5, 8),
            acts=(*ACTS, "together", "cancel"),
            layers=STATES,
            window=4,
        ),
    ),
    exercised={
        "block-evicted": "eviction",
        "blocks-published": "save",
        "drafts-verified": "rollback",
    },
)
