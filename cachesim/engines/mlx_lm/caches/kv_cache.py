"""`KVCache` and its relatives: keys and values of one sequence."""

from typing import ClassVar, Final

import numpy as np

from cachesim.engines.mlx_lm.caches.layer_cache import (
    Causal,
    LayerCache,
    Mask,
    State,
    UpstreamNotImplementedError,
    UpstreamValueError,
    attention_mask,
    blank,
    create_attention_mask,
    grown,
    indexed,
    joined,
    rows_of,
    some,
    write_rows,
    written_out,
)
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.model.spec import F32_BYTES
from cachesim.units import Array, Integers


class RowsCache(LayerCache, shared=True):
    """Buffers of keys and values that grow in whole steps."""

    step: ClassVar[int] = 256

    def __init__(self, rules: CacheRules) -> None:
        super().__init__(rules)
        self.keys: Array | None = None
        self.values: Array | None = None

    def empty(self) -> bool:
        return self.keys is None

    def count_bytes(self) -> int:
        if self.keys is None or self.values is None:
            return 0
        # Bytes of the real model's rows; the simulated ones are smaller or wider.
        if self.row_bytes is None:
            return int(self.keys.nbytes + self.values.nbytes)
        return int(self.keys.shape[0] * self.keys.shape[2] * self.row_bytes)

    def _make_room(self, used: int, keys: Array, values: Array) -> None:
        if self.keys is None or used + keys.shape[2] > rows_of(self.keys):
            self.keys = grown(self.keys, used, keys, self.step)
            self.values = grown(self.values, used, values, self.step)

    def _write(self, start: int, stop: int, keys: Array, values: Array) -> None:
        write_rows(some(self.keys), start, stop, keys)
        write_rows(some(self.values), start, stop, values)


class RingCache(RowsCache, shared=True):
    """Rows that wrap around at `max_size`."""

    max_size: int
    _idx: int

    @property
    def idx(self) -> int:
        """Index of the next row; upstream's `_idx`."""
        return self._idx

    @property
    def fill(self) -> int:
        """Number of tokens that count for the ring."""
        raise NotImplementedError

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Write one column in place, several at the end; follows upstream's method."""
        # Trap: one column is written into the ring, several make it longer than `max_size`.
        if keys.shape[2] == 1:
            return self._update_in_place(keys, values)
        return self._update_concat(keys, values)

    def _update_in_place(self, keys: Array, values: Array) -> tuple[Array, Array]:
        raise NotImplementedError

    def _update_concat(self, keys: Array, values: Array) -> tuple[Array, Array]:
        raise NotImplementedError

    def _grow(self, keys: Array, values: Array) -> None:
        prev = self.fill
        # Rows are added until the ring is full, never beyond.
        if self.keys is not None and rows_of(self.keys) > min(prev, self.max_size - 1):
            return
        count = min(self.step, self.max_size - prev)
        more = blank(keys, count), blank(values, count)
        if self.keys is not None:
            more = joined((self.keys, more[0])), joined((some(self.values), more[1]))
        self.keys, self.values = more
        self._idx = prev

    def keys_and_values(self) -> tuple[Array, Array]:
        """The used rows, in ring order once it is full; follows upstream's method."""
        keys, values = some(self.keys), some(self.values)
        if self.fill < keys.shape[2]:
            return keys[:, :, : self.fill], values[:, :, : self.fill]
        return keys, values


