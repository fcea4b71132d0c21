"""Blocks are stored on the host and loaded back: the scheduler's side of `OffloadingConnector`.

step k      a prompt's chunk runs; its whole chunks of blocks get slots on the host
step k + 1  they are copied, unless a block is taken again: then the copy is waited for
later       a hit ends before chunks that are on the host: the request waits for its load
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from cachesim.engines.vllm.block_pool import NULL, GroupSpec, cacheable, cdiv
from cachesim.engines.vllm.coordinator import KVCacheManager
from cachesim.engines.vllm.host import Access, HostCache, Key
from cachesim.engines.vllm.managers import SlidingWindow
from cachesim.engines.vllm.masks import Mask, Reach, state_mask, window_mask
from cachesim.engines.vllm.request import ENDED, Copied, Jobs, Request, Step, TransferJob
from cachesim.engines.vllm.rules import OffloadRules
from cachesim.errors import UpstreamAbort

ASK_LATER: Final = (None, False)
"""The answer to a request that has to wait before it is looked up."""

Answer: TypeAlias = tuple[int | None, bool]
"""Tokens on the host beyond the hit, None to be asked again; and whether they are loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadGroup:
    """A group's chunks of blocks (`GroupOffloadConfig`)."""

    index: int
    spec: GroupSpec
    chunk: int  # tokens
    hashes: int  # hash units in a chunk
    window: int | None  # chunks that a hit needs; None: all of them

    @classmethod
    def of(cls, index: int, spec: GroupSpec, factor: int, unit: int) -> "OffloadGroup":
        """The group, with the size of its window. Follows `get_sliding_window_size_in_chunks`."""
        chunk = spec.block * factor
        window = None
        if spec.kind == "window":
            window = cdiv(spec.window, chunk)
        elif spec.kind == "chunked":
            window = cdiv(spec.chunk, chunk)
        elif spec.kind == "mamba":
            # A state stands for all tokens before it: one chunk is enough.
            window = 1
        return cls(index=index, spec=spec, chunk=chunk, hashes=chunk // unit, window=window)

    @property
    def hands_over(self) -> bool:
        """True if the manager names the blocks of its states (`requires_cow_source`)."""
        return self.spec.kind == "mamba" and self.spec.mode == "align"

    def load_window(self, tokens: int) -> int | None:
        """Chunks of a load up to `tokens`, one more where the window begins one chunk earlier."""
        if self.spec.kind != "window" or self.window is None:
            return self.window
        # A window that begins inside a chunk reaches into one more.
        return max(self.window, cdiv(self.spec.window - 1 + -tokens % self.chunk, self.chunk))


@dataclass(slots=True)
class GroupState:
    """A request's chunks of a group (`RequestGroupState`)."""

    keys: list[Key] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    next_stored: int = 0  # chunks before it have been offered


@dataclass(slots=True)
class RequestState:
    """A request, for the connector (`RequestOffloadState`)."""

    request: Request
    groups: tuple[GroupState, ...]
    access: Access = field(default_factory=Access)
    local: int = 0  # tokens of the hit in the pool
    hits: list[int] = field(default_factory=list)  # chunks of the last hit, by group
    jobs: set[int] = field(default_factory=set)
    signaled: bool = False  # the host knows that it is done


class OffloadingScheduler:
    """What is stored and loaded (`OffloadingConnectorScheduler`)."""

    def __init__(
        self,
        manager: KVCacheManager,
        host: HostCache,
        rules: OffloadRules,
        *,
        factor: int = 1,  # blocks_per_chunk
        prompt_only: bool = True,
    ) -> None:
        self.manager, self.host, self.rules = manager, host, rules
        self.factor, self.prompt_only = factor, prompt_only
        unit = manager.sizes.hash_block
        # A ring's block has no id, so it cannot be found on the host.
        kept = {id(spec) for spec in cacheable(manager.groups)}
        self.groups = tuple(
            OffloadGroup.of(i, spec, factor, unit)
            for i, spec in enumerate(manager.groups)
            if id(spec) in kept
        )
        full = [i for i, group in enumerate(self.groups) if group.window is None]
        windows = [i for i, group in enumerate(self.groups) if group.window is not None]
        self.windows = tuple(sorted(windows, key=lambda i: -(self.groups[i].window or 0)))
        # Attention first, which windows then only shorten; the largest window before the others.
        self.lookup_groups = (*full, *self.windows)
        sizes = {self.groups[i].chunk for i in full}
        self.alignment: int | None = None
        if len(sizes) == 1:
            [self.alignment] = sizes
        # Without attention the largest chunk decides where hits can end.
        elif not sizes:
            self.alignment = max(group.chunk for group in self.groups)
        aligned = {"align"} | ({"all"} if rules.aligns_all_mode else set())
        self.state_chunk = next(
            (
                group.chunk
                for group in self.groups
                if group.spec.kind == "mamba" and group.spec.mode in aligned
            ),
            0,
        )
        for single in manager.managers:
            if single.spec.kind == "mamba":
                single.offers = []
        self.states: dict[int, RequestState] = {}
        self.jobs: dict[int, TransferJob] = {}
        self.pending: dict[int, set[int]] = {}  # block -> stores that read it
        self.count = 0  # of jobs
        # Without prefix caching no other request could share the loaded blocks.
        self.loading: set[Key] | None = set() if manager.enable_caching else None
        self.step_loads: list[TransferJob] = []
        self.step_blocks: set[int] = set()  # allocated in this step
        self.done: list[Request] = []  # since the last step
        self.evicted: list[Key] = []
        self.refused: list[Request] = []  # stores of this step for which there was no slot
        self.asked_later: list[Request] = []  # who waits for a copy in this step

    @property
    def busy(self) -> bool:
        """True while a copy has not ended, or a request's end is not known here."""
        return bool(self.jobs or self.done)

    # -- requests ----------------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        """Know a request from its arrival on."""
        groups = tuple(GroupState() for _ in self.groups)
        self.states[request.id] = RequestState(request, groups)

    def request_finished(self, request: Request) -> bool:
        """Watch the blocks that stores still read; the pool gets them all the same."""
        state = self.states[request.id]
        self._update_keys(state)
        self.done.append(request)
        for number in state.jobs:
            self._watch(number, self.jobs[number].deferred)
        # The pool may take the blocks again: the copy is then waited for, in the step that takes
        # them.
        return False

    def _watch(self, number: int, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.pending.setdefault(block, set()).add(number)

    def _unwatch(self, number: int, blocks: Iterable[int]) -> None:
        for block in set(blocks):
            if block in self.pending:
                self.pending[block].discard(number)
                if not self.pending[block]:
                    del self.pending[block]

    def _update_keys(self, state: RequestState) -> None:
        hashes = state.request.hashes
        for group, own in zip(self.groups, state.groups, strict=True):
            for end in range((len(own.keys) + 1) * group.hashes, len(hashes) + 1, group.hashes):
                key = (hashes[end - 1], group.index)
                own.keys.append(key)
                state.access.positions[key] = len(own.keys) * group.chunk

    # -- look-up -----------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Request, local: int) -> Answer:
        """Tokens on the host beyond the hit."""
        state = self.states[request.id]
        for own in state.groups:
            own.blocks.clear()
            # Until 0.32 not: a preempted request offers no chunk twice.
            if self.rules.offers_again:
                own.next_stored = 0
        # Its own copies still run: what they write is not on the host yet.
        if state.jobs:
            self.asked_later.append(request)
            return ASK_LATER
        self._update_keys(state)
        state.local = local
        # Prompt logprobs need all tokens, wherever they are cached.
        found = self._lookup(state) if request.reads_cache else 0
        state.hits = [(local + (found or 0)) // group.chunk for group in self.groups]
        if self.rules.recency == "touched":
            self._touch(state)
        if found is None:
            self.asked_later.append(request)
        return found, bool(found)

    def _touch(self, state: RequestState) -> None:
        """A look-up and a store use all chunks of a request, or those of its window."""
        for group, own, hits in zip(self.groups, state.groups, state.hits, strict=True):
            skipped = 0 if group.window is None else max(0, hits - group.window)
            self.host.touch(own.keys[skipped:])

    def _lookup(self, state: RequestState) -> int | None:
        """The tokens that all groups have beyond the hit, None if one is still written.

            | hit |  chunks on the host  |       attention: all of them, from the hit on
                           | window |            windows and states: the last ones

        A shorter hit of a later group is looked up again in the windows. Follows
        `_lookup_complete_chunks`.
        """
        local, most, found = state.local, state.request.num_tokens, 0
        # A window or a state must end where the prefill resumes, and the last token is computed.
        if self.windows:
            most -= 1  # a window that ends at the last token but one
            if self.state_chunk:
                # A state inside a chunk was never stored.
                most = most // self.state_chunk * self.state_chunk
        waits, groups = False, self.lookup_groups
        while groups:
            turn, groups, window_seen = groups, (), False
            for index in turn:
                group, keys = self.groups[index], state.groups[index].keys
                most = min(most, len(keys) * group.chunk)
                if most - local < group.chunk:
                    return 0
                # From the hit on: what the pool has is not loaded.
                count = min(cdiv(most, group.chunk), len(keys))
                first = local // group.chunk
                hits = self._hits(group, keys[first:count], min(most, count * group.chunk))
                if hits == 0:
                    return 0
                # Still written: the others are asked all the same, since their miss ends the wait.
                if hits is None:
                    waits = True
                else:
                    most = min(most, group.chunk * (first + hits))
                new = most - local
                if new < group.chunk:
                    return 0
                # A shorter hit may cut a window that an earlier group needs whole: windows are
                # searched again, or all groups if one had to wait for a chunk that is now beyond
                # the end.
                if new < found:
                    if waits:
                        waits, groups = False, self.lookup_groups
                    elif window_seen and not groups:
                        groups = self.windows
                window_seen |= group.window is not None
                found = new
        # Two loads of one chunk would fill two blocks; asked again, the request finds a hit.
        if waits or self._being_loaded(state, local + found):
            return None
        return found

    def _being_loaded(self, state: RequestState, end: int) -> bool:
        """True if a chunk of the hit is on its way to another request."""
        if not self.loading:
            return False
        for group, own in zip(self.groups, state.groups, strict=True):
            keys = own.keys[state.local // group.chunk : cdiv(end, group.chunk)]
            window = group.load_window(end)
            # What is before the window is not loaded, so nobody waits for it.
            if window is not None:
                keys = keys[-window:]
            if any(key in self.loading for key in keys):
                return True
        return False

    def _hits(self, group: OffloadGroup, keys: Sequence[Key], end: int) -> int | None:
        """Chunks of a group's hit, None if one of them is still written."""
        if group.window is None:
            return self._prefix_hits(keys)
        return self._window_hits(keys, group.window, group.load_window(end) or group.window)

    def _prefix_hits(self, keys: Sequence[Key]) -> int | None:
        """Follows `_maximal_prefix_lookup`."""
        hits, waits = 0, False
        for key in keys:
            slot = self.host.lookup(key)
            if slot is None:
                break
            hits += 1
            waits |= not slot.ready
        # Attention needs all of them, so one that is written makes the whole hit wait.
        return None if waits else hits

    def _window_hits(self, keys: Sequence[Key], window: int, first_window: int) -> int | None:
        """The end of the last run of `window` chunks; the first may need more.

        Follows `_sliding_window_lookup`.
        """
        waits, run, needed = False, 0, first_window
        for index in range(len(keys) - 1, -1, -1):
            slot = self.host.lookup(keys[index])
            if slot is None:
                # The run is broken: what is written beyond it no longer matters.
                waits, run, needed = False, 0, window
            else:
                waits |= not slot.ready
                run += 1
            if run == needed:
                return None if waits else index + needed
        # No run of a whole window: one from the hit on is a complete prefix.
        return None if waits else run

    # -- loads -------------------------------------------------------------------------------------

    def update_state_after_alloc(self, request: Request, external: int) -> None:
        """Begin a load into the blocks that have no id yet."""
        tables = self.manager.tables_of(request)
        self.step_blocks.update(block for table in tables for block in table if block != NULL)
        if not external:
            return
        state, pool = self.states[request.id], self.manager.pool
        end = state.local + external
        keys, copied = list[Key](), []
        for group, own in zip(self.groups, state.groups, strict=True):
            table, size = tables[group.index], group.spec.block
            last = cdiv(end, size)
            first = next(
                (
                    i
                    # A block with an id is a hit in this group: only those after it are loaded.
                    for i in range(cdiv(state.local, size), last)
                    if table[i] != NULL and pool.key[table[i]] is None
                ),
                last,
            )
            if group.window is not None and last - first > group.window * self.factor + 1:
                # Upstream asserts it: more would overwrite blocks that the window has left.
                where = "OffloadingConnectorScheduler.update_state_after_alloc"
                raise UpstreamAbort(where, "more blocks to load than a window has")
            chunks = cdiv(end, group.chunk)
            wanted = own.keys[first // self.factor : chunks] if first < last else []
            copied.append((group.index, tuple(table[first:last]), first, len(wanted)))
            keys += wanted
            own.next_stored = chunks
        slots = iter(self.host.prepare_load(keys, state.access))
        job = self._job(
            state,
            keys,
            tuple(
                Copied(group, blocks, first, tuple(next(slots) for _ in range(count)))
                for group, blocks, first, count in copied
            ),
            stores=False,
        )
        self.step_loads.append(job)
        if self.loading is not None:
            self.loading.update(keys)

    def _job(
        self, state: RequestState, keys: Sequence[Key], copied: tuple[Copied, ...], *, stores: bool
    ) -> TransferJob:
        job = TransferJob(
            number=self.count, request=state.request, keys=keys, stores=stores, copied=copied
        )
        self.count += 1
        state.jobs.add(job.number)
        self.jobs[job.number] = job
        return job

    # -- stores ------------------------------------------------------------------------------------

    def build_connector_meta(self, step: Step) -> Jobs:
        """The jobs of a scheduled step."""
        self.done.sort(key=lambda request: request.id)  # upstream's set of names has no order
        self._update_states(step)
        flushed = set[int]()
        for request in step.preempted:
            # A preempted request's blocks are free: the next step may write to them.
            flushed |= self.states[request.id].jobs
        # The same for a block that is taken in this step while a store still reads it.
        for block in self.step_blocks & self.pending.keys():
            flushed |= self.pending[block]
        stores = self._store_states(step)
        stores += self._store_chunks(step, flushed)
        for request in self.done:
            state = self.states[request.id]
            state.signaled = True
            self.host.on_request_finished(state.access)
            if not state.jobs:
                del self.states[request.id]
        jobs = Jobs(tuple(self.step_loads), tuple(stores), frozenset(flushed))
        self.step_loads, self.done = [], []
        self.step_blocks.clear()
        return jobs

    def _update_states(self, step: Step) -> None:
        """Extend the requests' blocks. A window's block that left it and is taken again cannot be
        stored any more. Follows `_update_req_states`.
        """
        ends = dict[int, list[int]]()
        for chunk in step.chunks:
            state = self.states[chunk.request.id]
            self._update_keys(state)
            if chunk.fresh:
                for own in state.groups:
                    # After a preemption its table begins again.
                    own.blocks.clear()
            ends[chunk.request.id] = [len(own.blocks) for own in state.groups]
            for group, own in zip(self.groups, state.groups, strict=True):
                own.blocks += chunk.blocks[group.index]
                self.step_blocks.update(chunk.blocks[group.index])
        self.step_blocks.update(target for _, _, target in step.copies)
        self.step_blocks.discard(NULL)
        # Only windows and states free blocks while their request runs.
        if not (self.windows and self.step_blocks):
            return
        for number, state in self.states.items():
            for index in self.windows:
                own = state.groups[index]
                end = ends[number][index] if number in ends else len(own.blocks)
                for at in range(own.next_stored * self.factor, end):
                    if own.blocks[at] in self.step_blocks:
                        # The block left the window and is taken by another: its content is no
                        # longer this chunk.
                        own.blocks[at] = NULL

    def _offloadable(self, request: Request, tokens: int) -> int:
        most = min(tokens, request.num_tokens)
        return min(most, request.num_prompt) if self.prompt_only else most

    def _store_states(self, step: Step) -> list[TransferJob]:
        """Store the states that this step leaves at the ends of chunks.

        Follows `_build_aligned_boundary_store_jobs`.
        """
        jobs, offered = [], self.manager.take_state_blocks()
        groups = {group.index: i for i, group in enumerate(self.groups)}
        for number, entries in offered.items():
            state = self.states.get(number)
            if state is None:
                continue
            request = state.request
            most = self._offloadable(request, request.num_tokens)
            for index, block, boundary in entries:
                group = self.groups[groups[index]]
                # A state at a junction or at a prompt's end can be inside a chunk: it has no key
                # there.
                if block == NULL or boundary > most or boundary % group.chunk:
                    continue
                unit = self.manager.sizes.hash_block
                key = (request.hashes[boundary // unit - 1], index)
                state.access.positions[key] = boundary
                stored = self._prepare_store(state, [key])
                if not stored:
                    continue
                first = boundary // group.spec.block - 1
                copied = (Copied(index, (block,), first, (stored[key],)),)
                job = self._job(state, [key], copied, stores=True)
                # The running request frees a state's block early, so it is watched from now on.
                job.fenced = (block,)
                self._watch(job.number, job.fenced)
                jobs.append(job)
        return jobs

    def _prepare_store(self, state: RequestState, keys: Sequence[Key]) -> dict[Key, int] | None:
        answer = self.host.prepare_store(keys, state.access)
        # Too few idle chunks: nothing of this request is stored in this step.
        if answer is None:
            self.refused.append(state.request)
            return None
        stored, evicted = answer
        self.evicted += evicted
        return dict(stored)

    def _storable(self, state: RequestState, index: int, tokens: int) -> int:
        """Leading chunks that have blocks and ids (`storable_chunks`)."""
        own, chunk = state.groups[index], self.groups[index].chunk
        return min(tokens // chunk, len(own.blocks) // self.factor, len(own.keys))

    def _store_chunks(self, step: Step, flushed: set[int]) -> list[TransferJob]:
        """Store the whole chunks that the step computes, and those of requests that are done.

        Follows `_build_store_jobs`.
        """
        jobs = []
        scheduled = {chunk.request.id: chunk.end for chunk in step.chunks}
        for number in (*scheduled, *(request.id for request in self.done)):
            state = self.states[number]
            request = state.request
            # Only what has run: the rest of its chunk never will.
            if request.status == "aborted":
                after = request.num_computed
            # The last sampled token was never computed.
            elif request.status in ENDED:
                after = max(request.num_prompt, request.num_tokens - 1)
            else:
                after = scheduled[number]
            tokens = self._offloadable(request, after)
            ranges, keys = self._offered(state, tokens)
            stored = self._prepare_store(state, keys) if keys else {}
            if stored is None:
                continue
            # Nothing to copy, as all are on the host: not offered again in each step.
            if not stored:
                for index, own in enumerate(state.groups):
                    own.next_stored = max(own.next_stored, self._storable(state, index, tokens))
                continue
            if self.rules.recency == "touched":
                self._touch(state)
            jobs.append(self._store_job(state, ranges, stored))
            if request.status in ENDED:
                job = jobs[-1]
                self._watch(job.number, job.deferred)
                # Its blocks were freed and taken in the same step: the copy comes first.
                if self.step_blocks & set(job.deferred):
                    flushed.add(job.number)
        return jobs

    def _offered(self, state: RequestState, tokens: int) -> tuple[list[tuple[int, int]], list[Key]]:
        """The range of chunks of each group that is offered, and the keys that a hit can need."""
        request, ranges, offered = state.request, [], list[Key]()
        retention = self.manager.coordinator.retention
        # As the pool's: what its mask leaves out no hit can need, here either.
        boundaries: tuple[int, ...] = (request.num_prompt - 1,)
        if request.shared_prefix_boundary:
            boundaries += (request.shared_prefix_boundary,)
        of_prompt = self._offloadable(request, request.num_prompt)
        for index, (group, own) in enumerate(zip(self.groups, state.groups, strict=True)):
            count, start = self._storable(state, index, tokens), own.next_stored
            horizon = of_prompt // group.chunk
            blocks = self._segment(group)
            again = (
                request.status in ENDED and count != horizon and retention is None and blocks > 0
            )
            final: int | None = None
            if retention is None and request.status in ENDED:
                final = count
            elif retention is None and count <= horizon:
                final = horizon
            # The mask of a running request ended at the prompt: its last segment has grown since.
            if again:  # the last segment's end is known now
                whole = count * self.factor
                start = min(start, (whole - whole % blocks) // self.factor)
            ranges.append((start, count))
            # States are stored as the manager names them, not from a table that may have moved on.
            if group.hands_over or count <= start:
                continue
            mask = self._mask(group, range(start, count), final, boundaries)
            earlier = self._mask(group, range(start, count), horizon, boundaries) if again else None
            for chunk in range(start, count):
                first = (chunk - start) * self.factor
                parts = range(first, first + self.factor)
                table = own.blocks[chunk * self.factor : (chunk + 1) * self.factor]
                # The chunk has left the window, or holds no state at its end.
                if table[-1] == NULL:
                    continue
                offered_before = earlier is None or any(earlier[part] for part in parts)
                if again and chunk < own.next_stored and offered_before:
                    continue
                if mask is not None and not any(mask[part] for part in parts):
                    continue
                if self.rules.needs_whole_chunks and any(
                    block == NULL and (mask is None or mask[part])
                    for block, part in zip(table, parts, strict=True)
                ):
                    continue
                offered.append(own.keys[chunk])
        return ranges, offered

    def _segment(self, group: OffloadGroup) -> int:
        """Blocks between two places where hits of a window can end, 0 if blocks do not fit.

        Follows `_final_swa_alignment_blocks`.
        """
        size = group.spec.block
        if self.alignment is None or group.spec.kind != "window" or self.alignment % size:
            return 0
        return self.alignment // size

    def _mask(
        self, group: OffloadGroup, chunks: range, final: int | None, boundaries: Sequence[int]
    ) -> Mask:
        """Follows `_reachable_store_block_mask`: as the pool's, at the ends of chunks."""
        size, manager = group.spec.block, self.manager.managers[group.index]
        # Hits of attention can end at any chunk, so all are kept.
        if self.alignment is None or group.spec.kind not in {"window", "mamba"}:
            return None
        reach = Reach(
            start=chunks.start * self.factor,
            end=chunks.stop * self.factor,
            block=size,
            alignment=self.alignment,
            retention=self.manager.coordinator.retention,
            boundaries=boundaries,
            final=None if final is None else final * self.factor,
        )
        if not isinstance(manager, SlidingWindow):
            return state_mask(reach)
        # The ends of hits are inside blocks: no block can be left out.
        if self.alignment % size:
            return None
        return window_mask(reach, manager.needed(use_eagle=False), 0)

    def _store_job(
        self, state: RequestState, ranges: Sequence[tuple[int, int]], stored: dict[Key, int]
    ) -> TransferJob:
        copied, fenced, deferred = [], list[int](), list[int]()
        for group, own, (start, count) in zip(self.groups, state.groups, ranges, strict=True):
            blocks, slots, first = list[int](), list[int](), None
            for chunk in range(start, count):
                if own.keys[chunk] not in stored:
                    continue
                slots.append(stored[own.keys[chunk]])
                for at in range(chunk * self.factor, (chunk + 1) * self.factor):
                    if own.blocks[at] != NULL:
                        first = at if first is None else first
                        blocks.append(own.blocks[at])
            # A window's blocks can be taken while the request runs, attention's only once it is
            # done.
            (deferred if group.window is None else fenced).extend(blocks)
            copied.append(Copied(group.index, tuple(blocks), first or 0, tuple(slots)))
            own.next_stored = max(own.next_stored, count)
        job = self._job(state, list(stored), tuple(copied), stores=True)
        job.fenced, job.deferred = fenced, deferred
        self._watch(job.number, fenced)
        return job

    # -- outputs -----------------------------------------------------------------------------------

    def update_connector_output(self, ended: Iterable[int]) -> None:
        """The jobs that have ended with a step."""
        for number in ended:
            job = self.jobs.pop(number)
            state = self.states[job.request.id]
            if job.stores:
                self.host.complete_store(job.keys)
            else:
                self.host.complete_load(job.keys)
                if self.loading is not None:
                    self.loading.difference_update(job.keys)
            self._unwatch(number, (*job.fenced, *job.deferred))
            state.jobs.remove(number)
            if state.signaled and not state.jobs:
                del self.states[job.request.id]
