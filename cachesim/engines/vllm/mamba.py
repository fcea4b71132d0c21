"""The manager of recurrent groups: a block holds one state, taken after exactly its last token.

    tokens   0 ...... 15 | 16 ..... 31 | 32 ..... 47 | 48 .. 49
    table       null     |    null     |  state @48  | running
                                          ^ only a chunk's end leaves a state

Follows `MambaManager`. In `align` mode the running state lives in the last block (before the
speculative ones), so a state is at rest only when its request has moved on to the next block.
"""

from collections.abc import Sequence

from cachesim.engines.vllm.block_pool import NULL
from cachesim.engines.vllm.groups import cdiv, checkpoint_position
from cachesim.engines.vllm.managers import Found, LookUp, Manager, Mask, Need
from cachesim.engines.vllm.request import Request
from cachesim.errors import UpstreamAbort


class Mamba(Manager):
    """States of one kind of recurrent layers.

    Trap: a prompt of whole blocks has its only state at its end, where no resend hits; since 0.32
    its prefill stops one block lower.

    Upstream: `MambaManager`.
    """

    fine = True

    def open(self) -> None:
        self.speculative = self.spec.speculative_blocks
        self.drop_eagle_checkpoint = False
        self.cached_this_step: set[int] = set()  # keys
        self.last_state: dict[int, int] = {}
        self.allocated: set[int] = set()
        self.retired: dict[int, int] = {}
        self.producers: set[int] = set()  # requests whose last state waits to be moved

    @property
    def aligned(self) -> bool:
        """Whether states are kept at the ends of chunks only."""
        return self.spec.mode == "align"

    def num_skipped(self, num_computed: int) -> int:
        return num_computed - 1

    # -- looking up --------------------------------------------------------------------------------

    def find(self, asked: LookUp) -> Found:
        size, pool = self.block_size, self.pool
        found: list[list[int]] = [[] for _ in asked.group_ids]
        inside = asked.alignment < size and size % asked.alignment == 0
        unit = asked.alignment if inside else size
        own = asked.hashes if inside else self.own(asked.hashes)
        keys, groups, first = pool.cached, pool.groups, asked.group_ids[0]
        for i in range(min(asked.max_length // unit, len(own)) - 1, -1, -1):
            if own[i] * groups + first not in keys:
                continue
            cached = pool.get_cached_block(own[i], asked.group_ids)
            if cached is None or (not inside and (i + 1) * size % asked.alignment):
                continue
            index = i * unit // size
            for each, block in zip(found, cached, strict=True):
                each.extend([NULL] * index)
                each.append(block)
            return found, (i + 1) * unit
        return found, 0

    # -- ids ---------------------------------------------------------------------------------------

    def mask(self, start: int, end: int, retention: int | None, boundaries: Sequence[int]) -> Mask:
        if retention is None or not self.rules.retention.thins_states:
            return None
        size, alignment = self.block_size, self.alignment
        mask = [False] * (end - start)
        if retention:
            per_segment = retention // size
            if per_segment <= 1:
                return None
            first = (start + per_segment) // per_segment * per_segment - 1
            for i in range(first - start, len(mask), per_segment):
                mask[i] = True
        for boundary in boundaries:
            block = boundary // alignment * alignment // size - 1
            if start <= block < end:
                mask[block - start] = True
        return mask

    def cache_blocks(
        self, request: Request, num_tokens: int, retention: int | None, boundaries: Sequence[int]
    ) -> list[int]:
        before = self.num_cached.get(request.id, 0)
        done = super().cache_blocks(request, num_tokens, retention, boundaries)
        after = self.num_cached.get(request.id, 0)
        if self.aligned and self.rules.state.tail != "none":
            tail = self._cache_tail(request, num_tokens)
            if tail is not None:
                block, key = tail
                self.cached_this_step.add(key)
                done.append(block)
        if after > before:
            for block in self.tables[request.id][before:after]:
                held = self.pool.key[block]
                if held is not None:
                    self.cached_this_step.add(held)
        return done

    def _cache_tail(self, request: Request, num_tokens: int) -> tuple[int, int] | None:
        """Register the state at the last hash boundary of the prompt; the block and its key."""
        unit, size = self.pool.hash_block, self.block_size
        table = self.tables[request.id]
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
        if num_tokens % size:
            self.partial_hits[request.id] = (index, block)
            self.num_cached[request.id] = index
            self.producers.add(request.id)
        return block, request.hashes[num_tokens // unit - 1] * self.pool.groups + self.group

    def _is_tail(self, request: Request, num_tokens: int) -> bool:
        unit, size, rule = self.pool.hash_block, self.block_size, self.rules.state.tail
        if num_tokens <= 0 or num_tokens % unit:
            return False
        if rule == "checkpoint":
            drop = self.drop_eagle_checkpoint
            return num_tokens == checkpoint_position(
                request.num_prompt,
                unit,
                drop_eagle_block=drop,
                hash_lookahead=self.pool.hash_lookahead,
            )
        if size == unit or num_tokens % size == 0:
            return False
        boundary = request.num_prompt // unit * unit
        if rule == "prompt-eagle" and self.use_eagle:
            boundary = max(boundary - unit, 0)
        return num_tokens == boundary

    def new_step_starts(self) -> None:
        self.cached_this_step.clear()

    # -- taking blocks -----------------------------------------------------------------------------

    def num_blocks_to_allocate(self, request: Request, hit: Sequence[int], need: Need) -> int:
        """Follows `get_num_blocks_to_allocate`; more than there are where the hit must wait."""
        if self.rules.state.same_step_guard and self.is_of_this_step(hit):
            return self.pool.size + 1
        if not self.aligned:
            wider = need.wider(self.block_size * self.speculative)
            return super().num_blocks_to_allocate(request, hit, wider)
        required = cdiv(need.main, self.block_size) + self.speculative
        new = required - len(hit) - len(self.tables.setdefault(request.id, []))
        partial = self._is_partial_hit(hit, need.local) or request.id in self.partial_hits
        if partial:
            new = max(new, 0) + 1
        if new > 0:
            cap = 1 + partial + (0 if request.id in self.allocated else self.speculative)
            cap += self.rules.state.counts_loaded_state and need.computed > need.local
            new = min(new, cap) if self.rules.state.exact_need else cap
        return new + self.evictable(hit)

    def is_of_this_step(self, hit: Sequence[int]) -> bool:
        """Whether a hit's state was registered in this step."""
        return bool(hit) and self.pool.key[hit[-1]] in self.cached_this_step

    def allocate_new_blocks(self, request: Request, num_tokens: int, num_main: int) -> list[int]:
        """A block for the running state, and speculative ones after it.

        before   null  A   s1  s2           A running, s1 s2 speculative
        after    null  A   null  null  B  s1  s2     B runs on; A keeps its state
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
            where = "MambaManager.allocate_new_blocks"
            raise UpstreamAbort(where, "num_required_blocks > len(req_blocks)")
        if required <= len(table) and partial is None:
            if rules.keeps_empty_first_chunk:
                self.allocated.add(request.id)
            return []
        before = len(table)
        allocated = request.id in self.allocated
        if allocated:
            self.last_state[request.id] = before - 1 - spec
        elif before > 0:
            self.last_state[request.id] = before - 1
        skipped = required - spec - 1
        if before < skipped:
            table.extend([NULL] * (skipped - before))
        if allocated:
            for index in range(before - spec, before):
                if index >= skipped:
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
        """A state under a partial id is copied before its block is written to.

        Who registered it writes on in its own block, and the ids move to the copy; who was given
        it by a hit writes into the copy.
        """
        index, source = partial
        if not owner:
            self.copy_on_write(table, index, source, copy)
            return [copy, *given]
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

    # -- giving blocks back ------------------------------------------------------------------------

    def pop_blocks_for_free(self, request: Request) -> list[int]:
        self.allocated.discard(request.id)
        self.last_state.pop(request.id, None)
        self.retired.pop(request.id, None)
        self.producers.discard(request.id)
        self.tails = [each for each in self.tails if each[0] != request.id]
        return super().pop_blocks_for_free(request)

    def remove_skipped_blocks(self, request: Request, num_computed: int) -> None:
        if self.rules.state.frees_behind_speculation:
            num_computed = max(0, num_computed - self.speculative)
        super().remove_skipped_blocks(request, num_computed)
        if not self.aligned:
            return
        last = self.last_state.get(request.id)
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
        for i in range(end - 1, self.retired.get(request.id, 0) - 1, -1):
            if table[i] != NULL:
                freed.append(table[i])
                table[i] = NULL
        if freed:
            self.pool.free_blocks(freed)
        self.retired[request.id] = max(end, self.retired.get(request.id, 0))
