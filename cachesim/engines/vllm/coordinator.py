"""Hits of all groups, and the prefix on which they agree. Follows `kv_cache_coordinator.py`.

Every group answers a candidate length with the longest it can serve that is not above it; when any
of them lowers the candidate the others are asked again, until a round changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cachesim.engines.vllm.block_pool import BlockPool
from cachesim.engines.vllm.groups import FINE, GroupSpec, Sizes, cdiv
from cachesim.engines.vllm.managers import (
    ChunkedLocalAttention,
    FullAttention,
    LookUp,
    Mamba,
    Manager,
    SlidingWindow,
)
from cachesim.engines.vllm.request import Request
from cachesim.engines.vllm.rules import Rules

KINDS: dict[str, type[Manager]] = {
    "full": FullAttention,
    "window": SlidingWindow,
    "chunked": ChunkedLocalAttention,
    "mamba": Mamba,
}


@dataclass(slots=True)
class SpecGroup:
    """Groups of one spec, which are looked up together."""

    spec: GroupSpec
    ids: list[int]
    manager: Manager
    use_eagle: bool


@dataclass(frozen=True, slots=True)
class Hit:
    """Result of a lookup."""

    blocks: tuple[list[int], ...]
    length: int
    uncached: int = 0  # how much further the longest single group went
    by_group: tuple[int, ...] = ()  # each kind's answer when it was first asked


def replay_boundaries(rules: Rules, num_prompt: int, block: int, *, eagle: bool) -> tuple[int, ...]:
    """Positions at which a request that replays the prompt resumes. Follows `replay_boundaries`."""
    if not eagle or rules.retention.boundaries == "prompt-end":
        return (num_prompt - 1,)
    resend = (num_prompt - 1) // block * block
    extension = num_prompt // block * block
    return tuple(sorted({max(resend - block, 0), max(extension - block, 0)}))


class Coordinator:
    """All groups of a model (`KVCacheCoordinator`)."""

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        pool: BlockPool,
        sizes: Sizes,
        rules: Rules,
        *,
        use_eagle: bool,
        enable_caching: bool,
        retention: int | None,
        most_in_flight: int,
        max_model_len: int,
    ) -> None:
        self.rules = rules
        self.pool = pool
        self.enable_caching = enable_caching
        self.retention = retention
        self.scheduler_block = sizes.scheduler_block
        self.hash_block = sizes.hash_block
        marked = {i for i, group in enumerate(groups) if group.eagle}
        if use_eagle and (not marked or not rules.lookup.eagle_marks):
            marked = set(range(len(groups)))
        self.eagle_ids = marked if use_eagle else set()
        self.marked = bool(marked)
        self.partial_hits = (
            rules.lookup.partial_hits and len(groups) > 1 and self._partial_hits(groups)
        )
        self.alignment = self.hash_block if self.partial_hits else self.scheduler_block
        masks = self.alignment if rules.retention.on_hit_alignment else self.scheduler_block
        self.managers: tuple[Manager, ...] = tuple(
            KINDS[group.kind](
                group,
                pool,
                rules,
                group=i,
                alignment=masks,
                admission_cap=_admission_cap(group, most_in_flight, max_model_len),
            )
            for i, group in enumerate(groups)
        )
        self.spec_groups = self._split(groups)
        self.mamba = [each for each in self.managers if isinstance(each, Mamba)]
        if use_eagle:
            for each in self.mamba:
                each.drop_eagle_checkpoint = rules.state.tail == "checkpoint"

    def _partial_hits(self, groups: Sequence[GroupSpec]) -> bool:
        coarse = any(
            each.kind == "mamba" and each.mode == "align" and each.block > self.hash_block
            for each in groups
        )
        blocked = any(each.kind not in FINE and each.block != self.hash_block for each in groups)
        return coarse and not (blocked and self.rules.lookup.coarse_beside_windows)

    def _split(self, groups: Sequence[GroupSpec]) -> list[SpecGroup]:
        found: list[SpecGroup] = []
        for i, group in enumerate(groups):
            eagle = i in self.eagle_ids
            same = next((each for each in found if each.spec.shape == group.shape), None)
            if same is None:
                found.append(SpecGroup(group, [i], self.managers[i], eagle))
            else:
                same.ids.append(i)
                same.use_eagle |= eagle
        found.sort(key=lambda each: each.spec.kind != "full")
        for each in found:
            for i in each.ids:
                self.managers[i].use_eagle = each.use_eagle
        return found

    # -- looking up --------------------------------------------------------------------------------

    def find_longest_cache_hit(self, hashes: Sequence[int], max_length: int) -> Hit:
        """The longest prefix that every group can serve.

        Trap: with one group its own block is the grain, whatever unit was asked for.
        """
        if not self.enable_caching:
            return Hit(tuple([] for _ in self.managers), 0)
        if len(self.managers) == 1:
            [only] = self.spec_groups
            asked = LookUp(hashes, max_length, only.ids, only.use_eagle, only.spec.block)
            blocks, length = only.manager.find(asked)
            return Hit((blocks[0],), length, 0, (length,))
        return self._fixed_point(hashes, max_length)

    def _fixed_point(self, hashes: Sequence[int], max_length: int) -> Hit:
        """Ask the kinds of groups in turn until nobody lowers the candidate.

        candidate 112    full 112 -> window 96 -> state 96     a round changed it
                   96    (kept)      window 96 -> state 96     nothing changed: 96
        """
        rules, groups = self.rules.lookup, self.spec_groups
        length, longest = max_length, 0
        blocks: list[list[int] | None] = [None] * len(self.managers)
        lengths = [0] * len(self.managers)
        first_answers: dict[int, int] = {}
        simple = len(groups) == 2 and groups[0].spec.kind == "full"
        verified: set[int] = set()
        while True:
            current = length
            for number, group in enumerate(groups):
                first = group.ids[0]
                if group.spec.kind == "full" and blocks[first] is not None:
                    current = self._shortened(group, current, lengths[first])
                    continue
                drop = group.use_eagle and (
                    rules.eagle_drop == "each-round" or number not in verified
                )
                limit = self._limit(group, current, max_length, len(hashes), drop=drop)
                asked = LookUp(hashes, limit, group.ids, drop, self.alignment)
                found, new = group.manager.find(asked)
                first_answers.setdefault(number, new)
                if not new and group.spec.kind == "mamba" and rules.forgives_missing_state:
                    continue
                if drop:
                    verified.add(number)
                elif new < current:
                    verified.clear()
                current = new
                for i, each in zip(group.ids, found, strict=True):
                    blocks[i], lengths[i] = each, new
                longest = max(longest, current)
            if current >= length:
                break
            length = current
            if simple:
                break
        self._truncate(blocks, length)
        return Hit(
            tuple(each or [] for each in blocks),
            length,
            longest - length if rules.reports_junction else 0,
            tuple(first_answers.get(number, 0) for number in range(len(groups))),
        )

    def _shortened(self, group: SpecGroup, current: int, length: int) -> int:
        if self.rules.lookup.partial_hits:
            return min(current, length)
        return current // group.spec.block * group.spec.block

    def _limit(
        self, group: SpecGroup, current: int, max_length: int, hashes: int, *, drop: bool
    ) -> int:
        rules = self.rules.lookup
        recurrent = group.spec.kind == "mamba"
        if not drop or rules.eagle_margin == "none":
            return current
        if recurrent and rules.eagle_margin == "not-recurrent":
            return current
        block = group.spec.block
        fine = self.partial_hits and group.manager.fine and block > self.hash_block
        margin = self.hash_block if fine else block
        bound = hashes * self.hash_block if rules.margin_bound == "hashes" else max_length
        return min(current + margin, bound)

    def _truncate(self, blocks: list[list[int] | None], length: int) -> None:
        for number, group in enumerate(self.spec_groups):
            if group.spec.kind != "full" or (number and not self.rules.lookup.truncates_all):
                continue
            for i in group.ids:
                each = blocks[i]
                if each is not None:
                    del each[cdiv(length, group.spec.block) :]

    def find_per_group(self, hashes: Sequence[int], max_length: int) -> Hit:
        """Each kind's own longest hit, for connectors. Follows #44243."""
        blocks: list[list[int]] = [[] for _ in self.managers]
        lengths = [0] * len(self.managers)
        for group in self.spec_groups:
            limit = max_length
            if group.use_eagle and self.rules.lookup.margin_bound == "hashes":
                limit = self._limit(group, max_length, max_length, len(hashes), drop=True)
            asked = LookUp(hashes, limit, group.ids, group.use_eagle, self.alignment)
            found, new = group.manager.find(asked)
            for i, each in zip(group.ids, found, strict=True):
                blocks[i], lengths[i] = each, new
        return Hit(tuple(blocks), min(lengths), 0, tuple(lengths))

    # -- ids ---------------------------------------------------------------------------------------

    def cache_blocks(self, request: Request, num_computed: int) -> list[tuple[int, list[int]]]:
        """Give every group's full blocks their ids; the blocks that got one, by group."""
        boundaries = replay_boundaries(
            self.rules, request.num_prompt, self.scheduler_block, eagle=bool(self.eagle_ids)
        )
        done = []
        for manager in self.managers:
            tokens = self._cacheable(manager, num_computed)
            blocks = manager.cache_blocks(request, tokens, self.retention, boundaries)
            done.append((manager.group, blocks))
        return done

    def _cacheable(self, manager: Manager, num_computed: int) -> int:
        """Up to where a later hit could end; a drafter's groups one block further."""
        if len(self.managers) == 1 or not self.rules.retention.floors_to_scheduler_block:
            return num_computed
        if self.partial_hits:
            aligned = num_computed
        else:
            aligned = num_computed // self.scheduler_block * self.scheduler_block
        if manager.use_eagle and aligned > 0 and self.rules.retention.caches_eagle_block:
            return min(num_computed, aligned + manager.block_size)
        return aligned


def _admission_cap(group: GroupSpec, most_in_flight: int, max_model_len: int) -> int | None:
    """The most blocks that a request of any length holds at once, where that is bounded."""
    if group.kind == "window":
        tokens = min(group.window - 1 + most_in_flight, max_model_len)
        return cdiv(tokens, group.block) + 1
    if group.kind == "chunked":
        return cdiv(min(group.chunk + most_in_flight, max_model_len), group.block)
    return None
