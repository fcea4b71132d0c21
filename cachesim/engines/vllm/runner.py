"""The model runner: puts scheduled chunks through the network, in the blocks that they were given.

A step is scheduled, and its blocks are published; then it runs, and they are written:

    copies of partial blocks -> running states move to their new blocks -> every chunk in turn
    -> states at boundaries that accepted drafts have passed

Follows `preprocess_mamba`, `postprocess_mamba` and the state indices of the backends. States move
before anything is computed: a request that was given a state of this very step copies what the
block held before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from cachesim.engines.vllm.groups import GroupSpec, cdiv
from cachesim.engines.vllm.pages import ChunkStore, Pages
from cachesim.engines.vllm.rules import RunnerRules
from cachesim.engines.vllm.step import Chunk, Step
from cachesim.errors import UpstreamAbort
from cachesim.model.adapters import adapted_in
from cachesim.model.arithmetic import Network
from cachesim.model.counts import NOWHERE
from cachesim.model.store import Ubatch
from cachesim.units import Array


@dataclass(slots=True)
class CachedRequestState:
    """State of a request in the runner: its tables only ever grow."""

    tables: list[list[int]]
    state_index: int | None = None  # entry of the state table that holds the running state
    last_scheduled: int | None = None  # `all` mode: the last block of a step with all its drafts
    accepted: int = 1  # tokens accepted in the last step, the sampled one included


def state_groups(groups: Sequence[GroupSpec]) -> tuple[int, ...]:
    """The indexes of the groups that hold states. Follows `get_mamba_groups`."""
    return tuple(number for number, group in enumerate(groups) if group.kind == "mamba")


def speculative_offset(
    rules: RunnerRules, kind: str, *, accepted: int, drafts: int, drafting: bool
) -> int:
    """Which of the speculative states goes on: the one after the last accepted token.

    `drafting`: a request of the step has drafts, or the runner hands on what was accepted in any
    step, as V2 does.
    """
    plain = rules.plain_path_reads_first and kind == "delta"
    plain |= rules.plain_step_reads_first and not drafting
    return 0 if plain and not drafts else accepted - 1


Judge = Callable[[Chunk, Array], Sequence[int]]
"""Sampler: the tokens for the logits of a chunk's last `1 + drafts` tokens."""