class KVCache(RowsCache):
    """Keys and values of one sequence.

    [0, offset) tokens   [offset, rows) allocated, or left by a trim
    """

    has_merge = True

    def __init__(self, rules: CacheRules) -> None:
        super().__init__(rules)
        self.offset = 0

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Write after `offset`; follows `KVCache.update_and_fetch`."""
        prev = self.offset
        self._make_room(prev, keys, values)
        self.offset += keys.shape[2]
        self._write(prev, self.offset, keys, values)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Array, Array]:
        """The first `offset` rows; follows `KVCache.keys_and_values`."""
        return some(self.keys)[:, :, : self.offset], some(self.values)[:, :, : self.offset]

    def size(self) -> int:
        return self.as_size(self.offset)

    @property
    def state(self) -> State:
        if self.rules.state_form == "whole":
            return self.keys, self.values, self.offset
        return self.keys_and_values()

    def put_state(self, state: State, meta_state: State) -> None:
        """In the sliced form the offset is the number of rows; follows the setter of `state`."""
        if self.rules.state_form == "whole":
            self.keys, self.values, self.offset = state
            return
        self.keys, self.values = state
        self.offset = rows_of(self.keys)
        super().put_state(None, meta_state)

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        """Move the end back; the buffer stays. Follows `KVCache.trim`."""
        # Nothing is erased: the rows after the offset are written over later.
        n = min(self.offset, n)
        self.offset -= n
        return n

    def make_mask(
        self, columns: int, *, window_size: int | None = None, return_array: bool = False
    ) -> Mask:
        """A causal mask from `offset` on; follows `KVCache.make_mask`."""
        return create_attention_mask(
            columns,
            self.offset,
            window_size=window_size,
            return_array=return_array,
            masks_one_column=self.rules.window_masks_one_column,
        )

    def mask_of(self, columns: int, *, window_size: int | None = None) -> Mask | Causal:
        """As `make_mask`, but a causal mask may stay symbolic."""
        one = self.rules.window_masks_one_column
        return attention_mask(columns, self.offset, window_size=window_size, masks_one_column=one)


# `QuantizedKVCache`: keys and values in a few bits, with a scale and a bias for each group.
#
# The buffers hold the dequantised numbers, so that attention reads the values of the real one.
# Their bytes are counted as packed.

SMALLEST_SCALE = 1e-7


class QuantizedKVCache(KVCache):
    """Quantised keys and values of one sequence, without a batch form; `size()` is 0."""

    has_merge = False

    def __init__(self, rules: CacheRules, group_size: int = 64, bits: int = 8) -> None:
        super().__init__(rules)
        self.group_size = group_size
        self.bits = bits
        self.key_order: Integers | None = None  # order of a key's numbers, if not the real one

    # Trap: a list of such caches counts as empty wherever sizes decide.
    def size(self) -> int:
        """0, as upstream's class inherits it."""
        return 0

    def rounded_keys(self, rows: Array) -> Array:
        """As `rounded`, with the numbers of each head in the order of the real keys."""
        if self.key_order is None or rows.dtype == np.uint64:
            return self.rounded(rows)
        real = rows[..., np.argsort(self.key_order)]
        back: Array = self.rounded(real)[..., self.key_order]
        return back

    def rounded(self, rows: Array) -> Array:
        """Rows (..., width) quantised and dequantised; follows `mx.quantize`.

        The scale of a group begins at its extreme of larger magnitude, which stays exact, as 0
        nearly does.
        """
        if rows.dtype == np.uint64:  # ring arithmetic: keep the upper half of each word
            return rows >> np.uint64(32) << np.uint64(32)
        if rows.shape[-1] % self.group_size:
            raise UpstreamValueError(
                "[quantize] The last dimension of the matrix needs to be divisible by the "
                f"quantization group size {self.group_size}."
            )
        groups = rows.reshape(*rows.shape[:-1], -1, self.group_size)
        low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
        most, below = 2**self.bits - 1, abs(low) > abs(high)
        scale = np.maximum((high - low) / most, SMALLEST_SCALE) * np.where(below, 1, -1)
        edge = np.where(below, low, high)
        steps = np.round(edge / scale)
        scale = np.where(steps == 0, scale, edge / np.where(steps == 0, 1, steps))
        bias = np.where(steps == 0, 0, edge)
        packed = np.clip(np.round((groups - bias) / scale), 0, most)
        whole: Array = (packed * scale + bias).reshape(rows.shape)
        return whole

    def take(self, cache: KVCache, width: tuple[int, ...]) -> None:
        """Copy a cache, quantised; follows `KVCache.to_quantized`.

        `width` is the shape of one token's keys; after them a buffer may hold the position.
        """
        self.offset = cache.offset
        self.row_bytes = self._packed_bytes(cache)
        count = int(np.prod(width))
        keys, values = indexed(cache.keys), indexed(cache.values)
        heads = (*keys.shape[:-1], *width)
        packed = self.rounded_keys(keys[..., :count].reshape(heads)).reshape(*keys.shape[:-1], -1)
        self.keys = np.concatenate((packed, keys[..., count:]), axis=-1)
        self.values = self.rounded(values.reshape(heads)).reshape(values.shape)

    def _packed_bytes(self, cache: KVCache) -> int | None:
        """Bytes of a row: numbers, and a scale and a bias of the model's type for each group."""
        if cache.row_bytes is None or cache.wide_row_bytes is None:
            return None
        numbers = cache.wide_row_bytes // F32_BYTES
        element = cache.row_bytes // numbers if numbers else 0
        return numbers * self.bits // 8 + 2 * (numbers // self.group_size) * element

    @property
    def state(self) -> State:
        """The state of a `KVCache`, with group size and bits."""
        if self.rules.state_form == "whole":
            return self.keys, self.values, self.offset, self.group_size, self.bits
        return self.keys_and_values()

    @property
    def meta_state(self) -> State:
        return tuple(map(str, (self.offset, self.group_size, self.bits)))

    def put_state(self, state: State, meta_state: State) -> None:
        """Follows the setters of `state` and `meta_state`."""
        if self.rules.state_form == "whole":
            self.keys, self.values, self.offset, self.group_size, self.bits = state
            return
        self.keys, self.values = state
        self.offset, self.group_size, self.bits = map(int, meta_state)


