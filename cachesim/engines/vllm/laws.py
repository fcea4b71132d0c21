"""Laws of vLLM's server, which a search checks request by request.

Each is for a request that nothing else was sent with, and holds on every release and patch but
where a rule of theirs is named here.
"""

import math
from collections.abc import Iterator

from cachesim.engines.seen import Breach, Seen
from cachesim.engines.vllm.events import (
    BlockEvicted,
    CacheLookup,
    ChunkScheduled,
    DraftsVerified,
    RequestFinished,
    RequestPreempted,
)
from cachesim.engines.vllm.request import Request
from cachesim.engines.vllm.server import Vllm


class VllmLaws:
    """The laws, with the server whose hits they read."""

    def __init__(self, engine: Vllm) -> None:
        self._engine, self._rules, self._options = engine, engine.rules, engine.options

    def begin_anew(self) -> None:
        """Do nothing: no law compares two requests."""

    def broken(self, seen: Seen) -> Breach | None:
        """The first law that a request breaks."""
        kinds = {type(event) for event in seen.events}
        if seen.reply.error is not None or self._options.connector != "none":
            return None
        detail = self._chunks(seen)
        if detail is not None:
            return Breach(kind="broken invariant", detail=detail)
        ended = RequestFinished in kinds and not kinds & {BlockEvicted, RequestPreempted}
        cut = seen.images and self._engine.scheduler.splitter is not None
        if not (seen.alone and ended) or cut:
            return None
        number = next(each.task for each in seen.events if isinstance(each, RequestFinished))
        jobs = self._engine._jobs  # noqa: SLF001 - its own server
        request = next((job.request for job in jobs if job.ticket == number), None)
        return None if request is None else self._lost(request)

    # -- chunks ------------------------------------------------------------------------------------

    def _chunks(self, seen: Seen) -> str | None:
        """Chunks that do not follow each other; alone, also of fewer tokens than fit a step.

        chunk          | prompt ... | t d1 d2 |         d2 is refused
        the next one                     | t' d1' d2' |
        """
        limits, splits = self._engine.scheduler.limits, self._engine.scheduler.splitter is not None
        count, at, fresh = len(seen.reply.prompt), 0, True
        for event in seen.events:
            if isinstance(event, CacheLookup):
                at = event.cached
            if isinstance(event, DraftsVerified):
                at -= event.proposed - event.accepted
            if not isinstance(event, ChunkScheduled):
                continue
            if event.start != at:
                return f"a chunk begins at {event.start}, after {at} computed tokens"
            at, size, decodes = event.end, event.end - event.start, event.start >= count
            if size > limits.budget or event.end > limits.max_model_len:
                return f"a chunk of {size} tokens up to {event.end}, beyond the limits"
            whole = decodes or not (splits or seen.images)
            wanted = 1 if decodes else count - event.start
            pads = fresh and self._rules.scheduler.padding == "resumed"
            pads &= 0 < event.start == count - 1
            fresh = False
            if self._options.use_eagle if decodes else pads and self._has_room(event.start):
                wanted += limits.drafts
            room = min(wanted, limits.budget, limits.max_model_len - event.start - 1)
            if seen.alone and whole and size < room:
                return f"a chunk of {size} tokens from {event.start} on, of {room}"
        return None

    def _has_room(self, start: int) -> bool:
        """True if a request that resumes with one token may be padded with drafts."""
        limits = self._engine.scheduler.limits
        return start + limits.drafts + 2 <= limits.max_model_len

    # -- hits --------------------------------------------------------------------------------------

    def _lost(self, request: Request) -> Breach | None:
        """The prompt, and the tokens of an answer, that would not be found if they came again."""
        manager = self._engine.manager
        if not manager.enable_caching:
            return None
        for tokens, due in self._due(request):
            hit = manager.coordinator.find_longest_cache_hit(request.hashes, tokens - 1).length
            if hit < due:
                detail = f"{hit} of {due} tokens would be found of the {tokens} computed ones"
                return Breach(kind="lost reuse", detail=detail)
        return None

    def _due(self, request: Request) -> Iterator[tuple[int, int]]:
        """Numbers of computed tokens, and of those among them that are to be found again.

        A state in mode `align` is one at the last whole block of a prompt; a prompt of whole blocks
        had its only one at its end until 0.31. Other groups have all that a retention interval
        leaves them, the prompt's last position included.
        """
        manager, rules = self._engine.manager, self._rules
        coordinator, groups = manager.coordinator, manager.groups
        block, count = manager.sizes.scheduler_block, request.num_prompt
        modes, marked = (
            {each.mode for each in groups if each.kind == "mamba"},
            coordinator.eagle_ids,
        )
        sizes, exact = {each.block for each in groups}, rules.scheduler.prompt_stop != "floor"
        drops = len(sizes) == 1 and rules.retention.boundaries != "prompt-end"
        if "none" in modes or (marked and not drops):
            return
        small = self._engine.scheduler.limits.budget < block
        if "align" in modes and (len(sizes) > 1 or small or not (exact or count % block)):
            return
        less = block if marked else 0
        partly = coordinator.partial_hits and rules.state.tail == "checkpoint" and not marked
        unit = coordinator.alignment if partly else block
        yield count, (count - 1) // unit * unit - less
        interval = coordinator.retention
        if interval == 0 or "align" in modes:
            return
        late = self._options.drafts and not rules.scheduler.caches_after_drafts
        end = count if late or interval else request.num_tokens
        step = block if interval is None else math.lcm(interval, block)
        for at in range(step, end, step):
            yield at + 1, at - less
