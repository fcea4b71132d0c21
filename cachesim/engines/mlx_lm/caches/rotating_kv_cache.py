"""`RotatingKVCache`: a ring of `max_size` rows, the first `keep` of which never rotate away."""

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays import joined, rows_of, some
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache, State
from cachesim.engines.mlx_lm.caches.masks import Causal, Mask, written_out
from cachesim.engines.mlx_lm.caches.raised import UpstreamNotImplementedError
from cachesim.engines.mlx_lm.caches.rows_cache import RingCache
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.units import Array


class RotatingKVCache(RingCache):
    """Keys and values of one sequence, the last `max_size` tokens of it.

    [0, keep) kept   [keep, _idx) newest   [_idx, rows) oldest, once the ring is full

    Several tokens at once go behind the unrolled ring, so the buffer may hold up to
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
        """Tokens that count for the ring; the offset, unless #999 tells the two apart."""
        return self._offset if self.rules.rotating_unrolls_on_trim else self.offset

    def without_middle(self, excess: int, buffer: Array) -> Array:
        """Delete rows `[keep, keep + excess)`; follows `RotatingKVCache._trim`."""
        if excess <= 0:
            return buffer
        return joined((buffer[:, :, : self.keep], buffer[:, :, excess + self.keep :]))

    def temporal_order(self, buffer: Array | None) -> Array:
        """Oldest row first, unused rows cut off; follows `RotatingKVCache._temporal_order`."""
        rows = some(buffer)
        if self._idx == rows.shape[2]:
            return rows
        if self._idx < self.fill:
            kept, old = rows[:, :, : self.keep], rows[:, :, self._idx :]
            return joined((kept, old, rows[:, :, self.keep : self._idx]))
        return rows[:, :, : self._idx]

    def _update_concat(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Unroll, drop the oldest so that W - 1 rows stay, append. Follows `_update_concat`."""
        if self.keys is None:
            self.keys, self.values = keys.copy(), values.copy()
        else:
            self.keys, self.values = (
                self.temporal_order(self.keys),
                self.temporal_order(self.values),
            )
            self._idx = rows_of(self.keys)
            excess = self._idx - self.max_size + 1
            self.keys = joined((self.without_middle(excess, self.keys), keys))
            self.values = joined((self.without_middle(excess, self.values), values))
        self.offset += keys.shape[2]
        self._offset += keys.shape[2]
        self._idx = rows_of(self.keys)
        return self.keys, some(self.values)

    def _update_in_place(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Grow up to W rows, then go round. Follows `_update_in_place`."""
        self._grow(keys, values)
        excess = rows_of(self.keys) - self.max_size
        if excess > 0:
            self.keys = self.without_middle(excess, some(self.keys))
            self.values = self.without_middle(excess, some(self.values))
            self._idx = self.max_size
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
        """Follows the setters of `state` and `meta_state`; #999 takes four numbers too."""
        if self.rules.state_form == "whole":
            self.keys, self.values, self.offset, self.keep, self.max_size, self._idx = state
        else:
            self.keys, self.values = state
            numbers = list(map(int, meta_state))
            self.keep, self.max_size, self.offset, self._idx = *numbers[:3], numbers[-1]
        self._offset = min(self.offset, self.max_size)
        if meta_state is not None and len(meta_state) > 4:
            self._offset = int(meta_state[3])

    def is_trimmable(self) -> bool:
        return self.rules.rotating_unrolls_on_trim or self.offset < self.max_size

    def trim(self, n: int) -> int:
        if self.rules.rotating_unrolls_on_trim:
            return self._trim_unrolled(n)
        n = min(self.offset, n)
        self.offset -= n
        self._idx -= n
        return n

    def _trim_unrolled(self, n: int) -> int:
        """#999: unroll, keep the first rows; after a long concat those are the oldest.

        before  [0 ..... effective) of the temporal order      after  [0 ... effective - n)
        """
        effective = min(self._offset, self.max_size)
        n = min(effective, n)
        left = effective - n
        if left == 0:
            self.keys = self.values = None
        else:
            keys, values = self.temporal_order(self.keys), self.temporal_order(self.values)
            self.keys, self.values = keys[:, :, :left].copy(), values[:, :, :left].copy()
        self._offset = self._idx = left
        self.offset -= n
        return n

    def to_quantized(self, group_size: int = 64, bits: int = 4) -> LayerCache:
        """Follows upstream's, which is not there yet."""
        msg = f"RotatingKVCache Quantization NYI ({group_size=}, {bits=})"
        raise UpstreamNotImplementedError(msg)

    def make_mask(
        self, columns: int, *, window_size: int | None = None, return_array: bool = False
    ) -> Mask:
        """Many columns meet the concat path's order, one meets the ring's; as upstream."""
        if columns > 1 and return_array:
            return self._causal(columns, window_size or self.max_size).dense()
        return written_out(self.mask_of(columns, window_size=window_size))

    def _causal(self, columns: int, window: int) -> Causal:
        return Causal(columns, min(self.max_size - 1, self.fill), window)

    def mask_of(self, columns: int, *, window_size: int | None = None) -> Mask | Causal:
        """As `make_mask`, where a causal one need not be written out."""
        if columns > 1:
            window = window_size or self.max_size
            mask = self._causal(columns, window)
            return mask if mask.offset + columns > window else "causal"
        if window_size is None:
            return None
        if self.fill >= window_size and self.max_size > window_size:
            position = 0 if self._idx >= self.max_size else self._idx
            count = min(self.fill + 1, self.max_size)
            return np.roll(np.arange(count) >= count - window_size, position + 1)
        return None

    def adopt(self, keys: Array, values: Array, offset: int) -> None:
        """Take rows in temporal order that end at `offset`; what `extract` does to a new ring."""
        self.keys, self.values = keys, values
        self.offset = offset
        self._idx = self._offset = keys.shape[2]
