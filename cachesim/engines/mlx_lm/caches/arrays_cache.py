"""`ArraysCache`: a fixed number of slots for recurrent states, of one sequence or of a batch."""

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from cachesim.engines.mlx_lm.caches.layer_cache import (
    MISSING,
    Announced,
    LayerCache,
    Mask,
    Missing,
    State,
    UpstreamRuntimeError,
    UpstreamStopIteration,
    UpstreamTypeError,
    UpstreamValueError,
    chosen,
    indexed,
    inherit_bytes,
    integers,
    joined,
    place_state,
    some,
)
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.units import Array, Integers


class ArraysCache(LayerCache):
    """Slots of shape (batch, ...); None before the first write.

    A state cannot be trimmed: it is valid at exactly one number of tokens. `left_padding` and
    `lengths` mark the columns of the coming forward passes that are tokens.
    """

    has_merge = True
    is_mamba = False  # upstream's `MambaCache`, which #842 (0.30.6) removed

    def __init__(
        self,
        rules: CacheRules,
        size: int,
        left_padding: Sequence[int] | None = None,
        *,
        is_mamba: bool = False,
    ) -> None:
        super().__init__(rules)
        self.is_mamba = is_mamba
        self.cache: list[Array | None] = [None] * size
        self._left_padding: Integers | Missing | None = None
        self._lengths: Integers | Missing | None = None
        if left_padding:
            self.left_padding = integers(left_padding)

    def __setitem__(self, slot: int, state: Array | None) -> None:
        self.cache[slot] = state

    def __getitem__(self, slot: int) -> Array | None:
        return self.cache[slot]

    @property
    def merges(self) -> bool:
        return self.rules.batches_recurrent

    @property
    def left_padding(self) -> Integers | None:
        """Number of columns before each row's first token."""
        # A cache that was restored before #807 lacks the field.
        if isinstance(self._left_padding, Missing):
            self.lacks("left_padding")
        return self._left_padding

    @left_padding.setter
    def left_padding(self, padding: Integers | None) -> None:
        self._left_padding = padding

    @property
    def lengths(self) -> Integers | None:
        """Number of columns up to each row's last token."""
        if isinstance(self._lengths, Missing):
            self.lacks("lengths")
        return self._lengths

    @lengths.setter
    def lengths(self, lengths: Integers | None) -> None:
        self._lengths = lengths

    @property
    def is_padded(self) -> bool:
        return any(isinstance(array, np.ndarray) for array in (self._left_padding, self._lengths))

    def may_pad(self, batch: int, columns: int) -> bool:
        """Check whether the mask of the coming columns is needed.

        It is not if the padding fields mark all columns of each row as tokens.
        """
        left, lengths = self._left_padding, self._lengths
        starts = left is None or (_counts_rows(left, batch) and max(left.tolist(), default=0) <= 0)
        ends = lengths is None or (
            _counts_rows(lengths, batch) and min(lengths.tolist(), default=columns) >= columns
        )
        return not (starts and ends)

    @property
    def batch_size(self) -> int:
        """The batch size of the first slot or padding field that is set; else 1."""
        for state in self.cache:
            if state is not None:
                # The first slot that has a state: before the first write only the padding tells the
                # batch's size.
                return int(state.shape[0])
        for vector in (self._left_padding, self._lengths):
            if isinstance(vector, np.ndarray):
                return int(vector.size)
        return 1

    @property
    def state(self) -> State:
        """The slots; since #1632 also the padding fields."""
        if self.rules.state_form == "whole":
            return self.cache, self.left_padding, self.lengths
        return self.cache

    def put_state(self, state: State, meta_state: State) -> None:
        """Follows the setter of `state`."""
        # Before #807 a restored cache had no padding fields, and the first mask raised.
        made = self.rules.restores_padding_fields
        self._left_padding = None if made else MISSING
        self._lengths = None if made or not self.rules.batches_recurrent else MISSING
        if self.rules.state_form == "whole":
            self.cache, self.left_padding, self.lengths = state
            return
        self.cache = state
        super().put_state(None, meta_state)

    def empty(self) -> bool:
        return self.cache[0] is None

    def is_trimmable(self) -> bool:
        return self.rules.arrays_trim_resets

    def trim(self, n: int) -> int:
        if not self.rules.arrays_trim_resets:
            self.lacks("trim")
        if n <= 0:
            return 0
        # #1253, #1254: a trim of any length drops the state, as no earlier one is kept.
        self.cache = [None] * len(self.cache)
        return n

    def count_bytes(self) -> int:
        # Before #918 a slot without a state raised.
        if not self.rules.bytes_skip_missing_slots:
            for state in self.cache:
                some(state)
        states = [state for state in self.cache if state is not None]
        if self.row_bytes is None:
            return sum(int(state.nbytes) for state in states)
        return self.row_bytes * int(states[0].shape[0]) if states else 0

    def announce(self, padding: Announced) -> None:
        """Set the number of tokens in the coming columns; follows `ArraysCache.prepare`."""
        self.needs_batches("prepare")
        if padding.lengths is None:
            raise UpstreamTypeError("an array cannot be made of None")
        self.lengths = integers(padding.lengths)

    def finalize(self) -> None:
        self.needs_batches("finalize")
        self.lengths = None
        self.left_padding = None

    def advance(self, columns: int) -> None:
        self.needs_batches("advance")
        lengths, left_padding = self.lengths, self.left_padding
        if lengths is not None:
            self._lengths = lengths - columns
        if left_padding is not None:
            self._left_padding = left_padding - columns

    def mask_of(self, columns: int, *, window_size: int | None = None) -> Mask:
        """True where a column is a token of its row. Follows `ArraysCache.make_mask`."""
        # Before #690 left padding counted only for the first columns of a sequence.
        if not self.rules.batches_recurrent and not self.empty():
            return None
        if self.left_padding is None and self.lengths is None:
            return None
        position = np.arange(columns)
        if self.left_padding is not None and not self.left_padding.ndim:
            raise UpstreamValueError("Too many indices for array with 0 dimensions.")
        after = None if self.left_padding is None else position >= self.left_padding[:, None]
        before = None if self.lengths is None else position < self.lengths[:, None]
        if after is None or before is None:
            return before if after is None else after
        # Trap: before 0.32.0 left padding replaces lengths, so right padding enters the state as
        # tokens.
        if not self.rules.lengths_beside_left_padding:
            return after
        # Two vectors of different length are those of different batches, which upstream's arrays
        # refuse.
        try:
            return np.logical_and(after, before)
        except ValueError as error:
            raise UpstreamValueError(str(error)) from error

    def filter(self, rows: Sequence[int]) -> None:
        """Keep these rows of every slot; follows `ArraysCache.filter`."""
        # Before #1072 a slot without a state raised.
        if self.rules.filter_accepts_empty:
            self.cache = [None if array is None else chosen(array, rows) for array in self.cache]
        else:
            self.cache = [chosen(indexed(array), rows) for array in self.cache]
        if not self.rules.batches_recurrent:
            self.left_padding = None
        # Trap: before #1072 lengths kept the rows that left, and before #1177 left padding did.
        if self.rules.filter_keeps_lengths and self.lengths is not None:
            self.lengths = chosen(self.lengths, rows)
        if self.rules.filter_keeps_left_padding and self.left_padding is not None:
            self.left_padding = chosen(self.left_padding, rows)

    def extend(self, other: "ArraysCache") -> None:
        """Append rows; a rule replaces a missing side. Follows `ArraysCache.extend`."""
        sizes = self.batch_size, other.batch_size
        self.cache = [
            self._appended(one, two, sizes)
            for one, two in zip(self.cache, other.cache, strict=False)
        ]
        if not self.rules.batches_recurrent:
            self.left_padding = None
        # Since #1169 and #1177 padding fields are joined as slots are.
        if self.rules.arrays_extend == "zeros":
            self.left_padding = self._appended(self.left_padding, other.left_padding, sizes)
            self.lengths = self._appended(self.lengths, other.lengths, sizes)

    def _appended(
        self, one: Array | None, other: Array | None, sizes: tuple[int, int]
    ) -> Array | None:
        if self.rules.arrays_extend == "raises" and (one is None or other is None):
            raise UpstreamTypeError("concatenate wants arrays, not None")
        present = other if other is not None else one
        if present is None:
            return None
        if one is None or other is None:
            # Trap: 0.31.2 leaves the missing side out, so the batch has fewer rows than sequences.
            if self.rules.arrays_extend == "skipped":
                return present
            # Zeros of the missing side's own batch size, because a fresh state is zeros.
            missing = sizes[0] if one is None else sizes[1]
            zeros = np.zeros((missing, *present.shape[1:]), present.dtype)
            one, other = (zeros, present) if one is None else (present, zeros)
        return joined((one, other), axis=0)

    def extract(self, row: int) -> "ArraysCache":
        self.needs_batches("extract")
        cache = ArraysCache(self.rules, len(self.cache))
        inherit_bytes(cache, self)
        cache.cache = [indexed(state)[row : row + 1].copy() for state in self.cache]
        return cache

    @classmethod
    def merge(cls, caches: Sequence["ArraysCache"]) -> "ArraysCache":
        """A zero block per slot with the rows that exist; follows `ArraysCache.merge`."""
        caches[0].needs_batches("merge")
        rules = caches[0].rules
        batch = cls(rules, len(caches[0].cache), is_mamba=caches[0].is_mamba)
        # The first cache's class is called with the number of slots, which a `MambaCache` uses as
        # its left padding (an oddity).
        if batch.is_mamba:
            batch.left_padding = np.array(len(batch.cache))
        inherit_bytes(batch, caches[0])
        empties = rules.arrays_merge_of_empties
        # Since #1177 a left padding of zeros gives an empty batch its size.
        if empties != "raises" and all(cache.empty() for cache in caches):
            if empties == "zero-padded":
                batch.left_padding = integers([0] * len(caches))
            return batch
        for slot in range(len(batch.cache)):
            states = [cache[slot] for cache in caches]
            # Before #755 a missing state raised.
            if not rules.merge_skips_empty:
                for state in states:
                    indexed(state)
            batch[slot] = cls._block(states)
        return batch

    @staticmethod
    def _block(states: Sequence[Array | None]) -> Array:
        present = next((array for array in states if array is not None), None)
        # Missing in all caches, although the first slot is not: upstream's generator ends.
        if present is None:
            raise UpstreamStopIteration
        block = np.zeros((len(states), *present.shape[1:]), present.dtype)
        for row, state in enumerate(states):
            if state is not None:
                place_state(block, row, state)
        return block


