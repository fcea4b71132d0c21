"""One call of the model: a rectangle of columns goes through the network and into the caches.

    inputs   0 0 a b c      the rows of the batch, padding and all
             d e f g h

Upstream computes the whole rectangle and masks what is padding. Here the caches first take up
placeholders, one per column, so that their own rules decide where each column comes to lie and
what it may look at; then the network computes the columns that are tokens and fills them in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.layer_cache import is_batch
from cachesim.engines.mlx_lm.caches.raised import UpstreamValueError
from cachesim.engines.mlx_lm.families import RecurrentRules
from cachesim.engines.mlx_lm.generate.lanes import lanes_of
from cachesim.engines.mlx_lm.generate.layout import Layout
from cachesim.engines.mlx_lm.generate.rows import CachedRows, RecurrentRows
from cachesim.engines.mlx_lm.generate.shared import PromptCache, leaves
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.model.arithmetic import Network
from cachesim.model.build import arithmetic_of
from cachesim.model.spec import F16_BYTES
from cachesim.model.store import Lanes, Ubatch
from cachesim.units import Array, Integers

Group: TypeAlias = tuple[list[int], Integers]
"""Rows of the batch, and for each of them the columns that are tokens, (rows, length)."""


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
        call = _Call(self.network, self.layout, inputs, cache)
        for group in call.groups():
            call.run(*group, max(1, outputs))
        call.finish()
        if outputs:
            return call.several[None]
        return call.logits


class _Call:
    """What one forward pass needs while it goes on."""

    def __init__(
        self, network: Network, layout: Layout, inputs: Integers, cache: PromptCache
    ) -> None:
        self.network = network
        self.computes = arithmetic_of(network) != "counts"
        self.inputs = inputs
        batch, columns = inputs.shape
        layers = list(zip(network.shapes, leaves(cache), strict=True))
        self.attention = {
            shape.layer: CachedRows.place(shape, layer, layout.window_of(shape), batch, columns)
            for shape, layer in layers
            if not isinstance(layer, ArraysCache)
        }
        self.recurrent = {
            shape.layer: RecurrentRows.of(shape, layer, layout.recurrent, inputs)
            for shape, layer in layers
            if isinstance(layer, ArraysCache)
        }
        self.first = self._positions_of_first_columns(batch)
        self.late = 0 if layout.recurrent.shares_in_time else columns  # how far queries are off
        self.logits: Array = np.zeros(0)
        self.several: Array = np.zeros(0)  # of the last columns of the last group's rows
        self._rows: dict[int, Array] = {}

    def _positions_of_first_columns(self, batch: int) -> Integers:
        """The furthest of the layers' own offsets; negative where a row begins with padding."""
        offsets = [each.offsets for each in self.attention.values()]
        return np.max(offsets, axis=0) if offsets else np.zeros(batch, np.int64)

    def groups(self) -> list[Group]:
        """Rows of which as many columns are computed run together, one set each."""
        by_length: dict[int, tuple[list[int], list[Integers]]] = {}
        for row in range(len(self.inputs)):
            columns = np.arange(*self._computed(row))
            if len(columns):
                rows, found = by_length.setdefault(len(columns), ([], []))
                rows.append(row)
                found.append(columns)
        return [(rows, np.stack(found)) for rows, found in by_length.values()]

    def _computed(self, row: int) -> tuple[int, int]:
        """The first column of a row that is computed, and the end.

        Columns before position 0 are left padding; recurrent layers read it unless a mask is there
        and they look at it. Columns behind the tokens are computed where a recurrent layer makes
        something of them.
        """
        start, stop = max(0, -int(self.first[row])), self.inputs.shape[1]
        for each in self.recurrent.values():
            real = np.flatnonzero(each.mask[row])
            return min(start, int(real[0]) if len(real) else stop), each.reach(row)
        return start, stop

    def run(self, rows: list[int], columns: Integers, outputs: int = 1) -> None:
        """Put the tokens of some rows through the network."""
        length = columns.shape[1]
        positions = np.maximum(self.first[rows][:, None] + columns, 0)
        ends = np.arange(1, len(rows) + 1) * length - 1
        ubatch = Ubatch(
            tokens=self.inputs[np.array(rows)[:, None], columns].reshape(-1),
            positions=positions.reshape(-1),
            sets=len(rows),
            outputs=(ends[:, None] + np.arange(1 - outputs, 1)).reshape(-1),
            padding=next((each.padding(rows, columns) for each in self.recurrent.values()), None),
        )
        store = _GroupStore(self, rows, columns, positions)
        self.several = self.network.run(ubatch, store).logits
        if self.late:  # layers behind these turn their queries so, and keep no keys of their own
            late = replace(ubatch, positions=ubatch.positions + self.late)
            self.several = self.network.run(late, replace(store, writes=False)).logits
        for row, logits in zip(rows, self.several[outputs - 1 :: outputs], strict=True):
            self._rows[row] = logits

    def finish(self) -> None:
        """Hand the new states to the recurrent layers; collect the logits."""
        for each in self.recurrent.values():
            each.finish()
        batch = len(self.inputs)
        blank = np.zeros_like(next(iter(self._rows.values()))) if self._rows else np.zeros(1)
        self.logits = np.stack([self._rows.get(row, blank) for row in range(batch)])


@dataclass(frozen=True, slots=True)
class _GroupStore:
    """The `Store` of rows that run together, `length` tokens each."""

    call: _Call
    rows: Sequence[int]
    columns: Integers
    positions: Integers
    planes: int = 1
    writes: bool = True

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Fill the placeholders of these columns; every row sees what its cache's mask allows."""
        cached = self.call.attention[layer]
        length = self.columns.shape[1]
        shifts = cached.offsets[list(self.rows)] - self.call.first[list(self.rows)]
        found: list[Lanes] = []
        for index, row in enumerate(self.rows):
            mine = slice(index * length, (index + 1) * length)
            shift = int(shifts[index])
            written = keys[mine]
            if shift:
                written = self.call.network.rotate(layer, written, np.full(length, shift))
            positions = self.positions[index] + shift
            if self.writes:
                cached.write(row, self.columns[index], positions, written, values[mine])
            if not self.call.computes:
                continue
            seen = cached.seen(row, self.columns[index])
            if shift:
                back = np.full(len(seen.keys), -shift)
                seen = seen.moved(self.call.network.rotate(layer, seen.keys, back), -shift)
            rows = np.arange(mine.start, mine.stop)
            low = cached.lowest(self.positions[index])
            found.append(lanes_of(seen, rows, low, self.positions[index]))
        return tuple(lane for lanes in found for lane in lanes)

    def states(self, layer: int) -> Array:
        """The state that each row starts from."""
        return self.call.recurrent[layer].before[list(self.rows)]

    def keep_states(self, layer: int, states: Array) -> None:
        """The states after the tokens, (rows, planes, row)."""
        self.call.recurrent[layer].keep(self.rows, states)
