"""`ChunkedKVCache`: a `KVCache` whose front is dropped when the model asks for it."""

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays import rows_of, some
from cachesim.engines.mlx_lm.caches.layer_cache import State
from cachesim.engines.mlx_lm.caches.masks import Mask
from cachesim.engines.mlx_lm.caches.rows_cache import RowsCache
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.units import Array


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
        """Drop the oldest rows beyond one chunk; follows `ChunkedKVCache.maybe_trim_front`.

        Before #1673 allocated rows were taken for tokens: a cache of six tokens jumps to
        start 252, and every slice after that has a negative bound.
        """
        if self.keys is None:
            return
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

        Upstream's class has no mask: follows `LlamaModel.__call__` of Llama 4, which makes it of
        the first layer's numbers. Layers with chunks go alike.
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
        """`KVCache`'s rule, counted from `start_position`; follows upstream's method."""
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
        """Nothing, but where it was a `KVCache`."""
        return self.offset if self.rules.chunked_is_kv else super().size()

    @property
    def state(self) -> State:
        """Everything; the sliced form counts `offset` rows, as if nothing had been dropped."""
        if self.rules.state_form == "whole":
            return self.keys, self.values, self.offset, self.chunk_size, self.start_position
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
        self.offset = rows_of(self.keys)
        self.chunk_size, self.start_position = map(int, meta_state)

    def is_trimmable(self) -> bool:
        return self.rules.chunks_always_trim or self.start_position == 0

    def trim(self, n: int) -> int:
        """Move the end back, not below `start_position`; follows `ChunkedKVCache.trim`."""
        n = min(self.offset - self.start_position, n)
        self.offset -= n
        return n
