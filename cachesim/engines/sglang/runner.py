"""The model runner: batches through the network, in the slots of their requests.

    states are copied or cleared -> every request in turn -> tracked states go into their slots

Follows `ModelRunner.forward`, the deferred copies of `mamba_cow_src_indices`, and the tracking of
the linear-attention backends. Four reported defects are here, behind rules.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cachesim.engines.sglang.build import CHUNK
from cachesim.engines.sglang.node import FULL, PART, STATE
from cachesim.engines.sglang.pools import StatePool, WindowPool
from cachesim.engines.sglang.request import Batch, Req
from cachesim.engines.sglang.rules import RunnerRules
from cachesim.model.adapters import adapted_in
from cachesim.model.arithmetic import LayerShape, Network, Place
from cachesim.model.counts import NO_ROW, NOWHERE
from cachesim.model.store import Frame, Lanes, Ubatch, grown
from cachesim.units import Array, Integers

# Contents of the slots: keys, values and states of the network's layers.
#
#     slot of attention     a key and a value per attention layer
#     slot of a window      a key and a value per window layer
#     slot of a state       a row per recurrent layer
#
# What a slot held before it was handed out stays in it until somebody writes.


class Contents:
    """The memory of all layers; it grows with the highest slot."""

    def __init__(self, network: Network, windows: WindowPool | None) -> None:
        self.windows = windows
        self.shapes: dict[int, LayerShape] = {shape.layer: shape for shape in network.shapes}
        self.window = network.spec.window
        self.has_delta = "delta" in network.spec.layers
        self.keys: dict[int, Array] = {}
        self.values: dict[int, Array] = {}
        self.rows: dict[int, Array] = {}
        for shape in network.shapes:
            if shape.place == "recurrent":
                self.rows[shape.layer] = np.zeros((1, shape.row), shape.dtype)
            else:
                self.keys[shape.layer] = np.zeros((1, *shape.key), shape.dtype)
                self.values[shape.layer] = np.zeros((1, *shape.value), shape.dtype)

    def cells(self, place: Place, slots: Integers) -> Integers:
        """The cells of attention's slots in the layers of a place."""
        # A window layer has fewer slots: the map leads from attention's slot to its own.
        if self.windows is not None and place == "window":
            return self.windows.mapping[slots]
        return slots

    def reach(self, layer: int, cells: Integers) -> None:
        """Grow the memory up to some cells."""
        self.reach_cell(layer, int(cells.max(initial=0)))

    def reach_cell(self, layer: int, cell: int) -> None:
        """Grow the memory up to one cell."""
        if cell >= len(self.keys[layer]):
            self.keys[layer] = grown(self.keys[layer], 2 * (cell + 1))
            self.values[layer] = grown(self.values[layer], 2 * (cell + 1))

    def row(self, layer: int, slot: int) -> Array:
        """The state of one layer in a slot."""
        self._reach_state(layer, slot)
        row: Array = self.rows[layer][slot]
        return row

    def put_row(self, layer: int, slot: int, row: Array) -> None:
        """Write a state of one layer."""
        self._reach_state(layer, slot)
        self.rows[layer][slot] = row

    def _reach_state(self, layer: int, slot: int) -> None:
        if slot >= len(self.rows[layer]):
            self.rows[layer] = grown(self.rows[layer], 2 * slot + 1)

    def copy_state(self, source: int, target: int) -> None:
        """Copy all layers' states from one slot to another."""
        for layer in self.rows:
            self.put_row(layer, target, self.row(layer, source).copy())

    def clear_state(self, slot: int) -> None:
        """Write zeros to all layers' states of a slot."""
        for layer, rows in self.rows.items():
            if slot < len(rows):
                self.rows[layer][slot] = 0

    def state(self, slot: int) -> dict[int, Array]:
        """A copy of all layers' states of a slot."""
        return {layer: self.row(layer, slot).copy() for layer in self.rows}

    def put_state(self, slot: int, state: dict[int, Array]) -> None:
        """Write all layers' states of a slot."""
        for layer, row in state.items():
            self.put_row(layer, slot, row)

    def layers_of(self, part: int) -> list[int]:
        """The layers whose keys and values are in attention's slots, or in the windows'."""
        has_own = self.windows is not None
        return [
            layer
            for layer in self.keys
            if (PART if has_own and self.shapes[layer].place == "window" else FULL) == part
        ]


