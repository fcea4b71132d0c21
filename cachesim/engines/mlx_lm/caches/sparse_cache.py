"""`LayerCache` of DeepSeek V4.1: a window, and beside it groups of tokens in compressed form."""

from typing import Final

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays import some
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.caches.masks import Causal
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.units import Array

RATIO: Final = 4
"""Tokens of a group in the toys; a real model has its own."""


class SparseCache(LayerCache):
    """A layer's cache, upstream's `LayerCache` in `deepseek_v41.py`: no batch, no way back.

        window only      | dropped |  the last rows  |
        with groups      | all rows, as groups of `RATIO` and an open one |  the window again |

    Rows stand one by one here, though upstream keeps each group as one latent and an index key:
    what a query picks of them is the model's business, and never wrong.
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
        """Rows of the window."""
        return min(self.offset, self.max_size)

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Append rows and keep the last ones; follows `update_window`."""
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
        """Each column sees its window, or with groups all before it; follows `_window_indices`."""
        del window_size  # it has its own
        if self.groups:
            return Causal(columns, self.offset)
        return Causal(columns, self.window_rows, self.max_size)

    def empty(self) -> bool:
        return self.offset == 0

    def count_bytes(self) -> int:
        row, wide = self.row_bytes or 0, self.wide_row_bytes or 0
        groups, waiting = divmod(self.offset, RATIO) if self.groups else (0, 0)
        return row * (self.window_rows + 2 * groups) + 2 * wide * waiting
