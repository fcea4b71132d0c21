"""What both batch caches do alike: place rows side by side, and join two batches."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays import joined, some
from cachesim.engines.mlx_lm.caches.raised import UpstreamValueError
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.units import Array, Integers


class Batch(Protocol):
    """What joining two batches needs of each."""

    keys: Array | None
    values: Array | None
    offset: Integers
    left_padding: Integers

    @property
    def idx(self) -> int:
        """The common end."""
        ...


def blank_batch(buffers: Sequence[Array | None], rows: int) -> Array:
    """Zeros for one row of the batch per buffer, as wide as the widest of them."""
    present = [each for each in buffers if each is not None]
    if not present:
        msg = "max() arg is an empty sequence"
        raise UpstreamValueError(msg)
    if rows < 0:
        msg = f"negative dimensions are not allowed: {rows} rows"
        raise UpstreamValueError(msg)
    heads = max(each.shape[1] for each in present)
    width = max(each.shape[3] for each in present)
    return np.zeros((len(buffers), heads, rows, width), present[0].dtype)


def place_rows(batch: Array, row: int, place: slice, rows: Array) -> None:
    """Write one sequence's rows into its row of the batch; the place is clipped, the rows not."""
    try:
        batch[row : row + 1, :, place] = rows
    except ValueError as error:
        raise UpstreamValueError(str(error)) from error


def extended(
    one: Batch, other: Batch, rules: CacheRules
) -> tuple[Array, Array, Integers, Integers]:
    """Keys, values, offsets and left padding of both, brought to one end and one length.

    Follows the inner part of upstream's two `extend` methods. A side that holds nothing becomes
    zeros without rows; of which batch size, is a rule.

        one    [padding | tokens]            _idx
        other      [left | padding | tokens] _idx + left
    """
    if rules.batch_extend == "raises":
        some(one.keys)
        some(other.keys)
    end = max(one.idx, other.idx)
    longest = max(0 if each.keys is None else each.keys.shape[2] for each in (one, other))
    full = some(one.keys if other.keys is None else other.keys)
    sides = []
    for side in (one, other):
        batch = side.offset.shape[0] if rules.batch_extend == "own-side" else full.shape[0]
        left = end - side.idx
        keys = _fitted(side.keys, some(_first(one.keys, other.keys)), batch, left, longest)
        values = _fitted(side.values, some(_first(one.values, other.values)), batch, left, longest)
        sides.append((keys, values, side.offset, side.left_padding + left))
    first, second = sides
    return (
        joined((first[0], second[0]), axis=0),
        joined((first[1], second[1]), axis=0),
        np.concatenate((first[2], second[2])),
        np.concatenate((first[3], second[3])),
    )


def _first(one: Array | None, other: Array | None) -> Array | None:
    return other if one is None else one


def _fitted(buffer: Array | None, like: Array, batch: int, left: int, longest: int) -> Array:
    """Pad in front by `left`, then pad or cut behind to the longer buffer."""
    if buffer is None:
        buffer = np.zeros((batch, like.shape[1], 0, like.shape[3]), like.dtype)
    right = longest - buffer.shape[2] - left
    if right < 0:
        buffer = buffer[:, :, :right]
        right = 0
    return np.pad(buffer, [(0, 0), (0, 0), (left, right), (0, 0)])
