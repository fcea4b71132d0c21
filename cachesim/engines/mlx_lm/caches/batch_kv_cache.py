"""Batch caches: several sequences that end at one common row, padded on the left."""

from collections.abc import Sequence

import numpy as np

from cachesim.engines.mlx_lm.caches.kv_cache import KVCache, RingCache, RotatingKVCache, RowsCache
from cachesim.engines.mlx_lm.caches.layer_cache import (
    MISSING,
    Announced,
    Causal,
    Mask,
    Missing,
    State,
    UpstreamRuntimeError,
    UpstreamTypeError,
    UpstreamValueError,
    added,
    chosen,
    extended_row_bytes,
    indexed,
    inherit_bytes,
    integers,
    joined,
    rolled_rows,
    rows_of,
    some,
)
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.units import Array, Integers


class BatchCache(RowsCache, shared=True):
    """Keys and values of several sequences, padded on the left up to a common end."""

    def __init__(self, rules: CacheRules, left_padding: Sequence[int]) -> None:
        super().__init__(rules)
        self.left_padding: Integers = integers(left_padding)
        self.offset: Integers = -self.left_padding
        self._idx = 0

    @property
    def idx(self) -> int:
        """The common end; upstream's `_idx`."""
        return self._idx

    def _pad(self, left_padding: Sequence[int] | None) -> None:
        """Apply the left padding of `prepare`."""
        if left_padding is not None:
            # Rows that are in the buffer would keep their old padding.
            if self.keys is not None:
                msg = f"Left padding can only be added to an empty {type(self).__name__}"
                raise UpstreamValueError(msg)
            padding = integers(left_padding)
            self.left_padding = added(self.left_padding, padding)
            self.offset = added(self.offset, -padding)

    def filter(self, rows: Sequence[int]) -> None:
        # Before #1072 an empty batch raised.
        if self.keys is not None or not self.rules.filter_accepts_empty:
            self.keys = chosen(indexed(self.keys), rows)
            self.values = chosen(indexed(self.values), rows)
        self.offset = chosen(self.offset, rows)
        self.left_padding = chosen(self.left_padding, rows)

    def _extend_empty(self, other: "BatchCache") -> bool:
        """First part of `extend`; True if both batches are empty."""
        promotes = self.rules.extend_promotes
        self.row_bytes = extended_row_bytes(self, other, promotes=promotes)
        # Before 0.31.2 two empty batches raised.
        if not (self.empty() and other.empty()) or self.rules.batch_extend == "raises":
            return False
        self.left_padding = np.concatenate((self.left_padding, other.left_padding))
        self.offset = np.concatenate((self.offset, other.offset))
        return True


def blank_batch(buffers: Sequence[Array | None], rows: int) -> Array:
    """Zeros for one row of the batch per buffer, as wide as the widest of them."""
    present = [buffer for buffer in buffers if buffer is not None]
    if not present:
        raise UpstreamValueError("max() arg is an empty sequence")
    if rows < 0:
        raise UpstreamValueError(f"negative dimensions are not allowed: {rows} rows")
    heads = max(array.shape[1] for array in present)
    width = max(array.shape[3] for array in present)
    return np.zeros((len(buffers), heads, rows, width), present[0].dtype)


def place_rows(batch: Array, row: int, place: slice, rows: Array) -> None:
    """Write one sequence's rows into its row of the batch; only the slice is clipped."""
    try:
        batch[row : row + 1, :, place] = rows
    except ValueError as error:
        raise UpstreamValueError(str(error)) from error


