"""Keys and values of one stream, cell by cell, layer by layer.

    row 0       MARGIN                      MARGIN + reach
    |  zeros    | cell 0, cell 1, ...       |  zeros  |

The margins let a run of cells be handed out as a plain slice whose ends are aligned to blocks of
positions, wherever the run begins. Rows are allocated as far as cells have been written.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from cachesim.model.arithmetic import LayerShape
from cachesim.model.store import BLOCK, grown
from cachesim.units import Array, Integers

MARGIN: Final = BLOCK
NO_ROW: Final = MARGIN - 1
"""A row that is always zero: what stands for a cell that is not there."""


class Rows:
    """The K and V buffers of one stream; erased cells keep their old content, as upstream's do."""

    def __init__(self, shapes: Iterable[LayerShape], size: int) -> None:
        self.shapes = tuple(shapes)
        self.size = size
        self.clear()

    def clear(self) -> None:
        """All zeros."""
        self.reach = 0
        self.keys: dict[int, Array] = {}
        self.values: dict[int, Array] = {}
        for shape in self.shapes:
            self.keys[shape.layer] = np.zeros((2 * MARGIN, *shape.key), dtype=shape.dtype)
            self.values[shape.layer] = np.zeros((2 * MARGIN, *shape.value), dtype=shape.dtype)

    def cover(self, cell: int) -> None:
        """Make sure that there are rows up to and including this cell."""
        if cell < self.reach:
            return
        reach = min(self.size, max(cell + 1, 2 * self.reach, 4 * BLOCK))
        for buffers in (self.keys, self.values):
            for layer, old in buffers.items():
                buffers[layer] = grown(old, reach + 2 * MARGIN)
        self.reach = reach

    def places(self, cells: Integers | range) -> slice | Integers:
        """The rows of some cells, which are there from now on; a slice where cells are neighbours.

        The cells ascend but for one turn.
        """
        low, last = int(cells[0]), int(cells[-1])
        if last - low == len(cells) - 1:
            if last >= self.reach:
                self.cover(last)
            return slice(low + MARGIN, last + 1 + MARGIN)
        turned = np.asarray(cells)
        self.cover(int(turned.max()))
        return turned + MARGIN

    def put_keys(self, layer: int, cells: Integers | range, data: Array) -> None:
        """Write the keys of some cells."""
        places = self.places(cells)
        self.keys[layer][places] = data

    def put_values(self, layer: int, cells: Integers | range, data: Array) -> None:
        """Write the values of some cells."""
        places = self.places(cells)
        self.values[layer][places] = data

    def zero(self, cells: Integers) -> None:
        """Zero the rows of some cells."""
        known = cells[cells < self.reach] + MARGIN
        for buffers in (self.keys, self.values):
            for rows in buffers.values():
                rows[known] = 0

    def copy_from(self, other: "Rows") -> None:
        """Take over everything another stream holds."""
        self.reach = other.reach
        self.keys = {layer: rows.copy() for layer, rows in other.keys.items()}
        self.values = {layer: rows.copy() for layer, rows in other.values.items()}
