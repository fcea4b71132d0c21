"""`KVCache`: a buffer that grows in steps of 256 rows and never shrinks."""

from cachesim.engines.mlx_lm.caches.arrays import rows_of, some
from cachesim.engines.mlx_lm.caches.layer_cache import State
from cachesim.engines.mlx_lm.caches.masks import Causal, Mask, attention_mask, create_attention_mask
from cachesim.engines.mlx_lm.caches.rows_cache import RowsCache
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.units import Array


class KVCache(RowsCache):
    """Keys and values of one sequence.

    [0, offset) tokens   [offset, rows) allocated, or left behind by a trim
    """

    has_merge = True

    def __init__(self, rules: CacheRules) -> None:
        super().__init__(rules)
        self.offset = 0

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Write behind `offset`; follows `KVCache.update_and_fetch`."""
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
        n = min(self.offset, n)
        self.offset -= n
        return n

    def make_mask(
        self, columns: int, *, window_size: int | None = None, return_array: bool = False
    ) -> Mask:
        """Causal from `offset` on; follows `KVCache.make_mask`."""
        return create_attention_mask(
            columns,
            self.offset,
            window_size=window_size,
            return_array=return_array,
            masks_one_column=self.rules.window_masks_one_column,
        )

    def mask_of(self, columns: int, *, window_size: int | None = None) -> Mask | Causal:
        """As `make_mask`, where a causal one need not be written out."""
        one = self.rules.window_masks_one_column
        return attention_mask(columns, self.offset, window_size=window_size, masks_one_column=one)
