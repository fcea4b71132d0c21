"""Attention masks: which of the rows handed back each new column may look at."""

from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from cachesim.units import Array, Integers

Mask: TypeAlias = Array | str | None
"""None: everything; `"causal"`: what is not younger; an array: True where a key is visible."""

REMEMBERED: Final = 1 << 16
"""Entries up to which a mask is kept for the next layer, which asks for the same one."""


def create_causal_mask(
    columns: int,
    offset: int = 0,
    *,
    window_size: int | None = None,
    left_padding: Integers | None = None,
) -> Array:
    """Rows `offset ..` may look at themselves and what lies before.

    Follows `create_causal_mask`: (columns, keys), with left padding (batch, 1, columns, keys).
    """
    padding = None if left_padding is None else tuple(left_padding.tolist())
    if columns * (offset + columns) > REMEMBERED:
        return _causal_mask(columns, offset, window_size, padding)
    return _remembered(columns, offset, window_size, padding)


def _causal_mask(
    columns: int, offset: int, window_size: int | None, left_padding: tuple[int, ...] | None
) -> Array:
    """As `create_causal_mask`, which is upstream's, of arguments that can be remembered."""
    keys = np.arange(offset + columns)
    queries = (np.arange(offset, offset + columns) if offset else keys)[:, None]
    mask: Array = queries >= keys[None]
    if window_size is not None:
        mask = mask & (queries < keys[None] + window_size)
    if left_padding is not None:
        mask = mask & (np.array(left_padding)[:, None, None, None] <= keys)
    mask.flags.writeable = False
    return mask


_remembered = lru_cache(maxsize=8)(_causal_mask)


def causal_end(columns: int, rows: int) -> Array:
    """What the word `"causal"` stands for: the columns are the last of the rows."""
    if columns <= rows:
        return create_causal_mask(columns, rows - columns)
    return np.arange(rows) <= np.arange(rows - columns, rows)[:, None]


def create_attention_mask(
    columns: int,
    offset: int,
    *,
    window_size: int | None = None,
    return_array: bool = False,
    masks_one_column: bool = True,
) -> Mask:
    """The mask of a cache that keeps everything.

    Follows `create_attention_mask`: an array for a window, nothing for one column, else a word.
    Before #843 a window did not come first (`masks_one_column`).
    """
    if window_size is not None and masks_one_column:
        return create_causal_mask(columns, offset, window_size=window_size)
    if columns == 1:
        return None
    if return_array:
        return create_causal_mask(columns, offset, window_size=window_size)
    return "causal"
