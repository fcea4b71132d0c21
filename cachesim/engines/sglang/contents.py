"""Contents of the slots: keys, values and states of the network's layers.

    slot of attention     a key and a value per attention layer
    slot of a window      a key and a value per window layer
    slot of a state       a row per recurrent layer

What a slot held before it was handed out stays in it until somebody writes.
"""

from typing import NamedTuple

import numpy as np

from cachesim.engines.sglang.node import FULL, PART, STATE
from cachesim.engines.sglang.pools import WindowPool
from cachesim.model.arithmetic import LayerShape, Network, Place
from cachesim.model.store import Frame, Lanes, grown
from cachesim.units import Array, Integers


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
        if self.windows is not None and place == "window":
            return self.windows.mapping[slots]
        return slots

    def reach(self, layer: int, cells: Integers) -> None:
        """Room up to some cells."""
        self.reach_cell(layer, int(cells.max(initial=0)))

    def reach_cell(self, layer: int, cell: int) -> None:
        """Room up to one cell."""
        if cell >= len(self.keys[layer]):
            self.keys[layer] = grown(self.keys[layer], 2 * (cell + 1))
            self.values[layer] = grown(self.values[layer], 2 * (cell + 1))

    def row(self, layer: int, slot: int) -> Array:
        """The state of one layer in a slot."""
        self._reach_state(layer, slot)
        found: Array = self.rows[layer][slot]
        return found

    def put_row(self, layer: int, slot: int, row: Array) -> None:
        """Write a state of one layer."""
        self._reach_state(layer, slot)
        self.rows[layer][slot] = row

    def _reach_state(self, layer: int, slot: int) -> None:
        if slot >= len(self.rows[layer]):
            self.rows[layer] = grown(self.rows[layer], 2 * slot + 1)

    def copy_state(self, source: int, target: int) -> None:
        """All layers' states of one slot go into another one."""
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
        """Write what `state` took."""
        for layer, row in state.items():
            self.put_row(layer, slot, row)

    def layers_of(self, part: int) -> list[int]:
        """The layers whose keys and values lie in attention's slots, or in the windows'."""
        has_own = self.windows is not None
        return [
            layer
            for layer in self.keys
            if (PART if has_own and self.shapes[layer].place == "window" else FULL) == part
        ]


def copy_slots(
    source: Contents, target: Contents, part: int, at: Integers, to: Integers, *, device: Contents
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
        source.reach(layer, at)
        target.reach(layer, to)
        target.keys[layer][to] = source.keys[layer][at]
        target.values[layer][to] = source.values[layer][at]


class _Sight(NamedTuple):
    """Which cells of a part of the memory a piece writes, and which it looks at."""

    written: Integers
    cells: Integers
    highest: int  # of the cells
    frame: Frame

    @classmethod
    def of(
        cls, contents: Contents, place: Place, row: Integers, start: int, count: int
    ) -> "_Sight":
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
        self._sights: dict[Place, _Sight] = {}
        self.initial: int | None = None  # slot of the state to start from
        self.target: int | None = None  # slot for the state after the last token

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Write the piece's cells, then look at those of the row."""
        contents, place = self.contents, self.contents.shapes[layer].place
        sight = self._sights.get(place)
        if sight is None:
            sight = _Sight.of(contents, place, self._row, self._start, self._count)
            self._sights[place] = sight
        contents.reach_cell(layer, sight.highest)
        held_keys, held_values = contents.keys[layer], contents.values[layer]
        held_keys[sight.written], held_values[sight.written] = keys, values
        return (sight.frame.lane(held_keys[sight.cells], held_values[sight.cells]),)

    def states(self, layer: int) -> Array:
        """The row that the piece starts from, zeros for a prefix of nothing.

        At position 0 only gated delta nets read their slot; a convolution and Mamba-2 have
        `has_initial_states`.
        """
        shape = self.contents.shapes[layer]
        found = np.zeros((1, shape.row), shape.dtype)
        if self.initial is None or not (self._start or self.contents.has_delta):
            return found
        taps = 0 if self._start else shape.conv
        found[0, taps:] = self.contents.row(layer, self.initial)[taps:]
        return found

    def keep_states(self, layer: int, states: Array) -> None:
        """Write the state after the last token."""
        if self.target is not None:
            self.contents.put_row(layer, self.target, states[0, 0])
