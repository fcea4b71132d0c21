"""The model runner: runs scheduled chunks through the network, in their blocks.

A step is scheduled, and its blocks are published; then it runs, and they are written:

    copies of partial blocks -> running states move to their new blocks -> every chunk in turn
    -> states at boundaries that accepted drafts have passed

Follows `preprocess_mamba`, `postprocess_mamba` and the state indices of the backends. States move
before any chunk is computed: a request with a hit on a state of the same step copies the block's
former content.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

import numpy as np

from cachesim.engines.vllm.block_pool import NULL, GroupSpec, cacheable, cdiv
from cachesim.engines.vllm.cells import Cells, through_ring
from cachesim.engines.vllm.checkpoints import Exports, export_index
from cachesim.engines.vllm.request import Chunk, Step
from cachesim.engines.vllm.rules import RunnerRules
from cachesim.engines.vllm.scan import PieceStore, Scan, Source, cached_states
from cachesim.errors import UpstreamAbort
from cachesim.model.adapters import adapted_in
from cachesim.model.arithmetic import LayerShape, Network, Place
from cachesim.model.counts import NOWHERE
from cachesim.model.store import Lanes, Store, Ubatch, grown
from cachesim.units import Array, Integers

# Content of the blocks: keys, values and states of the network's layers.
#
# Groups share the blocks of the pool, each of which is one page of memory: a write by one group
# destroys the content of the others in that block. An allocated block keeps its former content
# until it is written: no block is cleared.
#
#     block of attention   block_size keys and values per layer     } the same page,
#     block of a state     one row per layer                        } in two layouts

NOBODY = -1

PLACES: dict[str, Place] = {
    "full": "attention",
    "chunked": "window",
    "ring": "window",
    "window": "window",
    "mamba": "recurrent",
}


class Pages:
    """The memory of all groups."""

    def __init__(self, network: Network, groups: Sequence[GroupSpec]) -> None:
        self.groups = tuple(groups)
        by_layer = {layer: i for i, group in enumerate(groups) for layer in group.layers}
        by_place = {PLACES[group.kind]: i for i, group in reversed([*enumerate(groups)])}
        # A model may have its windows in attention's group, which keeps all of their blocks.
        by_place.setdefault("window", by_place.get("attention", 0))
        self.group_of: dict[int, int] = {}
        self.local: set[int] = set()  # layers with a window or chunks in a group of full attention
        self.shapes: dict[int, LayerShape] = {}
        self.keys: dict[int, Array] = {}
        self._values: dict[int, Array] = {}
        self._states: dict[int, Array] = {}
        self.blocks = 0
        self.owner = np.full(0, NOBODY, np.int64)  # the group that wrote each block last
        for shape in network.shapes:
            group = by_layer.get(shape.layer, by_place[shape.place])  # mark layers have none
            self.shapes[shape.layer] = shape
            self.group_of[shape.layer] = group
            if shape.place == "window" and groups[group].kind == "full":
                self.local.add(shape.layer)
            if shape.place == "recurrent":
                self._states[shape.layer] = np.zeros((0, shape.row), shape.dtype)
            else:
                self.keys[shape.layer] = np.zeros((0, *shape.key), shape.dtype)
                self._values[shape.layer] = np.zeros((0, *shape.value), shape.dtype)

    def reach(self, block: int) -> None:
        """Grow the memory up to a block; the queue allocates new blocks in numeric order."""
        if block < self.blocks:
            return
        self.blocks = max(block + 1, 2 * self.blocks, 16)
        self.owner = np.append(self.owner, np.full(self.blocks - len(self.owner), NOBODY))
        for layer in self._states:
            self._states[layer] = grown(self._states[layer], self.blocks)
        for held in (self.keys, self._values):
            for layer in held:
                size = self.groups[self.group_of[layer]].block
                held[layer] = grown(held[layer], self.blocks * size)

    def take(self, group: int, blocks: Integers) -> None:
        """Zero the other groups' content of blocks that a group writes."""
        # One page serves all groups: what one writes destroys what another left in it.
        if len(self.groups) == 1:
            return
        taken = blocks[self.owner[blocks] != group]
        if not len(taken):
            return
        self.owner[taken] = group
        for layer, at in self.group_of.items():
            if at == group:
                continue
            if layer in self._states:
                self._states[layer][taken] = 0
            else:
                size = self.groups[at].block
                cells = (taken[:, None] * size + np.arange(size, dtype=np.int64)).ravel()
                self.keys[layer][cells] = 0
                self._values[layer][cells] = 0

    def copy(self, group: int, source: int, target: int) -> None:
        """Copy a block of a group with its content."""
        self.take(group, np.array([target]))
        size = self.groups[group].block
        for layer, at in self.group_of.items():
            if at != group:
                continue
            if layer in self._states:
                self._states[layer][target] = self._states[layer][source]
            else:
                for held in (self.keys[layer], self._values[layer]):
                    held[target * size : (target + 1) * size] = held[
                        source * size : (source + 1) * size
                    ]

    def content(self, group: int, block: int) -> dict[int, tuple[Array, ...]]:
        """A copy of a block's content, by layer."""
        size = self.groups[group].block
        rows = slice(block * size, (block + 1) * size)
        return {
            layer: (self._states[layer][block].copy(),)
            if layer in self._states
            else (self.keys[layer][rows].copy(), self._values[layer][rows].copy())
            for layer, at in self.group_of.items()
            if at == group
        }

    def fill(self, group: int, block: int, content: dict[int, tuple[Array, ...]]) -> None:
        """Restore the content of a block from a copy."""
        self.take(group, np.array([block]))
        size = self.groups[group].block
        for layer, parts in content.items():
            rows = slice(block * size, block * size + len(parts[0]))  # of a ring perhaps not all
            if layer in self._states:
                self._states[layer][block] = parts[0]
            else:
                self.keys[layer][rows], self._values[layer][rows] = parts

    def state(self, layer: int, block: int) -> Array:
        row: Array = self._states[layer][block]
        return row

    def put_state(self, layer: int, block: int, row: Array) -> None:
        """Overwrite the state in a block."""
        self._states[layer][block] = row

    def cells(self, layer: int) -> tuple[Array, Array]:
        """All keys and values of a layer; token `i` of block `b` is row `b * block_size + i`."""
        return self.keys[layer], self._values[layer]


