"""One call of the model: a rectangle of columns goes through the network and into the caches.

    inputs   0 0 a b c      the rows of the batch, padding and all
             d e f g h

Upstream computes the whole rectangle and masks what is padding. Here the caches first take up
placeholders, one per column, so that their own rules decide where each column comes to lie and
what it may look at; then the network computes the columns that are tokens and fills them in.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.layer_cache import is_batch
from cachesim.engines.mlx_lm.caches.raised import UpstreamValueError
from cachesim.engines.mlx_lm.families import RecurrentRules
from cachesim.engines.mlx_lm.generate.lanes import Sight
from cachesim.engines.mlx_lm.generate.layout import Layout
from cachesim.engines.mlx_lm.generate.rows import CachedRows, RecurrentRows
from cachesim.engines.mlx_lm.generate.shared import PromptCache, leaves
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.model.arithmetic import Network
from cachesim.model.build import arithmetic_of
from cachesim.model.spec import F16_BYTES
from cachesim.model.store import Lane, Lanes, Ubatch
from cachesim.units import Array, Integers

Group: TypeAlias = tuple[list[int], list[range]]
"""Rows of the batch, and for each of them the columns that are tokens, equally many."""


class Forward:
    """The network as mlx-lm's generators call it."""

    def __init__(
        self,
        network: Network,
        rules: CacheRules,
        *,
        recurrent: RecurrentRules | None = None,
        element_bytes: int = F16_BYTES,
        on_call: Callable[[int, int], None] | None = None,
    ) -> None:
        self.network = network
        self.shapes = network.shapes
        self.computes = arithmetic_of(network) != "counts"
        layers = RecurrentRules() if recurrent is None else recurrent
        self.layout = Layout(network, rules, layers, element_bytes)
        self._tell = on_call or (lambda _rows, _columns: None)

    def make_cache(self) -> PromptCache:
        """Fresh caches for one sequence. Follows `make_prompt_cache`."""
        return self.layout.make_cache()

    def __call__(self, inputs: Integers, cache: PromptCache, *, outputs: int = 0) -> Array:
        """Feed columns (batch, columns); the logits of each row's last column.

        With `outputs`, those of its last ones: (batch, outputs, vocabulary), for a batch of one.
        """
        self._tell(inputs.shape[0], inputs.shape[1])
        if inputs.shape[1] == 0:  # an empty list becomes an array of floats
            msg = "[gather] Got indices with invalid dtype. Indices must be integral."
            raise UpstreamValueError(msg)
        if not self.layout.recurrent.shares_in_batches and any(map(is_batch, cache)):
            msg = "too many values to unpack (expected 2)"  # a batch's state has more than two
            raise UpstreamValueError(msg)
        call = _Call(self, inputs, cache)
        for group in call.groups():
            call.run(*group, max(1, outputs))
        call.finish()
        if outputs:
            return call.several[None]
        return call.logits


class _Call:
    """What one forward pass needs while it goes on."""

    def __init__(self, forward: Forward, inputs: Integers, cache: PromptCache) -> None:
        self.network = forward.network
        self.computes = forward.computes
        self.inputs = inputs
        batch, columns = inputs.shape
        layout, layers = forward.layout, list(zip(forward.shapes, leaves(cache), strict=True))
        self.attention = {
            shape.layer: CachedRows.place(shape, layer, layout.window_of(shape), batch, columns)
            for shape, layer in layers
            if not isinstance(layer, ArraysCache)
        }
        self.recurrent = {
            shape.layer: RecurrentRows.of(shape, layer, layout.recurrent, batch, columns)
            for shape, layer in layers
            if isinstance(layer, ArraysCache)
        }
        self.first = self._positions_of_first_columns(batch)
        self.late = 0 if layout.recurrent.shares_in_time else columns  # how far queries are off
        self.logits: Array = np.zeros(0)
        self.several: Array = np.zeros(0)  # of the last columns of the last group's rows
        self._rows: dict[int, Array] = {}

    def _positions_of_first_columns(self, batch: int) -> list[int]:
        """The furthest of the layers' own offsets; negative where a row begins with padding."""
        offsets = [each.offsets for each in self.attention.values()]
        return [max(of_row) for of_row in zip(*offsets, strict=True)] if offsets else [0] * batch

    def groups(self) -> list[Group]:
        """Rows of which as many columns are computed run together, one set each."""
        by_length: dict[int, Group] = {}
        for row in range(len(self.inputs)):
            columns = self._computed(row)
            if columns:
                rows, found = by_length.setdefault(len(columns), ([], []))
                rows.append(row)
                found.append(columns)
        return list(by_length.values())

    def _computed(self, row: int) -> range:
        """The columns of a row that are computed.

        Columns before position 0 are left padding; recurrent layers read it unless a mask is there
        and they look at it. Columns behind the tokens are computed where a recurrent layer makes
        something of them.
        """
        start, stop = max(0, -self.first[row]), self.inputs.shape[1]
        for each in self.recurrent.values():
            columns = each.computed(row)
            return range(min(start, columns.start), columns.stop)
        return range(start, stop)

    def run(self, rows: list[int], columns: list[range], outputs: int = 1) -> None:
        """Put the tokens of some rows through the network."""
        length = len(columns[0])
        pairs = list(zip(rows, columns, strict=True))
        positions = [_positions(self.first[row] + one.start, length) for row, one in pairs]
        ubatch = Ubatch(
            tokens=_one_by_one([self.inputs[row, one.start : one.stop] for row, one in pairs]),
            positions=_one_by_one(positions),
            sets=len(rows),
            outputs=_last_rows(len(rows), length, outputs),
            padding=next((each.padding(rows, columns) for each in self.recurrent.values()), None),
        )
        group = self, rows, columns, positions
        self.several = self.network.run(ubatch, _GroupStore(*group)).logits
        if self.late:  # layers behind these turn their queries so, and keep no keys of their own
            late = ubatch._replace(positions=ubatch.positions + self.late)
            self.several = self.network.run(late, _GroupStore(*group, writes=False)).logits
        self.logits = self.several[outputs - 1 :: outputs]
        if len(rows) < len(self.inputs):
            self._rows.update(zip(rows, self.logits, strict=True))

    def finish(self) -> None:
        """Hand the new states to the recurrent layers; collect the logits."""
        for each in self.recurrent.values():
            each.finish()
        batch = len(self.inputs)
        if len(self.logits) == batch:  # all rows ran together, in their order
            return
        blank = np.zeros_like(next(iter(self._rows.values()))) if self._rows else np.zeros(1)
        self.logits = np.stack([self._rows.get(row, blank) for row in range(batch)])


