"""The rows of one layer during a forward pass: where columns land, what they see, what they leave.

Keys carry one number more than the network gives them: their position plus one, 0 where a row
holds none (padding, or zeros that a bug put there). Whatever a cache does with its rows, rolling,
cutting, merging, the positions go with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Final

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.chunked_kv_cache import ChunkedKVCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.caches.masks import Bounds, Causal, Mask
from cachesim.engines.mlx_lm.caches.quantized_kv_cache import QuantizedKVCache
from cachesim.engines.mlx_lm.caches.raised import UpstreamValueError
from cachesim.engines.mlx_lm.families import RecurrentRules
from cachesim.model.arithmetic import LayerShape
from cachesim.model.store import Padding, lowest
from cachesim.units import Array, Integers

MARK: Final = 1 << 40
"""Above every position: the mark of a placeholder, which says which column it stands for."""


@dataclass(slots=True, kw_only=True)
class CachedRows:
    """One attention layer: the buffers that its cache handed back, columns not yet filled in."""

    shape: LayerShape
    keys: Array  # (batch, 1, n, key + 1), a view of the cache's own buffer
    values: Array
    mask: Array | Causal | None  # (batch, columns, n); None: every column sees every row
    landed: Integers | None  # (batch, columns), -1: the cache lost it; None: the last rows
    columns: int
    offsets: list[int]  # (batch,), the position of each row's first column
    window: int | None
    chunked: bool
    quantized: QuantizedKVCache | None = None  # what rounds the numbers that are written

    @classmethod
    def place(
        cls, shape: LayerShape, layer: LayerCache, window: int | None, batch: int, columns: int
    ) -> "CachedRows":
        """Ask the cache for its mask and let it take up the columns."""
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
        """The first position that each column sees, if its row lies as it should."""
        return lowest(positions, self.window or 0, chunked=self.chunked)

    def of_row(self, row: int) -> tuple[Array, Array, Array]:
        """The keys and values of one row of the batch, and the position of each plus one."""
        keys, values = self.keys[row, 0], self.values[row, 0]
        rows, count = keys[:, :-1], len(keys)
        if len(self.shape.key) > 1:
            rows, values = (
                rows.reshape(count, *self.shape.key),
                values.reshape(count, *self.shape.value),
            )
        return rows, values, keys[:, -1]

    def visible(self, row: int, columns: range) -> Array | Bounds | None:
        """Which keys of one row its columns may look at, (columns, n); None: all."""
        if isinstance(self.mask, Causal):
            return self.mask.of_row(row, columns)
        return None if self.mask is None else self.mask[row, columns.start : columns.stop]


@lru_cache(maxsize=64)
def _marks(columns: int, dtype: str) -> Array:
    """The marks of so many placeholders; they are the same in every layer."""
    marks = np.arange(MARK, MARK + columns).astype(dtype)
    marks.flags.writeable = False
    return marks


def _landed(marks: Array, columns: int) -> Integers | None:
    """Where each column lies, (batch, columns), -1 where it is lost; the marks are taken away.

    Nearly always they are the last rows: then the others need not be looked at, and this is None.
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
    """The position of the next token of each row, as the layer's own rotation takes it."""
    offset: Any = layer.offset  # type: ignore[attr-defined]
    if isinstance(offset, int):
        return [offset] * batch
    offsets: list[int] = offset.tolist()
    return offsets if len(offsets) == batch else np.broadcast_to(offset, (batch,)).tolist()


def as_visible(mask: Mask | Causal, batch: int, columns: int, rows: int) -> Array | Causal | None:
    """A mask in any of its forms as (batch, columns, rows); one of another size raises.

    A causal one need not be written out where it has that size already.
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
        msg = f"a mask of shape {mask.shape} for {rows} rows"
        raise UpstreamValueError(msg) from error


@dataclass(slots=True, kw_only=True)
class RecurrentRows:
    """One recurrent layer: its states before, what it does with padding, its states after."""

    cache: ArraysCache
    rules: RecurrentRules
    conv: int  # numbers in the first slot, where there are two
    mask: Array | None  # (batch, columns), True where a column goes into the state; None: all do
    lengths: Integers | None  # (batch,), where the cache believes the tokens to end
    before: Array  # (batch, row)
    after: Array  # (batch, row); the states before, as long as nothing was computed
    columns: int

    @classmethod
    def of(
        cls, shape: LayerShape, cache: ArraysCache, rules: RecurrentRules, batch: int, columns: int
    ) -> "RecurrentRows":
        """The states in a cache's slots; a slot that holds nothing is a state of zeros."""
        sizes = (shape.conv, shape.row - shape.conv) if len(cache.cache) > 1 else (shape.row,)
        slots = [
            np.zeros((batch, size), shape.dtype) if state is None else state
            for state, size in zip(cache.cache, sizes, strict=True)
        ]
        for state in slots:
            if len(state) != batch:
                msg = f"states of {[len(each) for each in slots]} rows for a batch of {batch}"
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
        """The columns of a row that matter to the layer.

        Padding in front does not where the layer looks at its mask; padding behind is computed
        where the layer makes something of it.
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
        """How the layer meets some columns of some rows; None: all are tokens."""
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
        """What the layer made of some rows, (rows, 1, row)."""
        if len(rows) == len(self.before):  # in their order: all of them run together
            self.after = states[:, 0].copy()
            return
        if self.after is self.before:
            self.after = self.before.copy()
        self.after[list(rows)] = states[:, 0]

    def finish(self) -> None:
        """Put the states into the slots and count the columns."""
        slots = self.cache.cache
        if len(slots) > 1:
            slots[0], slots[1] = self.after[:, : self.conv], self.after[:, self.conv :]
        else:
            slots[0] = self.after
        if self.rules.advances:
            self.cache.advance(self.columns)


def _mask_of(cache: ArraysCache, rules: RecurrentRules, batch: int, columns: int) -> Array:
    """Follows `create_ssm_mask`, which is always asked, and whether the class looks at it."""
    mask = cache.make_mask(columns)
    if not rules.masks:
        mask = None
    allowed = np.ones((batch, columns), bool) if mask is None else np.asarray(mask)
    if allowed.shape not in ((1, columns), (batch, columns)):
        msg = f"a mask of shape {allowed.shape} for {batch} rows of {columns} columns"
        raise UpstreamValueError(msg)
    return np.broadcast_to(allowed, (batch, columns))
