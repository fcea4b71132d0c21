"""The third tier: pages under the hash of all tokens up to their end, and what is under way.

    key of page n = hash(key of page n - 1, tokens of page n)

A backup or a prefetch is done some looks of the scheduler after it was asked for, never after some
seconds. Follows `HiCacheStorage`, `HiCacheFile`, `get_hash_str`, `StorageOperation` and
`PrefetchOperation`.
"""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from cachesim.engines.sglang.node import FULL, Node
from cachesim.units import Integers

PrefetchPolicy: TypeAlias = Literal["best_effort", "wait_complete", "timeout"]

PageCopy = Callable[[int, Integers, Integers], None]
"""Which part, and slots of the host and of the storage, in the order of the copy."""

LEAST_PRIORITY: Final = -(2**63 - 1)
"""The root's (`-sys.maxsize`), as long as no insertion has raised it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageShape:
    """Thresholds, policy and timeouts of prefetches (`--hicache-storage-*`)."""

    policy: PrefetchPolicy = "best_effort"
    threshold: int = 256  # tokens
    lag: int = 0  # looks until an operation is done; a machine's business
    acks: int = 0  # pieces of transfers that are heard of in one look; 0: all
    timeout_base: float = 1.0  # prefetch_timeout_base: seconds there, looks here
    timeout_per_ki_token: float = 0.25  # and more for every 1,024 tokens that are on their way
    interval: int = 8  # retry_poll_interval: passes until a miss is asked for again
    attempts: int = 8  # retry_max_attempts


def hash_of(numbers: Integers, prior: bytes | None, *, bigrams: bool) -> bytes:
    """The key of one page (`get_hash_str`); of a pair both tokens count."""
    plain = np.asarray(numbers, np.int64)
    if bigrams:
        plain = np.stack((plain >> 32, plain & 0xFFFFFFFF), axis=1).ravel()
    return hashlib.sha256((prior or b"") + plain.astype("<u4").tobytes()).digest()


def namespace(extra: Hashable) -> bytes | None:
    """The seed of the keys under an extra key (`storage_namespace_seed`)."""
    return None if extra is None else hashlib.sha256(f"namespace {extra!r}".encode()).digest()


def hashes_of(numbers: Integers, prior: bytes | None, page: int, *, bigrams: bool) -> list[bytes]:
    """The keys of all pages, each chained to the one before (`compute_node_hash_values`)."""
    found: list[bytes] = []
    for start in range(0, len(numbers), page):
        prior = hash_of(numbers[start : start + page], prior, bigrams=bigrams)
        found.append(prior)
    return found


class Storage:
    """Parts of pages by their keys; it outlives the tree (`HiCacheFile`)."""

    def __init__(self) -> None:
        self.places: dict[bytes, int] = {}
        self.parts = (self.places, dict[bytes, int](), dict[bytes, int]())

    def put(self, key: bytes, part: int = FULL) -> int | None:
        """Store a part of a page; its place, None where it is there already."""
        places = self.parts[part]
        if key in places:
            return None
        place = places[key] = len(places)
        return place

    def known(self, keys: Sequence[bytes]) -> int:
        """Count the keys up to the first that is not there (`batch_exists`)."""
        for count, key in enumerate(keys):
            if key not in self.places:
                return count
        return len(keys)


@dataclass(slots=True)
class Backup:
    """A node's pages on their way to the storage, as they were when it was queued."""

    node: Node
    slots: Integers
    keys: list[bytes]


@dataclass(slots=True, eq=False)
class Prefetch:
    """A request's pages on their way to the host."""

    request: int
    node: Node  # last_host_node
    tokens: Integers
    slots: Integers  # as they were taken from the host's pool
    prior: bytes | None
    wanted: Integers  # operation.host_indices: what is left of the slots once the hits are counted
    keys: list[bytes] = field(default_factory=list)
    completed: int = 0
    terminated: bool = False
    began: int = 0  # start_time, in looks


Each = TypeVar("Each")


@dataclass(slots=True)
class Line(Generic[Each]):
    """The queue of a thread, first come, first served."""

    lag: int = 0
    waiting: list[tuple[int, Each]] = field(default_factory=list)

    def put(self, each: Each) -> None:
        """At the end of the line."""
        self.waiting.append((self.lag, each))

    def due(self) -> list[Each]:
        """Operations that are done by this look."""
        ready = [each for looks, each in self.waiting if not looks]
        self.waiting = [(looks - 1, each) for looks, each in self.waiting if looks]
        return ready