def _counts_rows(field: Integers | Missing, batch: int) -> TypeGuard[Integers]:
    return isinstance(field, np.ndarray) and field.shape == (batch,)


class CacheList(LayerCache):
    """A layer with several caches, as a recurrent state beside keys and values (`CacheList`)."""

    has_merge = True

    def __init__(self, rules: CacheRules, *caches: LayerCache) -> None:
        super().__init__(rules)
        self.caches: Sequence[LayerCache] = caches

    def __getitem__(self, member: int) -> LayerCache:
        return self.caches[member]

    @property
    def merges(self) -> bool:
        return self.rules.batches_recurrent

    def is_trimmable(self) -> bool:
        return all(cache.is_trimmable() for cache in self.caches)

    def trim(self, n: int) -> int:
        """Trim every member; return the last one's result. Follows `CacheList.trim`."""
        # Trap: the last member's number, whatever the others have removed.
        trimmed = [cache.trim(n) for cache in self.caches]
        return trimmed[-1]

    def size(self) -> int:
        """The largest member's size; 0 before #769."""
        if not self.rules.batches_recurrent:
            return super().size()
        return max(cache.size() for cache in self.caches)

    def empty(self) -> bool:
        # Trap: only the first member is asked.
        return self.caches[0].empty()

    def count_bytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)

    @property
    def state(self) -> State:
        """The members' states; before #886 in one flat list, which cannot be restored."""
        if self.rules.state_form == "whole":
            return [(cache.state, type(cache).__name__) for cache in self.caches]
        if self.rules.list_state_by_member:
            return [cache.state for cache in self.caches]
        return [part for cache in self.caches for part in cache.state]

    @property
    def meta_state(self) -> State:
        """The members' classes and their own `meta_state`."""
        if not self.rules.list_state_by_member:
            return ""
        return [type(cache).__name__ for cache in self.caches], [
            cache.meta_state for cache in self.caches
        ]

    def put_state(self, state: State, meta_state: State) -> None:
        """Rebuild the members by the names of their classes; follows `CacheList.from_state`."""
        if self.rules.state_form == "whole":
            parts = [(name, one, None) for one, name in state]
        elif self.rules.list_state_by_member:
            parts = list(zip(meta_state[0], state, meta_state[1], strict=True))
        else:
            self.lacks("caches")
        self.caches = [
            LayerCache.named(name).from_state(one, meta, rules=self.rules)
            for name, one, meta in parts
        ]

    def filter(self, rows: Sequence[int]) -> None:
        for cache in self.caches:
            cache.filter(rows)

    def extend(self, other: "CacheList") -> None:
        for one, two in zip(self.caches, other.caches, strict=False):
            one.extend(two)

    def extract(self, row: int) -> "CacheList":
        self.needs_batches("extract")
        return CacheList(self.rules, *(cache.extract(row) for cache in self.caches))

    def announce(self, padding: Announced) -> None:
        self.needs_batches("prepare")
        for cache in self.caches:
            cache.announce(padding)

    def finalize(self) -> None:
        self.needs_batches("finalize")
        for cache in self.caches:
            cache.finalize()

    @classmethod
    def merge(cls, caches: Sequence["CacheList"]) -> "CacheList":
        caches[0].needs_batches("merge")
        try:
            members = [
                member.merge([cache.caches[i] for cache in caches])
                for i, member in enumerate(caches[0].caches)
            ]
        except StopIteration as error:
            raise UpstreamRuntimeError("generator raised StopIteration") from error
        return cls(caches[0].rules, *members)
