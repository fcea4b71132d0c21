"""The front of the cache: look up, allocate, cache, free. Follows `kv_cache_manager.py`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from cachesim.engines.vllm.block_pool import BlockPool
from cachesim.engines.vllm.coordinator import Coordinator, Hit
from cachesim.engines.vllm.groups import GroupSpec, Sizes
from cachesim.engines.vllm.managers import Need
from cachesim.engines.vllm.request import Request
from cachesim.engines.vllm.rules import Rules
from cachesim.errors import UpstreamAbort

Published: TypeAlias = list[tuple[int, list[int]]]
"""The blocks that got their ids, by group."""


class KVCacheManager:
    """Block tables of all requests over one pool (`KVCacheManager`)."""

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        rules: Rules,
        *,
        num_blocks: int,
        unit: int | None = None,
        retention: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        hash_lookahead: int = 0,
        most_in_flight: int = 1 << 30,
        max_model_len: int = 1 << 30,
    ) -> None:
        self.groups = tuple(groups)
        self.rules = rules
        self.sizes = Sizes.of(groups, unit)
        self.enable_caching = enable_caching
        self.max_model_len = max_model_len
        self.pool = BlockPool(
            num_blocks,
            groups=len(groups),
            hash_block=self.sizes.hash_block,
            rules=rules.pool,
            enable_caching=enable_caching,
            hash_lookahead=hash_lookahead,
        )
        self.coordinator = Coordinator(
            groups,
            self.pool,
            self.sizes,
            rules,
            use_eagle=use_eagle,
            enable_caching=enable_caching,
            retention=retention,
            most_in_flight=most_in_flight,
            max_model_len=max_model_len,
        )
        self.managers = self.coordinator.managers
        self.on_published: Callable[[Request, Published], None] | None = None
        self.nothing: tuple[list[int], ...] = tuple([] for _ in groups)
        self.pins: dict[int, list[int]] = {}  # by request: blocks held for a store to read
        self.unwritten: dict[int, Published] = {}  # of the step that is scheduled, by request

    def get_computed_blocks(self, request: Request) -> Hit:
        """The cached prefix of a request; at least one token is left to compute."""
        if not (self.enable_caching and request.reads_cache):
            return Hit(self.nothing, 0)
        return self.coordinator.find_longest_cache_hit(request.hashes, request.num_tokens - 1)

    def allocate_slots(
        self,
        request: Request,
        num_new: int,
        *,
        num_local_hit: int = 0,
        hit: Sequence[Sequence[int]] | None = None,
        num_lookahead: int = 0,
        num_external: int = 0,
        full_sequence_must_fit: bool = False,
    ) -> tuple[list[int], ...] | None:
        """Blocks for a chunk, hit blocks first; the new ones, or None where there are too few.

        | computed | hit | from a store |  new  | look-ahead |
                                        | to be computed     |
                   | to be held         | to be taken        |
        """
        found = self.nothing if hit is None else hit
        num_local = request.num_computed + num_local_hit
        total = min(num_local + num_external, self.max_model_len)
        if full_sequence_must_fit:
            whole = min(request.num_tokens, self.max_model_len)
            need = Need(whole, whole, total, num_local, admission=True)
            if self._needed(request, found, need) > self.pool.num_free:
                return None
        num_main = total + num_new
        num_slots = min(num_main + num_lookahead, self.max_model_len)
        self.remove_skipped_blocks(request, max(0, total - self._unsettled(request)))
        need = Need(num_slots, num_main, num_local + num_external, num_local)
        if self._needed(request, found, need) > self.pool.num_free:
            return None
        if (hit is not None and any(hit)) or num_external > 0:
            self._hold(request, found, num_local, num_external)
        new = tuple(
            [manager.allocate_new_blocks(request, num_slots, num_main) for manager in self.managers]
        )
        if self.enable_caching:
            published = self.cache_blocks(request, min(num_main, request.num_tokens))
            self.unwritten[request.id] = published
        return new

    def remove_skipped_blocks(self, request: Request, num_computed: int) -> None:
        """Blocks that nobody will look at again become null."""
        for manager in self.managers:
            manager.remove_skipped_blocks(request, num_computed)

    def _unsettled(self, request: Request) -> int:
        """Tokens in flight, whose windows still look at blocks that would be freed."""
        return request.in_flight if self.rules.scheduler.frees_settled else 0

    def longest_group(self, request: Request) -> Hit:
        """Each group's own hit, and the longest of them as the length of all: for a store.

        Trap: the groups whose own hit is shorter have nothing there, unless a store brings it.
        """
        if not (self.enable_caching and request.reads_cache):
            return Hit(self.nothing, 0)
        hit = self.coordinator.find_per_group(request.hashes, request.num_tokens - 1)
        return replace(hit, length=max(hit.by_group))

    def attention_hit(self, request: Request) -> tuple[Hit, bool]:
        """Attention's own hit, unless another group's is longer: for a store; whether one's is
        shorter. Follows `get_computed_blocks_for_connector`.
        """
        agreed = self.get_computed_blocks(request)
        full = next((i for i, group in enumerate(self.groups) if group.kind == "full"), None)
        if full is None or not (self.enable_caching and request.reads_cache):
            return agreed, False
        hit = self.coordinator.find_per_group(request.hashes, request.num_tokens - 1)
        length = hit.by_group[full]
        if max(hit.by_group) > length:
            return agreed, False
        return replace(hit, length=length), min(hit.by_group) < length

    def shortened(self, hit: Hit, length: int) -> Hit:
        """A hit cut to whole blocks. Follows `truncate_computed_blocks`: a state's may end before,
        which ended the engine core in 0.27.
        """
        short = any(
            len(each) < length // group.block
            for each, group in zip(hit.blocks, self.groups, strict=True)
        )
        if short and self.rules.scheduler.store_hit == "attention":
            where = "KVCacheManager.truncate_computed_blocks"
            raise UpstreamAbort(where, "num_blocks <= len(group_blocks)")
        blocks = zip(hit.blocks, self.groups, strict=True)
        cut = tuple(list(each[: length // group.block]) for each, group in blocks)
        return replace(hit, blocks=cut, length=length)

    def waits_for_step(self, hit: Sequence[Sequence[int]]) -> bool:
        """True if a hit is a state that this step is to write."""
        return any(each.is_of_this_step(hit[each.group]) for each in self.coordinator.mamba)

    def tables_of(self, request: Request) -> tuple[list[int], ...]:
        """A copy of the request's block tables."""
        return tuple(list(manager.tables.get(request.id, ())) for manager in self.managers)

    def _needed(self, request: Request, hit: Sequence[Sequence[int]], need: Need) -> int:
        count = 0
        for manager in self.managers:
            count += manager.num_blocks_to_allocate(request, hit[manager.group], need)
        return count

    def _hold(
        self, request: Request, hit: Sequence[Sequence[int]], num_local: int, num_external: int
    ) -> None:
        """Every group holds its hit before any takes new blocks (#33775)."""
        if any(request.id in manager.num_cached for manager in self.managers):
            return
        if self.rules.scheduler.holds_before_taking:
            for manager in self.managers:
                manager.add_local_computed_blocks(
                    request, hit[manager.group], num_local, num_external
                )
            if num_external > 0:
                for manager in self.managers:
                    manager.allocate_external_computed_blocks(request, num_local, num_external)
            return
        for manager in self.managers:
            manager.add_local_computed_blocks(request, hit[manager.group], num_local, num_external)
            if num_external > 0:
                manager.allocate_external_computed_blocks(request, num_local, num_external)

    def cache_blocks(self, request: Request, num_computed: int) -> Published:
        """Give full blocks their ids: published, whether or not they have been written."""
        published = self.coordinator.cache_blocks(request, num_computed)
        if self.on_published is not None:
            self.on_published(request, published)
        return published

    def free(self, request: Request) -> None:
        """Give all of a request's blocks back; what will not be written keeps its ids (#43569)."""
        unwritten = self.unwritten.pop(request.id, ())
        if self.rules.scheduler.withdraws_unwritten:
            for _, blocks in unwritten:
                for block in blocks:
                    self.pool.evict(block)
        self.pool.free_blocks(self.pins.pop(request.id, ()))
        for manager in self.managers:
            manager.free(request)

    def pin_tails(self) -> None:
        """Hold the blocks that last states were moved to. Follows `take_partial_tail_offloads`."""
        for manager in self.managers:
            for request, block in manager.tails:
                self.pool.touch([block])
                self.pins.setdefault(request, []).append(block)
            manager.tails = []

    def written(self, request: Request) -> None:
        """Mark what was published for a request as written."""
        self.unwritten.pop(request.id, None)

    def take_copies(self) -> list[tuple[int, int, int]]:
        """Copies to be made before the step runs: group, source, target. Both are held."""
        copies = []
        for manager in self.managers:
            if manager.copies:
                copies += [(manager.group, *each) for each in manager.copies]
                manager.copies = []
        return copies

    def new_step_starts(self) -> None:
        """A step begins."""
        for manager in self.managers:
            manager.new_step_starts()

    def reset_prefix_cache(self) -> bool:
        """Forget all ids; refused while blocks are in use."""
        return self.pool.reset()