def extended(
    one: BatchCache, other: BatchCache, rules: CacheRules
) -> tuple[Array, Array, Integers, Integers]:
    """Keys, values, offsets and left padding of two batches, aligned to one end and length.

    Follows the inner part of upstream's two `extend` methods.

        one    [padding | tokens]            _idx
        other      [left | padding | tokens] _idx + left
    """
    if rules.batch_extend == "raises":
        some(one.keys)
        some(other.keys)
    end = max(one.idx, other.idx)
    longest = max(0 if cache.keys is None else cache.keys.shape[2] for cache in (one, other))
    # An empty side becomes zeros without rows.
    full = some(one.keys if other.keys is None else other.keys)
    sides = []
    for side in (one, other):
        # Trap: 0.31.2 takes the batch size of the other side (#1141), so offsets and rows differ in
        # number.
        batch = side.offset.shape[0] if rules.batch_extend == "own-side" else full.shape[0]
        left = end - side.idx
        keys = _fitted(side.keys, some(_first(one.keys, other.keys)), batch, left, longest)
        values = _fitted(side.values, some(_first(one.values, other.values)), batch, left, longest)
        sides.append((keys, values, side.offset, side.left_padding + left))
    first, second = sides
    return (
        joined((first[0], second[0]), axis=0),
        joined((first[1], second[1]), axis=0),
        np.concatenate((first[2], second[2])),
        np.concatenate((first[3], second[3])),
    )


def _first(one: Array | None, other: Array | None) -> Array | None:
    return other if one is None else one


def _fitted(buffer: Array | None, like: Array, batch: int, left: int, longest: int) -> Array:
    """Pad in front by `left`, then pad or cut at the end to the longer buffer."""
    if buffer is None:
        buffer = np.zeros((batch, like.shape[1], 0, like.shape[3]), like.dtype)
    right = longest - buffer.shape[2] - left
    # A buffer that reaches beyond the common end has allocated rows there, which are cut.
    if right < 0:
        buffer = buffer[:, :, :right]
        right = 0
    return np.pad(buffer, [(0, 0), (0, 0), (left, right), (0, 0)])


