"""The unified tree's storage threads: their operations on host memory and storage.

    backup      windows and states of a node first, then attention, page by page
    query       the stored part of a span, with its windows and state
    transfer    attention batch by batch; after a complete one, windows and states

Follows the thread functions of `HybridCacheController`, `HiCacheFile`, `PrefetchOperation`,
`PoolTransfer`, `PrefetchAck` and `StoragePrefetchRetries`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np

from cachesim.engines.sglang.node import FULL, NO_SLOTS, Node
from cachesim.engines.sglang.pools import (
    DelayQueue,
    HostAction,
    HostHold,
    PageCopy,
    Storage,
    StorageShape,
    hashes_of,
    namespace,
)
from cachesim.engines.sglang.request import Req
from cachesim.units import Integers

T = TypeVar("T")

BATCH: Final = 128
"""`STORAGE_BATCH_SIZE`: pages that one piece of a transfer has."""


def drained(queue: list[T]) -> list[T]:
    """Empty a queue and return its entries."""
    items = queue[:]
    queue.clear()
    return items


@dataclass(slots=True)
class PartFetch:
    """The trailing pages of windows, or the state, that a fetch needs as well.

    Until the hit is known `keys` has the count only.
    """

    part: int
    page: int  # slots of a page: one for a state
    keys: list[bytes]
    slots: Integers | None = None


@dataclass(slots=True, eq=False)
class Fetch:
    """A request's span of tokens in transit to the host (`PrefetchOperation`)."""

    request: int
    anchor: Node  # last_host_node
    held: HostHold
    extra: Hashable
    key: Integers  # prefetch_key
    prior: bytes | None  # last_hash
    start: int  # storage_start
    assumed: bool  # assume_stored: it is not asked for, it is known to be there
    parts: list[PartFetch]
    since: int  # start_time
    keys: list[bytes] = field(default_factory=list)  # hash_value
    hit: int = 0  # storage_hit_count
    slots: Integers | None = None  # host_indices
    completed: int = 0
    hits: dict[int, int] = field(default_factory=dict)  # extra_pool_hit_pages
    parts_done: bool = False  # pool_transfers_done
    terminated: bool = False
    late: bool = False  # deadline_expired
    handled: bool = False  # what came of it is in the tree, or was given up

    def __post_init__(self) -> None:
        self.parts_done = not self.parts

    @property
    def own(self) -> Integers:
        """The host's slots that the fetch owns."""
        if self.slots is None:
            return NO_SLOTS
        return self.slots[self.completed :] if self.handled else self.slots

    @property
    def parts_here(self) -> list[PartFetch]:
        """The parts, once their transfer is over."""
        return self.parts if self.parts_done else []


@dataclass(slots=True)
class Ongoing:
    """The tree's entry of a request's fetch (`_OngoingPrefetch`)."""

    fetch: Fetch
    slots: Integers | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledgement of a transfer; the last one ends it (`PrefetchAck`)."""

    fetch: Fetch
    completed: int | None = None
    hits: dict[int, int] | None = None
    done: bool = False


@dataclass(slots=True)
class Wait:
    """The wait of a request, since a poll first found it blocked."""

    since: int | None = None
    limit: float = 0.0
    expired: bool = False

    def over(self, now: int) -> bool:
        """True once the wait is over."""
        return self.expired or (self.since is not None and now - self.since > self.limit)


@dataclass(slots=True)
class Retry:
    """A request that queries again; `due` is a pass, None: not yet set."""

    known_until: int | None = None  # storage_hit_end
    due: int | None = None


@dataclass(slots=True)
class Retries:
    """Retries of missed fetches, some passes later, in the order of the queue."""

    interval: int
    attempts: int
    pending: dict[int, Retry] = field(default_factory=dict)
    step: int = 0

    def missed(self, request: int, known_until: int | None = None) -> None:
        """Schedule a retry after a miss (`poll_miss`)."""
        self.pending[request] = Retry(known_until)

    def cancel(self, request: int) -> None:
        """Cancel a request's retry."""
        self.pending.pop(request, None)

    def ready(self, waiting: Sequence[Req]) -> list[tuple[Req, int | None]]:
        """Requests that query again in this pass (`pop_ready`). Trap: never the queue's head."""
        self.step += 1
        if not waiting or not self.pending:
            return []
        self.cancel(waiting[0].id)
        if not any(retry.due is None or retry.due <= self.step for retry in self.pending.values()):
            return []
        due = []
        for req in waiting:
            retry = self.pending.get(req.id)
            if retry is None:
                continue
            if req.reissues >= self.attempts or self.interval <= 0:
                self.cancel(req.id)
                continue
            # The wait begins with the first pass after the miss.
            if retry.due is None:
                retry.due = self.step + self.interval
            if retry.due > self.step:
                continue
            self.cancel(req.id)
            due.append((req, retry.known_until))
        return due


