"""Operations on buffers of rows, with the array library's rules for what does not fit.

A buffer has the shape (batch, heads, rows, width); rows are the token axis. Slices follow Python's
rules, negative bounds included: several oddities of the caches come from exactly that.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from cachesim.engines.mlx_lm.caches.raised import (
    UpstreamAttributeError,
    UpstreamTypeError,
    UpstreamValueError,
)
from cachesim.units import Array, Integers

ROWS: Final = 2
"""The axis of the tokens."""


def some(buffer: Array | None) -> Array:
    """The buffer, where upstream reads an attribute of it."""
    if buffer is None:
        msg = "'NoneType' object has no attribute 'shape'"
        raise UpstreamAttributeError(msg)
    return buffer


def indexed(buffer: Array | None) -> Array:
    """The buffer, where upstream puts an index to it."""
    if buffer is None:
        msg = "'NoneType' object is not subscriptable"
        raise UpstreamTypeError(msg)
    return buffer


def rows_of(buffer: Array | None) -> int:
    """Number of allocated rows."""
    return int(some(buffer).shape[ROWS])


def blank(like: Array, rows: int) -> Array:
    """Zero rows beside `like`; a negative number of them raises."""
    if rows < 0:
        msg = f"negative dimensions are not allowed: {rows} rows"
        raise UpstreamValueError(msg)
    batch, heads, _, width = like.shape
    return np.zeros((batch, heads, rows, width), like.dtype)


def joined(parts: Sequence[Array], axis: int = ROWS) -> Array:
    """The parts one after the other."""
    try:
        return np.concatenate(parts, axis=axis)
    except ValueError as error:
        raise UpstreamValueError(str(error)) from error


def grown(buffer: Array | None, used: int, new: Array, step: int) -> Array:
    """A buffer with room for the new rows, in whole steps.

    before  [0, used) [used, cap)            after  [0, used) [used, used + G)

    What lies behind `used` is cut off only if `used` is not a multiple of the step.
    """
    fresh = blank(new, (step + new.shape[ROWS] - 1) // step * step)
    if buffer is None:
        return fresh
    if used % step != 0:
        buffer = buffer[:, :, :used]
    return joined((buffer, fresh))


def write_rows(buffer: Array, start: int, stop: int, rows: Array) -> None:
    """Overwrite the rows `[start, stop)`; one row spreads over any number of them, also none."""
    place = buffer[:, :, start:stop]
    try:
        place[...] = rows
    except ValueError as error:
        raise UpstreamValueError(str(error)) from error


def place_state(block: Array, row: int, state: Array) -> None:
    """Put one sequence's state into its row of the batch."""
    try:
        block[row : row + 1] = state
    except ValueError as error:
        raise UpstreamValueError(str(error)) from error


def rolled_rows(buffer: Array | None, shifts: Integers) -> Array:
    """Row by row of the batch, shift the whole allocated buffer to the right, cyclically.

    Follows `dynamic_roll`. Shifts for rows that were filtered out raise, but where one row is left
    it is rolled by each of them, and the batch has as many rows again (an oddity).
    """
    source = some(buffer)
    count = source.shape[ROWS]
    if 1 not in (len(shifts), len(source)) and len(shifts) != len(source):
        msg = f"{shifts.shape[0]} shifts for a batch of {source.shape[0]}"
        raise UpstreamValueError(msg)
    if count == 0:
        return np.repeat(source, max(len(shifts), len(source)) // len(source), axis=0)
    index = (np.arange(count)[None, :] - shifts[:, None]) % count
    return np.take_along_axis(source, index[:, None, :, None], axis=ROWS)


def chosen(buffer: Array, rows: Sequence[int]) -> Array:
    """These rows of the batch, in this order; upstream's indexing with a list of rows.

    The array library does not check row numbers: for one that the batch does not have it reads
    whatever lies there. Here that is the batch's last row, a neighbour's.
    """
    if list(rows) == list(range(len(buffer))):  # all of them: a batch's own, and nobody else's
        return buffer
    wanted = np.asarray(rows, dtype=np.int64)
    found: Array = buffer[np.minimum(wanted, max(0, len(buffer) - 1))]
    return found


def added(one: Integers, other: Integers) -> Integers:
    """The sum of two vectors over the batch; different sizes raise, but one number fits all."""
    try:
        return one + other
    except ValueError as error:
        raise UpstreamValueError(str(error)) from error


def every(flags: Array) -> bool:
    """Check whether all flags are set, by their bytes: quicker than `all`."""
    return b"\0" not in flags.tobytes()


def same(one: Array, other: Array) -> bool:
    """Check whether two arrays of one type hold the same bits: quicker than by number."""
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def integers(values: Sequence[int] | Integers) -> Integers:
    """A vector with one number per row of the batch."""
    return np.array(values, dtype=np.int64)