@lru_cache(maxsize=256)
def _last_rows(sets: int, length: int, count: int) -> Integers:
    """The last rows of each set, so many of them; the same in every step of a reply."""
    ends = np.arange(1, sets + 1) * length
    rows = (ends[:, None] - np.arange(count, 0, -1)).reshape(-1)
    rows.flags.writeable = False
    return rows


def _positions(first: int, count: int) -> Integers:
    """Consecutive positions; padding before the first token has none, and is put to 0."""
    positions = np.arange(first, first + count)
    return positions if first >= 0 else np.maximum(positions, 0)


def _one_by_one(rows: list[Integers]) -> Integers:
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


class _GroupStore:
    """The `Store` of rows that run together, equally many tokens each."""

    planes = 1

    def __init__(
        self,
        call: _Call,
        rows: list[int],
        columns: list[range],
        positions: list[Integers],
        *,
        writes: bool = True,
    ) -> None:
        self._call = call
        self._rows = rows
        self._columns = columns
        self._positions = positions
        self._length = len(columns[0])
        self._writes = writes
        self._sights: dict[tuple[int, int | None], Sight] = {}  # by row and window

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Fill the placeholders of these columns; every row sees what its cache's mask allows."""
        found: list[Lane] = []
        cached = self._call.attention[layer]
        for index, row in enumerate(self._rows):
            shift = cached.offsets[row] - self._call.first[row]
            if self._writes:
                mine = slice(index * self._length, (index + 1) * self._length)
                self._write(cached, index, keys[mine], values[mine], shift)
            if self._call.computes:
                found += self._lanes(cached, index, shift)
        return tuple(found)

    def _write(
        self, cached: CachedRows, index: int, keys: Array, values: Array, shift: int
    ) -> None:
        positions = self._positions[index]
        if shift:
            keys = self._call.network.rotate(cached.shape.layer, keys, np.full(len(keys), shift))
            positions = positions + shift
        cached.write(self._rows[index], self._columns[index], positions, keys, values)

    def _lanes(self, cached: CachedRows, index: int, shift: int) -> list[Lane]:
        row, positions = self._rows[index], self._positions[index]
        keys, values, marks = cached.of_row(row)
        visible = cached.visible(row, self._columns[index])
        if shift:
            back = np.full(len(keys), -shift)
            keys = self._call.network.rotate(cached.shape.layer, keys, back)
            marks = np.where(marks > 0, marks.astype(np.int64) - shift, 0)
        sight = self._sights.get((index, cached.window))
        if sight is None or not sight.is_of(marks, visible):
            mine = np.arange(index * self._length, (index + 1) * self._length)
            sight = Sight.of(marks, visible, mine, cached.lowest(positions), positions)
            self._sights[index, cached.window] = sight
        return sight.lanes(keys, values)

    def states(self, layer: int) -> Array:
        """The state that each row starts from."""
        before = self._call.recurrent[layer].before
        return before if len(self._rows) == len(before) else before[self._rows]

    def keep_states(self, layer: int, states: Array) -> None:
        """The states after the tokens, (rows, planes, row)."""
        self._call.recurrent[layer].keep(self._rows, states)
