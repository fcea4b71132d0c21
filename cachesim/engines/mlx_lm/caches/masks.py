"""Attention masks: which of the rows handed back each new column may look at."""

from typing import TypeAlias

import numpy as np

from cachesim.units import Array, Integers

Mask: TypeAlias = Array | str | None
"""None: everything; `"causal"`: what is not younger; an array: True where a key is visible."""


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
    keys = np.arange(offset + columns)
    queries = (np.arange(offset, offset + columns) if offset else keys)[:, None]
    mask: Array = queries >= keys[None]
    if window_size is not None:
        mask = mask & (queries < keys[None] + window_size)
    if left_padding is not None:
        mask = mask & (left_padding[:, None, None, None] <= keys)
    return mask


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
