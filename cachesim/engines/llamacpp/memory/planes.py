"""The rows of recurrent states, plane by plane, and what a ubatch does to them."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from cachesim.engines.llamacpp.memory.batch import Ubatch
from cachesim.engines.llamacpp.memory.rules import ShortUbatch
from cachesim.model.arithmetic import LayerShape
from cachesim.units import Array


class Planes:
    """Per layer an array of rows; row `plane * cells + cell`."""

    def __init__(self, shapes: Iterable[LayerShape], cells: int, count: int) -> None:
        self.shapes = {shape.layer: shape for shape in shapes}
        self.cells = cells
        self.count = count
        self.clear()

    def clear(self) -> None:
        """All zeros."""
        self.rows: dict[int, Array] = {
            layer: np.zeros((self.count * self.cells, shape.row), dtype=shape.dtype)
            for layer, shape in self.shapes.items()
        }

    def copy_of(self, layer: int, rows: list[int], part: slice) -> Array:
        """What a part of some rows holds now."""
        if len(rows) == 1:  # mostly: a slice is quicker than a list
            return self.rows[layer][rows[0] : rows[0] + 1, part].copy()
        return self.rows[layer][np.array(rows, dtype=np.int64), part]

    def put(self, layer: int, where: tuple[slice, slice], data: Array) -> None:
        """Write a part of some rows."""
        self.rows[layer][where] = data

    def split(self, layer: int) -> int:
        """Where a row's convolution part (R) ends and its state (S) begins."""
        return self.shapes[layer].conv


class StateWindow(NamedTuple):
    """The recurrent cells of a ubatch: `head` is the first, one source row for each."""

    head: int
    zeroed: int  # the cell whose live row is zeroed first, or -1
    sources: tuple[int, ...]  # plane * cells + cell


class PlaneWriter:
    """The recurrent rows while one ubatch goes through (`build_rs` of the real graph).

    The window's first cells belong to the ubatch's sets, what follows was only moved along.
    """

    __slots__ = ("kept", "planes", "rows", "short_ubatch", "start", "ubatch", "unreached", "window")

    def __init__(
        self, rows: Planes, window: StateWindow, ubatch: Ubatch, short_ubatch: ShortUbatch
    ) -> None:
        self.rows = rows
        self.planes = rows.count  # states kept per sequence
        self.window = window
        self.ubatch = ubatch
        self.short_ubatch = short_ubatch
        self.start: dict[int, Array] = {}
        self.kept: list[slice]
        self.unreached: list[slice]
        if self.planes == 1:
            self.kept, self.unreached = [slice(window.head, window.head + ubatch.n_seqs)], []
            return
        firsts = range(window.head, window.head + self.planes * rows.cells, rows.cells)
        places = [slice(first, first + ubatch.n_seqs) for first in firsts]  # plane by plane
        reached = min(ubatch.n_seq_tokens, self.planes)
        self.kept, self.unreached = places[:reached], places[reached:]

    def states(self, layer: int) -> Array:
        """Zero the fresh row, read all sources, then move the cells that only came along.

        Trap: of those only the live row moves; their planes stay where they were.
        """
        rows = self.rows.rows[layer]
        head, n_seqs, sources = self.window.head, self.ubatch.n_seqs, self.window.sources
        if self.window.zeroed >= 0:
            rows[self.window.zeroed] = 0
        if len(sources) == 1:
            start = rows[sources[0] : sources[0] + 1].copy()
        else:
            read = rows[list(sources)]
            rows[head + n_seqs : head + len(read)] = read[n_seqs:]
            start = read[:n_seqs]
        if self.unreached:  # they will be given it again
            self.start[layer] = start.copy()
        return start

    def keep_states(self, layer: int, states: Array) -> None:
        """Plane `j` of each set's cell gets the state after its last token but `j`.

        Of the planes that a short ubatch does not reach, the convolution's part gets what the
        ubatch started from. The state's part keeps what it held, or in the releases that copy it
        unasked is undefined: here zeros, which no state is that a rollback could ask for.
        """
        rows = self.rows.rows[layer]
        for plane, place in enumerate(self.kept):
            rows[place] = states[:, plane]
        if not self.unreached:
            return
        split = self.rows.split(layer)
        for place in self.unreached:
            rows[place, :split] = self.start[layer][:, :split]
            if self.short_ubatch == "undefined":
                rows[place, split:] = 0