class ChunkStore:
    """Reads and writes of a request's chunk, through its block tables."""

    def __init__(
        self, pages: Pages, tables: Sequence[Sequence[int]], start: int, count: int, planes: int
    ) -> None:
        self.pages = pages
        self.planes = planes
        self._tables = tables
        self._start = start
        self._count = count
        self._cells: dict[tuple[int, bool], Cells] = {}
        self.initial: dict[int, int | None] = {}  # by group: block of the initial state
        self.targets: dict[int, tuple[int, ...]] = {}  # blocks for the states after the last tokens

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Write the chunk's keys and values, then return those of its table."""
        group = self.pages.group_of[layer]
        spec = self.pages.groups[group]
        # A ring is one block per request, so its rows are by position, not by the table's entries.
        if spec.kind == "ring":
            [block] = self._tables[group]
            self.pages.take(group, np.array([block]))
            held = self.pages.cells(layer)
            return (through_ring(spec, block, held, (keys, values), self._start),)
        local = layer in self.pages.local
        cells = self._cells.get((group, local))
        if cells is None:
            table = self._tables[group]
            cells = Cells.of(spec, table, self._start, self._count, local=local)
            self._cells[group, local] = cells
            self.pages.take(group, cells.blocks)
        held_keys, held_values = self.pages.cells(layer)
        held_keys[cells.written] = keys
        held_values[cells.written] = values
        return (cells.frame.lane(held_keys[cells.cells], held_values[cells.cells]),)

    def states(self, layer: int) -> Array:
        """The initial state of the chunk, zeros for an empty prefix."""
        block = self.initial[self.pages.group_of[layer]]
        # No earlier state: a prompt begins from zeros.
        if block is None:
            shape = self.pages.shapes[layer]
            return np.zeros((1, shape.row), shape.dtype)
        # A copy: the first token would otherwise change the cached state in place.
        return self.pages.state(layer, block)[None].copy()

    def keep_states(self, layer: int, states: Array) -> None:
        """Write the newest states into their blocks, the last token's into the last target."""
        group = self.pages.group_of[layer]
        targets = self.targets[group]
        for target in targets:
            if self.pages.owner[target] != group:
                self.pages.take(group, np.array([target]))
        # From the end: a prefill leaves one state, the last, however many targets there are.
        for target, state in zip(reversed(targets), states[0], strict=False):
            self.pages.put_state(layer, target, state)