@dataclass(slots=True)
class NodeBackup:
    """A node in transit to the storage, as queued."""

    node: Node
    held: HostHold
    parts: list[PartFetch]  # attention last


@dataclass(slots=True)
class Threads:
    """Queues of operations, and their execution at each poll. Follows `HybridCacheController`'s
    threads.
    """

    storage: Storage
    shape: StorageShape
    page: int
    bigrams: bool
    backups: DelayQueue[NodeBackup] = field(init=False)
    queries: DelayQueue[Fetch] = field(init=False)
    transfers: DelayQueue[Fetch] = field(init=False)
    saved: list[NodeBackup] = field(default_factory=list)  # ack_backup_queue
    found: list[Fetch] = field(default_factory=list)  # prefetch_hit_queue
    untold: list[Ack] = field(default_factory=list)  # prefetch_sync_queue
    news: list[Ack] = field(default_factory=list)  # ack_prefetch_queue
    released: list[tuple[int, Integers]] = field(default_factory=list)  # host_mem_release_queue
    on_store: PageCopy | None = None
    on_fetch: PageCopy | None = None
    stored: list[tuple[HostAction, int, Node]] = field(default_factory=list)  # to be reported

    def __post_init__(self) -> None:
        self.backups, self.queries = DelayQueue(self.shape.lag), DelayQueue(self.shape.lag)
        self.transfers = DelayQueue(self.shape.lag)

    @property
    def busy(self) -> bool:
        """True while an operation or its acknowledgement is pending."""
        lines = (self.backups.waiting, self.queries.waiting, self.transfers.waiting)
        return any((*lines, self.saved, self.found, self.untold, self.news))

    def run(self) -> None:
        """Run the operations that are due."""
        for backup in self.backups.due():
            # Follows `_page_backup`; what the storage has already is not written again.
            for part in backup.parts:
                fresh = False
                for index, key in enumerate(part.keys):
                    place = self.storage.put(key, part.part)
                    fresh = fresh or place is not None
                    if place is not None and self.on_store is not None:
                        self.on_store(part.part, _page(part, index), _place(part, place))
                if fresh:
                    self.stored.append(("stored", part.part, backup.node))
            self.saved.append(backup)
        for fetch in self.queries.due():
            # Follows `prefetch_thread_func`: the longest span that can be resumed from.
            if not fetch.terminated:
                prior = namespace(fetch.extra) if fetch.prior is None else fetch.prior
                keys = hashes_of(fetch.key, prior, self.page, bigrams=self.bigrams)
                count = len(keys) if fetch.assumed else self._restorable(keys, fetch.parts)
                fetch.keys, fetch.hit = keys[:count], count * self.page
            self.found.append(fetch)
        for fetch in self.transfers.due():
            # Follows `prefetch_io_aux_func`: without a waiting request nothing is fetched.
            whole = self._transfer_attention(fetch)
            if fetch.parts:
                hits = self._transfer_parts(fetch) if whole and not fetch.terminated else {}
                self.untold.append(Ack(fetch, hits=hits))
            self.untold.append(Ack(fetch, done=True))
        count = self.shape.acks or len(self.untold)
        self.news += self.untold[:count]
        del self.untold[:count]

    def release(self, part: int, slots: Integers | None) -> None:
        """Slots of the host that are freed at a later poll (`append_host_mem_release`)."""
        if slots is not None and len(slots):
            self.released.append((part, slots))

    def release_parts(self, parts: Sequence[PartFetch]) -> None:
        """Release the slots of a fetch's windows and state."""
        for part in parts:
            self.release(part.part, part.slots)

    # -- to the storage ----------------------------------------------------------------------------

    # -- from the storage --------------------------------------------------------------------------

    def known(self, key: Integers, extra: Hashable) -> int:
        """Count the tokens of a key, from its start, whose attention is stored."""
        whole = key[: len(key) // self.page * self.page]
        keys = hashes_of(whole, namespace(extra), self.page, bigrams=self.bigrams)
        return self.storage.known(keys) * self.page

    def _restorable(self, keys: list[bytes], parts: Sequence[PartFetch]) -> int:
        """Pages up to the last one whose parts are all stored. Follows `batch_exists_v2`."""
        # From the end: attention needs all pages, a window or a state only the last ones.
        for count in range(self.storage.known(keys), 0, -1):
            if all(
                self.storage.parts[part.part].keys() >= set(_trailing(keys, count, part))
                for part in parts
            ):
                return count
        return 0

    def _transfer_attention(self, fetch: Fetch) -> bool:
        goes_on, count = not fetch.terminated, 0
        for first in range(0, len(fetch.keys), BATCH):
            batch = fetch.keys[first : first + BATCH]
            # A gap ends the prefix, so later batches are acknowledged and not fetched.
            if goes_on:
                came = self.storage.known(batch)
                for index in range(first, first + came):
                    whole = PartFetch(FULL, self.page, fetch.keys, fetch.slots)
                    self._fetch(whole, index)
                count += came
                goes_on = came == len(batch)
            self.untold.append(Ack(fetch, completed=count * self.page))
        return count == len(fetch.keys)

    def _transfer_parts(self, fetch: Fetch) -> dict[int, int]:
        """Transfer windows and states; pages of each. Follows `_page_transfer_sidecar`."""
        hits: dict[int, int] = {}
        for part in fetch.parts:
            part.keys = _trailing(fetch.keys, len(fetch.keys), part)
            needed = len(part.keys) * part.page
            if part.slots is not None and len(part.slots) > needed:
                self.release(part.part, part.slots[needed:])
                part.slots = part.slots[:needed]
            hits[part.part] = 0
            # Too few slots for all of it: a part of a window is of no use.
            if part.slots is None or len(part.slots) != needed:
                continue
            there = [key in self.storage.parts[part.part] for key in part.keys]
            for index, is_there in enumerate(there):
                if is_there:
                    self._fetch(part, index)
            hits[part.part] = there.index(False) if False in there else len(there)
        return hits

    def _fetch(self, each: PartFetch, index: int) -> None:
        if self.on_fetch is not None:
            place = self.storage.parts[each.part][each.keys[index]]
            self.on_fetch(each.part, _page(each, index), _place(each, place))


def _trailing(keys: list[bytes], count: int, each: PartFetch) -> list[bytes]:
    """The last of the first `count` keys, for a part. Follows `_sync_trailing_keys`."""
    return keys[max(0, count - len(each.keys)) : count]


def _page(each: PartFetch, index: int) -> Integers:
    slots = NO_SLOTS if each.slots is None else each.slots
    return slots[index * each.page : (index + 1) * each.page]


def _place(each: PartFetch, place: int) -> Integers:
    return place * each.page + np.arange(each.page, dtype=np.int64)
