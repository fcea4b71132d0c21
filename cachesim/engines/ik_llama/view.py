"""What the network sees of a context while the rows of one sequence go through it."""

from typing import TYPE_CHECKING

import numpy as np

from cachesim.model.store import ABSENT, BLOCK, Frame, Lanes, Ubatch
from cachesim.units import Array, Integers, SeqId

if TYPE_CHECKING:
    from cachesim.engines.ik_llama.context import Context


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
        self._start = np.zeros_like(ubatch.positions)  # what a layer without a window sees from

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Write the rows into their cells and look at all cells of the sequence."""
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
        """Bring the sequence's cells into the order of the positions their keys are rotated to.

        One computation serves all layers of the ubatch. When cell `i` holds position `i` the
        cells themselves are in order, and a slice does.
        """
        cells = self._context.cells
        mine = cells.of(self._seq)
        born = cells.born[mine]
        length = -(-(int(born.max()) + 1) // BLOCK) * BLOCK
        if length <= cells.size and np.array_equal(mine, born):
            self._order = slice(0, length)
            self._positions = np.where(_flags(mine, length), cells.pos[:length], ABSENT)
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
        """The stored row, whatever position it belongs to; zeros when the rows begin at 0."""
        rows = self._context.rows[layer]
        if self._ubatch.positions[0] == 0:
            return np.zeros((1, rows.shape[1]), rows.dtype)
        return rows[self._seq : self._seq + 1].copy()

    def keep_states(self, layer: int, states: Array) -> None:
        """Keep the last state, and that after each token when a draft is being verified."""
        self._context.rows[layer][self._seq] = states[0, 0]
        if self.planes > 1:  # the newest state comes first
            self._context.steps[layer][: self.planes] = states[0, ::-1]


def _flags(cells: Integers, length: int) -> Array:
    flags = np.zeros(length, dtype=bool)
    flags[cells] = True
    return flags
