"""Managers of one group each: block tables, hits, ids to keep.

Follows `single_type_kv_cache_manager.py`: full attention, sliding windows, chunks, recurrent
states, and their common base.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from cachesim.engines.vllm.block_pool import NULL, BlockPool, GroupSpec, cdiv
from cachesim.engines.vllm.checkpoints import Exports, checkpoint_position, export_index
from cachesim.engines.vllm.masks import Mask, Reach, state_mask, window_mask
from cachesim.engines.vllm.request import Request
from cachesim.engines.vllm.rules import Rules
from cachesim.errors import UpstreamAbort

Found: TypeAlias = tuple[list[list[int]], int]
"""The blocks of a hit, one list per group, and its length in tokens."""


class LookUp(NamedTuple):
    """Arguments of `find_longest_cache_hit`."""

    hashes: Sequence[int]
    max_length: int
    group_ids: Sequence[int]
    drop_eagle_block: bool
    alignment: int


@dataclass(frozen=True, slots=True)
class Need:
    """Token counts of an allocation, from position 0."""

    slots: int  # all that need a slot, the drafter's look-ahead included
    main: int  # without the look-ahead
    computed: int  # computed tokens, with hits and tokens of a store
    local: int  # computed tokens, without those of a store
    admission: bool = False  # for the whole prompt, before its admission
    prefill_end: int = 0  # a chunk that ends before exports no state

    def wider(self, tokens: int) -> "Need":
        """The need with further slots."""
        return replace(self, slots=self.slots + tokens)


class Manager:
    """Base of all managers. Follows `SingleTypeKVCacheManager`."""

    fine = False  # supports lookups at hash boundaries inside a block

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
        self.offers: list[tuple[int, int, int]] | None = None  # request, block of a state, its end
        self.open()

    def open(self) -> None:
        """Create the state of a subclass."""

    # -- ids of the group's own block size ---------------------------------------------------------

    def own(self, hashes: Sequence[int]) -> Sequence[int]:
        """The id of each block, which is that of its last hash unit."""
        return hashes if self.scale == 1 else hashes[self.scale - 1 :: self.scale]

    # -- allocation --------------------------------------------------------------------------------

    def num_skipped(self, num_computed: int) -> int:
        """Number of leading tokens that no later token needs."""
        return 0

    def _is_partial_hit(self, blocks: Sequence[int], num_local: int) -> bool:
        return bool(blocks) and num_local % self.block_size != 0

    def evictable(self, blocks: Sequence[int]) -> int:
        """Number of hit blocks in the free queue."""
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
        # A hit's free blocks leave the queue as well, so they count as taken.
        evictable = self.evictable(hit[max(0, skipped - held) :])
        return new + evictable + self._is_partial_hit(hit, need.local)

    def add_local_computed_blocks(
        self, request: Request, hit: Sequence[int], num_local: int, num_external: int
    ) -> None:
        """Reference a hit's blocks at the start of the request's table."""
        table = self.tables.setdefault(request.id, [])
        skipped = self.num_skipped(num_local + num_external) // self.block_size
        if skipped > 0:
            hit = hit[skipped:]
        if hit:
            self.pool.touch(hit)
        # Before the window nothing is read: null, and the store need not load it either.
        table.extend([NULL] * skipped)
        table.extend(hit)
        self.num_cached[request.id] = len(table)
        if self._is_partial_hit(hit, num_local):
            # The hit ends inside this block: whoever cached it may still write it, so it is copied.
            index = num_local // self.block_size
            self.partial_hits[request.id] = (index, hit[-1])
            self.num_cached[request.id] = index

    def allocate_external_computed_blocks(
        self, request: Request, num_local: int, num_external: int
    ) -> None:
        """Allocate blocks for the tokens that an external store loads."""
        total = num_local + num_external
        skipped = self.num_skipped(total)
        if skipped > 0:
            num_external = min(total - skipped, num_external)
        if num_external <= 0:
            return
        table = self.tables[request.id]
        table.extend(self.pool.get_new_blocks(max(0, cdiv(total, self.block_size) - len(table))))

    def allocate_new_blocks(self, request: Request, num_tokens: int, num_main: int) -> list[int]:
        """Allocate blocks for the tokens to compute."""
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
        """Replace a block by a copy for writing (`_apply_cow`)."""
        where = "SingleTypeKVCacheManager._apply_cow"
        # Upstream asserts both: a table shorter than a partial hit ends the engine core. Both
        # blocks stay referenced until the copy is made.
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
        """Set the ids of the request's full blocks; return the blocks with a new id."""
        start = self.num_cached.get(request.id, 0)
        hashed = len(request.hashes) * self.pool.hash_block
        # Before the chunk is computed (see `allocate_slots`): an abort in between leaves the ids.
        end = min(num_tokens, hashed) // self.block_size
        if start >= end:
            return []
        mask = None
        if self.rules.retention.window_mask != "none":
            rules, reachable = self.rules.retention, [*boundaries]
            junction = request.shared_prefix_boundary
            # Without it each prompt that shares a prefix pays for it again (#47782).
            if junction and rules.keeps_junction:
                reachable.append(junction)
                if self.use_eagle and rules.keeps_below_junction:
                    reachable.append(junction - self.block_size)
            mask = self.mask(start, end, retention, reachable)
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

    def mask(self, start: int, end: int, retention: int | None, boundaries: Sequence[int]) -> Mask:
        """A flag for each block of `[start, end)`: True if it gets an id; None: all of them do."""
        return None

    # -- freeing -----------------------------------------------------------------------------------

    def pop_blocks_for_free(self, request: Request) -> list[int]:
        """Remove a request; return its blocks in table order."""
        self.num_cached.pop(request.id, None)
        self.partial_hits.pop(request.id, None)
        return self.tables.pop(request.id, [])

    def free(self, request: Request) -> None:
        """Free a request's blocks, the last one first."""
        of_window = self.spec.kind == "window"
        # Last block first: a prefix is evicted from its end, and its start stays of use.
        self.pool.free_blocks(reversed(self.pop_blocks_for_free(request)), of_window=of_window)

    def remove_skipped_blocks(self, request: Request, num_computed: int) -> None:
        """Free blocks that no later token needs; their table entries become null."""
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
        """Notify of a new step, for recurrent groups."""

    # -- lookup ------------------------------------------------------------------------------------

    def find(self, query: LookUp) -> Found:
        """The longest hit up to `max_length`. Follows `find_longest_cache_hit`."""
        raise NotImplementedError


