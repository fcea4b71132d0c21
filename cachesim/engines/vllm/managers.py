"""One manager per group: its requests' block tables, what a hit is for it, and what it keeps.

Follows `single_type_kv_cache_manager.py`: what all have in common, and full attention; windows and
recurrent states have files of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from cachesim.engines.vllm.block_pool import NULL, BlockPool
from cachesim.engines.vllm.groups import GroupSpec, cdiv
from cachesim.engines.vllm.request import Request
from cachesim.engines.vllm.rules import Rules
from cachesim.errors import UpstreamAbort

Found: TypeAlias = tuple[list[list[int]], int]
"""The blocks of a hit, one list per group, and its length in tokens."""

Mask: TypeAlias = list[bool] | None


class LookUp(NamedTuple):
    """What a group is asked for: the arguments of `find_longest_cache_hit`."""

    hashes: Sequence[int]
    max_length: int
    group_ids: Sequence[int]
    drop_eagle_block: bool
    alignment: int


@dataclass(frozen=True, slots=True)
class Need:
    """What an allocation must cover, in tokens from the first one on."""

    slots: int  # all that need a place, the drafter's look-ahead too
    main: int  # without the look-ahead
    computed: int  # what is there already, hits and tokens of a store included
    local: int  # without those of the store
    admission: bool = False  # for the whole prompt, before it is let in

    def wider(self, tokens: int) -> "Need":
        """The same with further slots."""
        return replace(self, slots=self.slots + tokens)


class Manager:
    """What all kinds of groups have in common. Follows `SingleTypeKVCacheManager`.

    Trap: a block gets its id when its chunk is scheduled, before anybody has computed it.
    """

    fine = False  # can be looked up at hash boundaries inside a block

    def __init__(
        self,
        spec: GroupSpec,
        pool: BlockPool,
        rules: Rules,
        *,
        group: int,
        alignment: int,
        admission_cap: int | None,
    ) -> None:
        self.spec = spec
        self.pool = pool
        self.rules = rules
        self.group = group
        self.block_size = spec.block
        self.scale = spec.block // pool.hash_block
        self.alignment = alignment  # cache_hit_alignment_tokens
        self.scheduler_block = alignment
        self.admission_cap = admission_cap if rules.scheduler.window_admission_cap else None
        self.use_eagle = False
        self.tables: dict[int, list[int]] = {}
        self.num_cached: dict[int, int] = {}
        self.partial_hits: dict[int, tuple[int, int]] = {}
        self.copies: list[tuple[int, int]] = []  # source block, private copy
        self.tails: list[tuple[int, int]] = []  # request, the block its last state was moved to
        self.open()

    def open(self) -> None:
        """What further managers note, begun."""

    # -- ids of the group's own block size ---------------------------------------------------------

    def own(self, hashes: Sequence[int]) -> Sequence[int]:
        """The id of each block: the last hash unit in it stands for all before."""
        return hashes if self.scale == 1 else hashes[self.scale - 1 :: self.scale]

    # -- taking blocks -----------------------------------------------------------------------------

    def num_skipped(self, num_computed: int) -> int:
        """Tokens that nobody will look at again."""
        del num_computed
        return 0

    def _is_partial_hit(self, blocks: Sequence[int], num_local: int) -> bool:
        return bool(blocks) and num_local % self.block_size != 0

    def evictable(self, blocks: Sequence[int]) -> int:
        """Hit blocks that stand in the free queue: taking them makes it shorter."""
        ref = self.pool.ref
        return len([block for block in blocks if not ref[block] and block != NULL])

    def num_blocks_to_allocate(self, request: Request, hit: Sequence[int], need: "Need") -> int:
        """Follows `get_num_blocks_to_allocate`."""
        required = cdiv(need.slots, self.block_size)
        if need.admission and self.admission_cap is not None:
            required = min(required, self.admission_cap)
        held = len(self.tables.get(request.id, ()))
        if request.id in self.num_cached:
            return max(required - held, 0)
        skipped = self.num_skipped(need.computed) // self.block_size
        new = max(required - max(skipped, len(hit) + held), 0)
        evictable = self.evictable(hit[max(0, skipped - held) :])
        return new + evictable + self._is_partial_hit(hit, need.local)

    def add_local_computed_blocks(
        self, request: Request, hit: Sequence[int], num_local: int, num_external: int
    ) -> None:
        """Put a hit's blocks at the start of the request's table and hold them."""
        table = self.tables.setdefault(request.id, [])
        skipped = self.num_skipped(num_local + num_external) // self.block_size
        if skipped > 0:
            hit = hit[skipped:]
        if hit:
            self.pool.touch(hit)
        table.extend([NULL] * skipped)
        table.extend(hit)
        self.num_cached[request.id] = len(table)
        if self._is_partial_hit(hit, num_local):
            index = num_local // self.block_size
            self.partial_hits[request.id] = (index, hit[-1])
            self.num_cached[request.id] = index

    def allocate_external_computed_blocks(
        self, request: Request, num_local: int, num_external: int
    ) -> None:
        """Blocks for tokens that an external store will bring."""
        total = num_local + num_external
        skipped = self.num_skipped(total)
        if skipped > 0:
            num_external = min(total - skipped, num_external)
        if num_external <= 0:
            return
        table = self.tables[request.id]
        table.extend(self.pool.get_new_blocks(max(0, cdiv(total, self.block_size) - len(table))))

    def allocate_new_blocks(self, request: Request, num_tokens: int, num_main: int) -> list[int]:
        """Blocks for the tokens to be computed."""
        del num_main
        table = self.tables.setdefault(request.id, [])
        new: list[int] = []
        if self.partial_hits and request.id in self.partial_hits:
            index, source = self.partial_hits.pop(request.id)
            copy = self.pool.get_new_blocks(1)[0]
            self.copy_on_write(table, index, source, copy)
            new.append(copy)
        missing = cdiv(num_tokens, self.block_size) - len(table)
        if missing > 0:
            taken = self.pool.get_new_blocks(missing)
            table.extend(taken)
            new += taken
        return new

    def copy_on_write(self, table: list[int], index: int, source: int, copy: int) -> None:
        """The request writes into a copy; both are held until the copy is made.

        Follows `_apply_cow`, its assertions too: a table that is shorter than a partial hit ends
        the engine core.
        """
        where = "SingleTypeKVCacheManager._apply_cow"
        if index >= len(table):
            raise UpstreamAbort(where, "block_idx < len(req_blocks)")
        if table[index] != source:
            raise UpstreamAbort(where, "req_blocks[block_idx] is source_block")
        table[index] = copy
        self.copies.append((source, copy))
        self.pool.ref[copy] += 1

    # -- ids ---------------------------------------------------------------------------------------

    def cache_blocks(
        self, request: Request, num_tokens: int, retention: int | None, boundaries: Sequence[int]
    ) -> list[int]:
        """Give the request's full blocks their ids; returns those that got one."""
        start = self.num_cached.get(request.id, 0)
        hashed = len(request.hashes) * self.pool.hash_block
        end = min(num_tokens, hashed) // self.block_size
        if start >= end:
            return []
        mask = None
        if self.rules.retention.window_mask != "none":
            mask = self.mask(start, end, retention, self._reachable(request, boundaries))
        done = self.pool.cache_full_blocks(
            self.own(request.hashes),
            self.tables[request.id],
            range(start, end),
            block_size=self.block_size,
            group=self.group,
            mask=mask,
        )
        self.num_cached[request.id] = end
        return done

    def _reachable(self, request: Request, boundaries: Sequence[int]) -> list[int]:
        rules, reachable = self.rules.retention, [*boundaries]
        junction = request.shared_prefix_boundary
        if junction and rules.keeps_junction:
            reachable.append(junction)
            if self.use_eagle and rules.keeps_below_junction:
                reachable.append(junction - self.block_size)
        return reachable

    def mask(self, start: int, end: int, retention: int | None, boundaries: Sequence[int]) -> Mask:
        """Which of the blocks `[start, end)` keep an id; None: all of them."""
        del start, end, retention, boundaries
        return None

    # -- giving blocks back ------------------------------------------------------------------------

    def pop_blocks_for_free(self, request: Request) -> list[int]:
        """Forget a request; its blocks in the order of its table."""
        self.num_cached.pop(request.id, None)
        self.partial_hits.pop(request.id, None)
        return self.tables.pop(request.id, [])

    def free(self, request: Request) -> None:
        """Give a request's blocks back, the last one first."""
        of_window = self.spec.kind == "window"
        self.pool.free_blocks(reversed(self.pop_blocks_for_free(request)), of_window=of_window)

    def remove_skipped_blocks(self, request: Request, num_computed: int) -> None:
        """Blocks that nobody will look at again become null."""
        skipped = self.num_skipped(num_computed)
        if skipped <= 0 or request.id not in self.tables:
            return
        table = self.tables[request.id]
        self._remove_range(request, min(skipped // self.block_size, len(table)))

    def _remove_range(self, request: Request, end: int) -> None:
        table = self.tables[request.id]
        freed = []
        for i in range(end - 1, -1, -1):
            if table[i] == NULL:
                break
            freed.append(table[i])
            table[i] = NULL
        if freed:
            self.pool.free_blocks(freed, of_window=True)

    def new_step_starts(self) -> None:
        """Nothing to do, except for recurrent groups."""

    # -- looking up --------------------------------------------------------------------------------

    def find(self, asked: LookUp) -> Found:
        """Follows `find_longest_cache_hit`: the longest hit not above `max_length`."""
        raise NotImplementedError


class FullAttention(Manager):
    """Every token of the prefix is needed: a run from the first block on.

    Upstream: `FullAttentionManager`.
    """

    fine = True

    def find(self, asked: LookUp) -> Found:
        size = self.block_size
        found = self._run(self.own(asked.hashes), asked.max_length // size, asked.group_ids)
        length = len(found[0]) * size
        if asked.alignment < size and size % asked.alignment == 0:
            length = self._extend_inside(found, asked)
        if asked.drop_eagle_block and length > 0:
            length -= min(asked.alignment, size)
        length -= length % asked.alignment
        for blocks in found:
            del blocks[cdiv(length, size) :]
        return found, length

    def _run(self, hashes: Sequence[int], most: int, group_ids: Sequence[int]) -> list[list[int]]:
        pool = self.pool
        found: list[list[int]] = [[] for _ in group_ids]
        if len(group_ids) == 1:
            groups, group, cached, run = pool.groups, group_ids[0], pool.cached, found[0]
            for number in hashes[:most]:
                block = cached.get(number * groups + group)
                if block is None:
                    break
                run.append(block if type(block) is int else next(iter(block)))  # type: ignore[arg-type]
            return found
        for number in hashes[:most]:
            blocks = pool.get_cached_block(number, group_ids)
            if blocks is None:
                break
            for each, block in zip(found, blocks, strict=True):
                each.append(block)
        return found

    def _extend_inside(self, found: list[list[int]], asked: LookUp) -> int:
        hashes, alignment = asked.hashes, asked.alignment
        scale = self.block_size // alignment
        first = len(found[0]) * scale
        most = min(first + scale - 1, asked.max_length // alignment, len(hashes))
        for i in range(most - 1, first - 1, -1):
            blocks = self.pool.get_cached_block(hashes[i], asked.group_ids)
            if blocks is not None:
                for each, block in zip(found, blocks, strict=True):
                    each.append(block)
                return (i + 1) * alignment
        return len(found[0]) * self.block_size

    def cache_blocks(
        self, request: Request, num_tokens: int, retention: int | None, boundaries: Sequence[int]
    ) -> list[int]:
        done = super().cache_blocks(request, num_tokens, retention, boundaries)
        if self.scale > 1 and self.rules.lookup.partial_hits:
            done += self._cache_tail(request, num_tokens)
        return done

    def _cache_tail(self, request: Request, num_tokens: int) -> list[int]:
        unit = self.pool.hash_block
        limit = request.num_prompt
        if self.rules.state.attention_tail_below_end and not self.use_eagle:
            limit -= 1
        boundary = min(limit // unit, len(request.hashes)) * unit
        if not 0 < boundary <= num_tokens or boundary % self.block_size == 0:
            return []
        table = self.tables[request.id]
        index = boundary // self.block_size
        if index >= len(table):
            return []
        block = table[index]
        before = self.pool.key[block]
        self.pool.cache_partial_block(request.hashes, block, boundary, self.group)
        return [block] if self.pool.key[block] != before else []
