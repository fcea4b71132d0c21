"""Base class of layer caches."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, Self, TypeAlias

import numpy as np

from cachesim.engines.mlx_lm.caches.masks import Causal, Mask, written_out
from cachesim.engines.mlx_lm.caches.raised import (
    UpstreamAttributeError,
    UpstreamKeyError,
    UpstreamNotImplementedError,
    UpstreamValueError,
)
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.units import Array

State: TypeAlias = Any
"""Arrays, integers, flags, strings and None, nested in lists and tuples."""


class Missing:
    """Placeholder of a field that a restore leaves out."""


MISSING: Final = Missing()


class Announced(NamedTuple):
    """Arguments of `prepare`, each only where there is any."""

    left_padding: Sequence[int] | None
    lengths: Sequence[int] | None
    right_padding: Sequence[int] | None


class LayerCache:
    """An object of a prompt cache, with the defaults of upstream's `_BaseCache`.

    Methods that only some classes have raise `AttributeError` here, as Python would.
    """

    has_merge: ClassVar[bool] = False
    """True if upstream's class has `merge`, which the server needs to batch it."""

    classes: ClassVar[dict[str, "type[LayerCache]"]] = {}
    """All cache classes by name, for restoring."""

    batch_form: ClassVar["type[LayerCache] | None"] = None
    """The class that holds several rows of this one; it registers itself."""

    upstream_name: ClassVar[str] = ""
    """Upstream's name of the class, if it differs from ours."""

    row_bytes: int | None = None
    """Bytes of one row in the real model (one state, for recurrent slots); None: those that the
    arrays take. It decides evictions and nothing else."""

    wide_row_bytes: int | None = None
    """The same in float32, which a batch may become."""

    def __init_subclass__(
        cls, *, batches: "type[LayerCache] | None" = None, shared: bool = False
    ) -> None:
        """`class BatchKVCache(LayerCache, batches=KVCache)` says whose rows it holds; `shared` is
        what several classes have in common, and no class of upstream's.
        """
        if not shared:
            LayerCache.classes[cls.__name__] = cls
        if batches is not None:
            batches.batch_form = cls

    @classmethod
    def named(cls, name: str) -> "type[LayerCache]":
        """The class that upstream would find under this name."""
        if name not in LayerCache.classes:
            raise UpstreamKeyError(name)
        return LayerCache.classes[name]

    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules

    @property
    def merges(self) -> bool:
        """True if it can be merged with others of its class into a batch."""
        return self.has_merge

    def is_trimmable(self) -> bool:
        """Check whether `trim` may be called."""
        return False

    def size(self) -> int:
        """Number of tokens by the cache's own count; 0 without one."""
        return 0

    def as_size(self, count: int) -> int:
        """A count as `size()` says it; before #769 it was a `len()`, which is never negative."""
        if count < 0 and not self.rules.batches_recurrent:
            msg = "__len__() should return >= 0"
            raise UpstreamValueError(msg)
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the allocated buffers."""
        if not self.rules.counts_bytes:
            self.lacks("nbytes")
        return self.count_bytes()

    def count_bytes(self) -> int:
        """Value of `nbytes` in releases that have it."""
        msg = "Cache sub-class must implement nbytes"
        raise UpstreamNotImplementedError(msg)

    def empty(self) -> bool:
        """Check whether nothing was ever written."""
        msg = "Cache sub-class must implement this."
        raise UpstreamNotImplementedError(msg)

    @property
    def state(self) -> State:
        """Arrays to evaluate or save."""
        return []

    @property
    def meta_state(self) -> State:
        """Scalars beside the state, as strings; only in releases with the sliced form."""
        return ""

    def put_state(self, state: State, meta_state: State) -> None:
        """Take over a state; upstream's setters of `state` and `meta_state`."""
        if state or meta_state:
            msg = "This cache has no state but a state was set."
            raise UpstreamValueError(msg)

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
        """Python's answer to a name that the class does not have."""
        msg = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise UpstreamAttributeError(msg)

    def needs_batches(self, name: str) -> None:
        """A method for batches of what only since #690 is in any."""
        if not self.rules.batches_recurrent:
            self.lacks(name)

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Write rows; hand back what attention may look at."""
        self.lacks("update_and_fetch")

    def keys_and_values(self) -> tuple[Array, Array]:
        """Keys and values visible to attention."""
        self.lacks("keys_and_values")

    def trim(self, n: int) -> int:
        """Take the last tokens back; how many were taken."""
        self.lacks("trim")

    def make_mask(
        self,
        columns: int,
        *,
        window_size: int | None = None,
        return_array: bool = False,
    ) -> Mask:
        """Mask of the next forward pass."""
        return written_out(self.mask_of(columns, window_size=window_size))

    def mask_of(self, columns: int, *, window_size: int | None = None) -> Mask | Causal:
        """As `make_mask`, where a causal one need not be written out."""
        self.lacks("make_mask")

    @classmethod
    def merge(cls, caches: Sequence[Any]) -> "LayerCache":
        """A batch cache of several single ones; the batch class does it."""
        if cls.batch_form is not None:
            return cls.batch_form.merge(caches)
        msg = f"type object {cls.__name__!r} has no attribute 'merge'"
        raise UpstreamAttributeError(msg)

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
        """Announce the padding of the next forward passes."""
        self.announce(Announced(left_padding, lengths, right_padding))

    def announce(self, padding: Announced) -> None:
        """Part of `prepare` that a class adds."""
        self.lacks("prepare")

    def finalize(self) -> None:
        """End the padded forward passes."""
        self.lacks("finalize")

    def advance(self, columns: int) -> None:
        """A forward pass of so many columns is over."""
        self.lacks("advance")


def copied(part: State) -> State:
    """A field of a cache, copied where it could be changed in place."""
    if isinstance(part, np.ndarray | LayerCache):
        return part.copy()
    if isinstance(part, list | tuple):
        return type(part)(map(copied, part))
    return part


def is_batch(cache: LayerCache) -> bool:
    """Check whether a cache holds the rows of several single ones."""
    return any(type(cache) is each.batch_form for each in LayerCache.classes.values())


def inherit_bytes(cache: LayerCache, source: LayerCache) -> None:
    """Rows of a cache that is made of another cost what that one's cost."""
    cache.row_bytes, cache.wide_row_bytes = source.row_bytes, source.wide_row_bytes


def extended_row_bytes(one: LayerCache, other: LayerCache, *, promotes: bool) -> int | None:
    """Bytes of a row after two batches are joined.

    Until #1491 the block of a side that holds nothing is made in float32, and so is the result.
    """
    if one.row_bytes is None or other.row_bytes is None:
        return one.row_bytes
    if promotes and one.empty() != other.empty():
        return one.wide_row_bytes
    return max(one.row_bytes, other.row_bytes)
