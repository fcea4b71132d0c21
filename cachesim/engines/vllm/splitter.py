"""Where a recurrent model's prefill is cut into chunks: a chunk leaves a state at its end."""

from dataclasses import dataclass

from cachesim.engines.vllm.block_pool import cacheable
from cachesim.engines.vllm.checkpoints import checkpoint_position, is_exportable
from cachesim.engines.vllm.coordinator import KVCacheManager
from cachesim.engines.vllm.request import Request
from cachesim.errors import UpstreamAbort


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitter:
    """`need_mamba_block_aligned_split`, for the recurrent group."""

    manager: KVCacheManager
    size: int  # tokens of the blocks at whose ends chunks end
    budget: int
    use_eagle: bool
    partial_states: bool  # states at hash boundaries inside a block
    alignment: int  # of states exported inside a chunk; 0: none are

    @classmethod
    def of(cls, manager: KVCacheManager, *, budget: int, use_eagle: bool) -> "Splitter | None":
        """The splitter for a model with states at chunk ends, else None."""
        mamba = next((group for group in manager.groups if group.kind == "mamba"), None)
        # In mode `all` the kernel leaves a state in every block, so chunks may end anywhere.
        if mamba is None or mamba.mode != "align":
            return None
        sizes = manager.sizes
        states = [group for group in manager.groups if group.kind == "mamba"]
        # One cut serves all groups: a layer that cannot export needs the chunk to end there.
        exports = all(state.checkpoint_alignment for state in states)
        # `cache_config.block_size`: a ring, whose blocks have no ids, is left out.
        smallest = min(spec.block for spec in cacheable(manager.groups))
        return cls(
            manager=manager,
            size=smallest if manager.rules.scheduler.cuts_in_smallest_block else mamba.block,
            budget=budget,
            use_eagle=use_eagle,
            partial_states=sizes.hash_block < sizes.scheduler_block
            and manager.coordinator.partial_hits,
            alignment=mamba.checkpoint_alignment if exports else 0,
        )

    def check_external(self, num_external: int) -> None:
        """End the engine core in releases without states from a store."""
        if num_external and not self.manager.rules.scheduler.splits_after_store:
            where = "Scheduler._mamba_block_aligned_split"
            raise UpstreamAbort(where, "External KV connector is not verified yet")

    def take(self, request: Request, new: int, start: int, uncached: int) -> int:
        """Number of tokens in the next chunk of a recurrent model's prefill.

            start        block      block   junction     last boundary   prompt end
              |------------|----------|--------|--------------|-------------|
                 a chunk leaves a state at its end, so chunks end at the wanted positions, but the
                 last chunk not at its last boundary where its layers export the state there

        Follows `_mamba_block_aligned_split`.
        """
        # A preempted request computes its own reply again: that is cut, too, unlike a decode.
        end_of_prefill = max(request.num_prompt, request.num_tokens - 1 - request.foreseen)
        if start >= end_of_prefill:
            return new
        if self.manager.rules.scheduler.chunk_split in {"stops", "early-stops"}:
            size = self.size
            end = start + new
            exports = end >= end_of_prefill and self._exports(start, end, end_of_prefill)
            last = 0 if exports else self._last_boundary(request)
            early = self.manager.rules.scheduler.chunk_split == "early-stops"
            if early:  # may be empty: a budget below a block makes no progress
                end = end // size * size if end < last else end
            elif end < end_of_prefill:
                # A block larger than the budget is computed in pieces, or the request would wait
                # forever.
                aligned = end // size * size
                if aligned > start or size <= self.budget:
                    end = aligned
            # With partial hits a repeated prompt resumes at its last id, so one more chunk ends
            # there.
            tail = self._tail_boundary(request) if self.partial_states and not exports else 0
            junction = request.shared_prefix_boundary
            inside = self.partial_states and self.manager.shared_prefix_checkpoint
            exact = inside and junction <= request.num_prompt
            # A state at the junction is what the next prompt with this prefix resumes from
            # (#37898); inside a block only if such a state can have an id.
            floored = junction if exact else start + (junction - start) // size * size
            # A start inside a block stops at its end: a chunk that runs over it leaves no state
            # there.
            boundary = (start // size + 1) * size
            passes = exports and self.manager.rules.scheduler.passes_boundary_if_exporting
            stops = (
                boundary if start % size and not passes and (not early or boundary <= last) else 0,
                last,
                tail if last < tail < request.num_prompt else 0,
                floored if start < junction < end else 0,
                self._next_of_interval(start),
            )
            # The nearest stop; the others are those of later chunks.
            end = min((stop for stop in stops if start < stop < end), default=end)
            return max(end - start, 0)
        size = self.size
        last = self._last_boundary(request)
        after = start + new
        # Until 0.25 only the last boundary is a wanted position: whole blocks up to it, then the
        # rest.
        if after < last:
            new = new // size * size
        elif start < last < after:
            new = last - start
        # `uncached` counts from the end of the hit, where the first chunk begins.
        if self.manager.rules.scheduler.chunk_split == "uncached-prefix" and size <= uncached < new:
            new = uncached // size * size
        return new

    def _exports(self, start: int, end: int, end_of_prefill: int) -> bool:
        """True if a prefill's last chunk exports its reusable state (`use_internal_checkpoint`)."""
        sizes = self.manager.sizes
        unit = sizes.hash_block if self.partial_states else sizes.scheduler_block
        return is_exportable(
            (start, end),
            self._checkpoint(end_of_prefill, unit),
            unit=sizes.hash_block,
            block=self.size,
            alignment=self.alignment,
        )

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
            # At its own end a prompt of whole blocks would leave its only state, which a repeated
            # prompt, limited to one token less, cannot use: one block lower since 0.32.
            return self._checkpoint(request.num_tokens, size)
        last = request.num_tokens - request.num_tokens % size
        # A drafter's hit ends one block lower: a state above it is never hit.
        return max(last - size, 0) if eagle else last

    def _tail_boundary(self, request: Request) -> int:
        unit, eagle = self.manager.sizes.hash_block, self.use_eagle
        rule = self.manager.rules.state.tail
        if rule == "checkpoint":
            return self._checkpoint(request.num_prompt, unit)
        boundary = request.num_prompt // unit * unit
        return max(boundary - unit, 0) if eagle and rule.startswith("prompt-") else boundary

    def _next_of_interval(self, start: int) -> int:
        """The next multiple of the retention interval, or 0 if chunks do not end there."""
        interval = self.manager.coordinator.retention
        # Upstream's interval only thins the states that chunks happen to leave: a large budget
        # leaves few of them, so a long prompt may keep none of its multiples.
        if not (interval and self.manager.rules.scheduler.stops_at_interval):
            return 0
        return (start // interval + 1) * interval
