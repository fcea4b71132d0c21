"""`BatchRotatingKVCache`: several rings that turn together, padded on the left."""

from collections.abc import Sequence

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays import (
    added,
    indexed,
    integers,
    joined,
    rolled_rows,
    rows_of,
    some,
)
from cachesim.engines.mlx_lm.caches.batches import BatchCache, blank_batch, extended, place_rows
from cachesim.engines.mlx_lm.caches.layer_cache import (
    MISSING,
    Announced,
    Missing,
    State,
    inherit_bytes,
)
from cachesim.engines.mlx_lm.caches.masks import Causal, Mask
from cachesim.engines.mlx_lm.caches.raised import (
    UpstreamRuntimeError,
    UpstreamTypeError,
    UpstreamValueError,
)
from cachesim.engines.mlx_lm.caches.rotating_kv_cache import RotatingKVCache
from cachesim.engines.mlx_lm.caches.rows_cache import RingCache
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.units import Array, Integers


class BatchRotatingKVCache(RingCache, BatchCache, batches=RotatingKVCache):
    """Keys and values of a batch of windows; there is no `keep`.

    `offset` counts each row's tokens, `_offset` the tokens written since the batch was made. Once
    `rotated`, the ring's oldest row is at `_idx`, and left padding counts down with every write,
    below zero too.
    """

    def __init__(self, rules: CacheRules, max_size: int, left_padding: Sequence[int]) -> None:
        super().__init__(rules, left_padding)
        self.max_size = max_size
        self._offset = 0
        self.rotated = False
        self._lengths: Integers | Missing | None = None

    @property
    def fill(self) -> int:
        """Tokens written, common to all rows; upstream's `_offset`."""
        return self._offset

    @property
    def lengths(self) -> Integers | None:
        """End of each row's tokens, while right padding is pending; `_lengths`."""
        if isinstance(self._lengths, Missing):
            self.lacks("_lengths")
        return self._lengths

    def temporal_order(self) -> None:
        """Unroll the ring in place; follows `BatchRotatingKVCache._temporal_order`."""
        if self.rotated:
            self.keys = np.roll(some(self.keys), -self._idx, axis=2)
            self.values = np.roll(some(self.values), -self._idx, axis=2)
            self._idx = rows_of(self.keys)
            self.rotated = False

    def _update_concat(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Unroll, roll right-padded rows flush, drop the oldest, append; as `_update_concat`."""
        if self.keys is None:
            self.keys, self.values = keys.copy(), values.copy()
        else:
            self.temporal_order()
            if rows_of(self.keys) > self._idx:
                self.keys = self.keys[:, :, : self._idx]
                self.values = some(self.values)[:, :, : self._idx]
            self._roll_padding()
            excess = max(0, self._idx - self.max_size + 1)
            self.left_padding = self.left_padding - excess
            self.keys = joined((some(self.keys)[:, :, excess:], keys))
            self.values = joined((some(self.values)[:, :, excess:], values))
        self.offset = self.offset + keys.shape[2]
        self._offset += keys.shape[2]
        self._idx = rows_of(self.keys)
        return self.keys, some(self.values)

    def _roll_padding(self) -> None:
        """Move what lies beyond each row's end to its front, so that it cannot evict tokens."""
        lengths = self.lengths
        if lengths is None:
            return
        roll = np.maximum(0, added(self.offset, -lengths))
        self.keys = rolled_rows(self.keys, roll)
        self.values = rolled_rows(self.values, roll)
        self.left_padding = added(self.left_padding, roll)
        self.offset = added(self.offset, -roll)

    def _update_in_place(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Grow up to W rows, then go round; follows `_update_in_place`."""
        if self.lengths is not None:
            msg = "finalize() comes before single columns"
            raise UpstreamRuntimeError(msg)
        self._grow(keys, values)
        excess = rows_of(self.keys) - self.max_size
        if excess > 0:
            self.keys = some(self.keys)[:, :, excess:].copy()
            self.values = some(self.values)[:, :, excess:].copy()
            self._idx = self.max_size
            self.left_padding = self.left_padding - excess
        if self._idx == self.max_size:
            self.rotated = True
            self._idx = 0
        if self.rotated:
            self.left_padding = self.left_padding - 1
        self._write(self._idx, self._idx + 1, keys, values)
        self._offset += 1
        self.offset = self.offset + 1
        self._idx += 1
        return self.keys_and_values()

    def announce(self, padding: Announced) -> None:
        """Left padding at once; right padding as absolute ends. Follows upstream's method."""
        self._pad(padding.left_padding)
        if padding.right_padding is not None and max(padding.right_padding) > 0:
            if padding.lengths is None:
                msg = "an array cannot be made of None"
                raise UpstreamTypeError(msg)
            self._lengths = added(integers(padding.lengths), self.offset)

    def finalize(self) -> None:
        """A last roll; follows `BatchRotatingKVCache.finalize`."""
        if self.lengths is not None:
            self._roll_padding()
            self._lengths = None

    @property
    def state(self) -> State:
        if self.rules.state_form == "whole":
            return (
                self.keys,
                self.values,
                self.offset,
                self.left_padding,
                self.max_size,
                self._offset,
                self._idx,
                self.rotated,
            )
        keys, values = self.keys_and_values()
        return keys, values, self.offset, self.left_padding

    @property
    def meta_state(self) -> State:
        return tuple(map(str, (self.max_size, self._offset, self._idx, self.rotated)))

    def put_state(self, state: State, meta_state: State) -> None:
        self._lengths = MISSING
        if self.rules.state_form == "whole":
            self.keys, self.values, self.offset, self.left_padding = state[:4]
            self.max_size, self._offset, self._idx, self.rotated = state[4:]
            return
        self.keys, self.values, self.offset, self.left_padding = state
        self.max_size, self._offset, self._idx = map(int, meta_state[:3])
        restored = (
            meta_state[3] == "True" if self.rules.rotated_is_restored else bool(meta_state[3])
        )
        self.rotated = restored

    def is_trimmable(self) -> bool:
        return self.rules.rotating_unrolls_on_trim or self._offset < self.max_size

    def trim(self, n: int) -> int:
        """Move the common end back, unchecked; follows `BatchRotatingKVCache.trim`."""
        if self.rules.rotating_unrolls_on_trim:
            return self._trim_unrolled(n)
        n = min(self._offset, n)
        self._offset -= n
        self._idx -= n
        self.offset = self.offset - n
        return n

    def _trim_unrolled(self, n: int) -> int:
        """#999: unroll, keep the first rows of the buffer."""
        effective = min(self._offset, self.max_size)
        n = min(effective, n)
        left = effective - n
        if left == 0:
            self.keys = self.values = None
            self.rotated = False
        else:
            self.temporal_order()
            self.keys = some(self.keys)[:, :, :left].copy()
            self.values = some(self.values)[:, :, :left].copy()
        self._offset = self._idx = left
        self.offset = self.offset - n
        return n

    def size(self) -> int:
        if not self.rules.batch_size_method:
            return super().size()
        return self.as_size(min(self._offset, self.max_size))

    def mask_of(self, columns: int, *, window_size: int | None = None) -> Mask | Causal:
        """A windowed mask without each row's padding, rolled for a single column of a ring.

        Follows `BatchRotatingKVCache.make_mask`.
        On a turned ring `_idx` is not the number of rows, and the rows that the write is about to
        drop are overlooked: padding seems longer than it is (an oddity, see `ring-mask`).
        """
        window = window_size or self.max_size
        offset = min(self.max_size - 1, self._offset)
        left_padding = self.left_padding
        rows = self._idx
        if self.rules.ring_mask_counts_rows and self.rotated and columns > 1:
            rows = rows_of(self.keys)
        excess = rows - self.max_size + int(columns > 1)
        if excess > 0:
            left_padding = left_padding - excess
        turning = columns == 1 and (self.rotated or self._idx >= self.max_size)
        if turning:
            left_padding = left_padding - 1
        mask = Causal(columns, offset, window, tuple(left_padding.tolist()))
        if turning:
            position = 0 if self._idx >= self.max_size else self._idx
            return np.roll(mask.dense(), position + 1, axis=-1)
        return mask

    def extend(self, other: "BatchRotatingKVCache") -> None:
        if self._takes_empty(other):
            return
        if self.rotated != other.rotated or self._idx != other.idx:
            self.temporal_order()
            other.temporal_order()
        end = max(self._idx, other.idx)
        joint = extended(self, other, self.rules)
        self.keys, self.values, self.offset, self.left_padding = joint
        self._idx = end
        self._offset = max(self._offset, other.fill)

    def extract(self, row: int) -> RotatingKVCache:
        """Cut one row out of the unrolled ring; follows `BatchRotatingKVCache.extract`."""
        cache = RotatingKVCache(self.rules, self.max_size)
        inherit_bytes(cache, self)
        if self.keys is None and self.rules.rotating_unrolls_on_trim:
            return cache
        padding = int(self.left_padding[row])
        if self.rules.rotating_extract == "clamped":
            padding = max(0, padding)
        keys = indexed(self.keys)[row : row + 1]
        values = indexed(self.values)[row : row + 1]
        end = self._idx
        if self.rotated:
            keys, values = np.roll(keys, -end, axis=2), np.roll(values, -end, axis=2)
            end = self.max_size
        uncut = padding <= 0 and self.rules.rotating_extract == "uncut"
        cut = slice(None) if uncut else slice(padding, end)
        cache.adopt(keys[:, :, cut].copy(), values[:, :, cut].copy(), int(self.offset[row]))
        return cache

    @classmethod
    def merge(cls, caches: Sequence[RotatingKVCache]) -> "BatchRotatingKVCache":
        """Put rings side by side, oldest row first, flush at the end; as upstream's `merge`."""
        rules, max_size = caches[0].rules, caches[0].max_size
        if any(each.max_size != max_size for each in caches):
            msg = "BatchRotatingKVCache can only merge caches with the same maximum size"
            raise UpstreamValueError(msg)
        lengths = [each.size() for each in caches]
        longest = max(lengths)
        padding = [longest - length for length in lengths]
        batch = cls(rules, max_size, padding)
        inherit_bytes(batch, next((each for each in caches if not each.empty()), caches[0]))
        if longest == 0 and rules.merge_of_empties:
            return batch
        keys = blank_batch([each.keys for each in caches], longest)
        values = blank_batch([each.values for each in caches], longest)
        for row, (left, length, cache) in enumerate(zip(padding, lengths, caches, strict=True)):
            if cache.keys is not None or not rules.merge_skips_empty:
                some(cache.keys)
                last = -length if rules.rotating_merge == "last-rows" else None
                width = {"by-index": cache.idx, "by-offset": cache.offset}
                place = slice(left, left + width.get(rules.rotating_merge, length))
                place_rows(keys, row, place, cache.temporal_order(cache.keys)[:, :, last:])
                place_rows(values, row, place, cache.temporal_order(cache.values)[:, :, last:])
        batch.keys, batch.values = keys, values
        batch.offset = integers([each.offset for each in caches])
        batch._idx = batch._offset = longest
        return batch
