"""The rows of one layer during a forward pass: where columns land, what they see, what they leave.

Keys carry one number more than the network gives them: their position plus one, 0 where a row
holds none (padding, or zeros that a bug put there). Whatever a cache does with its rows, rolling,
cutting, merging, the positions go with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.chunked_kv_cache import ChunkedKVCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.caches.masks import Mask
from cachesim.engines.mlx_lm.caches.quantized_kv_cache import QuantizedKVCache
from cachesim.engines.mlx_lm.caches.raised import UpstreamValueError
from cachesim.engines.mlx_lm.families import RecurrentRules
from cachesim.model.arithmetic import LayerShape
from cachesim.model.store import Padding
from cachesim.units import Array, Integers

MARK: Final = 1 << 40
"""Above every position: the mark of a placeholder, which says which column it stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the columns of one row may look at: key `i` by column `c` where `visible[c, i]`."""

    keys: Array  # (n, *key shape)
    values: Array  # (n, *value shape)
    positions: Integers  # (n,), -1 where a row has none
    visible: Array  # (columns, n)

    def moved(self, keys: Array, by: int) -> "Seen":
        """The same rows as if they lay elsewhere."""
        positions = np.where(self.positions >= 0, self.positions + by, -1)
        return replace(self, keys=keys, positions=positions)


@dataclass(slots=True, kw_only=True)
class CachedRows:
    """One attention layer: the buffers that its cache handed back, columns not yet filled in."""

    shape: LayerShape
    keys: Array  # (batch, 1, n, key + 1), a view of the cache's own buffer
    values: Array
    visible: Array  # (batch, columns, n)
    landed: Integers  # (batch, columns), -1 where the cache lost the column
    offsets: Integers  # (batch,), the position of each row's first column
    window: int | None
    chunked: bool
    quantized: QuantizedKVCache | None = None  # what rounds the numbers that are written

    @classmethod
    def place(
        cls, shape: LayerShape, layer: LayerCache, window: int | None, batch: int, columns: int
    ) -> "CachedRows":
        """Ask the cache for its mask and let it take up the columns."""
        if isinstance(layer, ChunkedKVCache):
            layer.maybe_trim_front()
        offsets = offsets_of(layer, batch)
        mask = layer.make_mask(columns, window_size=window)
        width = int(np.prod(shape.key))
        fresh = np.zeros((batch, 1, columns, width + 1), shape.dtype)
        fresh[..., -1] = np.arange(MARK, MARK + columns)
        blank = np.zeros((batch, 1, columns, int(np.prod(shape.value))), shape.dtype)
        keys, values = layer.update_and_fetch(fresh, blank)
        landed = _landed(keys[:, 0, :, -1], columns)
        visible = as_visible(mask, batch, columns, keys.shape[2])
        return cls(
            shape=shape,
            keys=keys,
            values=values,
            visible=visible,
            landed=landed,
            offsets=offsets,
            window=window,
            chunked=isinstance(layer, ChunkedKVCache),
            quantized=layer if isinstance(layer, QuantizedKVCache) else None,
        )

    def write(
        self, row: int, columns: Integers, positions: Integers, keys: Array, values: Array
    ) -> None:
        """Fill in columns of one row."""
        if self.quantized is not None:
            keys, values = self.quantized.rounded_keys(keys), self.quantized.rounded(values)
        places = self.landed[row, columns]
        kept = places >= 0
        places = places[kept]
        self.keys[row, 0, places, :-1] = keys.reshape(len(keys), -1)[kept]
        self.keys[row, 0, places, -1] = positions[kept] + 1
        self.values[row, 0, places] = values.reshape(len(values), -1)[kept]

    def lowest(self, positions: Integers) -> Integers:
        """The first position that each column sees, if its row lies as it should."""
        if self.window is None:
            return np.zeros_like(positions)
        if self.chunked:
            return positions // self.window * self.window
        return np.maximum(positions - self.window + 1, 0)

    def seen(self, row: int, columns: Integers) -> Seen:
        """What columns of one row may look at now."""
        keys = self.keys[row, 0]
        return Seen(
            keys=keys[:, :-1].reshape(len(keys), *self.shape.key),
            values=self.values[row, 0].reshape(len(keys), *self.shape.value),
            positions=keys[:, -1].astype(np.int64) - 1,
            visible=self.visible[row, columns],
        )


def _landed(marks: Array, columns: int) -> Integers:
    """Where each column lies, (batch, columns), -1 where it is lost; the marks are taken away.

    Nearly always they are the last rows: then the others need not be looked at.
    """
    batch, count = marks.shape
    last = np.arange(count - columns, count)
    if count >= columns and (marks[:, last] == np.arange(MARK, MARK + columns)).all():
        marks[:, last] = 0
        return np.tile(last, (batch, 1))
    landed = np.full((batch, columns), -1, np.int64)
    rows, places = np.nonzero(marks >= MARK)
    landed[rows, marks[rows, places].astype(np.int64) - MARK] = places
    marks[rows, places] = 0
    return landed


def offsets_of(layer: LayerCache, batch: int) -> Integers:
    """The position of the next token of each row, as the layer's own rotation takes it."""
    offset: Any = layer.offset  # type: ignore[attr-defined]
    return np.broadcast_to(np.asarray(offset, np.int64), (batch,)).copy()