@dataclass(slots=True)
class CachedRequestState:
    """A request in the runner; its tables only grow."""

    tables: list[list[int]]
    state_index: int | None = None  # entry of the state table that holds the running state
    last_scheduled: int | None = None  # `all` mode: the last block of a step with all its drafts
    accepted: int = 1  # tokens accepted in the last step, the sampled one included


def state_groups(groups: Sequence[GroupSpec]) -> tuple[int, ...]:
    """The indices of the groups with states. Follows `get_mamba_groups`."""
    return tuple(number for number, group in enumerate(groups) if group.kind == "mamba")


def _region(chunk: Chunk, longest: int) -> int:
    """Decodes come first, then short and long pieces of prompts, and first pieces last."""
    # V1 puts those without context last.
    if not chunk.start:
        return 3
    if chunk.count > longest:
        return 2
    return int(chunk.start < chunk.request.num_prompt)


Judge = Callable[[Chunk, Array], Sequence[int]]
"""Sampler: the tokens for the logits of a chunk's last `1 + drafts` tokens."""


@dataclass(slots=True)
class Runner:
    """The network over the pages (`GPUModelRunner`)."""

    network: Network
    groups: tuple[GroupSpec, ...]
    rules: RunnerRules
    computes: bool = True  # False: without a network, so without content
    pages: Pages = field(init=False)
    kind: str = field(init=False)  # kind of the recurrent layers
    held: dict[int, CachedRequestState] = field(default_factory=dict)
    v1: bool = False  # Model Runner V1
    drafting: bool = False  # a request of the step that runs has drafts
    prefills_lead: bool = False  # V2: the step has a prefill chunk as long as a decode with drafts
    first_decodes: frozenset[int] = frozenset()  # requests: see `_first_decodes`
    state_groups: tuple[int, ...] = field(init=False)
    input_batch: list[int] = field(default_factory=list)  # requests by row
    exports: Exports | None = None  # states inside the chunks of prefills
    scan_size: int = 0  # tokens of a chunk of Mamba-2's kernel; 0: they divide blocks
    scans: dict[int, Scan] = field(default_factory=dict)  # prefills of the step that runs

    def __post_init__(self) -> None:
        self.pages = Pages(self.network, self.groups)
        self.kind = "delta" if "delta" in self.network.spec.layers else "ssm"
        self.state_groups = state_groups(self.groups)

    # -- a step ------------------------------------------------------------------------------------

    def run(self, step: Step, judge: Judge) -> list[list[int]]:
        """Run a step; return the sampled tokens of each chunk, none within a prefill."""
        self.drafting = any(chunk.drafts for chunk in step.chunks)
        if self.state_groups:
            self._check_decodes(step)
        scanned = self._scanned(step)
        spans = [(chunk.start, chunk.end) for chunk in scanned]
        self.scans = {c.request.id: Scan(span) for c, span in zip(scanned, spans, strict=True)}
        size, singly = self.scan_size, self.rules.takes_states_singly
        sources = cached_states(spans, self._state.block, size, singly=singly) if spans else []
        if not self.computes:
            return [self._known(chunk, judge) for chunk in step.chunks]
        longest = 1 + self._state.speculative_blocks if self.state_groups else 1
        self.prefills_lead = longest > 1 and any(
            chunk.count == longest and not chunk.drafts for chunk in step.chunks
        )
        self.first_decodes = self._first_decodes(step)
        for chunk in step.chunks:
            if chunk.fresh:
                self.held[chunk.request.id] = CachedRequestState(
                    [list(table) for table in chunk.blocks]
                )
            else:
                # A running request is passed its new blocks only, as in upstream's cached data.
                tables = self.held[chunk.request.id].tables
                for table, new in zip(tables, chunk.blocks, strict=True):
                    table.extend(new)
            highest = max((block for table in chunk.blocks for block in table), default=0)
            self.pages.reach(highest)
        # Before any chunk runs: the source may be written in this very step.
        for group, source, target in step.copies:
            self.pages.reach(max(source, target))
            self.pages.copy(group, source, target)
        mode = self._state.mode if self.state_groups else ""
        if mode == "align" and self.v1 and self.rules.counts_move_twice:
            self._move_rows(step)
        if mode == "align":
            for chunk in step.chunks:
                held, size = self.held[chunk.request.id], self._state.block
                previous = held.state_index
                # After a hit the state is in the entry of the last cached block. Trap: an entry
                # counted in another group's smaller blocks is a state of elsewhere (#55600).
                if previous is None:
                    previous = (chunk.start - 1) // self._seed_unit
                current = cdiv(chunk.end, size) - 1
                held.state_index = current
                # Only a new entry needs a copy; with drafts accepted, the state after the last of
                # them.
                if previous not in (-1, current):
                    self._move(held, previous, held.accepted - 1, current)
                    held.accepted = 1
        sampled: list[list[int]] = []
        for chunk in step.chunks:
            tokens: list[int] = []
            logits = self._compute(chunk)
            # Inside a prompt the next token is known, so nothing is sampled.
            if chunk.end >= chunk.known:
                tokens = list(judge(chunk, logits))
            sampled.append(tokens)
            # A chunk of a prompt samples nothing, and still leaves one state.
            self.held[chunk.request.id].accepted = max(len(tokens), 1)
        if scanned:
            self._cache_states(scanned, sources)
        if mode == "align":
            for chunk in step.chunks:
                # Only now is it known which drafts are accepted.
                self._postprocess(chunk)
        elif mode == "all":
            for chunk in step.chunks:
                # The last block of a step with all its drafts. Follows `postprocess_mamba_all`.
                whole = (
                    chunk.end - chunk.start == 1 + self._state.speculative_blocks and chunk.drafts
                )
                last = (chunk.end - 1) // self._state.block
                self.held[chunk.request.id].last_scheduled = last if whole else None
        return sampled

    def _move_rows(self, step: Step) -> None:
        """Order the rows of V1; in `align`, read accepted counts at their old rows.

        rows before     A  B        counts  1  3
        A done, C new   C  B                1  3
        decodes first   B  C                3  1    B's count is read at its old row: 1

        Follows `_update_states`, `condense`, `reorder_batch_to_split_decodes_and_prefills`, and
        `_prepare_inputs` of V1 with overlapping steps.
        """
        chunks = {chunk.request.id: chunk for chunk in step.chunks}
        before = {name: row for row, name in enumerate(self.input_batch)}
        counts = [self.held[name].accepted if name in self.held else 1 for name in self.input_batch]
        rows: list[int | None] = [name if name in chunks else None for name in self.input_batch]
        for name in (chunk for chunk in chunks if chunk not in before):
            if None not in rows:
                rows.append(None)
                counts.append(1)
            row = rows.index(None)
            rows[row], counts[row] = name, 1
        while None in rows:
            last = rows.pop()
            if last is not None:
                row = rows.index(None)
                rows[row], counts[row] = last, counts[len(rows)]
        self.input_batch = [name for name in rows if name is not None]
        longest = 1 + self._state.speculative_blocks
        regions = [_region(chunks[name], longest) for name in self.input_batch]
        wrong = [row for row, region in enumerate(sorted(regions)) if regions[row] != region]
        order = dict(zip(sorted(wrong, key=regions.__getitem__), wrong, strict=True))
        for source in tuple(order):
            target = order[source]
            while source != target:
                for column in (self.input_batch, counts):
                    column[source], column[target] = column[target], column[source]
                order[target], target = target, order.get(target, target)
        for name in self.input_batch if self._state.mode == "align" else ():
            if name in before:
                self.held[name].accepted = counts[before[name]]

    def _known(self, chunk: Chunk, judge: Judge) -> list[int]:
        if chunk.end < chunk.known:
            return []
        wanted = 1 + len(chunk.drafts)
        tokens = chunk.last_tokens(wanted)
        positions = np.arange(chunk.end - wanted, chunk.end, dtype=np.int64)
        ubatch = Ubatch(tokens=np.array(tokens, np.int64), positions=positions)
        return list(judge(chunk, self.network.run(ubatch, NOWHERE).logits))

    def forget(self, request: int) -> None:
        """Drop a finished or preempted request."""
        self.held.pop(request, None)

    @property
    def _state(self) -> GroupSpec:
        return self.groups[self.state_groups[0]]

    def _first_decodes(self, step: Step) -> frozenset[int]:
        """Requests whose first chunk of one token runs as a decode: rows of one token come first.

        Follows `split_decodes_and_prefills`, and the order of rows.
        """
        # Trap: a first chunk of one token looks like a decode, and a decode reads its block: what
        # another request left there (#51562).
        if not self.rules.first_token_reads_block or self.drafting or not self.state_groups:
            return frozenset()
        # Until 0.22 one prefill makes all rows use the prefill kernel, which starts from zeros.
        if not self.rules.peels_decodes and any(chunk.count > 1 for chunk in step.chunks):
            return frozenset()
        fresh = [chunk for chunk in step.chunks if not chunk.start]
        if self.v1:
            # V1 orders by arrival: only the rows before the first longer chunk are split off.
            led = all(chunk.count == 1 for chunk in step.chunks if chunk.start)
            fresh = list(takewhile(lambda chunk: chunk.count == 1, fresh)) if led else []
        # V2 sorts by length: a prefill as long as a decode with drafts comes first, and nothing is
        # split off.
        elif self.prefills_lead:
            return frozenset()
        return frozenset(chunk.request.id for chunk in fresh if chunk.count == 1)

    # -- recurrent states --------------------------------------------------------------------------

    @property
    def _seed_unit(self) -> int:
        if self.rules.seeds_in_smallest_block and not self.v1:
            # Trap: with a state's block larger than attention's, the entry is another one (#55600).
            return min(group.block for group in cacheable(self.groups))
        return self._state.block

    def _move(self, held: CachedRequestState, running: int, bias: int, target: int) -> None:
        """Copy the state `bias` tokens after the running one."""
        for group in self.state_groups:
            table = held.tables[group]
            if running + bias < len(table):
                self.pages.copy(group, table[running + bias], table[target])

    def _postprocess(self, chunk: Chunk) -> None:
        """Copy the state at a boundary that accepted drafts passed to the boundary's block.

        drafts      d1   d2 | d3        block ends after d2
        states      s1   s2   s3        accepted: d1 d2 -> s2 is copied
        """
        held, size = self.held[chunk.request.id], self._state.block
        running = chunk.end - len(chunk.drafts)
        computed = running + held.accepted - 1
        # Ids were set for whole blocks, so the block's state has to be the one at its end.
        boundary = computed // size * size
        if boundary < running or held.state_index is None:
            return
        bias, target = boundary - running, boundary // size - 1
        if held.state_index != target or bias:
            self._move(held, held.state_index, bias, target)
        if held.state_index == target:
            held.accepted = 1

    # -- the network -------------------------------------------------------------------------------

    def _compute(self, chunk: Chunk) -> Array:
        adapters = adapted_in(self.network)
        if adapters is not None:
            adapters.strengths = chunk.request.lora.strengths
        scan = self.scans.get(chunk.request.id)
        pieces = self._pieces(chunk)
        if scan is not None:
            pieces = scan.pieces(self._state.block, self.scan_size)
        first = chunk.end - 1 - len(chunk.drafts)  # sampled from there on
        tokens, logits = chunk.tokens, list[Array]()
        for start, end in pieces:
            held = self._store(chunk, start, end)
            store: Store = held if scan is None else PieceStore(held, scan, end)
            ubatch = Ubatch(
                tokens=np.array(tokens[start - chunk.start : end - chunk.start], np.int64),
                positions=np.arange(start, end, dtype=np.int64),
                outputs=np.arange(max(first, start), end, dtype=np.int64) - start,
            )
            logits.append(self.network.run(ubatch, store).logits)
            # The state at the cut goes to its own block, before the next piece overwrites the
            # running one.
            if end < chunk.end and self._state.mode == "align":
                for group, block in self._exported(chunk)[1].items():
                    self.pages.copy(group, held.targets[group][0], block)
        return logits[0] if len(logits) == 1 else np.concatenate(logits)

    def _exported(self, chunk: Chunk) -> tuple[int, dict[int, int]]:
        """Position of the state that a prefill's chunk exports, or 0; by group the block for it.

        The chunk then runs up to there first, in the block of its running state.
        """
        # Decodes keep one state for each token already.
        if not self.exports or not self.state_groups or self._planes(chunk) > 1:
            return 0, {}
        position = self.exports.position(self._state, chunk.start, chunk.end)
        index = export_index(chunk.end, self._state.block)
        tables = {group: self.held[chunk.request.id].tables[group] for group in self.state_groups}
        blocks = {group: table[index] for group, table in tables.items() if position}
        return position, {group: block for group, block in blocks.items() if block != NULL}

    def _pieces(self, chunk: Chunk) -> list[tuple[int, int]]:
        """The ranges of a chunk that run at once: one, two with an exported state, or in mode `all`
        one per block, each with a state.
        """
        if not self.state_groups or self._state.mode != "all" or self._planes(chunk) > 1:
            # Trap: a step with drafts leaves its states in the blocks from its last token's on, and
            # none at a boundary that it passes.
            position, blocks = self._exported(chunk)
            cuts = [chunk.start, *([position] if blocks else []), chunk.end]
            return list(pairwise(cuts))
        size = self._state.block
        cuts = [*range((chunk.start // size + 1) * size, chunk.end, size), chunk.end]
        return list(zip([chunk.start, *cuts], cuts, strict=False))

    def _scanned(self, step: Step) -> list[Chunk]:
        """The prefills, by row, whose states are taken from chunks that do not divide blocks."""
        # Where the kernel's chunks divide the blocks, each block has a state of its own.
        if not (self.scan_size and self.state_groups and self.kind == "ssm") or (
            self._state.mode != "all" or self._state.block % self.scan_size == 0
        ):
            return []
        # Trap: the kernel numbers its states over the whole batch, so a wrong place is a state of
        # another request, and the order of rows decides of which (#57266).
        rows = sorted(step.chunks, key=lambda chunk: chunk.count)  # as V2 does
        if self.v1:
            self._move_rows(step)
            place = {name: row for row, name in enumerate(self.input_batch)}
            rows = sorted(step.chunks, key=lambda chunk: place[chunk.request.id])
        return [chunk for chunk in rows if not self._decodes(chunk)]

    def _decodes(self, chunk: Chunk) -> bool:
        """True if a chunk is a decode in mode `all`: of a prompt its last token, not more."""
        if chunk.start >= chunk.request.num_prompt:
            # Beyond the prompt: the last sampled token, with or without drafts.
            return chunk.count <= 1 + self._state.speculative_blocks
        return chunk.start > 0 and chunk.count == 1

    def _cache_states(self, prefills: Sequence[Chunk], sources: Sequence[Sequence[Source]]) -> None:
        """Write the states that the kernel returned into the blocks of the step's prefills."""
        spans, block = [self.scans[chunk.request.id] for chunk in prefills], self._state.block
        for chunk, scan, taken in zip(prefills, spans, sources, strict=True):
            last = cdiv(chunk.end, block) - 1
            for layer, group in self.pages.group_of.items():
                if group not in self.state_groups:
                    continue
                table, conv = (
                    self.held[chunk.request.id].tables[group],
                    self.pages.shapes[layer].conv,
                )
                states = {last: scan.rows[layer, chunk.end]}
                for index, row, end in taken:  # the convolution's is its own
                    # Only the scanned part is mixed up: the convolution's inputs are read by
                    # position.
                    own, other = scan.rows[layer, (index + 1) * block], spans[row].rows[layer, end]
                    states[index] = np.concatenate([own[:conv], other[conv:]])
                for index, state in states.items():
                    self.pages.take(group, np.array([table[index]]))
                    self.pages.put_state(layer, table[index], state)

    def _store(self, chunk: Chunk, start: int, end: int) -> ChunkStore:
        held = self.held[chunk.request.id]
        planes, offset = self._planes(chunk), self._offset(held, len(chunk.drafts))
        store = ChunkStore(self.pages, held.tables, start, end - start, planes)
        if not self.state_groups:
            return store
        size = self._state.block
        if self._state.mode == "align":
            first = cdiv(chunk.end, size) - 1
            # The running state has moved into the entry of the chunk's end (see `run`).
            source = first + offset
        elif self._state.mode == "all":
            first, base = cdiv(end, size) - 1, held.last_scheduled
            # After a step with all its drafts upstream reads on from that step's last block.
            base = max(start - 1, 0) // size if base is None else base
            source = base + offset
        else:
            # Mode `none`: one state for each request, in its first block.
            first, source = 0, offset
        # A first chunk starts from zeros, or its block would be read as a state.
        continues = start > 0 or (self.kind == "delta" and chunk.request.id in self.first_decodes)
        # A decode, even of a prompt's first token
        continues |= planes > 1 and not self.rules.padded_first_decodes
        for group in self.state_groups:
            table = held.tables[group]
            store.initial[group] = table[source] if continues and source < len(table) else None
            store.targets[group] = tuple(table[first : first + planes])
        return store

    def _check_decodes(self, step: Step) -> None:
        """End as Mamba layers in mode `all` do for a decode without a block of the last step."""
        spec = self._state.speculative_blocks
        # V1 passes the block if a request of the step has drafts, V2 never does.
        if not spec or self._state.mode != "all" or (self.v1 and self.drafting):
            return
        # The last token of a prompt is a decode as well, a longer rest of it is not.
        if any(map(self._decodes, step.chunks)):
            where = "MambaMixer2.conv_ssm_forward"
            raise UpstreamAbort(where, "block_idx_last_scheduled_token_prev_step_d is not None")

    def _planes(self, chunk: Chunk) -> int:
        """Number of states that a chunk leaves: one for each token of a decode.

        prompt, drafts      t0 | d1 d2 d3
        decode              s0   s1 s2 s3     a refused draft leaves the states before it
        prefill                        s3     the state includes refused drafts
        """
        # Trap: a prompt's last token padded with drafts runs as a prefill, whose one state includes
        # refused drafts: in gated-delta layers only without context, in Mamba layers until 0.29
        # always.
        if chunk.start < chunk.request.num_prompt and chunk.drafts:
            decodes = self.kind == "delta" and self.rules.first_token_reads_block
            decodes |= self.rules.padded_first_decodes
            if chunk.start:
                decodes = self.kind == "delta" or self.rules.padded_tail_decodes
            return 1 + len(chunk.drafts) if decodes else 1
        # Trap: a resumed chunk this short counts as a decode, so its running state is that after
        # its first token.
        resumed = chunk.start >= chunk.request.num_prompt and not chunk.drafts
        if (
            self.rules.short_resume_decodes
            and self.state_groups
            and self.v1
            and self.drafting
            and self.kind == "ssm"
            and resumed
            and chunk.count <= 1 + self._state.speculative_blocks
        ):
            return chunk.count
        return 1 + len(chunk.drafts)

    def _offset(self, held: CachedRequestState, drafts: int) -> int:
        """Index of the speculative state to resume from: the one after the last accepted token."""
        rules = self.rules
        # Trap: the plain path reads the first speculative state, although the step before may have
        # accepted drafts (#39273, #40875).
        if self.kind == "delta":
            plain = rules.plain_path_reads_first
        else:
            plain = rules.reads_first_behind_prefill and self.prefills_lead and not self.v1
        # V1 passes accepted counts only if a request of the step has drafts, V2 in any step.
        plain |= rules.plain_step_reads_first and self.v1 and not self.drafting
        return 0 if plain and not drafts else held.accepted - 1