class BatchKVCache(BatchCache, batches=KVCache):
    """Keys and values of a batch.

    row b:  [0, left_padding[b]) junk   [left_padding[b], _idx) tokens   [_idx, rows) allocated

    Upstream: `BatchKVCache`.
    """

    def __init__(self, rules: CacheRules, left_padding: Sequence[int]) -> None:
        super().__init__(rules, left_padding)
        self._right_padding: Integers | Missing | None = None

    @property
    def right_padding(self) -> Integers | None:
        """Pending right padding, turned into left padding by `finalize`; `_right_padding`."""
        if isinstance(self._right_padding, Missing):
            self.lacks("_right_padding")
        return self._right_padding

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Write after the common end, growing as `KVCache` does; follows upstream's method."""
        prev = self._idx
        self._make_room(prev, keys, values)
        self.offset = self.offset + keys.shape[2]
        self._idx += keys.shape[2]
        self._write(prev, self._idx, keys, values)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Array, Array]:
        """The first `_idx` rows."""
        return some(self.keys)[:, :, : self._idx], some(self.values)[:, :, : self._idx]

    def announce(self, padding: Announced) -> None:
        """Apply left padding, store right padding; follows `BatchKVCache.prepare`."""
        self._pad(padding.left_padding)
        # Padding of 0 everywhere needs no roll.
        if padding.right_padding is not None and max(padding.right_padding) > 0:
            self._right_padding = integers(padding.right_padding)

    def finalize(self) -> None:
        """Turn right padding into left padding by rolling; follows `BatchKVCache.finalize`.

        before  tokens junk [_idx            after  junk tokens [_idx
        """
        padding = self.right_padding
        # Nothing is pending: the rows end together already.
        if padding is None:
            return
        # The whole buffer turns, its allocated rows too.
        self.keys = rolled_rows(self.keys, padding)
        self.values = rolled_rows(self.values, padding)
        self.offset = added(self.offset, -padding)
        self.left_padding = added(self.left_padding, padding)
        self._right_padding = None

    @property
    def state(self) -> State:
        if self.rules.state_form == "whole":
            return self.keys, self.values, self.offset, self.left_padding, self._idx
        keys, values = (
            self.keys_and_values()
            if self._idx < rows_of(self.keys)
            else (some(self.keys), some(self.values))
        )
        return keys, values, self.offset, self.left_padding

    def put_state(self, state: State, meta_state: State) -> None:
        """Follows the setter of `state`, which omits the field for pending padding (an oddity)."""
        # Trap: the field for pending padding is left out, so `finalize` raises on a restored batch.
        self._right_padding = MISSING
        if self.rules.state_form == "whole":
            self.keys, self.values, self.offset, self.left_padding, self._idx = state
            return
        self.keys, self.values, self.offset, self.left_padding = state
        self._idx = rows_of(self.keys)
        super().put_state(None, meta_state)

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        """Move the common end back, even into the padding; follows `BatchKVCache.trim`."""
        # Trap: the common end may move back into the padding of short rows, whose offset becomes
        # negative.
        n = min(self._idx, n)
        self._idx -= n
        self.offset = self.offset - n
        return n

    def size(self) -> int:
        return self.as_size(self._idx) if self.rules.batch_size_method else super().size()

    def mask_of(self, columns: int, *, window_size: int | None = None) -> Causal:
        return Causal(columns, self._idx, window_size, tuple(self.left_padding.tolist()))

    def filter(self, rows: Sequence[int]) -> None:
        """Keep these rows, then drop their common padding; follows upstream's method."""
        # Trap: pending right padding keeps its size, so the next `finalize` raises.
        super().filter(rows)
        shared = int(min(self.left_padding))
        if shared > 0:
            if self.keys is not None:
                self.keys = self.keys[:, :, shared:].copy()
                self.values = some(self.values)[:, :, shared:].copy()
            self._idx -= shared
            self.left_padding = self.left_padding - shared

    def extend(self, other: "BatchKVCache") -> None:
        """Append rows, aligned to one common end; follows `BatchKVCache.extend`."""
        if self._extend_empty(other):
            return
        joint = extended(self, other, self.rules)
        self.keys, self.values, self.offset, self.left_padding = joint
        self._idx = max(self._idx, other.idx)

    def extract(self, row: int) -> KVCache:
        """Extract one row, exactly as long as its tokens; follows `BatchKVCache.extract`."""
        cache = KVCache(self.rules)
        inherit_bytes(cache, self)
        padding = int(self.left_padding[row])
        # Its padding stays behind in the batch: the row begins with its first token.
        cache.keys = indexed(self.keys)[row : row + 1, :, padding : self._idx].copy()
        cache.values = indexed(self.values)[row : row + 1, :, padding : self._idx].copy()
        cache.offset = rows_of(cache.keys)
        return cache

    @classmethod
    def merge(cls, caches: Sequence[KVCache]) -> "BatchKVCache":
        """Merge single caches, aligned at the end; follows `BatchKVCache.merge`."""
        rules = caches[0].rules
        lengths = [kv_cache.size() for kv_cache in caches]
        longest = max(lengths)
        # Before #1072 a merge of empty caches raised.
        if longest == 0 and rules.merge_of_empties:
            return cls._like(caches, [0] * len(caches))
        padding = [longest - length for length in lengths]
        keys = blank_batch([kv_cache.keys for kv_cache in caches], longest)
        values = blank_batch([kv_cache.values for kv_cache in caches], longest)
        for row, (left, cache) in enumerate(zip(padding, caches, strict=True)):
            # Before #755 a cache without keys raised.
            if cache.keys is None and rules.merge_skips_empty:
                continue
            held = indexed(cache.keys)
            place = slice(left, left + cache.offset)
            place_rows(keys, row, place, held[:, :, : cache.offset])
            place_rows(values, row, place, some(cache.values)[:, :, : cache.offset])
        batch = cls._like(caches, padding)
        batch.keys, batch.values = keys, values
        batch.offset = batch.offset + longest
        batch._idx = longest  # noqa: SLF001 - our own class
        return batch

    @classmethod
    def _like(cls, caches: Sequence[KVCache], padding: Sequence[int]) -> "BatchKVCache":
        batch = cls(caches[0].rules, padding)
        inherit_bytes(batch, next((cache for cache in caches if not cache.empty()), caches[0]))
        return batch


