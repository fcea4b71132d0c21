"""A call of the model: a rectangle of columns, through the network and into the caches.

    inputs   0 0 a b c      the rows of the batch, padding included
             d e f g h

Upstream computes the whole rectangle and masks the padding. Here the caches first store
placeholders, one per column, so that their own rules decide the row and the visible keys of each
column; then the network computes the columns that are tokens and fills them in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache, CacheList
from cachesim.engines.mlx_lm.caches.kv_cache import (
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    SparseCache,
)
from cachesim.engines.mlx_lm.caches.layer_cache import (
    Bounds,
    Causal,
    LayerCache,
    Mask,
    UpstreamValueError,
    every,
    is_batch,
    same,
)
from cachesim.engines.mlx_lm.families import RecurrentRules
from cachesim.engines.mlx_lm.generate.shared import PromptCache, leaves
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.model.arithmetic import LayerShape, Network
from cachesim.model.build import arithmetic_of
from cachesim.model.spec import F16_BYTES, F32_BYTES
from cachesim.model.store import ABSENT, BLOCK, FAR, Frame, Lane, Lanes, Padding, Ubatch, lowest
from cachesim.units import Array, Integers


class Layout:
    """The caches of a network's layers, as the models of mlx-lm create them.

    Full attention has a `KVCache`, a window a `RotatingKVCache` without `keep`, a chunk a
    `ChunkedKVCache`, a recurrent layer an `ArraysCache` with the convolution's rows and the state;
    some families put a recurrent layer and the attention after it into one `CacheList`.
    """

    def __init__(
        self,
        network: Network,
        rules: CacheRules,
        recurrent: RecurrentRules,
        element_bytes: int = F16_BYTES,
    ) -> None:
        self.network = network
        self.shapes = network.shapes
        self.rules = rules
        self.recurrent = recurrent
        self.row_bytes = {
            shape.layer: (self._row_bytes(shape, element_bytes), self._row_bytes(shape, F32_BYTES))
            for shape in network.shapes
        }

    def make_cache(self) -> PromptCache:
        """Fresh caches for one sequence. Follows `make_prompt_cache`."""
        caches: PromptCache = []
        for shape in self.shapes:
            cache: LayerCache
            match shape.place:
                case "attention" | "window" if self.recurrent.sparse:
                    window = self.network.spec.window
                    cache = SparseCache(self.rules, window, groups=shape.place == "attention")
                case "attention":
                    cache = KVCache(self.rules)
                case "window" if self.network.spec.chunked:
                    cache = ChunkedKVCache(self.rules, self.network.spec.window)
                case "window":
                    cache = RotatingKVCache(self.rules, self.network.spec.window)
                case "recurrent":
                    cache = ArraysCache(
                        self.rules,
                        self.recurrent.slots,
                        is_mamba=self.recurrent.merges_slots_as_padding,
                    )
            cache.row_bytes, cache.wide_row_bytes = self.row_bytes[shape.layer]
            paired = self.recurrent.paired and not shape.marks and shape.place == "attention"
            if paired and caches and isinstance(caches[-1], ArraysCache):
                cache = CacheList(self.rules, caches.pop(), cache)
            caches.append(cache)
        return caches

    def window_of(self, shape: LayerShape) -> int | None:
        """The window in the layer's query for a mask."""
        return self.network.spec.window if shape.place == "window" else None

    def _row_bytes(self, shape: LayerShape, element_bytes: int) -> int:
        """Bytes of a row: numbers in the model's type, states in float32 by rule, marks none."""
        spec = self.network.spec
        if shape.marks:
            return 0
        if shape.place == "recurrent":
            state = F32_BYTES if self.recurrent.float32_state else element_bytes
            return element_bytes * spec.conv_row(shape.layer) + state * spec.state_row(shape.layer)
        if self.recurrent.sparse:
            return spec.head_size * element_bytes  # one latent, keys and values at once
        halves = spec.key_bytes(shape.layer) + spec.value_bytes(shape.layer)
        return halves * element_bytes // F16_BYTES


