"""Base class of layer caches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, Self, TypeAlias

import numpy as np

from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.errors import CachesimError
from cachesim.units import Array, Integers

# Exceptions of the real package, raised where it raises them.
#
# Each one is a `CachesimError` and the Python class that upstream's caller catches, so that a
# server can handle the death of a worker as a result, unlike a bug of cachesim.


class UpstreamRaise(CachesimError):  # noqa: N818 - it is not an error of ours
    """An exception of the real package; its name there follows `Upstream`."""


class UpstreamTypeError(UpstreamRaise, TypeError):
    """A None instead of an array, and the like."""


class UpstreamAttributeError(UpstreamRaise, AttributeError):
    """A missing method or field."""


class UpstreamValueError(UpstreamRaise, ValueError):
    """Shapes or arguments that do not fit."""


class UpstreamRuntimeError(UpstreamRaise, RuntimeError):
    """A call out of order."""


class UpstreamNotImplementedError(UpstreamRaise, NotImplementedError):
    """An abstract method of the base class."""


class UpstreamKeyError(UpstreamRaise, KeyError):
    """A key that is not in the trie."""


class UpstreamIndexError(UpstreamRaise, IndexError):
    """An index out of range, or an empty queue."""


class UpstreamUnboundLocalError(UpstreamRaise):
    """A variable that a loop without an iteration never set."""


class UpstreamStopIteration(UpstreamRaise, StopIteration):
    """The first element of an empty iterator."""


def name_of(error: BaseException) -> str:
    """The Python class that a caller of the real package catches."""
    name = type(error).__name__
    return name.removeprefix("Upstream") if isinstance(error, UpstreamRaise) else name


Mask: TypeAlias = Array | str | None
"""None: all keys; `"causal"`: keys up to the column; an array: True where a key is visible."""


@dataclass(frozen=True, slots=True)
class Causal:
    """A causal mask in symbolic form: as an array it would have millions of entries.

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
        """Columns and keys; with left padding, for each row."""
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
    """Mask of consecutive columns of a row, each with one key more than the previous one.

    Column `c` attends to the keys up to `newest + c`, the last `window` of them, none before
    `left`.
    """

    left: int
    newest: int
    columns: int
    window: int | None = None

    @property
    def seen(self) -> slice:
        """The keys that any column attends to."""
        oldest = 0 if self.window is None else self.newest - self.window + 1
        start = max(self.left, oldest)
        return slice(start, max(start, self.newest + self.columns))

    def dense(self, keys: int) -> Array:
        """The mask as an array, (columns, keys)."""
        places = np.arange(keys)
        newest = np.arange(self.newest, self.newest + self.columns)[:, None]
        mask: Array = (places >= self.left) & (places <= newest)
        return mask if self.window is None else mask & (places > newest - self.window)

    def shows(self, first: int, low: Integers, high: Integers) -> bool:
        """Check whether each column attends exactly to the positions from its `low` to its `high`.

        The visible keys are at consecutive positions from `first` on.
        """
        shift = first - self.seen.start
        newest = np.arange(shift + self.newest, shift + self.newest + self.columns)
        if not same(newest, high):
            return False
        if self.window is None:
            return int(low[-1]) <= first  # `low` rises from column to column
        return same(np.maximum(newest - self.window + 1, first), np.maximum(low, first))


def written_out(mask: "Mask | Causal") -> Mask:
    """A mask in the form of upstream's caches."""
    return mask.dense() if isinstance(mask, Causal) else mask


