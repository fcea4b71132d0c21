"""Base classes of caches that keep keys and values row for row, and of rings."""

from typing import ClassVar

from cachesim.engines.mlx_lm.caches.arrays import blank, grown, joined, rows_of, some, write_rows
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.units import Array


class RowsCache(LayerCache, shared=True):
    """A buffer of keys and one of values, which grow by whole steps."""

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
    """Rows that go round once there are `max_size` of them."""

    max_size: int
    _idx: int

    @property
    def idx(self) -> int:
        """Index of the next row; upstream's `_idx`."""
        return self._idx

    @property
    def fill(self) -> int:
        """Tokens that count for the ring."""
        raise NotImplementedError

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """A column goes in place, any other number behind; follows upstream's method."""
        if keys.shape[2] == 1:
            return self._update_in_place(keys, values)
        return self._update_concat(keys, values)

    def _update_in_place(self, keys: Array, values: Array) -> tuple[Array, Array]:
        raise NotImplementedError

    def _update_concat(self, keys: Array, values: Array) -> tuple[Array, Array]:
        raise NotImplementedError

    def _grow(self, keys: Array, values: Array) -> None:
        prev = self.fill
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