@dataclass(slots=True)
class Runner:
    """The network over the pages (`GPUModelRunner`)."""

    network: Network
    groups: tuple[GroupSpec, ...]
    rules: RunnerRules
    computes: bool = True  # False: no network, so nothing is held and nothing is moved
    pages: Pages = field(init=False)
    kind: str = field(init=False)  # of the recurrent layers
    held: dict[int, CachedRequestState] = field(default_factory=dict)
    v1: bool = False  # Model Runner V1
    drafting: bool = False  # a request of the step that runs has drafts
    first_decodes: frozenset[int] = frozenset()  # requests: see `_first_decodes`
    state_groups: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Room for every group; the indexes of those that hold states."""
        self.pages = Pages(self.network, self.groups)
        self.kind = "delta" if "delta" in self.network.spec.layers else "ssm"
        self.state_groups = state_groups(self.groups)

    # -- a step ------------------------------------------------------------------------------------

    def run(self, step: Step, judge: Judge) -> list[list[int]]:
        """Run a step; what was sampled for each of its chunks, nothing where it read on."""
        if self.state_groups:
            self._check_decodes(step)
        if not self.computes:
            return [self._known(chunk, judge) for chunk in step.chunks]
        self.drafting = any(chunk.drafts for chunk in step.chunks)
        self.first_decodes = self._first_decodes(step)
        for chunk in step.chunks:
            if chunk.fresh:
                self.held[chunk.request.id] = CachedRequestState(
                    [list(table) for table in chunk.blocks]
                )
            else:
                tables = self.held[chunk.request.id].tables
                for table, new in zip(tables, chunk.blocks, strict=True):
                    table.extend(new)
            highest = max((block for table in chunk.blocks for block in table), default=0)
            self.pages.reach(highest)
        for group, source, target in step.copies:
            self.pages.reach(max(source, target))
            self.pages.copy(group, source, target)
        mode = self._state.mode if self.state_groups else ""
        if mode == "align":
            for chunk in step.chunks:
                held, size = self.held[chunk.request.id], self._state.block
                previous = held.state_index
                if previous is None:
                    previous = (chunk.start - 1) // self._seed_unit
                current = cdiv(chunk.end, size) - 1
                held.state_index = current
                if previous not in (-1, current):
                    self._move(held, previous, held.accepted - 1, current)
                    held.accepted = 1
        sampled: list[list[int]] = []
        for chunk in step.chunks:
            tokens: list[int] = []
            logits = self._compute(chunk)
            if chunk.end >= chunk.known:
                tokens = list(judge(chunk, logits))
            sampled.append(tokens)
            self.held[chunk.request.id].accepted = max(len(tokens), 1)
        if mode == "align":
            for chunk in step.chunks:
                self._postprocess(chunk)
        elif mode == "all":
            for chunk in step.chunks:
                self._postprocess_all(chunk)
        return sampled

    def _known(self, chunk: Chunk, judge: Judge) -> list[int]:
        if chunk.end < chunk.known:
            return []
        wanted = 1 + len(chunk.drafts)
        tokens = chunk.last_tokens(wanted)
        positions = np.arange(chunk.end - wanted, chunk.end, dtype=np.int64)
        ubatch = Ubatch(tokens=np.array(tokens, np.int64), positions=positions)
        return list(judge(chunk, self.network.run(ubatch, NOWHERE).logits))

    def forget(self, request: int) -> None:
        """A request is done, or was preempted."""
        self.held.pop(request, None)

    @property
    def _state(self) -> GroupSpec:
        """The spec of all groups that hold states."""
        return self.groups[self.state_groups[0]]

    def _first_decodes(self, step: Step) -> frozenset[int]:
        """Requests whose first chunk of one token counts as a decode: rows of one token lead.

        Follows `split_decodes_and_prefills`, and the order of rows: V2 sorts them by length, V1
        puts those without context last, in the order in which they came.
        """
        if not self.rules.first_token_reads_block or self.drafting or not self.state_groups:
            return frozenset()
        fresh = [chunk for chunk in step.chunks if not chunk.start]
        longest = 1 + self._state.speculative_blocks
        if self.v1:
            led = all(chunk.count == 1 for chunk in step.chunks if chunk.start)
            fresh = list(takewhile(lambda chunk: chunk.count == 1, fresh)) if led else []
        elif longest > 1 and any(chunk.count == longest for chunk in step.chunks):
            return frozenset()
        return frozenset(chunk.request.id for chunk in fresh if chunk.count == 1)

    # -- recurrent states --------------------------------------------------------------------------

    @property
    def _seed_unit(self) -> int:
        if self.rules.seeds_in_smallest_block and not self.v1:
            return min(group.block for group in self.groups)
        return self._state.block

    def _move(self, held: CachedRequestState, running: int, bias: int, target: int) -> None:
        """Copy the state that is `bias` tokens on from the running one."""
        for group in self.state_groups:
            table = held.tables[group]
            if running + bias < len(table):
                self.pages.copy(group, table[running + bias], table[target])

    def _postprocess(self, chunk: Chunk) -> None:
        """Copy the state at a boundary that accepted drafts have passed into the boundary's block.

        drafts      d1   d2 | d3        block ends after d2
        states      s1   s2   s3        accepted: d1 d2 -> s2 is copied
        """
        held, size = self.held[chunk.request.id], self._state.block
        running = chunk.end - len(chunk.drafts)
        computed = running + held.accepted - 1
        boundary = computed // size * size
        if boundary < running or held.state_index is None:
            return
        bias, target = boundary - running, boundary // size - 1
        if held.state_index != target or bias:
            self._move(held, held.state_index, bias, target)
        if held.state_index == target:
            held.accepted = 1

    def _postprocess_all(self, chunk: Chunk) -> None:
        """Note the block of the last token of a step with all its drafts.

        Follows `postprocess_mamba_all`.
        """
        whole = chunk.end - chunk.start == 1 + self._state.speculative_blocks and chunk.drafts
        last = (chunk.end - 1) // self._state.block
        self.held[chunk.request.id].last_scheduled = last if whole else None

    # -- the network -------------------------------------------------------------------------------

    def _compute(self, chunk: Chunk) -> Array:
        adapters = adapted_in(self.network)
        if adapters is not None:
            adapters.strengths = chunk.request.strengths
        pieces = self._pieces(chunk)
        wanted = 1 + len(chunk.drafts)
        tokens = chunk.tokens
        for start, end in pieces:
            store = self._store(chunk, start, end)
            last = end == chunk.end
            rows = (
                np.arange(end - start - wanted, end - start, dtype=np.int64)
                if last
                else np.zeros(0, np.int64)
            )
            ubatch = Ubatch(
                tokens=np.array(tokens[start - chunk.start : end - chunk.start], np.int64),
                positions=np.arange(start, end, dtype=np.int64),
                outputs=rows,
            )
            output = self.network.run(ubatch, store)
        return output.logits

    def _pieces(self, chunk: Chunk) -> list[tuple[int, int]]:
        """A chunk in one piece; in `all` mode a piece for each block, for each leaves a state.

        Trap: a step with drafts leaves its states in the blocks from that of its last token on,
        and none at a boundary that it passes.
        """
        if not self.state_groups or self._state.mode != "all" or chunk.drafts:
            return [(chunk.start, chunk.end)]
        size = self._state.block
        cuts = [*range((chunk.start // size + 1) * size, chunk.end, size), chunk.end]
        return list(zip([chunk.start, *cuts], cuts, strict=False))

    def _store(self, chunk: Chunk, start: int, end: int) -> ChunkStore:
        held = self.held[chunk.request.id]
        drafts = len(chunk.drafts)
        store = ChunkStore(self.pages, held.tables, start, end - start, 1 + drafts)
        if not self.state_groups:
            return store
        size = self._state.block
        if self._state.mode == "align":
            first = cdiv(chunk.end, size) - 1
            source = first + self._offset(held, drafts)
        elif self._state.mode == "all":
            first, base = cdiv(end, size) - 1, held.last_scheduled
            base = max(start - 1, 0) // size if base is None else base
            source = base + self._offset(held, drafts)
        else:
            first, source = 0, self._offset(held, drafts)
        begun = start > 0 or (self.kind == "delta" and chunk.request.id in self.first_decodes)
        for group in self.state_groups:
            table = held.tables[group]
            store.initial[group] = table[source] if begun and source < len(table) else None
            store.targets[group] = tuple(table[first : first + 1 + drafts])
        return store

    def _check_decodes(self, step: Step) -> None:
        """End as layers in mode all do where V2 hands a decode no block of the last step."""
        spec = self._state.speculative_blocks
        if self.v1 or not spec or self._state.mode != "all":
            return
        if any(chunk.start and chunk.count <= 1 + spec for chunk in step.chunks):
            where = "MambaMixer2.conv_ssm_forward"
            raise UpstreamAbort(where, "block_idx_last_scheduled_token_prev_step_d is not None")

    def _offset(self, held: CachedRequestState, drafts: int) -> int:
        drafting = self.drafting or not self.v1
        return speculative_offset(
            self.rules, self.kind, accepted=held.accepted, drafts=drafts, drafting=drafting
        )