NOWHERE: Final = -1
"""The position of a row without one."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Index arrays from a cache's rows to a lane's: row `of[i]` is copied to row `to[i]`."""

    of: Integers | slice
    to: Integers | slice
    frame: Frame

    def lane(self, keys: Array, values: Array) -> Lane:
        """The lane of one layer's keys and values."""
        gathered = []
        for held in (keys, values):
            rows = np.zeros((len(self.frame.positions), *held.shape[1:]), held.dtype)
            rows[self.to] = held[self.of]
            gathered.append(rows)
        return self.frame.lane(*gathered)


@dataclass(frozen=True, slots=True)
class Visibility:
    """The keys that the columns of one row attend to, shared by layers with the same mask."""

    marks: Array  # (n,) the position of each key plus one
    visible: Array | Bounds | None  # (columns, n)
    gathers: tuple[Gather, ...]

    @classmethod
    def of(
        cls,
        marks: Array,
        visible: Array | Bounds | None,
        rows: Integers,
        low: Integers,
        high: Integers,
    ) -> "Visibility":
        """One lane if every column attends exactly to its positions, else a lane per column.

        `visible` is the mask of columns and keys, None without a restriction; the positions of a
        column are those from its `low` to its `high`.
        """
        places = marks.astype(np.int64) - 1
        places[places >= MARK - 1] = NOWHERE  # a placeholder that was never written
        gather = _common_gather(places, visible, rows, low, high)
        if gather is not None:
            return cls(marks, visible, (gather,))
        gathers = (
            _gather_of_one(places, np.flatnonzero(seen), row=int(row), position=int(position))
            for row, position, seen in zip(
                rows, high, _written(visible, len(rows), len(places)), strict=True
            )
        )
        return cls(marks, visible, tuple(gathers))

    def is_of(self, marks: Array, visible: Array | Bounds | None) -> bool:
        if not same(self.marks, marks):
            return False
        if isinstance(visible, np.ndarray) and isinstance(self.visible, np.ndarray):
            return same(self.visible, visible)
        return type(visible) is type(self.visible) and visible == self.visible

    def lanes(self, keys: Array, values: Array) -> list[Lane]:
        """The lanes of a layer's keys and values."""
        return [gather.lane(keys, values) for gather in self.gathers]


def _written(visible: Array | Bounds | None, columns: int, keys: int) -> Array:
    if visible is None:
        return np.ones((columns, keys), bool)
    return visible.dense(keys) if isinstance(visible, Bounds) else visible


def _common_gather(
    places: Integers, visible: Array | Bounds | None, rows: Integers, low: Integers, high: Integers
) -> Gather | None:
    """The lane of all columns, or None unless their masks show exactly the rows from `low` to
    `high`.

    Missing rows stay missing; rows without a position, or with a repeated one, prevent the lane.
    """
    used: Integers | slice = slice(0, len(places))
    if isinstance(visible, Bounds):
        used = visible.seen
    elif visible is not None and not every(visible[-1]):  # the last column attends to most
        some = np.flatnonzero(visible.any(axis=0))
        used = _as_slice(some) if len(some) else some
    seen = places[used]
    if not len(seen):
        return None
    where = _as_slice(seen)
    first, last = _ends(where)
    if first == NOWHERE or (
        isinstance(where, np.ndarray)
        and not (every(where[1:] > where[:-1]) or len(np.unique(where)) == len(where))
    ):
        return None
    shown = len(high) == 1 and low[0] <= first and last <= high[0]
    if not shown and isinstance(visible, Bounds) and isinstance(where, slice):
        shown = visible.shows(first, low, high)
    if not shown:
        mask = _written(visible, len(high), len(places))[:, used]
        if not same(mask, _between(seen, low, high)):
            return None
    base, size = _blocks(first, last)
    to = slice(first - base, last + 1 - base) if isinstance(where, slice) else where - base
    positions = np.full(size, ABSENT)
    positions[to] = seen
    return Gather(used, to, Frame(rows, positions, low, high))


def _between(seen: Integers, low: Integers, high: Integers) -> Array:
    between: Array = seen <= high[:, None]
    if low[-1] > seen.min():  # the bounds rise from column to column
        between &= seen >= low[:, None]
    return between


def _as_slice(numbers: Integers) -> Integers | slice:
    """Consecutive numbers as a slice, which copies whole blocks instead of rows."""
    first, stop = int(numbers[0]), int(numbers[-1]) + 1
    if stop - first == len(numbers) and same(numbers, np.arange(first, stop)):
        return slice(first, stop)
    return numbers


