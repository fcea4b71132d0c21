"""Slots of attention tokens, windows and recurrent states, freed pages first in, first out.

Follows `TokenToKVPoolAllocator`, `PagedTokenToKVPoolAllocator`, `SWATokenToKVPoolAllocator` and
`MambaPool`. Slot 0 is reserved: freed window slots map to it.
"""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from cachesim.engines.sglang.node import FULL, NO_SLOTS, Node
from cachesim.units import Integers


class Ring:
    """Free numbers: taken from the head, put back at either end."""

    __slots__ = ("_data", "_head", "count")

    def __init__(self, first: int, count: int) -> None:
        self._data = np.arange(first, first + max(count, 1), dtype=np.int64)
        self._head = 0
        self.count = count

    def take(self, count: int) -> Integers:
        """Remove and return the first numbers."""
        taken = self._read(count)
        self._head = (self._head + count) % len(self._data)
        self.count -= count
        return taken

    def put(self, numbers: Integers) -> None:
        self._reach(len(numbers))
        self._write((self._head + self.count) % len(self._data), numbers)
        self.count += len(numbers)

    def put_first(self, numbers: Integers) -> None:
        """Insert numbers at the head."""
        self._reach(len(numbers))
        self._head = (self._head - len(numbers)) % len(self._data)
        self._write(self._head, numbers)
        self.count += len(numbers)

    def numbers(self) -> Integers:
        """All numbers, the next one first."""
        return self._read(self.count)

    def _read(self, count: int) -> Integers:
        size, end = len(self._data), self._head + count
        if end <= size:
            return self._data[self._head : end].copy()
        return np.concatenate((self._data[self._head :], self._data[: end - size]))

    def _write(self, at: int, numbers: Integers) -> None:
        size, end = len(self._data), at + len(numbers)
        if end <= size:
            self._data[at:end] = numbers
        else:
            self._data[at:] = numbers[: size - at]
            self._data[: end - size] = numbers[size - at :]

    def _reach(self, more: int) -> None:
        """Room for more numbers than at the start: a page freed twice is listed twice."""
        if self.count + more > len(self._data):
            held = self._read(self.count)
            self._data = np.zeros(2 * (self.count + more), np.int64)
            self._data[: self.count] = held
            self._head = 0