def attention_mask(
    columns: int,
    offset: int,
    *,
    window_size: int | None = None,
    return_array: bool = False,
    masks_one_column: bool = True,
) -> Mask | Causal:
    """The mask of a cache without eviction, in symbolic form.

    Follows `create_attention_mask`: an array for a window, None for one column, else a word. Before
    #843 one column had precedence over a window (`masks_one_column`).
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
    """The mask of a cache without eviction. Follows `create_attention_mask`."""
    return written_out(
        attention_mask(
            columns,
            offset,
            window_size=window_size,
            return_array=return_array,
            masks_one_column=masks_one_column,
        )
    )


# Operations on buffers of rows, with the array library's errors.
#
# A buffer has the shape (batch, heads, rows, width); rows are the token axis. Slices follow
# Python's rules, negative bounds included: several oddities of the caches come from exactly that.

ROWS: Final = 2
"""The axis of the tokens."""


def some(buffer: Array | None) -> Array:
    """The buffer; None raises as an attribute access upstream."""
    if buffer is None:
        raise UpstreamAttributeError("'NoneType' object has no attribute 'shape'")
    return buffer


def indexed(buffer: Array | None) -> Array:
    """The buffer; None raises as an index upstream."""
    if buffer is None:
        raise UpstreamTypeError("'NoneType' object is not subscriptable")
    return buffer


def rows_of(buffer: Array | None) -> int:
    """Number of allocated rows."""
    return int(some(buffer).shape[ROWS])


def blank(like: Array, rows: int) -> Array:
    """Zero rows in the shape of `like`; a negative number of them raises."""
    if rows < 0:
        raise UpstreamValueError(f"negative dimensions are not allowed: {rows} rows")
    batch, heads, _, width = like.shape
    return np.zeros((batch, heads, rows, width), like.dtype)


def joined(parts: Sequence[Array], axis: int = ROWS) -> Array:
    """The parts concatenated; shapes that do not fit raise."""
    try:
        return np.concatenate(parts, axis=axis)
    except ValueError as error:
        raise UpstreamValueError(str(error)) from error


def grown(buffer: Array | None, used: int, new: Array, step: int) -> Array:
    """A buffer with room for the new rows, in whole steps.

    before  [0, used) [used, cap)            after  [0, used) [used, used + G)

    Rows after `used` are cut off only if `used` is not a multiple of the step.
    """
    fresh = blank(new, (step + new.shape[ROWS] - 1) // step * step)
    if buffer is None:
        return fresh
    if used % step != 0:
        buffer = buffer[:, :, :used]
    return joined((buffer, fresh))


def write_rows(buffer: Array, start: int, stop: int, rows: Array) -> None:
    """Overwrite the rows `[start, stop)`; one row is broadcast to any number of them, also none."""
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
    """Shift each row of the batch to the right in its allocated buffer, cyclically.

    Follows `dynamic_roll`. Shifts for filtered rows raise, except that a single row is rolled by
    each of them, which gives as many rows (an oddity).
    """
    source = some(buffer)
    count = source.shape[ROWS]
    if 1 not in (len(shifts), len(source)) and len(shifts) != len(source):
        raise UpstreamValueError(f"{shifts.shape[0]} shifts for a batch of {source.shape[0]}")
    index = (np.arange(count)[None, :] - shifts[:, None]) % count
    return np.take_along_axis(source, index[:, None, :, None], axis=ROWS)


def chosen(buffer: Array, rows: Sequence[int]) -> Array:
    """The batch's rows at these indices, in this order; upstream indexes with a list.

    The array library does not check row numbers: it reads beyond the batch. Here that is the
    batch's last row. It refuses a number without dimensions, as a merged `MambaCache` pads by.
    """
    if not buffer.ndim:
        raise UpstreamValueError("too many indices for array: array is 0-dimensional")
    if list(rows) == list(range(len(buffer))):  # all of them
        return buffer
    wanted = np.asarray(rows, dtype=np.int64)
    found: Array = buffer[np.minimum(wanted, max(0, len(buffer) - 1))]
    return found


def added(one: Integers, other: Integers) -> Integers:
    """The sum of two vectors over the batch; different sizes raise, except for size 1."""
    try:
        return one + other
    except ValueError as error:
        raise UpstreamValueError(str(error)) from error


def every(flags: Array) -> bool:
    """Check whether all flags are set, by their bytes: faster than `all`."""
    return b"\0" not in flags.tobytes()


def same(one: Array, other: Array) -> bool:
    """Check whether two arrays of one type have the same bits: faster than by number."""
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def integers(values: Sequence[int] | Integers) -> Integers:
    """A vector with one number per row of the batch."""
    return np.array(values, dtype=np.int64)


State: TypeAlias = Any
"""Arrays, integers, flags, strings and None, nested in lists and tuples."""


class Missing:
    """Placeholder of a field that a restore omits."""


MISSING: Final = Missing()


class Announced(NamedTuple):
    """Arguments of `prepare`, None if absent."""

    left_padding: Sequence[int] | None
    lengths: Sequence[int] | None
    right_padding: Sequence[int] | None


class LayerCache:
    """An object of a prompt cache, with the defaults of upstream's `_BaseCache`.

    Methods that only some classes have raise `AttributeError` in the others, as Python does.
    """

    has_merge: ClassVar[bool] = False
    """True if upstream's class has `merge`, which the server needs to batch it."""

    classes: ClassVar[dict[str, "type[LayerCache]"]] = {}
    """All cache classes by name, for restoring."""

    batch_form: ClassVar["type[LayerCache] | None"] = None
    """The batch class of this class, which registers itself."""

    upstream_name: ClassVar[str] = ""
    """Upstream's name of the class, if it differs from ours."""

    row_bytes: int | None = None
    """Bytes of one row in the real model (one state, for recurrent slots), which decide evictions;
    None: those of the arrays."""

    wide_row_bytes: int | None = None
    """`row_bytes` in float32, which a batch may become."""

    def __init_subclass__(
        cls, *, batches: "type[LayerCache] | None" = None, shared: bool = False
    ) -> None:
        """Register the class: `batches` is the class whose rows it batches, `shared` marks a base
        class without a counterpart upstream.
        """
        if not shared:
            LayerCache.classes[cls.__name__] = cls
        if batches is not None:
            batches.batch_form = cls

    @classmethod
    def named(cls, name: str) -> "type[LayerCache]":
        """The class of a name, as upstream finds it."""
        if name not in LayerCache.classes:
            raise UpstreamKeyError(name)
        return LayerCache.classes[name]

    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules

    @property
    def merges(self) -> bool:
        """True if it can be merged into a batch."""
        return self.has_merge

    def is_trimmable(self) -> bool:
        """Check whether it can be trimmed now."""
        return False

    def size(self) -> int:
        """Number of tokens in the cache's own count; 0 without one."""
        return 0

    def as_size(self, count: int) -> int:
        """A count as a result of `size()`; before #769 it was a `len()`, never negative."""
        if count < 0 and not self.rules.batches_recurrent:
            raise UpstreamValueError("__len__() should return >= 0")
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the allocated buffers."""
        if not self.rules.counts_bytes:
            self.lacks("nbytes")
        return self.count_bytes()

    def count_bytes(self) -> int:
        """Value of `nbytes` in releases that have it."""
        raise UpstreamNotImplementedError("Cache sub-class must implement nbytes")

    def empty(self) -> bool:
        """Check whether it was never written."""
        raise UpstreamNotImplementedError("Cache sub-class must implement this.")

    @property
    def state(self) -> State:
        """Arrays to evaluate or save."""
        return []

    @property
    def meta_state(self) -> State:
        """Scalars beside the state, as strings; only in releases with the sliced form."""
        return ""

    def put_state(self, state: State, meta_state: State) -> None:
        """Set a state; upstream's setters of `state` and `meta_state`."""
        if state or meta_state:
            raise UpstreamValueError("This cache has no state but a state was set.")

    @classmethod
    def from_state(cls, state: State, meta_state: State = None, *, rules: CacheRules) -> Self:
        """Rebuild a cache without running its constructor."""
        cache = cls.__new__(cls)
        cache.rules = rules
        cache.put_state(state, meta_state)
        return cache

    def copy(self) -> Self:
        """An independent cache, arrays included; upstream's `copy.deepcopy`."""
        other = object.__new__(type(self))
        other.__dict__.update((name, copied(part)) for name, part in self.__dict__.items())
        return other

    def lacks(self, name: str) -> NoReturn:
        """Raise Python's error for a missing attribute."""
        raise UpstreamAttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def needs_batches(self, name: str) -> None:
        """Raise for a method that recurrent caches have since #690."""
        if not self.rules.batches_recurrent:
            self.lacks(name)

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Write rows; return those that attention may see."""
        self.lacks("update_and_fetch")

    def keys_and_values(self) -> tuple[Array, Array]:
        """Keys and values visible to attention."""
        self.lacks("keys_and_values")

    def trim(self, n: int) -> int:
        """Remove the last tokens; return their number."""
        self.lacks("trim")

    def make_mask(
        self, columns: int, *, window_size: int | None = None, return_array: bool = False
    ) -> Mask:
        """Mask of the next forward pass."""
        return written_out(self.mask_of(columns, window_size=window_size))

    def mask_of(self, columns: int, *, window_size: int | None = None) -> Mask | Causal:
        """As `make_mask`, but a causal mask may stay symbolic."""
        self.lacks("make_mask")

    @classmethod
    def merge(cls, caches: Sequence[Any]) -> "LayerCache":
        """A batch cache of several single ones, by the batch class."""
        if cls.batch_form is not None:
            return cls.batch_form.merge(caches)
        raise UpstreamAttributeError(f"type object {cls.__name__!r} has no attribute 'merge'")

    def filter(self, rows: Sequence[int]) -> None:
        """Keep these rows of the batch."""
        self.lacks("filter")

    def extend(self, other: Self) -> None:
        """Append the rows of another batch."""
        self.lacks("extend")

    def extract(self, row: int) -> "LayerCache":
        """A row as a single cache."""
        self.lacks("extract")

    def prepare(
        self,
        *,
        left_padding: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
        right_padding: Sequence[int] | None = None,
    ) -> None:
        """Set the padding of the next forward passes."""
        self.announce(Announced(left_padding, lengths, right_padding))

    def announce(self, padding: Announced) -> None:
        """Part of `prepare` that a class adds."""
        self.lacks("prepare")

    def finalize(self) -> None:
        """End the padded forward passes."""
        self.lacks("finalize")

    def advance(self, columns: int) -> None:
        """Count the columns of a forward pass."""
        self.lacks("advance")


def copied(part: State) -> State:
    """A field of a cache, copied if it is mutable."""
    if isinstance(part, np.ndarray | LayerCache):
        return part.copy()
    if isinstance(part, list | tuple):
        return type(part)(map(copied, part))
    return part


def is_batch(cache: LayerCache) -> bool:
    """Check whether a cache holds the rows of several single ones."""
    return any(type(cache) is kind.batch_form for kind in LayerCache.classes.values())


def inherit_bytes(cache: LayerCache, source: LayerCache) -> None:
    """Copy the bytes of a row from the source of a cache."""
    cache.row_bytes, cache.wide_row_bytes = source.row_bytes, source.wide_row_bytes


def extended_row_bytes(one: LayerCache, other: LayerCache, *, promotes: bool) -> int | None:
    """Bytes of a row after two batches are joined.

    Until #1491 the block of an empty side is in float32, and so is the result.
    """
    if one.row_bytes is None or other.row_bytes is None:
        return one.row_bytes
    if promotes and one.empty() != other.empty():
        return one.wide_row_bytes
    return max(one.row_bytes, other.row_bytes)