class BatchRotatingKVCache(RingCache, BatchCache, batches=RotatingKVCache):
    """Keys and values of a batch of windows, without `keep`.

    `offset` counts each row's tokens, `_offset` the tokens written since the batch was created. If
    `rotated`, the ring's oldest row is at `_idx`, and left padding decreases with every write,
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
        """Number of tokens written, common to all rows; upstream's `_offset`."""
        return self._offset

    @property
    def lengths(self) -> Integers | None:
        """End of each row's tokens, while right padding is pending; `_lengths`."""
        if isinstance(self._lengths, Missing):
            self.lacks("_lengths")
        return self._lengths

    def temporal_order(self) -> None:
        """Unroll the ring in place; follows `BatchRotatingKVCache._temporal_order`."""
        # A ring that has not turned is in order.
        if self.rotated:
            self.keys = np.roll(some(self.keys), -self._idx, axis=2)
            self.values = np.roll(some(self.values), -self._idx, axis=2)
            self._idx = rows_of(self.keys)
            self.rotated = False

    def _update_concat(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Unroll, roll padding to the front, drop the oldest rows, append; as `_update_concat`."""
        if self.keys is None:
            self.keys, self.values = keys.copy(), values.copy()
        else:
            self.temporal_order()
            if rows_of(self.keys) > self._idx:
                self.keys = self.keys[:, :, : self._idx]
                self.values = some(self.values)[:, :, : self._idx]
            # Before the oldest rows are dropped: padding after a row's end would evict its tokens.
            self._roll_padding()
            # One row less than the window, as in a single ring.
            excess = max(0, self._idx - self.max_size + 1)
            self.left_padding = self.left_padding - excess
            self.keys = joined((some(self.keys)[:, :, excess:], keys))
            self.values = joined((some(self.values)[:, :, excess:], values))
        self.offset = self.offset + keys.shape[2]
        self._offset += keys.shape[2]
        self._idx = rows_of(self.keys)
        return self.keys, some(self.values)

    def _roll_padding(self) -> None:
        """Roll the rows after each row's end to its front, so that they cannot evict tokens."""
        lengths = self.lengths
        if lengths is None:
            return
        roll = np.maximum(0, added(self.offset, -lengths))
        self.keys = rolled_rows(self.keys, roll)
        self.values = rolled_rows(self.values, roll)
        self.left_padding = added(self.left_padding, roll)
        self.offset = added(self.offset, -roll)

    def _update_in_place(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Grow up to W rows, then wrap around; follows `_update_in_place`."""
        # Pending padding is rolled by `finalize`; a single column would be written after it.
        if self.lengths is not None:
            raise UpstreamRuntimeError("finalize() comes before single columns")
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
        # Each write replaces a row, those of the padding too, so left padding falls below zero.
        if self.rotated:
            self.left_padding = self.left_padding - 1
        self._write(self._idx, self._idx + 1, keys, values)
        self._offset += 1
        self.offset = self.offset + 1
        self._idx += 1
        return self.keys_and_values()

    def announce(self, padding: Announced) -> None:
        """Apply left padding; store right padding as absolute ends. Follows upstream's method."""
        self._pad(padding.left_padding)
        if padding.right_padding is not None and max(padding.right_padding) > 0:
            if padding.lengths is None:
                raise UpstreamTypeError("an array cannot be made of None")
            self._lengths = added(integers(padding.lengths), self.offset)

    def finalize(self) -> None:
        """Roll pending padding to the front; follows `BatchRotatingKVCache.finalize`."""
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
        # Before 0.32.0 the text "False" counts as true.
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
        # Not checked: a ring that has turned is left with a wrong end.
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
        """
        window = window_size or self.max_size
        offset = min(self.max_size - 1, self._offset)
        left_padding = self.left_padding
        # Trap: on a wrapped ring `_idx` is not the number of rows, and the rows that the write
        # drops are not subtracted: padding seems longer than it is (see `ring-mask`).
        rows = self._idx
        if self.rules.ring_mask_counts_rows and self.rotated and columns > 1:
            rows = rows_of(self.keys)
        excess = rows - self.max_size + int(columns > 1)
        if excess > 0:
            left_padding = left_padding - excess
        turning = columns == 1 and (self.rotated or self._idx >= self.max_size)
        # The column replaces a row of the ring, which may be one of the padding.
        if turning:
            left_padding = left_padding - 1
        mask = Causal(columns, offset, window, tuple(left_padding.tolist()))
        if turning:
            position = 0 if self._idx >= self.max_size else self._idx
            return np.roll(mask.dense(), position + 1, axis=-1)
        return mask

    def extend(self, other: "BatchRotatingKVCache") -> None:
        if self._extend_empty(other):
            return
        # Rings at different places are unrolled, so that rows of both batches are in order.
        if self.rotated != other.rotated or self._idx != other.idx:
            self.temporal_order()
            other.temporal_order()
        end = max(self._idx, other.idx)
        joint = extended(self, other, self.rules)
        self.keys, self.values, self.offset, self.left_padding = joint
        self._idx = end
        # Trap: one fill for both sides: a batch with fewer tokens counts as full too.
        self._offset = max(self._offset, other.fill)

    def extract(self, row: int) -> RotatingKVCache:
        """Extract one row of the unrolled ring; follows `BatchRotatingKVCache.extract`."""
        cache = RotatingKVCache(self.rules, self.max_size)
        inherit_bytes(cache, self)
        if self.keys is None and self.rules.rotating_unrolls_on_trim:
            return cache
        padding = int(self.left_padding[row])
        # #1072; before, a negative padding counted from the end, and the row lost its newest
        # tokens.
        if self.rules.rotating_extract == "clamped":
            padding = max(0, padding)
        keys = indexed(self.keys)[row : row + 1]
        values = indexed(self.values)[row : row + 1]
        end = self._idx
        if self.rotated:
            keys, values = np.roll(keys, -end, axis=2), np.roll(values, -end, axis=2)
            end = self.max_size
        # Before #738 a row without padding kept its unused rows.
        uncut = padding <= 0 and self.rules.rotating_extract == "uncut"
        cut = slice(None) if uncut else slice(padding, end)
        cache.adopt(keys[:, :, cut].copy(), values[:, :, cut].copy(), int(self.offset[row]))
        return cache

    @classmethod
    def merge(cls, caches: Sequence[RotatingKVCache]) -> "BatchRotatingKVCache":
        """Merge rings, oldest row first, aligned at the end; as upstream's `merge`."""
        rules, max_size = caches[0].rules, caches[0].max_size
        # Rows of one buffer share one ring.
        if any(rotating_kv_cache.max_size != max_size for rotating_kv_cache in caches):
            msg = "BatchRotatingKVCache can only merge caches with the same maximum size"
            raise UpstreamValueError(msg)
        lengths = [rotating_kv_cache.size() for rotating_kv_cache in caches]
        longest = max(lengths)
        padding = [longest - length for length in lengths]
        batch = cls(rules, max_size, padding)
        inherit_bytes(
            batch,
            next(
                (
                    rotating_kv_cache
                    for rotating_kv_cache in caches
                    if not rotating_kv_cache.empty()
                ),
                caches[0],
            ),
        )
        # Before #1072 a merge of empty rings raised.
        if longest == 0 and rules.merge_of_empties:
            return batch
        keys = blank_batch([rotating_kv_cache.keys for rotating_kv_cache in caches], longest)
        values = blank_batch([rotating_kv_cache.values for rotating_kv_cache in caches], longest)
        for row, (left, length, cache) in enumerate(zip(padding, lengths, caches, strict=True)):
            if cache.keys is not None or not rules.merge_skips_empty:
                # #1072: the last rows; before, the whole order was written where fewer rows fit.
                last = -length if rules.rotating_merge == "last-rows" else None
                width = {"by-index": cache.idx, "by-offset": cache.offset}
                place = slice(left, left + width.get(rules.rotating_merge, length))
                place_rows(keys, row, place, cache.temporal_order(cache.keys)[:, :, last:])
                place_rows(values, row, place, cache.temporal_order(cache.values)[:, :, last:])
        batch.keys, batch.values = keys, values
        batch.offset = integers([rotating_kv_cache.offset for rotating_kv_cache in caches])
        batch._idx = batch._offset = longest
        return batch
