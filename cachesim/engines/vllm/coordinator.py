"""Hits of all groups, and their common length. Follows `kv_cache_coordinator.py`.

Every group returns its longest hit up to a candidate length; if a group lowers the candidate, the
others repeat their lookup, until a round changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from cachesim.engines.vllm import managers
from cachesim.engines.vllm.block_pool import FINE, BlockPool, GroupSpec, Sizes, cacheable, cdiv
from cachesim.engines.vllm.checkpoints import Exports
from cachesim.engines.vllm.request import Request
from cachesim.engines.vllm.rules import Rules
from cachesim.errors import OptionError, UpstreamAbort

KINDS: dict[str, type[managers.Manager]] = {
    "full": managers.FullAttention,
    "window": managers.SlidingWindow,
    "chunked": managers.ChunkedLocalAttention,
    "ring": managers.Ring,
    "mamba": managers.Mamba,
}


@dataclass(slots=True)
class SpecGroup:
    """Groups of one spec, with a common lookup."""

    spec: GroupSpec
    ids: list[int]
    manager: managers.Manager
    use_eagle: bool


@dataclass(frozen=True, slots=True)
class Hit:
    """Result of a lookup."""

    blocks: tuple[list[int], ...]
    length: int
    uncached: int = 0  # tokens of the longest single group's hit beyond `length`
    by_group: tuple[int, ...] = ()  # first-round hit of each spec group (`find_per_group`: of each)


def replay_boundaries(rules: Rules, num_prompt: int, block: int, *, eagle: bool) -> tuple[int, ...]:
    """Resume positions of a repeated prompt. Follows `replay_boundaries`."""
    if not eagle or rules.retention.boundaries == "prompt-end":
        # The last token is always computed for its logits, so a repeated prompt resumes below it.
        return (num_prompt - 1,)
    # A drafter's hit drops its last block, so both positions are one block lower; the prompt itself
    # and the prompt with more text after it can have different last blocks. Until 0.28 the one kept
    # position is one that no such lookup asks for: a repeated prompt has no hit.
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
        blocks = [spec.block for spec in cacheable(groups)]
        # Every group reads the same list of ids, taken at the ends of its own blocks: an end
        # between two ids has none.
        if enable_caching and len(groups) > 1 and any(block % self.hash_block for block in blocks):
            raise OptionError(
                f"the real server ends as it starts: groups with blocks of {blocks} tokens, of"
                f" which some are no multiple of the {self.hash_block} tokens of an id"
            )
        marked = {i for i, group in enumerate(groups) if group.eagle}
        # Without marks upstream cannot see whose blocks the drafter reads, so every group drops
        # one.
        if use_eagle and (not marked or not rules.lookup.eagle_marks):
            marked = set(range(len(groups)))
        self.eagle_ids = marked if use_eagle else set()
        self.marked = bool(marked)
        self.partial_hits = (
            rules.lookup.partial_hits and len(groups) > 1 and self._partial_hits(cacheable(groups))
        )
        # With partial hits a hit may end at any id, else only where every group has a whole block.
        self.alignment = self.hash_block if self.partial_hits else self.scheduler_block
        masks = self.alignment if rules.retention.on_hit_alignment else self.scheduler_block
        self.managers: tuple[managers.Manager, ...] = tuple(
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
        self.exports = Exports(
            unit=self.hash_block,
            alignment=masks,
            drop_eagle_block=use_eagle,
            hash_lookahead=pool.hash_lookahead,
        )
        self.spec_groups = self._split(groups)
        self.mamba = [manager for manager in self.managers if isinstance(manager, managers.Mamba)]
        # Beside a drafter hits end one unit lower in every group: a tail above it is never hit.
        # 0.30 lowered it only in marked groups, and 0.26 to 0.29 in none.
        if use_eagle:
            for mamba in self.mamba:
                mamba.drop_eagle_checkpoint = rules.state.tail in {"prompt-drafter", "checkpoint"}
        for mamba in self.mamba:
            mamba.exporter = self.exports

    def _partial_hits(self, groups: Sequence[GroupSpec]) -> bool:
        # A state's block can have hundreds of tokens, and a shorter prompt never hits (#40696,
        # #48401).
        coarse = any(
            group.kind == "mamba" and group.mode == "align" and group.block > self.hash_block
            for group in groups
        )
        # A window group searches whole blocks only, so one with coarse blocks turns partial hits
        # off for all groups (#53786); until 0.27 its first lookup ended the engine core instead.
        blocked = any(group.kind not in FINE and group.block != self.hash_block for group in groups)
        return coarse and not (blocked and self.rules.lookup.coarse_beside_windows)

    def _split(self, groups: Sequence[GroupSpec]) -> list[SpecGroup]:
        split: list[SpecGroup] = []
        for i, group in enumerate(groups):
            # A ring holds only the open group of tokens, which no later request shares: no lookup.
            if group.kind == "ring":
                continue
            eagle = i in self.eagle_ids
            same = next(
                (spec_group for spec_group in split if spec_group.spec.shape == group.shape), None
            )
            if same is None:
                split.append(SpecGroup(group, [i], self.managers[i], eagle))
            else:
                same.ids.append(i)
                # Groups of one spec have one lookup, so one marked group makes all of them drop.
                same.use_eagle |= eagle
        # Attention first: its hit can be cut anywhere, so it bounds the search of the others.
        split.sort(key=lambda spec_group: spec_group.spec.kind != "full")
        for spec_group in split:
            for i in spec_group.ids:
                self.managers[i].use_eagle = spec_group.use_eagle
        return split

    # -- lookup ------------------------------------------------------------------------------------

    def find_longest_cache_hit(self, hashes: Sequence[int], max_length: int) -> Hit:
        """The longest common hit of all groups."""
        # One group: its own block is the grain, whatever `prefix_match_unit` is.
        if len(self.managers) == 1:
            [only] = self.spec_groups
            query = managers.LookUp(hashes, max_length, only.ids, only.use_eagle, only.spec.block)
            # No junction either: there is no other group whose longer hit would show where prompts
            # diverge.
            blocks, length = only.manager.find(query)
            return Hit((blocks[0],), length, 0, (length,))
        # Repeat the lookups of the spec groups until none lowers the candidate.
        #
        # candidate 112    full 112 -> window 96 -> state 96     a round changed it
        #            96    (kept)      window 96 -> state 96     nothing changed: 96
        rules, groups = self.rules.lookup, self.spec_groups
        length, longest = max_length, 0
        tables: list[list[int] | None] = [None] * len(self.managers)
        lengths = [0] * len(self.managers)
        first_answers: dict[int, int] = {}
        # With attention and one other spec, one round is enough: attention's hit can be cut
        # anywhere.
        simple = len(groups) == 2 and groups[0].spec.kind == "full"
        verified: set[int] = set()
        while True:
            current = length
            for number, group in enumerate(groups):
                first = group.ids[0]
                # Attention's run is contiguous from 0, so a lower candidate only cuts it.
                if group.spec.kind == "full" and tables[first] is not None:
                    current = (
                        min(current, lengths[first])
                        if self.rules.lookup.partial_hits
                        else current // group.spec.block * group.spec.block
                    )
                    continue
                # Once for each candidate: a drop in each round takes a block each time, until no
                # block is left (#31707, #32802).
                drop = group.use_eagle and (
                    rules.eagle_drop == "each-round" or number not in verified
                )
                limit = self._limit(group, current, max_length, len(hashes), drop=drop)
                query = managers.LookUp(hashes, limit, group.ids, drop, self.alignment)
                found, new = group.manager.find(query)
                first_answers.setdefault(number, new)
                # Attention's hit is kept, and the recurrent layers resume from an unwritten block
                # (#43090).
                if not new and group.spec.kind == "mamba" and rules.forgives_missing_state:
                    continue
                if drop:
                    verified.add(number)
                # A lower candidate is a new one: no group has verified its drop for it.
                elif new < current:
                    verified.clear()
                current = new
                for i, run in zip(group.ids, found, strict=True):
                    tables[i], lengths[i] = run, new
                # The longest answer of one group, not the agreed one. Where attention still matches
                # but no state does, the difference is the junction: this prefill leaves a state
                # there (#37898).
                longest = max(longest, current)
            if current >= length:
                break
            length = current
            if simple:
                break
        # Attention's blocks beyond the agreed length would be referenced, and then computed again.
        for number, group in enumerate(self.spec_groups):
            if group.spec.kind == "full" and (not number or self.rules.lookup.truncates_all):
                for i in group.ids:
                    table = tables[i]
                    if table is not None:
                        del table[cdiv(length, group.spec.block) :]
        return Hit(
            tuple(table or [] for table in tables),
            length,
            longest - length if rules.reports_junction else 0,
            tuple(first_answers[number] for number in range(len(groups))),
        )

    def _limit(
        self, group: SpecGroup, current: int, max_length: int, hashes: int, *, drop: bool
    ) -> int:
        rules = self.rules.lookup
        recurrent = group.spec.kind == "mamba"
        # Look one block further, so that the drop costs nothing where the hit continues.
        if not drop or rules.eagle_margin == "none":
            return current
        # A state does not drop, so a margin grants it a block more than attention, and the tokens
        # between are skipped: wrong answers, and no error (#40860, #46281).
        if recurrent and rules.eagle_margin == "not-recurrent":
            return current
        block = group.spec.block
        # With partial hits the dropped part is one id, not a whole block of the group.
        fine = self.partial_hits and group.manager.fine and block > self.hash_block
        margin = self.hash_block if fine else block
        bound = hashes * self.hash_block if rules.margin_bound == "hashes" else max_length
        return min(current + margin, bound)

    def find_per_group(self, hashes: Sequence[int], max_length: int) -> Hit:
        """The longest hit of each spec group alone, for connectors. Follows #44243."""
        blocks: list[list[int]] = [[] for _ in self.managers]
        lengths = [0] * len(self.managers)
        for group in self.spec_groups:
            limit = max_length
            # One number for all groups mixed null blocks with real ones (#42547, #42524): a group
            # each.
            if group.use_eagle and self.rules.lookup.margin_bound == "hashes":
                limit = self._limit(group, max_length, max_length, len(hashes), drop=True)
            query = managers.LookUp(hashes, limit, group.ids, group.use_eagle, self.alignment)
            found, new = group.manager.find(query)
            for i, table in zip(group.ids, found, strict=True):
                blocks[i], lengths[i] = table, new
        return Hit(tuple(blocks), min(lengths), 0, tuple(lengths))

    # -- ids ---------------------------------------------------------------------------------------

    def cache_blocks(self, request: Request, num_computed: int) -> list[tuple[int, list[int]]]:
        """Set the ids of every group's full blocks; return the blocks with a new id, by group."""
        # Of the prompt, not of the known tokens: sparse retention keeps neither states nor windows
        # in a reply, so the next turn prefills the reply again.
        boundaries = replay_boundaries(
            self.rules, request.num_prompt, self.scheduler_block, eagle=bool(self.eagle_ids)
        )
        done = []
        for manager in self.managers:
            # End of the tokens that a later hit can use; one block further in a drafter's groups.
            tokens, rules = num_computed, self.rules.retention
            if len(self.managers) > 1 and rules.floors_to_scheduler_block:
                # Blocks beyond the last common end can be part of no hit, and would only fill the
                # pool.
                if not self.partial_hits:
                    tokens = tokens // self.scheduler_block * self.scheduler_block
                # A drafter's hit matches one block more and drops it: without an id there is
                # nothing to drop.
                if manager.use_eagle and tokens > 0 and rules.caches_eagle_block:
                    tokens = min(num_computed, tokens + manager.block_size)
            blocks = manager.cache_blocks(request, tokens, self.retention, boundaries)
            done.append((manager.group, blocks))
        return done