class FullAttention(Manager):
    """Manager of full attention (`FullAttentionManager`): hits are runs from the first block."""

    fine = True

    def find(self, query: LookUp) -> Found:
        size = self.block_size
        found = self._run(self.own(query.hashes), query.max_length // size, query.group_ids)
        length = len(found[0]) * size
        if query.alignment < size and size % query.alignment == 0:
            length = self._extend_inside(found, query)
        if query.drop_eagle_block and length > 0:
            # A drafter needs the hidden state of the last hit token, which only computing gives.
            length -= min(query.alignment, size)
        length -= length % query.alignment
        for blocks in found:
            del blocks[cdiv(length, size) :]
        return found, length

    def _run(self, hashes: Sequence[int], most: int, group_ids: Sequence[int]) -> list[list[int]]:
        pool = self.pool
        tables: list[list[int]] = [[] for _ in group_ids]
        if len(group_ids) == 1:
            groups, group, cached, run = pool.groups, group_ids[0], pool.cached, tables[0]
            for block_hash in hashes[:most]:
                block = cached.get(block_hash * groups + group)
                if block is None:
                    break
                run.append(block if type(block) is int else next(iter(block)))  # type: ignore[arg-type]
            return tables
        for block_hash in hashes[:most]:
            blocks = pool.get_cached_block(block_hash, group_ids)
            if blocks is None:
                break
            for table, block in zip(tables, blocks, strict=True):
                table.append(block)
        return tables

    def _extend_inside(self, found: list[list[int]], query: LookUp) -> int:
        hashes, alignment = query.hashes, query.alignment
        scale = self.block_size // alignment
        first = len(found[0]) * scale
        most = min(first + scale - 1, query.max_length // alignment, len(hashes))
        for i in range(most - 1, first - 1, -1):
            blocks = self.pool.get_cached_block(hashes[i], query.group_ids)
            if blocks is not None:
                for table, block in zip(found, blocks, strict=True):
                    table.append(block)
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
            # The last token is computed in any case: a tail that includes it is never hit whole.
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


def pop_to_alignment(found: list[list[int]], block_size: int, alignment: int) -> None:
    """Drop trailing blocks until the hit's end is aligned."""
    while block_size != alignment and len(found[0]) * block_size % alignment:
        for blocks in found:
            blocks.pop()


class SlidingWindow(Manager):
    """A hit needs the blocks of the window before its end (`SlidingWindowManager`)."""

    def needed(self, *, use_eagle: bool) -> int:
        """Number of consecutive blocks in a hit."""
        # The window includes the token itself. Trap: 0 for a window of 1, where `find` still wants
        # one block and `mask` keeps none.
        whole = cdiv(self.spec.window - 1, self.block_size) + use_eagle
        return max(1, whole - 1) if self.rules.lookup.window_one_short else whole

    def num_skipped(self, num_computed: int) -> int:
        return max(0, num_computed - self.spec.window + 1)

    def find(self, query: LookUp) -> Found:
        """The rightmost run of sufficient length.

        blocks    x  x  .  x  x  x  .     x cached
        window 2        null  null  3 4 5 -> the run 4 5 ends the hit
        """
        size, own = self.block_size, self.own(query.hashes)
        if query.alignment % size:
            where = "SlidingWindowManager.find_longest_cache_hit"
            raise UpstreamAbort(where, "does not support fine-grained (partial) cache hits")
        needed = self.needed(use_eagle=query.drop_eagle_block)
        most = query.max_length // size
        found: list[list[int]] = [[NULL] * most for _ in query.group_ids]
        run, matched = 0, False
        keys, groups, first = self.pool.cached, self.pool.groups, query.group_ids[0]
        for i in range(most - 1, -1, -1):
            if own[i] * groups + first not in keys:  # the common case
                run = 0
                continue
            cached = self.pool.get_cached_block(own[i], query.group_ids)
            if cached is None:
                run = 0
                continue
            early = query.drop_eagle_block and not self.rules.lookup.window_end_before_drop
            end = i if early else i + 1
            # Only a run that ends where all groups can: with a drafter, after its drop (#39450).
            if run == 0 and end * size % query.alignment:
                continue
            for table, block in zip(found, cached, strict=True):
                table[i] = block
            run += 1
            if run >= needed:
                for table in found:
                    del table[i + run :]
                matched = True
                break
        if not matched:  # a run from the first block on is a whole prefix
            for table in found:
                del table[run:]
            pop_to_alignment(found, size, query.alignment)
        if query.drop_eagle_block and found[0]:
            for table in found:
                table.pop()
            pop_to_alignment(found, size, query.alignment)
        return found, len(found[0]) * size

    def mask(self, start: int, end: int, retention: int | None, boundaries: Sequence[int]) -> Mask:
        size, alignment = self.block_size, self.alignment
        exact = self.rules.retention.window_mask == "with-drafter"
        if alignment % size or (alignment == size and not exact):
            return None
        eagle = self.use_eagle and exact
        reach = Reach(
            start=start,
            end=end,
            block=size,
            alignment=alignment,
            retention=retention,
            boundaries=boundaries,
        )
        return window_mask(reach, self.needed(use_eagle=eagle), int(eagle))


class ChunkedLocalAttention(Manager):
    """Manager of chunked attention: blocks before a token's chunk count as present."""

    def num_skipped(self, num_computed: int) -> int:
        return num_computed // self.spec.chunk * self.spec.chunk

    def find(self, query: LookUp) -> Found:
        """Null blocks up to the chunk of `max_length`, then a run."""
        size, own = self.block_size, self.own(query.hashes)
        if query.alignment != size:
            where = "ChunkedLocalAttentionManager.find_longest_cache_hit"
            raise UpstreamAbort(where, "groups with different block sizes are not compatible")
        # Trap: at the start of a chunk no block is needed, so a prompt never sent before has a hit.
        first = self.num_skipped(query.max_length) // size
        found: list[list[int]] = [[NULL] * first for _ in query.group_ids]
        for i in range(first, query.max_length // size):
            cached = self.pool.get_cached_block(own[i], query.group_ids)
            if cached is None:
                break
            for table, block in zip(found, cached, strict=True):
                table.append(block)
        return found, len(found[0]) * size


class Ring(Manager):
    """Manager of rings: one block per request, without an id. Follows `CircularBufferManager`."""

    def num_blocks_to_allocate(self, request: Request, hit: Sequence[int], need: Need) -> int:
        return int(not self.tables.get(request.id))

    def add_local_computed_blocks(
        self, request: Request, hit: Sequence[int], num_local: int, num_external: int
    ) -> None:
        """Do nothing: a hit ends where no group of tokens is open."""

    def allocate_external_computed_blocks(
        self, request: Request, num_local: int, num_external: int
    ) -> None:
        self.allocate_new_blocks(request, num_local, num_external)

    def allocate_new_blocks(self, request: Request, num_tokens: int, num_main: int) -> list[int]:
        table = self.tables.setdefault(request.id, [])
        new = [] if table else self.pool.get_new_blocks(1)
        table.extend(new)
        return new

    def cache_blocks(
        self, request: Request, num_tokens: int, retention: int | None, boundaries: Sequence[int]
    ) -> list[int]:
        return []


class Mamba(Manager):
    """Manager of the states of recurrent layers (`MambaManager`)."""

    fine = True

    def open(self) -> None:
        self.speculative = self.spec.speculative_blocks
        self.drop_eagle_checkpoint = False
        self.shared_prefix_checkpoint = False  # also cache the state at a junction
        self.cached_this_step: set[int] = set()  # keys
        self.last_state: dict[int, int] = {}
        self.allocated: set[int] = set()
        self.retired: dict[int, int] = {}
        self.producers: set[int] = set()  # requests with a last state to move
        self.exporter: Exports | None = None
        self.exports: dict[int, tuple[int, int]] = {}  # position and entry (`_checkpoints`)

    @property
    def aligned(self) -> bool:
        """True if states are kept only at the ends of chunks."""
        return self.spec.mode == "align"

    def num_skipped(self, num_computed: int) -> int:
        return num_computed - 1

    # -- lookup ------------------------------------------------------------------------------------

    def find(self, query: LookUp) -> Found:
        size, pool = self.block_size, self.pool
        found: list[list[int]] = [[] for _ in query.group_ids]
        inside = query.alignment < size and size % query.alignment == 0
        unit = query.alignment if inside else size
        own = query.hashes if inside else self.own(query.hashes)
        keys, groups, first = pool.cached, pool.groups, query.group_ids[0]
        # From the end: one state is enough, and nothing before it is needed.
        for i in range(min(query.max_length // unit, len(own)) - 1, -1, -1):
            if own[i] * groups + first not in keys:
                continue
            cached = pool.get_cached_block(own[i], query.group_ids)
            if cached is None or (not inside and (i + 1) * size % query.alignment):
                continue
            index = i * unit // size
            for table, block in zip(found, cached, strict=True):
                table.extend([NULL] * index)
                table.append(block)
            return found, (i + 1) * unit
        return found, 0

    # -- ids ---------------------------------------------------------------------------------------

    def mask(self, start: int, end: int, retention: int | None, boundaries: Sequence[int]) -> Mask:
        if not self.rules.retention.thins_states:
            return None
        reach = Reach(
            start=start,
            end=end,
            block=self.block_size,
            alignment=self.alignment,
            retention=retention,
            boundaries=boundaries,
        )
        return state_mask(reach)

    def cache_blocks(
        self, request: Request, num_tokens: int, retention: int | None, boundaries: Sequence[int]
    ) -> list[int]:
        before = self.num_cached.get(request.id, 0)
        done = super().cache_blocks(request, num_tokens, retention, boundaries)
        after = self.num_cached.get(request.id, 0)
        if self.aligned and self.rules.state.tail != "none":
            tail = self._cache_tail(request, num_tokens, retention)
            if tail is not None:
                block, key = tail
                # Its content comes with this step: a hit on it has to wait (#29387).
                self.cached_this_step.add(key)
                done.append(block)
            if request.id in self.exports:  # its block may have another id now, or none
                done = [
                    fromkey for fromkey in dict.fromkeys(done) if self.pool.key[fromkey] is not None
                ]
        if after > before:
            for block in self.tables[request.id][before:after]:
                held = self.pool.key[block]
                if held is not None:
                    self.cached_this_step.add(held)
                    if self.aligned and self.offers is not None:
                        self.offers.append((request.id, block, self.pool.key_tokens[block]))
        return done

    def _cache_tail(
        self, request: Request, num_tokens: int, retention: int | None
    ) -> tuple[int, int] | None:
        """Cache the state at the prompt's last hash boundary; return its block and key."""
        unit, size = self.pool.hash_block, self.block_size
        table = self.tables[request.id]
        if request.id in self.exports:
            return self._cache_export(request, retention, *self.exports[request.id])
        if not self._is_tail(request, num_tokens):
            return None
        index = cdiv(num_tokens, size) - 1
        if index >= len(table) or table[index] == NULL:
            return None
        block = table[index]
        known = self.pool.key[block] is not None and self.pool.key_tokens[block] == num_tokens
        if known and self.rules.state.keeps_known_tail:
            return None
        self.pool.cache_partial_block(request.hashes, block, num_tokens, self.group)
        # The owner still writes this block: its next allocation copies it first.
        if num_tokens % size:
            self.partial_hits[request.id] = (index, block)
            self.num_cached[request.id] = index
            self.producers.add(request.id)
        return block, request.hashes[num_tokens // unit - 1] * self.pool.groups + self.group

    def _is_tail(self, request: Request, num_tokens: int) -> bool:
        unit, size, rule = self.pool.hash_block, self.block_size, self.rules.state.tail
        if num_tokens <= 0 or num_tokens % unit:
            return False
        if rule != "checkpoint" and (size == unit or num_tokens % size == 0):
            return False
        # A decode mutates its state in place: only a chunk of the prompt leaves one at a junction.
        of_prompt = request.num_computed < num_tokens <= request.num_prompt
        junction = self.shared_prefix_checkpoint and num_tokens == request.shared_prefix_boundary
        if junction and of_prompt:
            return True
        if rule == "checkpoint":
            return num_tokens == self._checkpoint(request.num_prompt, unit)
        boundary = request.num_prompt // unit * unit
        if self.use_eagle if rule == "prompt-eagle" else self.drop_eagle_checkpoint:
            boundary = max(boundary - unit, 0)
        return num_tokens == boundary

    def _checkpoint(self, num_tokens: int, unit: int) -> int:
        return checkpoint_position(
            num_tokens,
            unit,
            drop_eagle_block=self.drop_eagle_checkpoint,
            hash_lookahead=self.pool.hash_lookahead,
        )

    def _cache_export(
        self, request: Request, retention: int | None, position: int, index: int
    ) -> tuple[int, int] | None:
        """Cache an exported state. Follows the first part of `_cache_partial_tail_block`."""
        pool, size, block = self.pool, self.block_size, self.tables[request.id][index]
        end, rest = divmod(position, size)
        mask = [False] if rest else self.mask(end - 1, end, retention, ())
        of_prompt = position == self._checkpoint(request.num_prompt, self.alignment)
        wanted = mask is None or mask[0] or of_prompt
        # No lookup would ask for it, and the id of its entry's end is not this state's.
        if not wanted and position != request.shared_prefix_boundary:
            pool.evict(block)
            return None
        if pool.key[block] is not None and pool.key_tokens[block] == position:
            return None
        if not pool.cache_partial_block(request.hashes, block, position, self.group, replaces=True):
            return None
        return block, request.hashes[position // pool.hash_block - 1] * pool.groups + self.group

    def new_step_starts(self) -> None:
        self.cached_this_step.clear()

    # -- allocation --------------------------------------------------------------------------------

    def num_blocks_to_allocate(self, request: Request, hit: Sequence[int], need: Need) -> int:
        """Follows `get_num_blocks_to_allocate`; more than the pool has if the hit must wait."""
        if self.rules.state.same_step_guard and self.is_of_this_step(hit):
            # More than there are: the request waits, and the state is written (#29387).
            return self.pool.size + 1
        if not self.aligned:
            wider = need.wider(self.block_size * self.speculative)
            return super().num_blocks_to_allocate(request, hit, wider)
        required = cdiv(need.main, self.block_size) + self.speculative
        # By `main`: with the look-ahead a state would get a block more than attention (#40860).
        new = required - len(hit) - len(self.tables.setdefault(request.id, []))
        partial = self._is_partial_hit(hit, need.local) or request.id in self.partial_hits
        if partial:
            new = max(new, 0) + 1
        export = self._export(request, need)
        if not need.admission:
            self.exports.pop(request.id, None)
            if export:
                self.exports[request.id] = export, export_index(need.main, self.block_size)
        if new > 0:
            speculative = 0 if request.id in self.allocated else self.speculative
            # Entries between are null: a chunk of any length needs one running state.
            cap = 1 + partial + (export > 0) + speculative
            cap += self.rules.state.counts_loaded_state and need.computed > need.local
            new = min(new, cap) if self.rules.state.exact_need else cap
        return new + self.evictable(hit)

    def _export(self, request: Request, need: Need) -> int:
        """Position of the state that a chunk exports, or 0 (`_needs_internal_checkpoint`)."""
        if self.exporter is None or need.main < need.prefill_end:
            return 0
        position = self.exporter.position(self.spec, need.computed, need.main)
        table, index = self.tables.get(request.id, []), export_index(need.main, self.block_size)
        last = len(table) - (self.speculative if request.id in self.allocated else 0)
        return position if position and (index >= last or table[index] == NULL) else 0

    def is_of_this_step(self, hit: Sequence[int]) -> bool:
        """True if a hit's state was cached in this step."""
        return bool(hit) and self.pool.key[hit[-1]] in self.cached_this_step

    def allocate_new_blocks(self, request: Request, num_tokens: int, num_main: int) -> list[int]:
        """Allocate a block for the running state, and speculative ones after it.

        before   null  A   s1  s2           A running, s1 s2 speculative
        after    null  A   null  null  B  s1  s2     B running; A keeps its state
        export   null  A   null  E   B  s1  s2       the chunk also exports a state, into E
        """
        if not self.aligned:
            return super().allocate_new_blocks(
                request, num_tokens + self.block_size * self.speculative, num_main
            )
        table = self.tables.setdefault(request.id, [])
        spec, rules = self.speculative, self.rules.state
        required = cdiv(num_main, self.block_size) + spec
        partial = self.partial_hits.get(request.id)
        if required < len(table) and not rules.keeps_surplus:
            # Refused drafts leave more entries than a step needs; until 0.22 an abort.
            where = "MambaManager.allocate_new_blocks"
            raise UpstreamAbort(where, "num_required_blocks > len(req_blocks)")
        export = request.id in self.exports
        if required <= len(table) and partial is None and not export:
            if rules.keeps_empty_first_chunk:
                self.allocated.add(request.id)
            return []
        before = len(table)
        allocated = request.id in self.allocated
        if allocated:
            # The state that this chunk begins with stays until no step reads it.
            self.last_state[request.id] = before - 1 - spec
        elif before > 0:
            self.last_state[request.id] = before - 1
        skipped = required - spec - 1
        if before < skipped:
            table.extend([NULL] * (skipped - export - before))
        if allocated:
            # Speculative blocks are reused as those of the new state; their entries become null.
            for index in range(before - spec, before):
                if index >= skipped - export:
                    break
                table.append(table[index])
                table[index] = NULL
        missing = max(required - len(table), 0)
        new = self.pool.get_new_blocks(missing + (partial is not None))
        given = table[before:]
        if partial is not None:
            copy, *new = new
            given = self._copy(request, table, partial, copy, given, owner=allocated)
        table.extend(new)
        self.allocated.add(request.id)
        self.partial_hits.pop(request.id, None)
        return given + new

    def _copy(
        self,
        request: Request,
        table: list[int],
        partial: tuple[int, int],
        copy: int,
        given: list[int],
        *,
        owner: bool,
    ) -> list[int]:
        """Copy a state under a partial id before its block is written."""
        index, source = partial
        # A hit: this request continues in the copy, and the cached block stays as it is.
        if not owner:
            self.copy_on_write(table, index, source, copy)
            return [copy, *given]
        # The owner continues in its own block, and the copy keeps the state under its ids.
        self.pool.move_keys(source, copy)
        self.copies.append((source, copy))
        self.pool.ref[source] += 1
        if request.id in self.producers:
            self.producers.remove(request.id)
            self.tails.append((request.id, copy))
        key = self.pool.key[copy]
        if key is not None:
            self.cached_this_step.add(key)
        return given

    # -- freeing -----------------------------------------------------------------------------------

    def pop_blocks_for_free(self, request: Request) -> list[int]:
        self.allocated.discard(request.id)
        self.last_state.pop(request.id, None)
        self.retired.pop(request.id, None)
        self.exports.pop(request.id, None)
        self.producers.discard(request.id)
        self.tails = [tail for tail in self.tails if tail[0] != request.id]
        if self.offers:
            self.offers = [offer for offer in self.offers if offer[0] != request.id]
        return super().pop_blocks_for_free(request)

    def remove_skipped_blocks(self, request: Request, num_computed: int) -> None:
        if self.rules.state.frees_behind_speculation:
            # Drafts may be refused, so their blocks do not count as computed.
            num_computed = max(0, num_computed - self.speculative)
        super().remove_skipped_blocks(request, num_computed)
        if not self.aligned:
            return
        last = self.last_state.get(request.id)
        # From then on it is only a cached free block.
        if last is not None and last < cdiv(num_computed, self.block_size) - 1:
            table = self.tables[request.id]
            if table[last] != NULL:
                self.pool.free_blocks([table[last]])
                table[last] = NULL

    def _remove_range(self, request: Request, end: int) -> None:
        if not (self.aligned and self.rules.state.retires_all):
            super()._remove_range(request, end)
            return
        table = self.tables[request.id]
        freed = []
        # Null entries are everywhere between states, so the first one is no reason to stop.
        for i in range(end - 1, self.retired.get(request.id, 0) - 1, -1):
            if table[i] != NULL:
                freed.append(table[i])
                table[i] = NULL
        if freed:
            self.pool.free_blocks(freed)
        self.retired[request.id] = max(end, self.retired.get(request.id, 0))