def as_visible(mask: Mask, batch: int, columns: int, rows: int) -> Array:
    """A mask in any of its forms as (batch, columns, rows); one of another size raises."""
    if mask is None:
        return np.ones((batch, columns, rows), bool)
    if isinstance(mask, str):
        mask = np.arange(rows) <= np.arange(rows - columns, rows)[:, None]
    wide = mask[:, 0] if mask.ndim == 4 else mask
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
    sizes: tuple[int, ...]  # numbers in each slot
    mask: Array  # (batch, columns), True where the layer lets a column into the state
    lengths: Integers | None  # (batch,), where the cache believes the tokens to end
    before: Array  # (batch, row)
    after: Array  # (batch, row)
    columns: int

    @classmethod
    def of(
        cls, shape: LayerShape, cache: LayerCache, rules: RecurrentRules, inputs: Integers
    ) -> "RecurrentRows":
        """The states in a cache's slots; a slot that holds nothing is a state of zeros."""
        if not isinstance(cache, ArraysCache):
            raise TypeError
        batch, columns = inputs.shape
        sizes = (shape.conv, shape.row - shape.conv) if len(cache.cache) > 1 else (shape.row,)
        slots = [
            np.zeros((batch, size), shape.dtype) if state is None else state
            for state, size in zip(cache.cache, sizes, strict=True)
        ]
        if any(len(state) != batch for state in slots):
            msg = f"states of {[len(state) for state in slots]} rows for a batch of {batch}"
            raise UpstreamValueError(msg)
        before = np.concatenate(slots, axis=1)
        lengths = cache.lengths
        return cls(
            cache=cache,
            rules=rules,
            sizes=sizes,
            mask=_mask_of(cache, rules, batch, columns),
            lengths=None if lengths is None else np.broadcast_to(lengths, (batch,)),
            before=before,
            after=before.copy(),
            columns=columns,
        )

    def reach(self, row: int) -> int:
        """Up to where columns of a row matter to the layer: padding behind that changes nothing."""
        rules, tokens = self.rules, np.flatnonzero(self.mask[row])
        scans_well = rules.scan_at_lengths and not rules.padding_decays
        if self.lengths is None or not rules.conv_at_lengths or (rules.chunked and not scans_well):
            return self.columns
        return int(tokens[-1]) + 1 if len(tokens) else 0

    def padding(self, rows: Sequence[int], columns: Integers) -> Padding | None:
        """How the layer meets some columns of some rows; None: all are tokens."""
        real = np.take_along_axis(self.mask[list(rows)], columns, axis=1)
        ends = None if self.lengths is None else self.lengths[list(rows)] - columns[:, 0]
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
        self.after[list(rows)] = states[:, 0]

    def finish(self) -> None:
        """Put the states into the slots and count the columns."""
        ends = np.cumsum(self.sizes)
        for slot, (size, end) in enumerate(zip(self.sizes, ends, strict=True)):
            self.cache[slot] = self.after[:, end - size : end]
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