def copy_slots(
    source: Contents,
    target: Contents,
    part: int,
    at: Integers,
    to: Integers,
    *,
    device: Contents,
    without: Collection[int] = (),
) -> None:
    """Copy the contents of some slots of one memory to slots of another one; the device knows which
    layers a part has.

    The slots are those of the part itself: a window's, not attention's. Follows `L2TransferEngine`.
    """
    if part == STATE:
        for here, there in zip(at, to, strict=True):
            target.put_state(int(there), source.state(int(here)))
        return
    for layer in device.layers_of(part):
        if layer in without:
            continue
        source.reach(layer, at)
        target.reach(layer, to)
        target.keys[layer][to] = source.keys[layer][at]
        target.values[layer][to] = source.values[layer][at]


class _VisibleCells(NamedTuple):
    """The cells of a part of the memory that a chunk writes, and those that it attends to."""

    written: Integers
    cells: Integers
    highest: int  # of the cells
    frame: Frame

    @classmethod
    def of(
        cls, contents: Contents, place: Place, row: Integers, start: int, count: int
    ) -> "_VisibleCells":
        """The cells of a piece `[start, start + count)` of a request's row."""
        end = start + count
        frame = Frame.of_run(start, end, contents.window if place == "window" else 0)
        written = contents.cells(place, row[start:end])
        cells = contents.cells(place, row[np.minimum(frame.positions, end - 1)])
        return cls(written, cells, max(int(written.max()), int(cells.max())), frame)


class ChunkStore:
    """The store of a request's piece `[start, start + count)`, through its row."""

    planes = 1

    def __init__(self, contents: Contents, row: Integers, start: int, count: int) -> None:
        self.contents = contents
        self._row = row
        self._start = start
        self._count = count
        self._visible: dict[Place, _VisibleCells] = {}
        self.initial: int | None = None  # slot of the state to start from
        self.target: int | None = None  # slot for the state after the last token

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Write the chunk's cells, then return those of the row."""
        contents, place = self.contents, self.contents.shapes[layer].place
        visible = self._visible.get(place)
        if visible is None:
            visible = _VisibleCells.of(contents, place, self._row, self._start, self._count)
            self._visible[place] = visible
        contents.reach_cell(layer, visible.highest)
        held_keys, held_values = contents.keys[layer], contents.values[layer]
        held_keys[visible.written], held_values[visible.written] = keys, values
        return (visible.frame.lane(held_keys[visible.cells], held_values[visible.cells]),)

    def states(self, layer: int) -> Array:
        """The row that the piece starts from, zeros for a prefix of nothing.

        At position 0 only gated delta nets read their slot; a convolution and Mamba-2 have
        `has_initial_states`.
        """
        shape = self.contents.shapes[layer]
        states = np.zeros((1, shape.row), shape.dtype)
        # At position 0 only gated delta nets read their slot; others know that there is no state.
        if self.initial is None or not (self._start or self.contents.has_delta):
            return states
        taps = 0 if self._start else shape.conv
        states[0, taps:] = self.contents.row(layer, self.initial)[taps:]
        return states

    def keep_states(self, layer: int, states: Array) -> None:
        """Write the state after the last token."""
        if self.target is not None:
            self.contents.put_row(layer, self.target, states[0, 0])


Judge = Callable[[Req, Array, int], int]
"""Sampler of the next token: request, last logits, number of its tokens in this step."""