def _ends(numbers: Integers | slice) -> tuple[int, int]:
    if isinstance(numbers, slice):
        return numbers.start, numbers.stop - 1
    return int(numbers.min()), int(numbers.max())


def _blocks(first: int, last: int) -> tuple[int, int]:
    """The start of the first block with positions, and the size of all blocks up to the last."""
    base = first // BLOCK * BLOCK
    return base, -(-(last + 1 - base) // BLOCK) * BLOCK


def _gather_of_one(places: Integers, used: Integers, row: int, position: int) -> Gather:
    """Gather of one column; rows without a position, or with a repeated one, come last.

    | by position, whole blocks | the others, padded to a block |
    """
    _, firsts = np.unique(places[used], return_index=True)
    regular = np.zeros(len(used), bool)
    regular[firsts] = True
    regular &= places[used] != NOWHERE
    seen, others = places[used[regular]], np.flatnonzero(~regular)
    base, size = _blocks(*_ends(seen)) if len(seen) else (0, 0)
    more = max(BLOCK, -(-len(others) // BLOCK) * BLOCK) if len(others) or not len(used) else 0
    positions = np.full(size + more, ABSENT)
    positions[seen - base] = seen
    positions[size : size + max(1, len(others))] = position  # if there are any
    return Gather(
        of=np.concatenate((used[regular], used[others])),
        to=np.concatenate((seen - base, np.arange(size, size + len(others)))),
        frame=Frame(np.array([row]), positions, np.array([0]), np.array([FAR])),
    )


MARK: Final = 1 << 40
"""Mark of a placeholder, above every position; the difference is its column."""


@dataclass(slots=True, kw_only=True)
class CachedRows:
    """An attention layer: the buffers that its cache returned, with columns to fill."""

    shape: LayerShape
    keys: Array  # (batch, 1, n, key + 1), a view of the cache's own buffer
    values: Array
    mask: Array | Causal | None  # (batch, columns, n); None: every column sees every row
    landed: Integers | None  # (batch, columns), -1: dropped by the cache; None: the last rows
    columns: int
    offsets: list[int]  # (batch,), the position of each row's first column
    window: int | None
    chunked: bool
    quantized: QuantizedKVCache | None = None  # rounds the numbers to write

    @classmethod
    def place(
        cls, shape: LayerShape, layer: LayerCache, window: int | None, batch: int, columns: int
    ) -> "CachedRows":
        """Query the cache for its mask, and append the columns as placeholders."""
        chunked = isinstance(layer, ChunkedKVCache)
        if isinstance(layer, ChunkedKVCache):
            layer.maybe_trim_front()
        offsets = offsets_of(layer, batch)
        mask = layer.mask_of(columns, window_size=window)
        fresh = np.zeros((batch, 1, columns, prod(shape.key) + 1), shape.dtype)
        fresh[..., -1] = _marks(columns, fresh.dtype.char)
        blank = np.zeros((batch, 1, columns, prod(shape.value)), shape.dtype)
        keys, values = layer.update_and_fetch(fresh, blank)
        landed = _landed(keys[:, 0, :, -1], columns)
        return cls(
            shape=shape,
            keys=keys,
            values=values,
            mask=as_visible(mask, batch, columns, keys.shape[2]),
            landed=landed,
            columns=columns,
            offsets=offsets,
            window=window,
            chunked=chunked,
            quantized=layer if isinstance(layer, QuantizedKVCache) else None,
        )

    def write(
        self, row: int, columns: range, positions: Integers, keys: Array, values: Array
    ) -> None:
        """Fill in columns of one row."""
        if self.quantized is not None:
            keys, values = self.quantized.rounded_keys(keys), self.quantized.rounded(values)
        keys, values = keys.reshape(len(keys), -1), values.reshape(len(values), -1)
        places: slice | Integers
        if self.landed is None:
            end = self.keys.shape[2] - self.columns
            places = slice(end + columns.start, end + columns.stop)
        else:
            places = self.landed[row, columns.start : columns.stop]
            kept = places >= 0
            places, positions = places[kept], positions[kept]
            keys, values = keys[kept], values[kept]
        self.keys[row, 0, places, :-1] = keys
        self.keys[row, 0, places, -1] = positions + 1
        self.values[row, 0, places] = values

    def lowest(self, positions: Integers) -> Integers:
        """The first position that each column attends to, by position alone."""
        return lowest(positions, self.window or 0, chunked=self.chunked)

    def of_row(self, row: int) -> tuple[Array, Array, Array]:
        """The keys and values of one row of the batch, and the position of each plus one."""
        keys, count = self.keys[row, 0], self.keys.shape[2]
        rows = keys[:, :-1].reshape(count, *self.shape.key)
        values = self.values[row, 0].reshape(count, *self.shape.value)
        return rows, values, keys[:, -1]

    def visible(self, row: int, columns: range) -> Array | Bounds | None:
        """The mask of columns of one row, (columns, n); None: all keys."""
        if isinstance(self.mask, Causal):
            return self.mask.of_row(row, columns)
        return None if self.mask is None else self.mask[row, columns.start : columns.stop]


@lru_cache(maxsize=64)
def _marks(columns: int, dtype: str) -> Array:
    """The marks of the placeholders, the same in every layer."""
    marks = np.arange(MARK, MARK + columns).astype(dtype)
    marks.flags.writeable = False
    return marks


def _landed(marks: Array, columns: int) -> Integers | None:
    """Row of each column, (batch, columns), -1 if it was dropped; removes the marks.

    None in the common case: the last rows.
    """
    batch, count = marks.shape
    last = marks[:, count - columns :]
    if count >= columns and last.tobytes() == batch * _marks(columns, marks.dtype.char).tobytes():
        last[...] = 0
        return None
    landed = np.full((batch, columns), -1, np.int64)
    rows, places = np.nonzero(marks >= MARK)
    landed[rows, marks[rows, places].astype(np.int64) - MARK] = places
    marks[rows, places] = 0
    return landed


def offsets_of(layer: LayerCache, batch: int) -> list[int]:
    """The position of the next token of each row, as used by the layer's rotation."""
    offset: Any = layer.offset  # type: ignore[attr-defined]
    if isinstance(offset, int):
        return [offset] * batch
    offsets: list[int] = offset.tolist()
    return offsets if len(offsets) == batch else np.broadcast_to(offset, (batch,)).tolist()


def as_visible(mask: Mask | Causal, batch: int, columns: int, rows: int) -> Array | Causal | None:
    """A mask in any form as (batch, columns, rows); another size raises.

    A causal one of that size stays symbolic.
    """
    if mask is None:
        return None
    if isinstance(mask, str):
        mask = Causal(columns, rows - columns)
    if isinstance(mask, Causal):
        if mask.shape in ((columns, rows), (batch, 1, columns, rows)):
            return mask
        mask = mask.dense()
    wide = mask[:, 0] if mask.ndim == 4 else mask
    if wide.shape == (batch, columns, rows):
        return wide
    try:
        return np.broadcast_to(wide, (batch, columns, rows))
    except ValueError as error:
        raise UpstreamValueError(f"a mask of shape {mask.shape} for {rows} rows") from error


@dataclass(slots=True, kw_only=True)
class RecurrentRows:
    """A recurrent layer: its states before and after, and its handling of padding."""

    cache: ArraysCache
    rules: RecurrentRules
    conv: int  # numbers in the first of two slots
    mask: Array | None  # (batch, columns), True where a column updates the state; None: all
    lengths: Integers | None  # (batch,), the end of the tokens in the cache's fields
    before: Array  # (batch, row)
    after: Array  # (batch, row); the states before, until they are computed
    columns: int

    @classmethod
    def of(
        cls, shape: LayerShape, cache: ArraysCache, rules: RecurrentRules, batch: int, columns: int
    ) -> "RecurrentRows":
        """The states in a cache's slots; zeros for an empty slot."""
        sizes = (shape.conv, shape.row - shape.conv) if len(cache.cache) > 1 else (shape.row,)
        slots = [
            np.zeros((batch, size), shape.dtype) if state is None else state
            for state, size in zip(cache.cache, sizes, strict=True)
        ]
        for state in slots:
            if len(state) != batch:
                msg = f"states of {[len(slot) for slot in slots]} rows for a batch of {batch}"
                raise UpstreamValueError(msg)
        before = np.concatenate(slots, axis=1)
        mask = lengths = None
        if cache.may_pad(batch, columns):
            if cache.lengths is not None:
                lengths = np.broadcast_to(cache.lengths, (batch,))
            mask = _mask_of(cache, rules, batch, columns)
        return cls(
            cache=cache,
            rules=rules,
            conv=shape.conv,
            mask=mask,
            lengths=lengths,
            before=before,
            after=before,
            columns=columns,
        )

    def computed(self, row: int) -> range:
        """The columns of a row that affect the layer.

        Left padding does not if the layer applies its mask; right padding is computed if the layer
        uses it.
        """
        if self.mask is None:
            return range(self.columns)
        rules, tokens = self.rules, np.flatnonzero(self.mask[row])
        start = int(tokens[0]) if len(tokens) else self.columns
        scans_well = rules.scan_at_lengths and not rules.padding_decays
        if self.lengths is None or not rules.conv_at_lengths or (rules.chunked and not scans_well):
            return range(start, self.columns)
        return range(start, int(tokens[-1]) + 1 if len(tokens) else 0)

    def padding(self, rows: Sequence[int], columns: Sequence[range]) -> Padding | None:
        """Padding of some columns of some rows; None: all are tokens."""
        if self.mask is None:
            return None
        real = np.array(
            [self.mask[row, one.start : one.stop] for row, one in zip(rows, columns, strict=True)]
        )
        starts = np.array([one.start for one in columns])
        ends = None if self.lengths is None else self.lengths[list(rows)] - starts
        if real.all() and (ends is None or (ends >= real.shape[1]).all()):
            return None
        rules = self.rules
        return Padding(
            real=real,
            conv_ends=ends if rules.conv_at_lengths else None,
            chunked=rules.chunked,
            scan_ends=ends if rules.scan_at_lengths else None,
            scan_decays=rules.padding_decays,
        )

    def keep(self, rows: Sequence[int], states: Array) -> None:
        """Store the new states of some rows, (rows, 1, row)."""
        if len(rows) == len(self.before):  # all rows, in order
            self.after = states[:, 0].copy()
            return
        if self.after is self.before:
            self.after = self.before.copy()
        self.after[list(rows)] = states[:, 0]

    def finish(self) -> None:
        """Store the states in the slots, and count the columns."""
        slots = self.cache.cache
        if len(slots) > 1:
            slots[0], slots[1] = self.after[:, : self.conv], self.after[:, self.conv :]
        else:
            slots[0] = self.after
        if self.rules.advances:
            self.cache.advance(self.columns)


def _mask_of(cache: ArraysCache, rules: RecurrentRules, batch: int, columns: int) -> Array:
    """Follows `create_ssm_mask`, which is always called, even if the class ignores the mask."""
    mask = cache.make_mask(columns)
    if not rules.masks:
        mask = None
    allowed = np.ones((batch, columns), bool) if mask is None else np.asarray(mask)
    if allowed.shape not in ((1, columns), (batch, columns)):
        msg = f"a mask of shape {allowed.shape} for {batch} rows of {columns} columns"
        raise UpstreamValueError(msg)
    return np.broadcast_to(allowed, (batch, columns))


Group: TypeAlias = tuple[list[int], list[range]]
"""Rows of the batch, and the columns of each that are tokens, in equal numbers."""


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
        self._on_call = on_call or (lambda _rows, _columns: None)

    def make_cache(self) -> PromptCache:
        """Fresh caches for one sequence. Follows `make_prompt_cache`."""
        return self.layout.make_cache()

    def __call__(self, inputs: Integers, cache: PromptCache, *, outputs: int = 0) -> Array:
        """Feed columns (batch, columns); return the logits of each row's last column.

        With `outputs`, of its last ones: (batch, outputs, vocabulary), for a batch of one.
        """
        self._on_call(inputs.shape[0], inputs.shape[1])
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
    """Working state of one forward pass."""

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
        offsets = [rows.offsets for rows in self.attention.values()]
        self.first = (
            [max(of_row) for of_row in zip(*offsets, strict=True)] if offsets else [0] * batch
        )
        self.late = 0 if layout.recurrent.shares_in_time else columns  # shift of query positions
        self.logits: Array = np.zeros(0)
        self.several: Array = np.zeros(0)  # of the last columns of the last group's rows
        self._rows: dict[int, Array] = {}

    def groups(self) -> list[Group]:
        """Groups of rows with equal numbers of computed columns, which run as sets."""
        by_length: dict[int, Group] = {}
        for row in range(len(self.inputs)):
            columns = self._computed(row)
            if columns:
                rows, tokens = by_length.setdefault(len(columns), ([], []))
                rows.append(row)
                tokens.append(columns)
        return list(by_length.values())

    def _computed(self, row: int) -> range:
        """The columns of a row that are computed.

        Columns before position 0 are left padding, which recurrent layers compute unless they apply
        a mask. Columns after the tokens are computed if a recurrent layer uses them.
        """
        start, stop = max(0, -self.first[row]), self.inputs.shape[1]
        for rows in self.recurrent.values():
            columns = rows.computed(row)
            return range(min(start, columns.start), columns.stop)
        return range(start, stop)

    def run(self, rows: list[int], columns: list[range], outputs: int = 1) -> None:
        """Run the network on the tokens of some rows."""
        length = len(columns[0])
        pairs = list(zip(rows, columns, strict=True))
        positions = [_positions(self.first[row] + one.start, length) for row, one in pairs]
        ubatch = Ubatch(
            tokens=_one_by_one([self.inputs[row, one.start : one.stop] for row, one in pairs]),
            positions=_one_by_one(positions),
            sets=len(rows),
            outputs=_last_rows(len(rows), length, outputs),
            padding=next(
                (
                    recurrent_rows.padding(rows, columns)
                    for recurrent_rows in self.recurrent.values()
                ),
                None,
            ),
        )
        group = self, rows, columns, positions
        self.several = self.network.run(ubatch, _GroupStore(*group)).logits
        if self.late:  # for layers that share keys, which rotate their queries so
            late = ubatch._replace(positions=ubatch.positions + self.late)
            self.several = self.network.run(late, _GroupStore(*group, writes=False)).logits
        self.logits = self.several[outputs - 1 :: outputs]
        if len(rows) < len(self.inputs):
            self._rows.update(zip(rows, self.logits, strict=True))

    def finish(self) -> None:
        """Store the new states of recurrent layers; collect the logits."""
        for rows in self.recurrent.values():
            rows.finish()
        batch = len(self.inputs)
        if len(self.logits) == batch:  # all rows, in order
            return
        blank = np.zeros_like(next(iter(self._rows.values()))) if self._rows else np.zeros(1)
        self.logits = np.stack([self._rows.get(row, blank) for row in range(batch)])


@lru_cache(maxsize=256)
def _last_rows(sets: int, length: int, count: int) -> Integers:
    """The last rows of each set, cached for the steps of a reply."""
    ends = np.arange(1, sets + 1) * length
    rows = (ends[:, None] - np.arange(count, 0, -1)).reshape(-1)
    rows.flags.writeable = False
    return rows


def _positions(first: int, count: int) -> Integers:
    """Consecutive positions; 0 for padding before the first token."""
    positions = np.arange(first, first + count)
    return positions if first >= 0 else np.maximum(positions, 0)


def _one_by_one(rows: list[Integers]) -> Integers:
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


class _GroupStore:
    """The `Store` of rows that run together, with equal numbers of tokens."""

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
        self._visibility: dict[tuple[int, int | None], Visibility] = {}  # by row and window

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Fill the placeholders of these columns; return the lanes that each row's mask shows."""
        lanes: list[Lane] = []
        cached = self._call.attention[layer]
        for index, row in enumerate(self._rows):
            shift = cached.offsets[row] - self._call.first[row]
            if self._writes:
                mine = slice(index * self._length, (index + 1) * self._length)
                self._write(cached, index, keys[mine], values[mine], shift)
            if self._call.computes:
                lanes += self._lanes(cached, index, shift)
        return tuple(lanes)

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
        visibility = self._visibility.get((index, cached.window))
        if visibility is None or not visibility.is_of(marks, visible):
            mine = np.arange(index * self._length, (index + 1) * self._length)
            visibility = Visibility.of(marks, visible, mine, cached.lowest(positions), positions)
            self._visibility[index, cached.window] = visibility
        return visibility.lanes(keys, values)

    def states(self, layer: int) -> Array:
        """The initial state of each row."""
        before = self._call.recurrent[layer].before
        return before if len(self._rows) == len(before) else before[self._rows]

    def keep_states(self, layer: int, states: Array) -> None:
        """Store the states after the tokens, (rows, planes, row)."""
        self._call.recurrent[layer].keep(self._rows, states)
