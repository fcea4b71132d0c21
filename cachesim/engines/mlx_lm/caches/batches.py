"""Operations of both batch caches: merge rows, filter them, extend by another batch."""

from collections.abc import Sequence

import numpy as np

from cachesim.engines.mlx_lm.caches.arrays import added, chosen, indexed, integers, joined, some
from cachesim.engines.mlx_lm.caches.layer_cache import extended_row_bytes
from cachesim.engines.mlx_lm.caches.raised import UpstreamValueError
from cachesim.engines.mlx_lm.caches.rows_cache import RowsCache
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.units import Array, Integers


class BatchCache(RowsCache, shared=True):
    """Keys and values of several sequences, padded on the left up to a common end."""

    def __init__(self, rules: CacheRules, left_padding: Sequence[int]) -> None:
        super().__init__(rules)
        self.left_padding: Integers = integers(left_padding)
        self.offset: Integers = -self.left_padding
        self._idx = 0

    @property
    def idx(self) -> int:
        """The common end; upstream's `_idx`."""
        return self._idx

    def _pad(self, left_padding: Sequence[int] | None) -> None:
        """Left padding in `prepare`, as both classes apply it."""
        if left_padding is not None:
            if self.keys is not None:
                msg = f"Left padding can only be added to an empty {type(self).__name__}"
                raise UpstreamValueError(msg)
            padding = integers(left_padding)
            self.left_padding = added(self.left_padding, padding)
            self.offset = added(self.offset, -padding)

    def filter(self, rows: Sequence[int]) -> None:
        if self.keys is not None or not self.rules.filter_accepts_empty:
            self.keys = chosen(indexed(self.keys), rows)
            self.values = chosen(indexed(self.values), rows)
        self.offset = chosen(self.offset, rows)
        self.left_padding = chosen(self.left_padding, rows)

    def _takes_empty(self, other: "BatchCache") -> bool:
        """First part of `extend`; True if neither batch holds anything."""
        promotes = self.rules.extend_promotes
        self.row_bytes = extended_row_bytes(self, other, promotes=promotes)
        if not (self.empty() and other.empty()) or self.rules.batch_extend == "raises":
            return False
        self.left_padding = np.concatenate((self.left_padding, other.left_padding))
        self.offset = np.concatenate((self.offset, other.offset))
        return True


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
    one: BatchCache, other: BatchCache, rules: CacheRules
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