@dataclass(slots=True)
class Runner:
    """The network over the contents of the slots (`ModelRunner`)."""

    network: Network
    contents: Contents
    host: Contents
    rules: RunnerRules
    grid: int
    shelf: Contents | None = None  # content of the storage
    unstored: frozenset[int] = frozenset()  # layers that no page has
    pending: list[tuple[int, int]] = field(default_factory=list)  # copies that come too late
    unmade: list[tuple[int, Integers, Integers]] = field(default_factory=list)  # copies to the host
    chunk_states: list[dict[int, Array]] = field(default_factory=list)  # of this batch, in order

    late_now: bool = False  # a piece of a prompt is being stashed
    computes: bool = True  # without a network only decisions are wanted

    def watch(self, states: StatePool | None) -> None:
        """Copy the contents wherever a pool copies a slot."""
        if states is not None:
            states.on_copy = self._copy
            # 0.5.9 clears a slot when it is taken, not when it is read: a state copied into it in
            # between stays, and a first chunk starts from it.
            if self.rules.first_chunk_reads_slot:
                states.on_alloc = self.contents.clear_state

    def stashing(self, *, begins: bool) -> None:
        """Delay copies until the next chunk has run, in releases with the snapshot's defect."""
        self.late_now = begins and self.rules.snapshot_after_next_chunk

    def _copy(self, source: int, target: int) -> None:
        # Trap (#24221): the snapshot races with the next chunk, whose state is then stored.
        if self.late_now:
            self.pending.append((source, target))
        else:
            self.contents.copy_state(source, target)

    # -- the host ----------------------------------------------------------------------------------

    def to_host(self, part: int, at: Integers, to: Integers) -> None:
        """Copy slots of the device to the host; with the defect, only when they are read."""
        # Trap (#39830): by the time of the copy the slots can hold another request's tokens.
        if self.rules.host_copy_late:
            self.unmade.append((part, at.copy(), to.copy()))
        else:
            self._move(self.contents, self.host, part, at, to)

    def from_host(self, part: int, at: Integers, to: Integers) -> None:
        """Copy slots of the host to slots of the device."""
        self._catch_up()
        self._move(self.host, self.contents, part, at, to)

    def _catch_up(self) -> None:
        unmade, self.unmade = self.unmade, []
        for part, source, target in unmade:
            self._move(self.contents, self.host, part, source, target)

    def _move(
        self, source: Contents, target: Contents, part: int, at: Integers, to: Integers
    ) -> None:
        copy_slots(source, target, part, at, to, device=self.contents)

    def to_storage(self, part: int, at: Integers, to: Integers) -> None:
        """Copy a part of a page from the host to the storage."""
        self._catch_up()
        if self.shelf is not None:
            self._move(self.host, self.shelf, part, at, to)

    def from_storage(self, part: int, to: Integers, at: Integers) -> None:
        """Copy a part of a page from the storage to slots of the host.

        Trap: a layer that is not stored keeps the content of these slots.
        """
        if self.shelf is not None:
            device, without = self.contents, self.unstored
            copy_slots(self.shelf, self.host, part, at, to, device=device, without=without)

    def run(self, batch: Batch, judge: Judge) -> list[list[int]]:
        """Run a batch; return the tokens sampled for each request, [0] where its prompt is not
        complete.

        Sampled tokens are appended at once (`FutureMap`): the next batch may run before the result
        is processed.
        """
        self.chunk_states = []
        late, self.pending = self.pending, []
        tokens = []
        for req in batch.reqs:
            if not batch.extend and batch.steps > 1:
                run = [judge(req, NO_ROW, more) for more in range(batch.steps)]
            elif not batch.reads(req):
                run = self._verify(req, judge, alone=batch.extend)
            else:
                logits = self._extend(req) if self.computes else None
                if req.is_chunked and req.fill < req.num_tokens:
                    tokens.append([0])
                    continue
                # Of two prompts that are cut in one batch only the last goes on: the other one
                # generates behind what it has, and its rest is never computed.
                req.skipped = req.num_tokens - req.fill
                req.sampled = req.num_tokens
                run = [judge(req, self._word(req) if logits is None else logits[-1], 0)]
            req.tokens[req.sampled : req.sampled + len(run)] = run
            req.sampled += len(run)
            tokens.append(run)
        # Trap (#31833): the place among the batch's states is counted from the first request.
        if batch.extend and self.rules.offset_of_first:
            for req in batch.reqs:
                if req.track_at is None or req.tracks is None or req.kept_track is None:
                    continue
                at = -(-(req.track_at - req.prefix) // CHUNK) - 1
                if at < len(self.chunk_states):
                    self.contents.put_state(req.tracks[req.kept_track], self.chunk_states[at])
        for source, target in late:
            self.contents.copy_state(source, target)
        return tokens

    def _word(self, req: Req, more: int = 0) -> Array:
        last = req.sampled + more - 1
        ubatch = Ubatch(
            tokens=np.asarray(req.read(last, last + 1), np.int64), positions=np.array([last])
        )
        row: Array = self.network.run(ubatch, NOWHERE).logits[-1]
        return row

    # -- prefill -----------------------------------------------------------------------------------

    def _extend(self, req: Req) -> Array:
        start, end = req.prefix, req.fill
        slot = self._state_of(req)
        blank = start == 0 and not self.rules.first_chunk_reads_slot
        # Trap (#29330): loading is tied to tracking, so a short chunk ignores the state of its
        # prefix.
        if self.rules.load_needs_tracking and req.tracks is not None and req.extend < self.grid:
            blank = True
        initial = None if blank else slot
        target = slot
        for at in self._cuts(req):
            self._piece(req, start, at, initial, target, wanted=False)
            self._passed(req, at, target)
            start, initial = at, target
        wanted = end == req.num_tokens or not req.is_chunked
        logits = self._piece(req, start, end, initial, target, wanted=wanted)
        self._passed(req, end, target)
        if slot is not None and req.state is not None and slot != req.state:
            self.contents.copy_state(slot, req.state)  # it ran on the tree's: a defect
        return logits

    def _state_of(self, req: Req) -> int | None:
        """The slot that a request runs on, with the state of its prefix in it."""
        source, req.state_source = req.state_source, None
        if source is not None and req.state is not None and req.prefix:
            # A copy otherwise: the first token overwrites the slot that it runs on.
            if self.rules.shares_states:
                return source
            self.contents.copy_state(source, req.state)
        return req.state

    def _cuts(self, req: Req) -> list[int]:
        if self.rules.offset_of_first and req.tracks is not None:
            return list(range(req.prefix + CHUNK, req.fill, CHUNK))
        at = req.track_at
        return [at] if at is not None and req.prefix < at < req.fill else []

    def _passed(self, req: Req, at: int, slot: int | None) -> None:
        if slot is None or req.tracks is None:
            return
        if self.rules.offset_of_first:
            self.chunk_states.append(self.contents.state(slot))
        elif at == req.track_at and req.kept_track is not None:
            self.contents.copy_state(slot, req.tracks[req.kept_track])

    # -- decode ------------------------------------------------------------------------------------

    def _verify(self, req: Req, judge: Judge, *, alone: bool) -> list[int]:
        """Sample a token, and one after each draft that it equals; in a mixed step one `alone`.

        Trap: refused drafts were computed too. Only the last slot of a streaming turn is read, see
        `sglang-streaming-last-token`; it has no entry here, the draft's on a server.
        """
        run: list[int] = []
        drafts = () if alone else req.proposed
        for draft in (*drafts, None):
            more = len(run)
            logits = self._decode(req, more)[-1] if self.computes else self._word(req, more)
            run.append(judge(req, logits, more))
            # A refused draft ends the run; the token sampled in its place counts.
            if run[-1] != draft:
                break
            req.tokens[req.sampled + more] = draft
        req.verified += not alone
        return run

    def _decode(self, req: Req, more: int = 0) -> Array:
        at = req.sampled + more - req.skipped
        logits = self._piece(req, at - 1, at, req.state, req.state, wanted=True)
        due = bool(req.track_every) and at % req.track_every == 0
        # Decoding leaves a state at each multiple of the interval, not at each token.
        if due and req.tracks is not None and req.state is not None:
            self.contents.copy_state(req.state, req.tracks[req.next_track])
        return logits

    def _piece(
        self,
        req: Req,
        start: int,
        end: int,
        initial: int | None,
        target: int | None,
        *,
        wanted: bool,
    ) -> Array:
        """Run tokens `[start, end)`; return the logits of the last, if wanted."""
        adapters = adapted_in(self.network)
        if adapters is not None:
            adapters.strengths = req.strengths
        store = ChunkStore(self.contents, req.row, start, end - start)
        store.initial, store.target = initial, target
        ahead = req.skipped if start >= req.fill else 0
        ubatch = Ubatch(
            tokens=req.read(start + ahead, end + ahead),
            positions=np.arange(start, end, dtype=np.int64),
            outputs=np.array([end - start - 1] if wanted else [], np.int64),
        )
        return self.network.run(ubatch, store).logits
