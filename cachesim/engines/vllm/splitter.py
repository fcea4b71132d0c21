"""Where prefill of a recurrent model is cut: a state is left where a chunk ends."""

from dataclasses import dataclass

from cachesim.engines.vllm.groups import checkpoint_position
from cachesim.engines.vllm.manager import KVCacheManager
from cachesim.engines.vllm.request import Request
from cachesim.errors import UpstreamAbort


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitter:
    """The rules of `need_mamba_block_aligned_split`, for the group that keeps states."""

    manager: KVCacheManager
    size: int  # tokens of the smallest block of all groups
    budget: int
    use_eagle: bool
    partial_states: bool  # states at hash boundaries inside a block

    @classmethod
    def of(cls, manager: KVCacheManager, *, budget: int, use_eagle: bool) -> "Splitter | None":
        """For a model with states that are kept at chunk ends; None for any other."""
        mamba = next((each for each in manager.groups if each.kind == "mamba"), None)
        if mamba is None or mamba.mode != "align":
            return None
        sizes = manager.sizes
        return cls(
            manager=manager,
            size=min(each.block for each in manager.groups),  # `cache_config.block_size`
            budget=budget,
            use_eagle=use_eagle,
            partial_states=sizes.hash_block < sizes.scheduler_block
            and manager.coordinator.partial_hits,
        )

    def check_external(self, num_external: int) -> None:
        """End the engine core where a release does not let a store bring states."""
        if num_external and not self.manager.rules.scheduler.splits_after_store:
            where = "Scheduler._mamba_block_aligned_split"
            raise UpstreamAbort(where, "External KV connector is not verified yet")

    def take(self, request: Request, new: int, start: int, uncached: int) -> int:
        """How many tokens a recurrent model's prefill takes now.

            start        block      block   junction     last boundary   prompt end
              |------------|----------|--------|--------------|-------------|
                 a state is left where a chunk ends, so chunks end where one is wanted

        Follows `_mamba_block_aligned_split`.
        """
        end_of_prefill = max(request.num_prompt, request.num_tokens - 1)
        if start >= end_of_prefill:
            return new
        if self.manager.rules.scheduler.chunk_split in {"stops", "early-stops"}:
            return self._at_stops(request, new, start, end_of_prefill)
        size = self.size
        last = self._last_boundary(request)
        after = start + new
        if after < last:
            new = new // size * size
        elif start < last < after:
            new = last - start
        if self.manager.rules.scheduler.chunk_split == "uncached-prefix" and size <= uncached < new:
            new = uncached // size * size
        return new

    def _checkpoint(self, num_tokens: int, unit: int) -> int:
        return checkpoint_position(
            num_tokens,
            unit,
            drop_eagle_block=self.use_eagle,
            hash_lookahead=self.manager.pool.hash_lookahead,
        )

    def _last_boundary(self, request: Request) -> int:
        size, eagle = self.size, self.use_eagle
        if self.manager.rules.scheduler.prompt_stop == "below-the-end":
            return self._checkpoint(request.num_tokens, size)
        last = request.num_tokens - request.num_tokens % size
        return max(last - size, 0) if eagle else last

    def _tail_boundary(self, request: Request) -> int:
        unit, eagle = self.manager.sizes.hash_block, self.use_eagle
        rule = self.manager.rules.state.tail
        if rule == "checkpoint":
            return self._checkpoint(request.num_prompt, unit)
        boundary = request.num_prompt // unit * unit
        return max(boundary - unit, 0) if eagle and rule == "prompt-eagle" else boundary

    def _at_stops(self, request: Request, new: int, start: int, end_of_prefill: int) -> int:
        size = self.size
        last = self._last_boundary(request)
        end = start + new
        early = self.manager.rules.scheduler.chunk_split == "early-stops"
        if early:  # may leave nothing of a chunk: a budget below a block waits for ever
            end = end // size * size if end < last else end
        elif end < end_of_prefill:
            aligned = end // size * size
            if aligned > start or size <= self.budget:
                end = aligned
        tail = self._tail_boundary(request) if self.partial_states else 0
        junction = request.shared_prefix_boundary
        boundary = (start // size + 1) * size
        stops = (
            boundary if start % size and (not early or boundary <= last) else 0,
            last,
            tail if last < tail < request.num_prompt else 0,
            start + (junction - start) // size * size if start < junction < end else 0,
            self._next_of_interval(start),
        )
        end = min((stop for stop in stops if start < stop < end), default=end)
        return max(end - start, 0)

    def _next_of_interval(self, start: int) -> int:
        """The next position at which retention would keep a state, if there were one."""
        interval = self.manager.coordinator.retention
        if not (interval and self.manager.rules.scheduler.stops_at_interval):
            return 0
        return (start // interval + 1) * interval