class TokenPool:
    """Slots for tokens, in pages of `page`; page 0 is left out."""

    def __init__(self, size: int, page: int) -> None:
        self.size = size
        self.page = page
        self.free_pages = Ring(1, size // page)
        self._group: list[Integers] | None = None

    @property
    def available(self) -> int:
        """Free slots."""
        return self.free_pages.count * self.page

    def alloc(self, count: int) -> Integers | None:
        """Allocate slots, of page 1."""
        if count > self.free_pages.count:
            return None
        return self.free_pages.take(count)

    def alloc_pages(self, count: int) -> Integers | None:
        """Allocate slots in whole pages, for loads from the host."""
        page = self.page
        if count > self.available:
            return None
        pages = self.free_pages.take(count // page)
        return (pages[:, None] * page + np.arange(page, dtype=np.int64)).reshape(-1)

    def alloc_extend(self, spans: Sequence[tuple[int, int, int]]) -> Integers | None:
        """Slots for spans `(before, after, last slot)` of several requests, one after the other.

            last page      new pages            last new page
            . . x x | x x x x | x x x x | x x . .
                ^ last slot + 1

        Follows `alloc_extend_kernel`.
        """
        page = self.page
        needed = [-(-after // page) - -(-before // page) for before, after, _ in spans]
        total = sum(needed)
        if total > self.free_pages.count:
            return None
        pages = self.free_pages.take(total)
        taken, at = [], 0
        for (before, after, last), count in zip(spans, needed, strict=True):
            rest = min(after, -(-before // page) * page) - before
            # First the rest of the last page: it belongs to this request alone.
            if rest:
                taken.append(np.arange(last + 1, last + 1 + rest, dtype=np.int64))
            if count:
                grid = pages[at : at + count, None] * page + np.arange(page, dtype=np.int64)
                taken.append(grid.reshape(-1)[: after - before - rest])
            at += count
        return np.concatenate(taken) if taken else NO_SLOTS

    def free(self, slots: Integers) -> None:
        """Free slots; inside a group, all at its end."""
        if not len(slots):
            return
        # Pages are freed once, at the group's end, even if several requests had slots of one.
        if self._group is not None:
            self._group.append(slots)
        elif self.page == 1:
            self.free_pages.put(slots)
        else:
            # Trap: with pages larger than one slot freed ones are the next to be taken.
            self.free_pages.put_first(np.unique(slots // self.page))

    def begin_group(self) -> None:
        """Collect freed slots until `end_group`."""
        self._group = []

    def end_group(self) -> None:
        """Free the group's slots: repeated pages count once."""
        group, self._group = self._group, None
        if group:
            self.free(np.concatenate(group))


class WindowPool(TokenPool):
    """Slots for full attention, each with one of the window layers as long as that is alive."""

    def __init__(self, size: int, window_size: int, page: int) -> None:
        super().__init__(size, page)
        self.windows = TokenPool(window_size, page)
        self.mapping = np.zeros(size + page + 1, np.int64)
        self.mapping[-1] = -1

    def alloc(self, count: int) -> Integers | None:
        if count > self.free_pages.count or count > self.windows.free_pages.count:
            return None
        slots = self.free_pages.take(count)
        self.mapping[slots] = self.windows.free_pages.take(count)
        return slots

    def alloc_extend(self, spans: Sequence[tuple[int, int, int]]) -> Integers | None:
        """Slots for spans in both. Follows `SWATokenToKVPoolAllocator.alloc_extend`."""
        inner = [(before, after, int(self.mapping[last])) for before, after, last in spans]
        slots, windows = super().alloc_extend(spans), self.windows.alloc_extend(inner)
        if slots is None or windows is None:
            return None
        self.mapping[slots] = windows
        return slots

    def free(self, slots: Integers) -> None:
        if not len(slots):
            return
        grouped = self._group is not None
        super().free(slots)
        if not grouped:
            self.free_window(slots)

    @property
    def available_windows(self) -> int:
        """Free window slots."""
        return self.windows.available

    def free_full(self, slots: Integers) -> None:
        """Free attention slots only. Follows `free_full_segment`."""
        super().free(slots)

    def free_window(self, slots: Integers) -> None:
        """Free window slots only; of whole pages, as drafts had more of the last one."""
        if self.page > 1:
            starts = np.unique(slots // self.page) * self.page
            slots = (starts[:, None] + np.arange(self.page)).ravel()
        windows = self.mapping[slots]
        # Entries of 0 are free already.
        self.windows.free(windows[windows > 0])
        self.mapping[slots] = 0


class StatePool:
    """Slots for recurrent states, numbered from 1."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_slots = Ring(1, size)
        self._group: list[int] = []
        self.on_copy: Callable[[int, int], None] | None = None
        self.on_alloc: Callable[[int], None] | None = None

    @property
    def available(self) -> int:
        """Free slots."""
        return self.free_slots.count

    def begin_group(self, count: int) -> None:
        """Reserve slots for the allocations of a group, if enough are free.

        Follows `alloc_group_begin`.
        """
        if 0 < count <= self.free_slots.count:
            self._group = [int(slot) for slot in self.free_slots.take(count)]

    def end_group(self) -> None:
        """Return the slots that were not allocated."""
        group, self._group = self._group, []
        if group:
            self.free_slots.put(np.array(group, np.int64))

    def alloc(self) -> int | None:
        """Allocate the slot that has been free for longest (`MambaPool.alloc`)."""
        # Reserved for the waiting requests, so that none of them evicts another's state.
        if self._group:
            return self._group.pop(0)
        if not self.free_slots.count:
            return None
        slot = int(self.free_slots.take(1)[0])
        if self.on_alloc is not None:
            self.on_alloc(slot)
        return slot

    def copy(self, source: int, target: int) -> None:
        """Copy a state to another slot."""
        if self.on_copy is not None:
            self.on_copy(source, target)

    def free(self, slot: int) -> None:
        self.free_slots.put(np.array([slot], np.int64))


# The third tier: pages under the hash of all tokens up to their end, and what is under way.
#
#     key of page n = hash(key of page n - 1, tokens of page n)
#
# A backup or a prefetch is done some polls of the scheduler after it was asked for, never after
# some seconds. Follows `HiCacheStorage`, `HiCacheFile`, `get_hash_str`, `StorageOperation` and
# `PrefetchOperation`.

PrefetchPolicy: TypeAlias = Literal["best_effort", "wait_complete", "timeout"]

PageCopy = Callable[[int, Integers, Integers], None]
"""The component, and the host's and the storage's slots in the order of the copy."""

LEAST_PRIORITY: Final = -(2**63 - 1)
MOST_PRIORITY: Final = 2**63 - 1
"""The root's (`-sys.maxsize`), as long as no insertion has raised it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageShape:
    """Thresholds, policy and timeouts of prefetches (`--hicache-storage-*`)."""

    policy: PrefetchPolicy = "best_effort"
    threshold: int = 256  # tokens
    lag: int = 0  # polls until an operation is done; a machine's business
    acks: int = 0  # pieces of transfers that are received in one poll; 0: all
    timeout_base: float = 1.0  # prefetch_timeout_base: seconds there, polls here
    timeout_per_ki_token: float = 0.25  # and more for every 1,024 tokens that are on their way
    interval: int = 8  # retry_poll_interval: passes until a miss is asked for again
    attempts: int = 8  # retry_max_attempts


def namespace(extra: Hashable) -> bytes | None:
    """The seed of the keys under an extra key (`storage_namespace_seed`)."""
    return None if extra is None else hashlib.sha256(f"namespace {extra!r}".encode()).digest()


def hashes_of(numbers: Integers, prior: bytes | None, page: int, *, bigrams: bool) -> list[bytes]:
    """The keys of all pages, each chained to the one before; of a pair both tokens count.

    Follows `compute_node_hash_values` and `get_hash_str`.
    """
    plain = np.asarray(numbers, np.int64)
    if bigrams:
        # Of a pair both tokens count.
        plain = np.stack((plain >> 32, plain & 0xFFFFFFFF), axis=1).ravel()
    data, width = plain.astype("<u4").tobytes(), page * (8 if bigrams else 4)
    hashes: list[bytes] = []
    for start in range(0, len(data), width):
        prior = hashlib.sha256((prior or b"") + data[start : start + width]).digest()
        hashes.append(prior)
    return hashes


class Storage:
    """Parts of pages by their keys; it outlives the tree (`HiCacheFile`)."""

    def __init__(self) -> None:
        self.places: dict[bytes, int] = {}
        self.parts = (self.places, dict[bytes, int](), dict[bytes, int]())

    def put(self, key: bytes, part: int = FULL) -> int | None:
        """Store a part of a page; return its place, or None if it is stored already."""
        places = self.parts[part]
        if key in places:
            return None
        place = places[key] = len(places)
        return place

    def known(self, keys: Sequence[bytes]) -> int:
        """Count the keys up to the first that is not stored (`batch_exists`)."""
        for count, key in enumerate(keys):
            if key not in self.places:
                return count
        return len(keys)


@dataclass(slots=True)
class Backup:
    """A node's pages in transit to the storage, as queued."""

    node: Node
    slots: Integers
    keys: list[bytes]


@dataclass(slots=True, eq=False)
class Prefetch:
    """A request's pages in transit to the host."""

    request: int
    node: Node  # last_host_node
    tokens: Integers
    slots: Integers  # as they were taken from the host's pool
    prior: bytes | None
    wanted: Integers  # operation.host_indices: what is left of the slots once the hits are counted
    keys: list[bytes] = field(default_factory=list)
    completed: int = 0
    terminated: bool = False
    began: int = 0  # start_time, in polls


Each = TypeVar("Each")


@dataclass(slots=True)
class DelayQueue(Generic[Each]):
    """The queue of a thread, first come, first served."""

    lag: int = 0
    waiting: list[tuple[int, Each]] = field(default_factory=list)

    def put(self, each: Each) -> None:
        """Append an operation."""
        self.waiting.append((self.lag, each))

    def due(self) -> list[Each]:
        """Operations completed by this poll."""
        ready = [operation for polls, operation in self.waiting if not polls]
        self.waiting = [(polls - 1, operation) for polls, operation in self.waiting if polls]
        return ready


# The host's memory beside the device's: its slots, what is copied there, and when a copy is done.
#
#     device   [ attention's slots ] [ windows' slots ] [ states ]
#                   |    ^                |    ^           |   ^
#               copied  loaded back       v    |           v   |
#     host     [ attention's slots ] [ windows' slots ] [ states ]
#
# Follows `HostKVCache`, `MambaPoolHost` and the queues of `HiCacheController`.

LEAST_LOADED: Final = 10
"""`load_back_threshold`: fewer tokens of attention are computed again instead."""

WritePolicy: TypeAlias = Literal["write_through", "write_through_selective", "write_back"]

HostAction: TypeAlias = Literal["copied", "left", "loaded", "dropped", "stored", "fetched"]
"""Transfer of a part of a node: copied to the host, left there by the device, loaded back from the
host, dropped by the host, stored in the storage, fetched from there to the host."""

Copy = Callable[[int, Integers, Integers], None]
"""The component, the source slots, and the target slots of a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShape:
    """Sizes of the host, and its write policy (`--hicache-*`)."""

    tokens: int
    window_tokens: int = 0
    states: int = 0
    policy: WritePolicy = "write_through"
    lag: int = 0  # polls of the queue until a copy is done; a machine's business
    storage: StorageShape | None = None  # hicache_storage_backend

    @property
    def writes_back(self) -> bool:
        """True where nodes are copied only when the device evicts them."""
        return self.policy == "write_back"

    @property
    def threshold(self) -> int:
        """Hits of a node until it is copied (`write_through_threshold`)."""
        return 1 if self.policy == "write_through" else 2


def host_size(device: int, ratio: float, page: int) -> int:
    """Slots on the host for `device` slots: whole pages, and one more page."""
    return (int(device * ratio) // page + 1) * page


class HostPool:
    """Slots, numbered from 0: taken in the order in which they became free."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._unused = 0  # the first slot that was never handed out
        self._back = Ring(0, 0)

    @property
    def available(self) -> int:
        """Free slots."""
        return self.size - self._unused + self._back.count

    def alloc(self, count: int) -> Integers | None:
        """Allocate slots, all or none."""
        if count > self.available:
            return None
        first, self._unused = self._unused, min(self._unused + count, self.size)
        fresh = np.arange(first, self._unused, dtype=np.int64)
        if len(fresh) == count:
            return fresh
        return np.concatenate((fresh, self._back.take(count - len(fresh))))

    def free(self, slots: Integers) -> None:
        if len(slots):
            self._back.put(slots)


@dataclass(slots=True)
class Ack:
    """Copies that were submitted together; `polls`: the polls until completion."""

    nodes: list[int]
    polls: int = 0


@dataclass(slots=True)
class Transfers:
    """Copies in one direction: queued, submitted, done (`HiCacheAck`)."""

    lag: int = 0
    queued: list[int] = field(default_factory=list)
    submitted: list[Ack] = field(default_factory=list)

    def submit(self) -> None:
        """Submit the queue as one copy (`merge_ops`)."""
        if self.queued:
            self.submitted.append(Ack(self.queued, self.lag))
            self.queued = []

    def done(self) -> list[int]:
        """Nodes whose copies are complete, in order, up to the first that is not."""
        ready = 0
        for ack in self.submitted:
            if ack.polls:
                ack.polls -= 1
                break
            ready += 1
        return self._take(ready)

    def wait(self) -> list[int]:
        """Wait for all operations and return them."""
        self.submit()
        return self._take(len(self.submitted))

    def _take(self, count: int) -> list[int]:
        gone, self.submitted = self.submitted[:count], self.submitted[count:]
        return [number for ack in gone for number in ack.nodes]


@dataclass(slots=True)
class PendingCopy:
    """The copy of a node: its lock, and the nodes whose parts it covers."""

    node: Node
    covers: list[Node]
    held: object = None
    is_held: bool = False


@dataclass(slots=True)
class HostHold:
    """The lock of a load on the host, from a node upwards: tokens of each part."""

    node: Node
    full: int = 0
    window: int = 0


def rows(nodes: Sequence[Node]) -> int:
    """The sum of the nodes' tokens."""
    return sum(map(len, nodes))