def _admission_cap(group: GroupSpec, most_in_flight: int, max_model_len: int) -> int | None:
    """Maximum blocks of a request of any length at once, or None without a bound."""
    if group.kind == "window":
        # By the window, not by the prompt: else a long prompt is never admitted (#39734). One block
        # more, as a window may begin inside a block.
        tokens = min(group.window - 1 + most_in_flight, max_model_len)
        return cdiv(tokens, group.block) + 1
    if group.kind == "chunked":
        return cdiv(min(group.chunk + most_in_flight, max_model_len), group.block)
    return None


Published: TypeAlias = list[tuple[int, list[int]]]
"""The blocks with a new id, by group."""


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
        shared_prefix_checkpoint: bool = False,
        most_in_flight: int = 1 << 30,
        max_model_len: int = 1 << 30,
    ) -> None:
        self.groups = tuple(groups)
        self.rules = rules
        self.sizes = Sizes.of(groups, unit, by_size=rules.lookup.coarse_ids_by_size)
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
        # Whether a prefill ends at a junction inside a block, whose state is then cached.
        shares = shared_prefix_checkpoint and self.coordinator.marked
        self.shared_prefix_checkpoint = shares and self.coordinator.partial_hits
        for mamba in self.coordinator.mamba:
            mamba.shared_prefix_checkpoint = self.shared_prefix_checkpoint
        self.on_published: Callable[[Request, Published], None] | None = None
        self.nothing: tuple[list[int], ...] = tuple([] for _ in groups)
        self.pins: dict[int, list[int]] = {}  # by request: blocks referenced for a store to read
        self.unwritten: dict[int, Published] = {}  # blocks of the scheduled step, by request

    def get_computed_blocks(self, request: Request) -> Hit:
        """The cached prefix of a request; at least one token is left to compute."""
        if not (self.enable_caching and request.reads_cache):
            # Prompt logprobs need the logits of every prompt token, which a hit would not compute.
            return Hit(self.nothing, 0)
        # Below the last token, then floored to blocks: a prompt of whole blocks computes a whole
        # one.
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
        delay_cache_blocks: bool = False,
        reserved_blocks: int = 0,
        watermark_blocks: int = 0,
    ) -> tuple[list[int], ...] | None:
        """Allocate blocks for a chunk, after its hit; None without enough free blocks.

        | computed | hit | from a store |  new  | look-ahead |
                                        | to be computed     |
                   | to be held         | to be taken        |
        """
        found = self.nothing if hit is None else hit
        num_local = request.num_computed + num_local_hit
        total = min(num_local + num_external, self.max_model_len)
        # A prompt that fits only in part would preempt others in the middle of its prefill, and
        # then be preempted itself.
        if full_sequence_must_fit:
            whole = min(request.num_tokens, self.max_model_len)
            end = self._prefill_end(request)
            need = managers.Need(whole, whole, total, num_local, admission=True, prefill_end=end)
            if self._needed(request, found, need) + watermark_blocks > self.pool.num_free:
                return None
        # The drafter writes its look-ahead into slots of its own; a state has one block for the
        # tokens that are computed, so it counts `num_main`.
        num_main = total + num_new
        num_slots = min(num_main + num_lookahead, self.max_model_len)
        # The windows of tokens in flight still need the blocks.
        unsettled = request.in_flight if self.rules.scheduler.frees_settled else 0
        # Before the count of free blocks: those that leave the window serve this very chunk.
        self.remove_skipped_blocks(request, max(0, total - unsettled))
        computed, end = num_local + num_external, self._prefill_end(request)
        need = managers.Need(num_slots, num_main, computed, num_local, prefill_end=end)
        left = self.pool.num_free - reserved_blocks - watermark_blocks
        # All or nothing: no group may take blocks for a chunk that another has none for.
        if self._needed(request, found, need) > left:
            return None
        # The hit's blocks may still be free: they leave the queue before new ones are taken from
        # it.
        if (hit is not None and any(hit)) or num_external > 0:
            self._hold(request, found, num_local, num_external)
        new = tuple(
            [manager.allocate_new_blocks(request, num_slots, num_main) for manager in self.managers]
        )
        # The ids are set before the chunk is computed. Attention may hit them in the same step,
        # since a layer writes all keys before it reads them; a state may not, and has a guard
        # (#29387). Drafts are not included: their tokens may be refused. A load sets its ids when
        # it has arrived.
        if self.enable_caching and not delay_cache_blocks:
            published = self.cache_blocks(request, min(num_main, request.num_tokens))
            self.unwritten[request.id] = published
        return new

    def remaining_blocks(self, request: Request, slots: int) -> int:
        """Blocks that a request lacks for all its tokens, and `slots` more for drafts.

        Follows `_request_remaining_blocks`.
        """
        whole, computed = min(request.num_tokens, self.max_model_len), request.num_computed
        end = self._prefill_end(request)
        need = managers.Need(
            whole + slots, whole, computed, computed, admission=True, prefill_end=end
        )
        return self._needed(request, self.nothing, need)

    def _prefill_end(self, request: Request) -> int:
        """End of the prefill, below which sparse retention needs no exported state; dense, 0."""
        if self.coordinator.retention != 0:
            return 0
        return max(request.num_prompt, request.num_tokens - 1 - request.foreseen)

    def remove_skipped_blocks(self, request: Request, num_computed: int) -> None:
        """Free blocks that no later token needs; their table entries become null."""
        for manager in self.managers:
            manager.remove_skipped_blocks(request, num_computed)

    def longest_group(self, request: Request) -> Hit:
        """The hit of each group alone, with the longest as the common length, for a store."""
        if not self.enable_caching:
            return Hit(self.nothing, 0)
        hit = self.coordinator.find_per_group(request.hashes, request.num_tokens - 1)
        # Trap: groups with a shorter hit have no blocks up to there, unless the store loads them
        # (#46453).
        return replace(hit, length=max(hit.by_group))

    def attention_hit(self, request: Request) -> tuple[Hit, bool]:
        """Attention's hit for a store, or the common one if another group's is longer; True if
        another group's is shorter. Follows `get_computed_blocks_for_connector`.
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
        """A hit cut to whole blocks. Follows `truncate_computed_blocks`."""
        short = any(
            len(block) < length // group.block
            for block, group in zip(hit.blocks, self.groups, strict=True)
        )
        # In 0.27 a state's table may be shorter than attention's hit: upstream asserts that it is
        # not.
        if short and self.rules.scheduler.store_hit == "attention":
            where = "KVCacheManager.truncate_computed_blocks"
            raise UpstreamAbort(where, "num_blocks <= len(group_blocks)")
        blocks = zip(hit.blocks, self.groups, strict=True)
        cut = tuple(list(table[: length // group.block]) for table, group in blocks)
        return replace(hit, blocks=cut, length=length)

    def waits_for_step(self, hit: Sequence[Sequence[int]]) -> bool:
        """True if a hit includes a state that the current step writes."""
        return any(mamba.is_of_this_step(hit[mamba.group]) for mamba in self.coordinator.mamba)

    def tables_of(self, request: Request) -> tuple[list[int], ...]:
        """A copy of the request's block tables."""
        return tuple(list(manager.tables.get(request.id, ())) for manager in self.managers)

    def _needed(self, request: Request, hit: Sequence[Sequence[int]], need: managers.Need) -> int:
        count = 0
        for manager in self.managers:
            count += manager.num_blocks_to_allocate(request, hit[manager.group], need)
        return count

    def _hold(
        self, request: Request, hit: Sequence[Sequence[int]], num_local: int, num_external: int
    ) -> None:
        """Reference hit blocks, and allocate those of a store."""
        # A running request has its hit already.
        if any(request.id in manager.num_cached for manager in self.managers):
            return
        # All groups first: blocks that one group takes can be another group's hit, still free
        # (#33775).
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
        """Set the ids of full blocks, which may not be written yet."""
        published = self.coordinator.cache_blocks(request, num_computed)
        if self.on_published is not None:
            self.on_published(request, published)
        return published

    def free(self, request: Request) -> None:
        """Free a request's blocks."""
        # Its chunk may never run, while its blocks have ids: others would hit what nobody wrote
        # (#57580).
        self._withdraw_unwritten(request)
        # Pinned for a store to read, until the request ends.
        self.pool.free_blocks(self.pins.pop(request.id, ()))
        for manager in self.managers:
            manager.free(request)

    def pop_blocks_for_free(self, request: Request) -> list[int]:
        """Remove a request; return its blocks, to be freed later, the last one first."""
        self._withdraw_unwritten(request)
        blocks = list(self.pins.pop(request.id, ()))
        for manager in self.managers:
            blocks += manager.pop_blocks_for_free(request)
        return blocks

    def _withdraw_unwritten(self, request: Request) -> None:
        # As #43569 proposes; no release does it.
        unwritten = self.unwritten.pop(request.id, ())
        if self.rules.scheduler.withdraws_unwritten:
            for _, blocks in unwritten:
                for block in blocks:
                    self.pool.evict(block)

    def pin_tails(self) -> None:
        """Reference the blocks with moved last states. Follows `take_partial_tail_offloads`."""
        for manager in self.managers:
            for request, block in manager.tails:
                self.pool.touch([block])
                self.pins.setdefault(request, []).append(block)
            manager.tails = []

    def take_state_blocks(self) -> dict[int, list[tuple[int, int, int]]]:
        """Group, block and end of the states cached since the last step, by request.

        Follows `take_boundary_state_offloads`.
        """
        taken: dict[int, list[tuple[int, int, int]]] = {}
        for manager in self.managers:
            for request, block, end in manager.offers or ():
                taken.setdefault(request, []).append((manager.group, block, end))
            if manager.offers:
                manager.offers = []
        return taken

    def written(self, request: Request) -> None:
        """Mark a request's published blocks as written."""
        self.unwritten.pop(request.id, None)

    def take_copies(self) -> list[tuple[int, int, int]]:
        """Return the copies before the step: group, source, target; both blocks are referenced."""
        copies = []
        for manager in self.managers:
            if manager.copies:
                copies += [(manager.group, *copy) for copy in manager.copies]
                manager.copies = []
        return copies

    def new_step_starts(self) -> None:
        """Notify the managers of a new step."""
        for manager in self.managers:
            manager.new_step_starts()

    def reset_prefix_cache(self) -> bool:
        """Remove all ids; False while blocks are in use."""
        return self.pool.reset()
