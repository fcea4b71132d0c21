"""A context: one cell table, the keys and values of all cells, one recurrent row per sequence.

A recurrent row has no position: after a cut it still includes the removed tokens, and the caller
must restore a checkpoint first; no check enforces it. There are no window rings, no streams, and no
rollback of rows beyond one speculative step.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np

from cachesim.errors import BlobError, ContractError, UpstreamAbort
from cachesim.model.arithmetic import LayerShape, Network
from cachesim.model.spec import ModelSpec
from cachesim.model.store import ABSENT, BLOCK, Frame, Lanes, Ubatch
from cachesim.units import Array, Count, Integers, Pos, SeqId, Token

# Saved sequences: the data of `llama_state_seq_get_data`, its size, and checkpoints.
#
# Sizes are those of the real server: they decide evictions.


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceState:
    """Positions in cell order, keys and values (full states only), recurrent rows.

    A partial state has no keys and values: a restore leaves the former ones in the new cells.
    """

    positions: tuple[Pos, ...]
    born: tuple[Pos, ...]  # the positions the keys were rotated to
    keys: dict[int, Array] | None
    values: dict[int, Array] | None
    rows: dict[int, Array]
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state needed to resume a hybrid sequence at `pos_max + 1`.

    The `prompt` positions are the same points in the request's tokens, which differ from the
    cache's if texts matched across different token boundaries.
    """

    pos_min: Pos
    pos_max: Pos
    pos_min_prompt: Pos
    pos_max_prompt: Pos
    n_tokens: Count
    made_by: int  # the task that saved it
    state: SequenceState

    @property
    def size(self) -> int:
        """Bytes of the saved state."""
        return self.state.size

    def as_dict(self) -> dict[str, int]:
        """Positions and token count."""
        return {
            "pos_min": int(self.pos_min),
            "pos_max": int(self.pos_max),
            "n_tokens": int(self.n_tokens),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes per cell and per recurrent row, summed over the layers that have them."""

    cell: int
    row: int
    layers: int

    @classmethod
    def of(cls, spec: ModelSpec) -> "Sizes":
        """Keys and values as f16, recurrent rows as f32."""
        numbers = range(len(spec.layers))
        return cls(
            cell=sum(spec.key_bytes(n) + spec.value_bytes(n) for n in numbers),
            row=sum(spec.conv_bytes(n) + spec.state_bytes(n) for n in numbers),
            layers=len(spec.layers),
        )

    def state(self, cells: int, *, partial: bool) -> int:
        """Bytes of a state: counts and positions, a header per layer, rows, cells unless
        partial.
        """
        head = 4 + cells * 8 + 8 + self.layers * 24 + 4
        rows = self.layers * 16 + self.row if self.row else 0
        return head + rows + (0 if partial else cells * self.cell)


# The cell table of a context, shared by all slots (`llama_kv_cache`, the old style).
#
# pos[i]    position of the token in cell i, -1 = free
# held[i]   bit s set: sequence s owns cell i
# shift[i]  distance that the position has moved since the key was rotated
# born[i]   the position the key is rotated to; differs from pos after a rollback (an oddity)

FREE = -1


class Cells:
    """Positions and owners of all cells (`llama_kv_cache`); a search needs one contiguous run."""

    def __init__(self, size: int, *, recurrent: bool, hybrid: bool) -> None:
        self.size = size
        self.reach = 0  # cells from here on were never written
        self.recurrent = recurrent
        self.hybrid = hybrid
        self.head = 0
        self.used = 0
        self.pos: Integers = np.full(size, FREE, dtype=np.int64)
        self.born: Integers = np.full(size, FREE, dtype=np.int64)
        self.held: Array = np.zeros(size, dtype=np.uint64)
        self.shift: Integers = np.zeros(size, dtype=np.int64)

    # -- search ------------------------------------------------------------------------------

    def find_slot(self, count: int) -> int | None:
        """The first run of free cells from `head` on (`llama_kv_cache_find_slot`)."""
        if count > self.size:
            return None
        # Many cells before the head are free by now: the search starts over.
        if self.head > self.used + 2 * count:
            self.head = 0
        if self.head + count <= self.size and (self.pos[self.head : self.head + count] < 0).all():
            return self.head
        # Upstream tests each run that begins behind a taken cell: as many as cells in a full cache.
        taken: list[int] = np.flatnonzero(self.pos[: self.reach] >= 0).tolist()
        taken.append(self.size + count)  # behind all runs
        head, nearest, tested = self.head, bisect_left(taken, self.head), 0
        while tested < self.size:
            if head + count > self.size:
                tested += self.size - head
                head = nearest = 0
            if taken[nearest] >= head + count:
                self.head = head
                return head
            tested += taken[nearest] + 1 - head
            head = taken[nearest] + 1
            nearest += 1
        self.head = head
        return None

    def place(self, start: int, positions: Integers, seqs: list[SeqId]) -> None:
        """Set the positions and owners of a run of cells."""
        run = slice(start, start + len(positions))
        self.pos[run] = positions
        self.born[run] = positions
        self.held[run] = [1 << seq for seq in seqs]
        self.used += len(positions)
        self.reach = max(self.reach, run.stop)

    def advance(self, count: int) -> None:
        """Advance the search head past a computed ubatch."""
        self.head += count
        if self.head >= self.size:
            self.head = 0

    def place_recurrent(self, seq: SeqId, position: Pos) -> None:
        """Set the position of a sequence's recurrent cell, whose index is the sequence id."""
        if self.pos[seq] < 0:
            self.used += 1
        self.pos[seq] = self.born[seq] = position
        self.held[seq] = 1 << seq
        self.head = seq
        self.reach = max(self.reach, seq + 1)

    # -- edits -------------------------------------------------------------------------------

    def seq_rm(self, seq: SeqId, p0: int, p1: int) -> bool:
        """Remove [p0, p1) of a sequence (`llama_kv_cache_seq_rm`)."""
        p0 = max(p0, 0)
        p1 = np.iinfo(np.int64).max if p1 < 0 else p1
        # Only a recurrent cache refuses, without any change: its one state cannot lose a part.
        if self.recurrent:
            if seq >= self.size:
                return False
            at = int(self.pos[seq])
            if 0 < p0 <= at or 0 < p1 <= at:
                return False
        # Trap: a hybrid cache returns True although its recurrent row still includes the removed
        # tokens.
        hit = self._within(seq, p0, p1)
        self.held[hit] &= ~np.uint64(1 << seq)
        self._free(hit[self.held[hit] == 0], lower_head=True)
        return True

    def seq_add(self, seq: SeqId, p0: int, p1: int, delta: int) -> None:
        """Move [p0, p1); cells that fall below 0 are freed (`llama_kv_cache_seq_add`)."""
        hit = self._within(seq, p0, p1)
        self.pos[hit] += delta
        self.shift[hit] += delta
        fallen = hit[self.pos[hit] < 0]
        self._free(fallen, lower_head=False)
        # Trap: set to 0 even if nothing has moved.
        self.head = int(fallen[0]) if fallen.size else 0

    def _free(self, cells: Integers, *, lower_head: bool) -> None:
        self.pos[cells] = self.born[cells] = FREE
        self.held[cells] = 0
        self.shift[cells] = 0
        self.used -= len(cells)
        if lower_head and cells.size:
            self.head = min(self.head, int(cells[0]))

    def clear(self) -> None:
        """Free every cell."""
        self._free(np.flatnonzero(self.pos >= 0), lower_head=False)
        self.head = 0

    # -- queries -----------------------------------------------------------------------------

    def of(self, seq: SeqId) -> Integers:
        """The cells of a sequence, in cell order."""
        return (self.held[: self.reach] & np.uint64(1 << seq)).nonzero()[0]

    def _within(self, seq: SeqId, p0: int, p1: int) -> Integers:
        cells = self.of(seq)
        positions = self.pos[cells]
        within: Integers = cells[(positions >= p0) & (positions < p1)]
        return within

    def seq_pos_max(self, seq: SeqId) -> Pos:
        """The largest position, 0 for none, an oddity (`llama_kv_cache_seq_pos_max`)."""
        # Trap: 0 for an empty sequence, the same as for one token.
        cells = self.of(seq)
        return Pos(int(self.pos[cells].max())) if cells.size else Pos(0)

    def seq_pos_min(self, seq: SeqId) -> Pos:
        """The first cell's position (`llama_kv_cache_seq_pos_min`)."""
        # A state has one position; upstream returns the largest for all caches with recurrent rows.
        if self.recurrent or self.hybrid:
            return self.seq_pos_max(seq)
        # Trap: first by index, not the lowest: a cell that was used again has a later position.
        cells = self.of(seq)
        return Pos(int(self.pos[cells[0]])) if cells.size else Pos(-1)

    def check_integrity(self) -> None:
        """Raise ContractError if the accounts are inconsistent."""
        taken, owned = self.pos >= 0, self.held != 0
        if taken.sum() != self.used or not np.array_equal(taken, owned):
            msg = f"used={self.used}: {taken.sum()} cells hold a position, {owned.sum()} an owner"
            raise ContractError(msg)
        if self.held[self.reach :].any():
            raise ContractError(f"a cell from {self.reach} on is held, and none was written")


NOTHING: Final = np.empty(0)
"""Last hidden state of a model without an MTP head."""

CANCELLED: Final = -3
"""Return value of a decode whose client has disconnected."""


class BatchToken(NamedTuple):
    """A token of a batch."""

    token: Token
    pos: Pos
    seq: SeqId
    output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The result of a decode: the return code, and rows by the index of their batch entry."""

    code: int
    placed: int = 0  # tokens left in cells by a decode that ran out of room
    logits: dict[int, Array]
    hidden: dict[int, Array]


class Context:
    """A model with its cache: the part of `llama_context` that the server uses."""

    def __init__(self, network: Network, *, n_ctx: int, n_ubatch: int, n_seq_max: int) -> None:
        self.network = network
        self.n_ubatch = n_ubatch
        places = {shape.place for shape in network.shapes}
        recurrent = places == {"recurrent"}
        self.hybrid = "recurrent" in places and not recurrent
        self.recurrent = recurrent
        size = max(1, n_seq_max) if recurrent else n_ctx
        self.cells = Cells(size, recurrent=recurrent, hybrid=self.hybrid)
        self.sizes = Sizes.of(network.spec)
        self.keys = {s.layer: np.zeros((size, *s.key), s.dtype) for s in self._cached()}
        self.values = {s.layer: np.zeros((size, *s.value), s.dtype) for s in self._cached()}
        self.windows = {s.layer for s in self._cached() if s.place == "window"}
        self.rows = {
            s.layer: np.zeros((max(1, n_seq_max), s.row), s.dtype)
            for s in network.shapes
            if s.place == "recurrent"
        }
        self.make_room_for_steps(0)
        self.ubatches_left: int | None = None  # ubatches until the client disconnects
        self.stopped = False  # the stop flag (`stop_internal_decode`)

    def _cached(self) -> list[LayerShape]:
        return [shape for shape in self.network.shapes if shape.place != "recurrent"]

    # -- decode ------------------------------------------------------------------------------

    def decode(
        self,
        batch: Sequence[BatchToken],
        hidden: Sequence[Array] | None = None,
        *,
        keep_steps: int = 0,
    ) -> Decoded:
        """Run a batch in ubatches of n_ubatch tokens (`llama_decode_internal`).

        `keep_steps` is the maximum number of tokens whose states are all kept.
        """
        self.apply_shifts()
        done = Decoded(code=0, logits={}, hidden={})
        # Cells are searched ubatch by ubatch, not for the whole batch first.
        for first in range(0, len(batch), self.n_ubatch):
            piece = batch[first : first + self.n_ubatch]
            start = self._find(piece)
            if start is None:
                # Trap: cells of earlier ubatches stay, and a retry places their tokens again.
                return Decoded(code=1, placed=first, logits=done.logits, hidden=done.hidden)
            planes = len(piece) if 1 < len(piece) <= keep_steps else 1
            # Sequences do not attend to each other: the network runs on the rows of each one alone.
            tokens, positions, seqs, outputs = zip(*piece, strict=True)
            for seq in sorted(set(seqs)):
                mine = [i for i, sequence in enumerate(seqs) if sequence == seq]
                wanted = [k for k, i in enumerate(mine) if outputs[i]]
                ubatch = Ubatch(
                    tokens=np.array([tokens[i] for i in mine], dtype=np.int64),
                    positions=np.array([positions[i] for i in mine], dtype=np.int64),
                    outputs=np.array(wanted, dtype=np.int64),
                    hidden=None if hidden is None else np.stack([hidden[first + i] for i in mine]),
                )
                places = np.array([start + i for i in mine], dtype=np.int64)
                view = SequenceView(self, seq, ubatch, places, planes=planes)
                output = self.network.run(ubatch, view)
                for row, k in enumerate(wanted):
                    done.logits[first + mine[k]] = output.logits[row]
                # None without an MTP head
                rows = repeat(NOTHING, len(mine)) if output.hidden is None else output.hidden
                done.hidden.update(zip((first + i for i in mine), rows, strict=True))
            # A recurrent cache's cells are found by sequence id, so its head does not search.
            if not self.recurrent:
                self.cells.advance(len(piece))
            # Tested after a ubatch: whole ubatches survive a disconnect.
            if self._cancelled():
                return Decoded(code=CANCELLED, logits=done.logits, hidden=done.hidden)
        return done

    def _cancelled(self) -> bool:
        if self.stopped:
            self.stopped = False  # reset when the slot is released
            return True
        if self.ubatches_left is None:
            return False
        self.ubatches_left -= 1
        return self.ubatches_left <= 0

    def _find(self, piece: Sequence[BatchToken]) -> int | None:
        # The cell of a recurrent sequence has the sequence's id as its index: there is always room.
        if self.recurrent:
            for entry in piece:
                self.cells.place_recurrent(entry.seq, entry.pos)
            return 0
        start = self.cells.find_slot(len(piece))
        if start is not None:
            positions = np.array([entry.pos for entry in piece], dtype=np.int64)
            self.cells.place(start, positions, [entry.seq for entry in piece])
        return start

    def apply_shifts(self) -> None:
        """Rotate the keys of moved cells to their new positions (`llama_kv_cache_update`)."""
        moved = np.flatnonzero(self.cells.shift)
        if not moved.size:
            return
        for layer, keys in self.keys.items():
            keys[moved] = self.network.rotate(layer, keys[moved], self.cells.shift[moved])
        self.cells.born[moved] += self.cells.shift[moved]
        self.cells.shift[moved] = 0

    # -- one speculative step ----------------------------------------------------------------

    def make_room_for_steps(self, tokens: int) -> None:
        """Allocate zero rows for the states of a draft and its first token (`per_step_alloc`)."""
        self.steps = {
            layer: np.zeros((tokens, rows.shape[1]), rows.dtype)
            for layer, rows in self.rows.items()
        }

    def roll_back_to_step(self, seq: SeqId, accepted: Count, drafted: Count) -> None:
        """Restore the state after the last accepted token (per-step recurrent checkpoints).

        drafted      t0 t1 t2 | t3 t4        ubatches of three
        rows         t3 t4 t2                after both; accepting t0 restores t3's state
        """
        # Trap: each ubatch of more than one token writes its states from the first row on, so if a
        # draft is cut into ubatches, the row of the accepted token has the state of another one.
        for layer, states in self.steps.items():
            self.rows[layer][seq] = states[accepted]
        # Trap: upstream writes that token's position into the cell whose index equals the sequence
        # id, whatever it holds.
        if self.hybrid and self.cells.pos[seq] >= 0:
            last = self.cells.seq_pos_max(seq)
            self.cells.pos[seq] = last - (drafted - accepted)

    # -- saved states ------------------------------------------------------------------------

    def save(self, seq: SeqId, *, partial: bool) -> SequenceState:
        """Save a state (`llama_state_seq_get_data`); a partial one has no keys and values."""
        cells = self.cells.of(seq)
        full = not partial
        rows = {layer: rows[seq].copy() for layer, rows in self.rows.items()}
        return SequenceState(
            positions=tuple(map(Pos, self.cells.pos[cells].tolist())),
            born=tuple(map(Pos, self.cells.born[cells].tolist())),
            keys={n: k[cells] for n, k in self.keys.items()} if full else None,
            values={n: v[cells] for n, v in self.values.items()} if full else None,
            # Trap: a recurrent model's partial state has no tensor data at all.
            rows={} if self.recurrent and partial else rows,
            size=self.sizes.state(len(cells), partial=partial),
        )

    def restore(self, seq: SeqId, state: SequenceState) -> bool:
        """Restore a saved state (`llama_state_seq_set_data`)."""
        # Refuse a state with other layers as damaged; upstream compares fewer fields.
        count = len(state.positions)
        fits = len(state.born) == count
        for kept, data in ((state.keys, self.keys), (state.values, self.values)):
            if kept is not None:
                fits &= kept.keys() == data.keys() and all(
                    rows.shape == (count, *data[layer].shape[1:])
                    and rows.dtype == data[layer].dtype
                    for layer, rows in kept.items()
                )
        fits &= all(
            layer in self.rows
            and row.shape == self.rows[layer].shape[1:]
            and row.dtype == self.rows[layer].dtype
            for layer, row in state.rows.items()
        )
        if not fits:
            raise BlobError("the saved state has different layers than this model")
        # The old content is always removed first, so a failed restore leaves an empty sequence.
        self.cells.seq_rm(seq, -1, -1)
        if self.recurrent:
            where, why = "llama_state_seq_set_data", "the allocated cell must carry the sequence id"
            raise UpstreamAbort(where, why)
        if not state.positions:  # Trap: the check reads the first cell of a run that has none
            where = "llama_data_read::read_kv_cache_meta"
            raise UpstreamAbort(
                where, "GGML_ASSERT(kv_self.cells[kv_self.head].pos == batch.pos[0])"
            )
        count = len(state.positions)
        # One contiguous run from `head` on. Trap: a partial state without the cells it was saved
        # from finds the keys and values of whatever is in the new ones.
        start = self.cells.find_slot(count)
        if start is None:
            return False
        positions: Integers = np.array(state.positions, dtype=np.int64)
        self.cells.place(start, positions, [seq] * count)
        self.cells.born[start : start + count] = state.born
        for kept, data in ((state.keys, self.keys), (state.values, self.values)):
            for layer, rows in (kept or {}).items():
                data[layer][start : start + count] = rows
        self.cells.head = start + count if start + count < self.cells.size else 0
        # The row belongs to the sequence, whatever cells its tokens are in.
        for layer, row in state.rows.items():
            self.rows[layer][seq] = row
        return True

    def clear(self) -> None:
        """Free all cells, and zero what they held (`llama_kv_cache_clear`)."""
        self.cells.clear()
        for data in (self.keys, self.values, self.rows):
            for rows in data.values():
                rows[...] = 0


class SequenceView:
    """The Store of one sequence's rows of an ubatch."""

    def __init__(
        self, context: "Context", seq: SeqId, ubatch: Ubatch, places: Integers, *, planes: int
    ) -> None:
        self._context = context
        self._seq = seq
        self._ubatch = ubatch
        self._places = places
        self.planes = planes
        self._order: Integers | slice | None = None
        self._positions: Integers = np.zeros(0, dtype=np.int64)
        self._rows = np.arange(len(ubatch.positions))
        self._start = np.zeros_like(ubatch.positions)  # first visible position without a window

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Write the rows into their cells, then return all cells of the sequence."""
        context = self._context
        context.keys[layer][self._places] = keys
        context.values[layer][self._places] = values
        if self._order is None:
            self._arrange()
        queries, low = self._ubatch.positions, self._start
        if layer in context.windows:
            low = queries - context.network.spec.window + 1
        frame = Frame(self._rows, self._positions, low, queries)
        return (frame.lane(context.keys[layer][self._order], context.values[layer][self._order]),)

    def _arrange(self) -> None:
        """Order the sequence's cells by the positions that their keys are rotated to."""
        cells = self._context.cells
        mine = cells.of(self._seq)
        born = cells.born[mine]
        length = -(-(int(born.max()) + 1) // BLOCK) * BLOCK
        # Computed once for all layers of the ubatch. If cell `i` holds position `i`, a slice is
        # enough.
        if length <= cells.size and np.array_equal(mine, born):
            self._order = slice(0, length)
            flags = np.zeros(length, dtype=bool)
            flags[mine] = True
            self._positions = np.where(flags, cells.pos[:length], ABSENT)
            return
        by_birth = np.lexsort((mine, born))
        first = np.ones(len(mine), dtype=bool)
        first[1:] = born[by_birth][1:] != born[by_birth][:-1]
        regular, surplus = mine[by_birth[first]], mine[by_birth[~first]]
        total = length + -(-len(surplus) // BLOCK) * BLOCK
        order = np.zeros(total, dtype=np.int64)
        positions = np.full(total, ABSENT, dtype=np.int64)
        for at, those in (
            (cells.born[regular], regular),
            (length + np.arange(len(surplus)), np.sort(surplus)),
        ):
            order[at] = those
            positions[at] = cells.pos[those]
        self._order, self._positions = order, positions

    def states(self, layer: int) -> Array:
        """The stored row, whatever its position; zeros if the rows begin at 0."""
        rows = self._context.rows[layer]
        # Upstream starts from zeros at position 0. Trap: any other start continues from the row,
        # whatever position it was left at.
        if self._ubatch.positions[0] == 0:
            return np.zeros((1, rows.shape[1]), rows.dtype)
        return rows[self._seq : self._seq + 1].copy()

    def keep_states(self, layer: int, states: Array) -> None:
        """Store the last state, and the state after each token while a draft is verified."""
        # The newest state is the live one, whether or not the draft's tokens are accepted.
        self._context.rows[layer][self._seq] = states[0, 0]
        if self.planes > 1:  # the newest state comes first
            self._context.steps[layer][: self.planes] = states[0, ::-1]
