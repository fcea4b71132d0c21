"""`QuantizedKVCache`: keys and values in a few bits, with a scale and a bias for each group.

The buffers hold what the packed numbers stand for, so that attention reads what the real one reads.
What they take is counted as packed.
"""

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays import indexed
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.layer_cache import State
from cachesim.engines.mlx_lm.caches.raised import UpstreamValueError
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.model.spec import F32_BYTES
from cachesim.units import Array, Integers

SMALLEST_SCALE = 1e-7


class QuantizedKVCache(KVCache):
    """Keys and values of one sequence; there is no batch of them, and `size()` says nothing."""

    has_merge = False

    def __init__(self, rules: CacheRules, group_size: int = 64, bits: int = 8) -> None:
        super().__init__(rules)
        self.group_size = group_size
        self.bits = bits
        self.key_order: Integers | None = None  # where the toy keeps a key's numbers in another one

    def size(self) -> int:
        """Not its own: upstream's class inherits it."""
        return 0

    def rounded_keys(self, rows: Array) -> Array:
        """As `rounded`, with the numbers of each head in the order that the real keys have."""
        if self.key_order is None or rows.dtype == np.uint64:
            return self.rounded(rows)
        real = rows[..., np.argsort(self.key_order)]
        back: Array = self.rounded(real)[..., self.key_order]
        return back

    def rounded(self, rows: Array) -> Array:
        """Rows (..., width) after quantization and back; follows `mx.quantize`.

        A group is spread from its extreme of larger magnitude, which is met exactly, as 0 nearly.
        """
        if rows.dtype == np.uint64:  # words of the ring: what is left of them is their upper half
            return rows >> np.uint64(32) << np.uint64(32)
        if rows.shape[-1] % self.group_size:
            msg = (
                "[quantize] The last dimension of the matrix needs to be divisible by the "
                f"quantization group size {self.group_size}."
            )
            raise UpstreamValueError(msg)
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
        """Become a cache's quantised twin; follows `KVCache.to_quantized`.

        `width` is the shape of one token's keys; behind them a buffer may hold the position.
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
        """Bits for each number, a scale and a bias of the model's type for each group."""
        if cache.row_bytes is None or cache.wide_row_bytes is None:
            return None
        numbers = cache.wide_row_bytes // F32_BYTES
        element = cache.row_bytes // numbers if numbers else 0
        return numbers * self.bits // 8 + 2 * (numbers // self.group_size) * element

    @property
    def state(self) -> State:
        """As a `KVCache`'s, with the two numbers."""
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