class RotatingKVCache(RingCache):
    """Keys and values of the last `max_size` tokens of one sequence.

    [0, keep) kept   [keep, _idx) newest   [_idx, rows) oldest, once the ring is full

    Several tokens at once are appended to the unrolled ring, so that the buffer may have up to
    `max_size - 1 + S` rows; single tokens are written in place.
    """

    has_merge = True

    def __init__(self, rules: CacheRules, max_size: int, keep: int = 0) -> None:
        super().__init__(rules)
        self.offset = 0
        self.keep = keep
        self.max_size = max_size
        self._idx = 0
        self._offset = 0

    @property
    def fill(self) -> int:
        """Number of tokens that count for the ring: the offset; with #999 a separate count."""
        return self._offset if self.rules.rotating_unrolls_on_trim else self.offset

    def without_middle(self, excess: int, buffer: Array) -> Array:
        # The first `keep` rows survive every rotation.
        """Delete rows `[keep, keep + excess)`; follows `RotatingKVCache._trim`."""
        if excess <= 0:
            return buffer
        return joined((buffer[:, :, : self.keep], buffer[:, :, excess + self.keep :]))

    def temporal_order(self, buffer: Array | None) -> Array:
        """Oldest row first, unused rows cut off; follows `RotatingKVCache._temporal_order`."""
        rows = some(buffer)
        # Not wrapped, or written by a concat: rows are in order already.
        if self._idx == rows.shape[2]:
            return rows
        if self._idx < self.fill:
            kept, old = rows[:, :, : self.keep], rows[:, :, self._idx :]
            return joined((kept, old, rows[:, :, self.keep : self._idx]))
        return rows[:, :, : self._idx]

    def _update_concat(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Unroll, drop the oldest rows beyond W - 1, append. Follows `_update_concat`."""
        # The first write is stored as it is, however long.
        if self.keys is None:
            self.keys, self.values = keys.copy(), values.copy()
        else:
            self.keys, self.values = (
                self.temporal_order(self.keys),
                self.temporal_order(self.values),
            )
            self._idx = rows_of(self.keys)
            # One row less than the window: the first of the new tokens still attends to W - 1 old
            # ones.
            excess = self._idx - self.max_size + 1
            self.keys = joined((self.without_middle(excess, self.keys), keys))
            self.values = joined((self.without_middle(excess, self.values), values))
        self.offset += keys.shape[2]
        self._offset += keys.shape[2]
        self._idx = rows_of(self.keys)
        return self.keys, some(self.values)

    def _update_in_place(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Grow up to W rows, then wrap around. Follows `_update_in_place`."""
        self._grow(keys, values)
        # Rows beyond W were left by a concat, and are in order: the oldest are the first ones.
        excess = rows_of(self.keys) - self.max_size
        if excess > 0:
            self.keys = self.without_middle(excess, some(self.keys))
            self.values = self.without_middle(excess, some(self.values))
            self._idx = self.max_size
        # Full: the oldest row after the kept ones is written over.
        if self._idx == self.max_size:
            self._idx = self.keep
        self._write(self._idx, self._idx + 1, keys, values)
        self.offset += 1
        self._offset += 1
        self._idx += 1
        return self.keys_and_values()

    def size(self) -> int:
        return self.as_size(min(self.fill, self.max_size))

    @property
    def state(self) -> State:
        if self.rules.state_form == "whole":
            return self.keys, self.values, self.offset, self.keep, self.max_size, self._idx
        return self.keys_and_values()

    @property
    def meta_state(self) -> State:
        """The numbers, as strings: four, five with #999."""
        numbers = [self.keep, self.max_size, self.offset, self._idx]
        if self.rules.rotating_unrolls_on_trim:
            numbers.insert(3, self._offset)
        return tuple(map(str, numbers))

    def put_state(self, state: State, meta_state: State) -> None:
        """Follows the setters of `state` and `meta_state`; #999 also accepts four numbers."""
        if self.rules.state_form == "whole":
            self.keys, self.values, self.offset, self.keep, self.max_size, self._idx = state
        else:
            self.keys, self.values = state
            numbers = list(map(int, meta_state))
            self.keep, self.max_size, self.offset, self._idx = *numbers[:3], numbers[-1]
        self._offset = min(self.offset, self.max_size)
        if meta_state is not None and len(meta_state) > 4:
            self._offset = int(meta_state[3])

    # Trap: a ring that has exactly `max_size` tokens is frozen already: `<`, not `<=`.
    def is_trimmable(self) -> bool:
        return self.rules.rotating_unrolls_on_trim or self.offset < self.max_size

    def trim(self, n: int) -> int:
        if self.rules.rotating_unrolls_on_trim:
            return self._trim_unrolled(n)
        # Not checked here: on a wrapped ring `_idx` may become negative, and later rows are lost.
        n = min(self.offset, n)
        self.offset -= n
        self._idx -= n
        return n

    def _trim_unrolled(self, n: int) -> int:
        """#999: unroll, keep the first rows.

        before  [0 ..... effective) of the temporal order      after  [0 ... effective - n)
        """
        # Trap: after a long concat the first rows are the oldest ones, not the newest before the
        # cut.
        effective = min(self._offset, self.max_size)
        n = min(effective, n)
        left = effective - n
        # Trap: without buffers the layer counts as empty, and a batch of such rows as fresh.
        if left == 0:
            self.keys = self.values = None
        else:
            keys, values = self.temporal_order(self.keys), self.temporal_order(self.values)
            self.keys, self.values = keys[:, :, :left].copy(), values[:, :, :left].copy()
        self._offset = self._idx = left
        self.offset -= n
        return n

    def to_quantized(self, group_size: int = 64, bits: int = 4) -> LayerCache:
        """Raise, as upstream has not implemented it."""
        msg = f"RotatingKVCache Quantization NYI ({group_size=}, {bits=})"
        raise UpstreamNotImplementedError(msg)

    def make_mask(
        self, columns: int, *, window_size: int | None = None, return_array: bool = False
    ) -> Mask:
        """A mask in concat order for several columns, in ring order for one; as upstream."""
        if columns > 1 and return_array:
            return self._causal(columns, window_size or self.max_size).dense()
        return written_out(self.mask_of(columns, window_size=window_size))

    def _causal(self, columns: int, window: int) -> Causal:
        return Causal(columns, min(self.max_size - 1, self.fill), window)

    def mask_of(self, columns: int, *, window_size: int | None = None) -> Mask | Causal:
        """As `make_mask`, but a causal mask may stay symbolic."""
        if columns > 1:
            window = window_size or self.max_size
            mask = self._causal(columns, window)
            return mask if mask.offset + columns > window else "causal"
        if window_size is None:
            return None
        # One column on a ring larger than its window: the mask turns with the ring.
        if self.fill >= window_size and self.max_size > window_size:
            position = 0 if self._idx >= self.max_size else self._idx
            count = min(self.fill + 1, self.max_size)
            return np.roll(np.arange(count) >= count - window_size, position + 1)
        return None

    def adopt(self, keys: Array, values: Array, offset: int) -> None:
        """Set the rows, in temporal order up to `offset`, as `extract` does on a new ring."""
        self.keys, self.values = keys, values
        self.offset = offset
        self._idx = self._offset = keys.shape[2]


class ChunkedKVCache(RowsCache):
    """Keys and values of one sequence from `start_position` on; it has no batch form.

    [start_position, offset) tokens, in rows [0, offset - start_position)
    """

    def __init__(self, rules: CacheRules, chunk_size: int) -> None:
        super().__init__(rules)
        self.offset = 0
        self.chunk_size = chunk_size
        self.start_position = 0

    def maybe_trim_front(self) -> None:
        """Drop the oldest rows beyond one chunk; follows `ChunkedKVCache.maybe_trim_front`."""
        if self.keys is None:
            return
        # Trap: before #1673 allocated rows counted as tokens: a cache of six tokens jumps to start
        # 252, and every later slice has a negative bound.
        if not self.rules.chunk_front_counts_valid_rows:
            if rows_of(self.keys) >= self.chunk_size:
                self.start_position += rows_of(self.keys) - self.chunk_size
                self._keep(-self.chunk_size, None)
            return
        valid = self.offset - self.start_position
        if valid > self.chunk_size:
            excess = valid - self.chunk_size
            self.start_position += excess
            self._keep(excess, valid)

    def mask_of(self, columns: int, *, window_size: int | None = None) -> Mask:
        """Mask of the column's own chunk, up to the column.

        Upstream's class has no mask: follows `LlamaModel.__call__` of Llama 4, which computes one
        from the first layer for all chunked layers.
        """
        del window_size  # the chunk is the window
        end = self.offset + columns
        seen, seeing = np.arange(self.start_position, end), np.arange(self.offset, end)[:, None]
        mask: Array = (seen // self.chunk_size == seeing // self.chunk_size) & (seen <= seeing)
        return mask

    def _keep(self, start: int, stop: int | None) -> None:
        self.keys = some(self.keys)[:, :, start:stop].copy()
        self.values = some(self.values)[:, :, start:stop].copy()

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """As `KVCache`'s method, counted from `start_position`; follows upstream's method."""
        prev = self.offset - self.start_position
        self._make_room(prev, keys, values)
        self.offset += keys.shape[2]
        self._write(prev, self.offset - self.start_position, keys, values)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Array, Array]:
        """The rows from `start_position` on."""
        end = self.offset - self.start_position
        return some(self.keys)[:, :, :end], some(self.values)[:, :, :end]

    def size(self) -> int:
        """0; the offset in releases in which the class was a `KVCache`."""
        return self.offset if self.rules.chunked_is_kv else super().size()

    @property
    def state(self) -> State:
        """All fields; the sliced form has `offset` rows, as if none had been dropped."""
        if self.rules.state_form == "whole":
            return self.keys, self.values, self.offset, self.chunk_size, self.start_position
        # Trap: rows are counted from `start_position`, but cut at `offset`.
        keys, values = some(self.keys), some(self.values)
        return keys[:, :, : self.offset], values[:, :, : self.offset]

    @property
    def meta_state(self) -> State:
        return tuple(map(str, (self.chunk_size, self.start_position)))

    def put_state(self, state: State, meta_state: State) -> None:
        if self.rules.state_form == "whole":
            self.keys, self.values, self.offset, self.chunk_size, self.start_position = state
            return
        self.keys, self.values = state
        # Trap: a restored cache has the number of its rows as offset, which is less after a front
        # was dropped.
        self.offset = rows_of(self.keys)
        self.chunk_size, self.start_position = map(int, meta_state)

    def is_trimmable(self) -> bool:
        # Trap: upstream always says yes, although dropped rows cannot come back.
        return self.rules.chunks_always_trim or self.start_position == 0

    def trim(self, n: int) -> int:
        """Move the end back, not below `start_position`; follows `ChunkedKVCache.trim`."""
        # Trap: it may remove less than asked for, and the caller does not look.
        n = min(self.offset - self.start_position, n)
        self.offset -= n
        return n


RATIO: Final = 4
"""Tokens of a group in the simulated models; a real model has its own number."""


class SparseCache(LayerCache):
    """A layer's cache, upstream's `LayerCache` in `deepseek_v41.py`: no batch form, no trim.

        window only      | dropped |  the last rows  |
        with groups      | all rows, as groups of `RATIO` and an open one |  the window again |

    Rows are stored one by one here; upstream stores each group as one latent and an index key.
    The selection of rows by a query is the model's part, and always correct.
    """

    upstream_name = "LayerCache"

    def __init__(self, rules: CacheRules, window: int, *, groups: bool) -> None:
        super().__init__(rules)
        self.keys: Array | None = None
        self.values: Array | None = None
        self.offset = 0
        self.max_size = window
        self.groups = groups

    @property
    def window_rows(self) -> int:
        return min(self.offset, self.max_size)

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Append rows, and keep the last ones; follows `update_window`."""
        if self.keys is not None:
            keys = np.concatenate((self.keys, keys), axis=2)
            values = np.concatenate((some(self.values), values), axis=2)
        self.offset += keys.shape[2] - (0 if self.keys is None else self.keys.shape[2])
        kept = slice(None) if self.groups else slice(-self.max_size, None)
        self.keys, self.values = keys[:, :, kept], values[:, :, kept]
        return keys, values

    def keys_and_values(self) -> tuple[Array, Array]:
        return some(self.keys), some(self.values)

    def mask_of(self, columns: int, *, window_size: int | None = None) -> Causal:
        """A mask of each column's window, or with groups of all before it; as `_window_indices`."""
        del window_size  # the cache has its own
        if self.groups:
            return Causal(columns, self.offset)
        return Causal(columns, self.window_rows, self.max_size)

    def empty(self) -> bool:
        return self.offset == 0

    def count_bytes(self) -> int:
        row, wide = self.row_bytes or 0, self.wide_row_bytes or 0
        groups, waiting = divmod(self.offset, RATIO) if self.groups else (0, 0)
        return row * (self.window_rows + 2 * groups) + 2 * wide * waiting
