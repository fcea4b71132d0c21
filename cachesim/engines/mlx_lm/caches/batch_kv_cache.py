"""`BatchKVCache`: several sequences that end at one common row, padded on the left."""

from collections.abc import Sequence

from cachesim.engines.mlx_lm.caches.arrays import (
    added,
    indexed,
    integers,
    rolled_rows,
    rows_of,
    some,
)
from cachesim.engines.mlx_lm.caches.batches import BatchCache, blank_batch, extended, place_rows
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.layer_cache import (
    MISSING,
    Announced,
    Missing,
    State,
    inherit_bytes,
)
from cachesim.engines.mlx_lm.caches.masks import Causal
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.units import Array, Integers


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
        """Right padding that `finalize` turns into left padding; upstream's `_right_padding`."""
        if isinstance(self._right_padding, Missing):
            self.lacks("_right_padding")
        return self._right_padding

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """`KVCache`'s rule of growth with the common row; follows upstream's method."""
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
        """Left padding at once, right padding remembered; follows `BatchKVCache.prepare`."""
        self._pad(padding.left_padding)
        if padding.right_padding is not None and max(padding.right_padding) > 0:
            self._right_padding = integers(padding.right_padding)

    def finalize(self) -> None:
        """Turn right padding into left padding by rolling; follows `BatchKVCache.finalize`.

        before  tokens junk [_idx            after  junk tokens [_idx
        """
        padding = self.right_padding
        if padding is None:
            return
        self.keys = rolled_rows(self.keys, padding)
        self.values = rolled_rows(self.values, padding)
        self.offset = added(self.offset, -padding)
        self.left_padding = added(self.left_padding, padding)
        self._right_padding = None

    @property
    def state(self) -> State:
        if self.rules.state_form == "whole":
            return self.keys, self.values, self.offset, self.left_padding, self._idx
        keys, values = self.keys_and_values() if self._idx < rows_of(self.keys) else self._buffers()
        return keys, values, self.offset, self.left_padding

    def _buffers(self) -> tuple[Array, Array]:
        return some(self.keys), some(self.values)

    def put_state(self, state: State, meta_state: State) -> None:
        """Follows the setter of `state`; the field for pending padding is not made (an oddity)."""
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
        """Move the common end back, into the padding if asked; follows `BatchKVCache.trim`."""
        n = min(self._idx, n)
        self._idx -= n
        self.offset = self.offset - n
        return n

    def size(self) -> int:
        return self.as_size(self._idx) if self.rules.batch_size_method else super().size()

    def mask_of(self, columns: int, *, window_size: int | None = None) -> Causal:
        return Causal(columns, self._idx, window_size, tuple(self.left_padding.tolist()))

    def filter(self, rows: Sequence[int]) -> None:
        """Keep these rows, then drop padding that all of them share; follows upstream's method.

        Pending right padding keeps its size, so the next `finalize` raises (an oddity).
        """
        super().filter(rows)
        shared = int(min(self.left_padding))
        if shared > 0:
            if self.keys is not None:
                self.keys = self.keys[:, :, shared:].copy()
                self.values = some(self.values)[:, :, shared:].copy()
            self._idx -= shared
            self.left_padding = self.left_padding - shared

    def extend(self, other: "BatchKVCache") -> None:
        """Append rows, all brought to one common end; follows `BatchKVCache.extend`."""
        if self._takes_empty(other):
            return
        joint = extended(self, other, self.rules)
        self.keys, self.values, self.offset, self.left_padding = joint
        self._idx = max(self._idx, other.idx)

    def extract(self, row: int) -> KVCache:
        """Cut one row out, exactly as long as its tokens; follows `BatchKVCache.extract`."""
        cache = KVCache(self.rules)
        inherit_bytes(cache, self)
        padding = int(self.left_padding[row])
        cache.keys = indexed(self.keys)[row : row + 1, :, padding : self._idx].copy()
        cache.values = indexed(self.values)[row : row + 1, :, padding : self._idx].copy()
        cache.offset = rows_of(cache.keys)
        return cache

    @classmethod
    def merge(cls, caches: Sequence[KVCache]) -> "BatchKVCache":
        """Put single caches side by side, flush at the end; follows `BatchKVCache.merge`."""
        rules = caches[0].rules
        lengths = [each.size() for each in caches]
        longest = max(lengths)
        if longest == 0 and rules.merge_of_empties:
            return cls._like(caches, [0] * len(caches))
        padding = [longest - length for length in lengths]
        keys = blank_batch([each.keys for each in caches], longest)
        values = blank_batch([each.values for each in caches], longest)
        for row, (left, cache) in enumerate(zip(padding, caches, strict=True)):
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
        inherit_bytes(batch, next((each for each in caches if not each.empty()), caches[0]))
        return batch
