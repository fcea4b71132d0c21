"""Attention masks: which of the rows handed back each new column may look at."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays import same
from cachesim.units import Array, Integers

Mask: TypeAlias = Array | str | None
"""None: everything; `"causal"`: what is not younger; an array: True where a key is visible."""


@dataclass(frozen=True, slots=True)
class Causal:
    """A causal mask that is not written out: of long prompts it would have millions of entries.

    key        0 1 2 3 4 5 6
    column 0   . x x x           `offset` 3, `window_size` 3
    column 1   . . x x x         `.` hidden by the window, or by padding on the left
    """

    columns: int
    offset: int
    window_size: int | None = None
    left_padding: tuple[int, ...] | None = None  # of each row of the batch

    @property
    def shape(self) -> tuple[int, ...]:
        """Columns and keys; where rows have padding each has a mask of its own."""
        shape = self.columns, max(0, self.offset + self.columns)
        return shape if self.left_padding is None else (len(self.left_padding), 1, *shape)

    def dense(self) -> Array:
        """The mask written out. Follows `create_causal_mask`."""
        keys = np.arange(self.offset + self.columns)
        queries = np.arange(self.offset, self.offset + self.columns)[:, None]
        mask: Array = queries >= keys[None]
        if self.window_size is not None:
            mask = mask & (queries < keys[None] + self.window_size)
        if self.left_padding is not None:
            mask = mask & (np.array(self.left_padding)[:, None, None, None] <= keys)
        return mask

    def of_row(self, row: int, columns: range) -> "Bounds":
        """Mask of some columns of a row."""
        left = 0 if self.left_padding is None else max(0, self.left_padding[row])
        return Bounds(left, self.offset + columns.start, len(columns), self.window_size)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Mask of consecutive columns of a row: each one key more than the last.

    Column `c` sees the keys up to `newest + c`, the last `window` of them, none before `left`.
    """

    left: int
    newest: int
    columns: int
    window: int | None = None

    @property
    def seen(self) -> slice:
        """The keys that any column sees."""
        oldest = 0 if self.window is None else self.newest - self.window + 1
        start = max(self.left, oldest)
        return slice(start, max(start, self.newest + self.columns))

    def dense(self, keys: int) -> Array:
        """The same as a mask, (columns, keys)."""
        places = np.arange(keys)
        newest = np.arange(self.newest, self.newest + self.columns)[:, None]
        mask: Array = (places >= self.left) & (places <= newest)
        return mask if self.window is None else mask & (places > newest - self.window)

    def shows(self, first: int, low: Integers, high: Integers) -> bool:
        """Check whether each column sees just the positions from its `low` to its `high`.

        The keys that any of them sees are at consecutive positions from `first` on.
        """
        shift = first - self.seen.start
        newest = np.arange(shift + self.newest, shift + self.newest + self.columns)
        if not same(newest, high):
            return False
        if self.window is None:
            return int(low[-1]) <= first  # it rises from column to column
        return same(np.maximum(newest - self.window + 1, first), np.maximum(low, first))


def written_out(mask: "Mask | Causal") -> Mask:
    """A mask as upstream's caches hand it over."""
    return mask.dense() if isinstance(mask, Causal) else mask


def attention_mask(
    columns: int,
    offset: int,
    *,
    window_size: int | None = None,
    return_array: bool = False,
    masks_one_column: bool = True,
) -> Mask | Causal:
    """The mask of a cache that keeps everything, not written out.

    Follows `create_attention_mask`: an array for a window, nothing for one column, else a word.
    Before #843 a window did not come first (`masks_one_column`).
    """
    if window_size is not None and masks_one_column:
        return Causal(columns, offset, window_size)
    if columns == 1:
        return None
    return Causal(columns, offset, window_size) if return_array else "causal"


def create_attention_mask(
    columns: int,
    offset: int,
    *,
    window_size: int | None = None,
    return_array: bool = False,
    masks_one_column: bool = True,
) -> Mask:
    """The mask of a cache that keeps everything. Follows `create_attention_mask`."""
    return written_out(
        attention_mask(
            columns,
            offset,
            window_size=window_size,
            return_array=return_array,
            masks_one_column=masks_one_column,
        )
    )
