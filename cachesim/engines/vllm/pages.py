"""Content of the blocks: keys, values and states of the network's layers.

Groups share the blocks of the pool, each of which is one page of memory: what a group writes into
a block destroys what another group had there. What a block held before it was taken stays in it
until somebody writes: nothing is wiped.

    block of attention   block_size keys and values per layer     } the same page, read as one
    block of a state     one row per layer                        } thing or as the other
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cachesim.engines.vllm.block_pool import NULL
from cachesim.engines.vllm.groups import GroupSpec, cdiv
from cachesim.model.arithmetic import LayerShape, Network, Place
from cachesim.model.store import ABSENT, Frame, Lanes, grown
from cachesim.units import Array, Integers

NOBODY = -1

PLACES: dict[str, Place] = {
    "full": "attention",
    "chunked": "window",
    "window": "window",
    "mamba": "recurrent",
}


class Pages:
    """The memory of all groups."""

    def __init__(self, network: Network, groups: Sequence[GroupSpec]) -> None:
        self.groups = tuple(groups)
        by_layer = {layer: i for i, group in enumerate(groups) for layer in group.layers}
        by_place = {PLACES[group.kind]: i for i, group in reversed([*enumerate(groups)])}
        self.group_of: dict[int, int] = {}
        self.shapes: dict[int, LayerShape] = {}
        self.keys: dict[int, Array] = {}
        self._values: dict[int, Array] = {}
        self._states: dict[int, Array] = {}
        self.blocks = 0
        self.owner = np.full(0, NOBODY, np.int64)  # the group that wrote last, block by block
        for shape in network.shapes:
            group = by_layer.get(shape.layer, by_place[shape.place])  # a layer of marks has none
            self.shapes[shape.layer] = shape
            self.group_of[shape.layer] = group
            if shape.place == "recurrent":
                self._states[shape.layer] = np.zeros((0, shape.row), shape.dtype)
            else:
                self.keys[shape.layer] = np.zeros((0, *shape.key), shape.dtype)
                self._values[shape.layer] = np.zeros((0, *shape.value), shape.dtype)

    def reach(self, block: int) -> None:
        """Make room up to a block; the queue hands blocks out in the order of their numbers."""
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
        """A group writes into blocks: what other groups had in them is gone."""
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
        """Copy one block with everything in it."""
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
        """A copy of what a block holds, layer by layer."""
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
        """Put back what `content` took."""
        self.take(group, np.array([block]))
        size = self.groups[group].block
        rows = slice(block * size, (block + 1) * size)
        for layer, parts in content.items():
            if layer in self._states:
                self._states[layer][block] = parts[0]
            else:
                self.keys[layer][rows], self._values[layer][rows] = parts

    def state(self, layer: int, block: int) -> Array:
        """Row of a block."""
        row: Array = self._states[layer][block]
        return row

    def put_state(self, layer: int, block: int, row: Array) -> None:
        """Overwrite one row."""
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
        self._cells: dict[int, Cells] = {}
        self.initial: dict[int, int | None] = {}  # by group: block of the state to start from
        self.targets: dict[int, tuple[int, ...]] = {}  # blocks for the states after the last tokens

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Write the chunk's cells, then look at those of the table."""
        group = self.pages.group_of[layer]
        found = self._cells.get(group)
        if found is None:
            found = self._cells[group] = Cells.of(
                self.pages.groups[group], self._tables[group], self._start, self._count
            )
            self.pages.take(group, found.blocks)
        held_keys, held_values = self.pages.cells(layer)
        held_keys[found.written] = keys
        held_values[found.written] = values
        return (found.frame.lane(held_keys[found.cells], held_values[found.cells]),)

    def states(self, layer: int) -> Array:
        """The row that the chunk starts from, zeros for a prefix of nothing."""
        block = self.initial[self.pages.group_of[layer]]
        if block is None:
            shape = self.pages.shapes[layer]
            return np.zeros((1, shape.row), shape.dtype)
        return self.pages.state(layer, block)[None].copy()

    def keep_states(self, layer: int, states: Array) -> None:
        """Write the newest states into their blocks, the last token's into the last target."""
        group = self.pages.group_of[layer]
        targets = self.targets[group]
        for target in targets:
            if self.pages.owner[target] != group:
                self.pages.take(group, np.array([target]))
        for back, target in enumerate(reversed(targets)):
            if back < states.shape[1]:
                self.pages.put_state(layer, target, states[0, back])


class Cells(NamedTuple):
    """Which cells of a group a chunk writes, and which it looks at."""

    blocks: Integers  # those that are written into
    written: Integers
    cells: Integers
    frame: Frame  # positions whose block is null are absent: they lie before the window

    @classmethod
    def of(cls, spec: GroupSpec, table: Sequence[int], start: int, count: int) -> "Cells":
        """Those of a chunk of `count` tokens."""
        size, end = spec.block, start + count
        blocks = np.array(table[: cdiv(end, size)], np.int64)
        chunked = spec.kind == "chunked"
        frame = Frame.of_run(start, end, spec.chunk or spec.window, chunked=chunked)
        positions, first = frame.positions, int(frame.positions[0])
        inside = np.minimum(positions, end - 1)
        owners = blocks[inside // size]
        cells = owners * size + inside % size
        positions[owners == NULL] = ABSENT
        return cls(blocks[start // size :], cells[start - first : end - first], cells, frame)
