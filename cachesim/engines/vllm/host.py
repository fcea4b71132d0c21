"""Chunks of blocks on the host, and who is evicted: `CPUOffloadingManager` and its policies.

    prepare_store    complete_store    prepare_load     complete_load
         pending ------> ready, idle ------> read ------> ready, idle    only idle ones are evicted

A key is the id of a chunk's last hash unit, and the group.
"""

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from cachesim.engines.vllm.rules import OffloadRules

Key: TypeAlias = tuple[int, int]
PENDING: Final = -1
TRACKED: Final = 64_000
"""`max_tracker_size`: keys whose offers are counted for a threshold."""


@dataclass(slots=True)
class Slot:
    """A chunk's place on the host (`ChunkStatus`)."""

    number: int
    readers: int = PENDING

    @property
    def ready(self) -> bool:
        """True if the chunk has been written."""
        return self.readers != PENDING


@dataclass(slots=True)
class Access:
    """The keys that a request has used (`ReqContext`, `_RequestCacheAccess`)."""

    positions: dict[Key, int] = field(default_factory=dict)
    seen: dict[Key, None] = field(default_factory=dict)
    inserted: set[Key] = field(default_factory=set)
    reused: set[Key] = field(default_factory=set)
    missed: set[Key] = field(default_factory=set)
    rank: int = 0  # of the request, in the order of its chunks
    finished: bool = False

    def ordered(self) -> list[Key]:
        """The used keys from the prompt's start on, groups in turn (`order_request_keys`)."""
        by_group = sorted(self.seen, key=lambda key: key[1])
        return sorted(by_group, key=self.positions.__getitem__)


class Policy(Protocol):
    """Which idle chunk is evicted (`CachePolicy`)."""

    def get(self, key: Key) -> Slot | None: ...
    def slots(self) -> Iterable[tuple[Key, Slot]]: ...
    def insert(self, key: Key, slot: Slot, access: Access) -> None: ...
    def touch(self, keys: Sequence[Key]) -> None: ...
    def on_store_miss(self, keys: Sequence[Key]) -> None: ...
    def on_request_access(self, keys: Sequence[Key], access: Access) -> None: ...
    def on_request_finished(self, access: Access) -> None: ...
    def evict(self, count: int, protected: Collection[Key]) -> list[tuple[Key, Slot]] | None: ...
    def mark_evictable(self, key: Key) -> None: ...
    def mark_non_evictable(self, key: Key) -> None: ...


@dataclass(slots=True)
class TouchedLru:
    """Idle chunks in the order of their last look-up, store or load (`LRUCachePolicy` of 0.30)."""

    chunks: dict[Key, Slot] = field(default_factory=dict)
    idle: OrderedDict[Key, None] = field(default_factory=OrderedDict)

    def get(self, key: Key) -> Slot | None:
        return self.chunks.get(key)

    def slots(self) -> Iterable[tuple[Key, Slot]]:
        return self.chunks.items()

    def insert(self, key: Key, slot: Slot, access: Access) -> None:
        del access
        self.chunks[key] = slot

    def touch(self, keys: Sequence[Key]) -> None:
        # The start of a prefix last, so that it is evicted last: without it the rest is no hit.
        for key in reversed(keys):
            if key in self.idle:
                self.idle.move_to_end(key)

    def on_store_miss(self, keys: Sequence[Key]) -> None:
        """Do nothing: a look-up and a store touch."""

    def on_request_access(self, keys: Sequence[Key], access: Access) -> None:
        """Do nothing."""

    def on_request_finished(self, access: Access) -> None:
        """Do nothing."""

    def evict(self, count: int, protected: Collection[Key]) -> list[tuple[Key, Slot]] | None:
        # All or nothing: a store of a part would leave gaps in the prefix.
        chosen = [key for key in self.idle if key not in protected][:count]
        if len(chosen) < count:
            return None
        for key in chosen:
            del self.idle[key]
        return [(key, self.chunks.pop(key)) for key in chosen]

    def mark_evictable(self, key: Key) -> None:
        self.idle[key] = None

    def mark_non_evictable(self, key: Key) -> None:
        del self.idle[key]


@dataclass(slots=True)
class RankedLru:
    """Idle chunks by the rank that their last request gave them (`LRUCachePolicy`).

    A request that is done ranks its keys from the prompt's end to its start: ends are evicted
    first. Until then they have one rank together, by position (`by_position`).
    """

    by_position: bool
    chunks: dict[Key, Slot] = field(default_factory=dict)
    ranks: dict[Key, tuple[int, int]] = field(default_factory=dict)
    idle: set[Key] = field(default_factory=set)
    heap: list[tuple[tuple[int, int], Key]] = field(default_factory=list)
    last: int = 0

    def get(self, key: Key) -> Slot | None:
        return self.chunks.get(key)

    def slots(self) -> Iterable[tuple[Key, Slot]]:
        return self.chunks.items()

    def _rank_of(self, access: Access) -> int:
        if not access.rank:
            access.rank = self._next()
        return access.rank

    def _next(self) -> int:
        self.last += 1
        return self.last

    def _assign(self, key: Key, rank: tuple[int, int]) -> None:
        self.ranks[key] = rank
        if key in self.idle:
            heapq.heappush(self.heap, (rank, key))

    def insert(self, key: Key, slot: Slot, access: Access) -> None:
        self.chunks[key] = slot
        # One rank for all chunks of a request, later positions first: its end is evicted before its
        # start.
        own = self.by_position
        rank = (self._rank_of(access), -access.positions[key]) if own else (self._next(), 0)
        self._assign(key, rank)

    def touch(self, keys: Sequence[Key]) -> None:
        for key in reversed(keys):
            if key in self.chunks:
                self._assign(key, (self._next(), 0))

    def on_store_miss(self, keys: Sequence[Key]) -> None:
        self.touch(keys)

    def on_request_access(self, keys: Sequence[Key], access: Access) -> None:
        # Until 0.32 a chunk keeps the rank of its store until its request is done.
        if not self.by_position:
            return
        request = self._rank_of(access)
        for key in keys:
            rank = (request, -access.positions[key])
            if key in self.chunks and self.ranks[key] < rank:
                self._assign(key, rank)

    def on_request_finished(self, access: Access) -> None:
        self.touch(access.ordered())

    def evict(self, count: int, protected: Collection[Key]) -> list[tuple[Key, Slot]] | None:
        chosen, kept = dict[Key, tuple[int, int]](), list[tuple[tuple[int, int], Key]]()
        while self.heap and len(chosen) < count:
            rank, key = heapq.heappop(self.heap)
            # The heap is not cleaned when a rank changes.
            if key not in self.idle or self.ranks.get(key) != rank or key in chosen:
                continue  # an older entry
            if key in protected:
                kept.append((rank, key))
            else:
                chosen[key] = rank
        if len(chosen) < count:
            kept += [(rank, key) for key, rank in chosen.items()]
            chosen = {}
        for entry in kept:
            heapq.heappush(self.heap, entry)
        for key in chosen:
            self.idle.remove(key)
            del self.ranks[key]
        evicted = [(key, self.chunks.pop(key)) for key in chosen]
        return evicted if len(evicted) == count else None

    def mark_evictable(self, key: Key) -> None:
        self.idle.add(key)
        heapq.heappush(self.heap, (self.ranks[key], key))
        # So it is built again once most of its entries are old.
        if len(self.heap) > max(64, 4 * len(self.idle)):
            self.heap = [(self.ranks[block], block) for block in self.idle]
            heapq.heapify(self.heap)

    def mark_non_evictable(self, key: Key) -> None:
        self.idle.remove(key)


@dataclass(slots=True)
class Arc:
    """Chunks used once and more often, and ghosts of evicted ones (`ARCCachePolicy`)."""

    capacity: int
    target: float = 0.0  # of chunks used once
    once: OrderedDict[Key, Slot] = field(default_factory=OrderedDict)  # T1
    often: OrderedDict[Key, Slot] = field(default_factory=OrderedDict)  # T2
    ghosts_once: OrderedDict[Key, None] = field(default_factory=OrderedDict)  # B1
    ghosts_often: OrderedDict[Key, None] = field(default_factory=OrderedDict)  # B2

    def get(self, key: Key) -> Slot | None:
        return self.once.get(key) or self.often.get(key)

    def slots(self) -> Iterable[tuple[Key, Slot]]:
        yield from self.once.items()
        yield from self.often.items()

    def insert(self, key: Key, slot: Slot, access: Access) -> None:
        del access
        self.once[key] = slot
        self.ghosts_once.pop(key, None)
        self.ghosts_often.pop(key, None)

    def _adapt(self, key: Key) -> None:
        """Move the target towards the list whose ghost is wanted (`_adapt_to_ghost_hit`)."""
        once, often = self.ghosts_once, self.ghosts_often
        if key in once:
            # Evicted too early from T1: its list should have been longer.
            self.target = min(self.target + max(1, len(often) / len(once)), self.capacity)
            once.move_to_end(key)
        elif key in often:
            # And here T2's.
            self.target = max(self.target - max(1, len(once) / len(often)), 0)
            often.move_to_end(key)

    def touch(self, keys: Sequence[Key]) -> None:
        for key in reversed(keys):
            if key in self.once:
                slot = self.once.pop(key)
                # A chunk that is still written has not been used a second time.
                (self.often if slot.ready else self.once)[key] = slot
            elif key in self.often:
                self.often.move_to_end(key)
            else:
                self._adapt(key)

    def on_store_miss(self, keys: Sequence[Key]) -> None:
        for key in reversed(keys):
            self._adapt(key)

    def on_request_access(self, keys: Sequence[Key], access: Access) -> None:
        """Do nothing: a use counts when its request is done."""

    def on_request_finished(self, access: Access) -> None:
        for key in reversed(access.ordered()):
            reused = key in access.reused
            # Looked up, and neither loaded nor stored: no use.
            if not reused and key not in access.inserted:
                continue
            if key in self.once and reused:
                self.often[key] = self.once.pop(key)
            elif key in self.once:
                self.once.move_to_end(key)
            elif key in self.often:
                self.often.move_to_end(key)

    def evict(self, count: int, protected: Collection[Key]) -> list[tuple[Key, Slot]] | None:
        """Evict from T1 while it has its target or more, else from T2, all or none.

        Trap: neither list is searched again from its start for the next chunk.
        """

        def idle(listed: OrderedDict[Key, Slot]) -> Iterator[Key]:
            for key, slot in listed.items():
                if slot.readers == 0 and key not in protected:
                    yield key

        once, often = idle(self.once), idle(self.often)
        size, chosen = len(self.once), list[Key]()
        for _ in range(count):
            # Trap: neither list is searched again from its start for the next chunk.
            key = next(once, None) if size >= int(self.target) else None
            key = key or next(often, None) or next(once, None)
            if key is None:
                return None
            size -= key in self.once
            chosen.append(key)
        evicted = []
        for key in chosen:
            listed, ghosts = self.often, self.ghosts_often
            if key in self.once:
                listed, ghosts = self.once, self.ghosts_once
            evicted.append((key, listed.pop(key)))
            ghosts[key] = None
        for ghosts in (self.ghosts_once, self.ghosts_often):
            # Ghosts are keys without chunks, but they are bounded, too.
            while len(ghosts) > self.capacity:
                ghosts.popitem(last=False)
        return evicted

    def mark_evictable(self, key: Key) -> None:
        """Do nothing: a search skips chunks in use."""

    def mark_non_evictable(self, key: Key) -> None:
        """Do nothing."""


def policy_of(name: str, capacity: int, rules: OffloadRules) -> Policy:
    """The policy with this name (`CachePolicyFactory`)."""
    if name == "arc":
        return Arc(capacity)
    return TouchedLru() if rules.recency == "touched" else RankedLru(rules.recency == "position")


Stored: TypeAlias = tuple[list[tuple[Key, int]], list[Key]]
"""The keys to store with their slots, and those that were evicted for them."""


class HostCache:
    """The chunks on the host (`CPUOffloadingManager`)."""

    def __init__(self, chunks: int, policy: str, threshold: int, rules: OffloadRules) -> None:
        self.chunks = chunks
        self.rules = rules
        self.policy = policy_of(policy, chunks, rules)
        self.threshold = threshold
        self.allocated = 0
        self.free: list[int] = []
        self.idle = 0  # chunks that may be evicted
        self.offers: OrderedDict[Key, int] = OrderedDict()

    def lookup(self, key: Key) -> Slot | None:
        """The slot of a key; it may still be written."""
        return self.policy.get(key)

    # -- accesses ----------------------------------------------------------------------------------

    def _record(self, keys: Iterable[Key], access: Access, reused: Iterable[Key]) -> None:
        """Follows `_record_request_cache_access`."""
        new = [key for key in dict.fromkeys(keys) if key not in access.seen]
        access.seen.update(dict.fromkeys(new))
        if new:
            self.policy.on_request_access(new, access)
        access.reused.update(key for key in reused if key not in access.inserted)

    def on_request_finished(self, access: Access) -> None:
        """Rank the keys that a request has used, once."""
        if self.rules.recency != "touched" and not access.finished:
            access.finished = True
            self.policy.on_request_finished(access)

    def touch(self, keys: Sequence[Key]) -> None:
        """Mark keys as used, in releases in which a look-up and a store do so."""
        self.policy.touch(keys)

    # -- loads and stores --------------------------------------------------------------------------

    def prepare_load(self, keys: Sequence[Key], access: Access) -> list[int]:
        """Pin the chunks of a load, and return their slots."""
        slots = []
        for key in keys:
            slot = self.policy.get(key)
            if slot is None or not slot.ready:
                msg = f"chunk {key} is not on the host"
                raise ValueError(msg)
            # A chunk that is read must not be evicted, whatever its rank.
            if not slot.readers:
                self.policy.mark_non_evictable(key)
                self.idle -= 1
            slot.readers += 1
            slots.append(slot.number)
        if self.rules.recency != "touched":
            self._record(keys, access, keys)
        return slots

    def complete_load(self, keys: Iterable[Key]) -> None:
        """Unpin the chunks of a load."""
        for key in keys:
            slot = self.policy.get(key)
            if slot is not None:
                slot.readers -= 1
                if not slot.readers:
                    self.idle += 1
                    self.policy.mark_evictable(key)

    def prepare_store(self, keys: Sequence[Key], access: Access) -> Stored | None:
        """Slots for those of the keys that are missing; None if too few chunks are idle."""
        if self.threshold > 1:
            self._count(keys)
        missing = [key for key in keys if self.policy.get(key) is None]
        ready = [key for key in keys if (slot := self.policy.get(key)) is not None and slot.ready]
        if self.threshold > 1:
            # The first offers only count: a prefix that comes once is not worth a copy.
            missing = [key for key in missing if self.offers.get(key, 0) >= self.threshold]
        # A store must not evict chunks of its own prefix.
        protected = set(keys)
        if self.rules.recency == "touched":
            if self.threshold > 1:  # the others are not part of the call
                protected = {key for key in keys if self.offers.get(key, 0) >= self.threshold}
        else:
            misses = [key for key in missing if key not in access.missed]
            if misses:
                self.policy.on_store_miss(misses)
                access.missed.update(misses)
            used = {*missing, *ready}
            self._record((key for key in keys if key in used), access, ready)
        if not missing:
            return [], []
        evicted = []
        # Never used slots first, then freed ones, then evictions.
        excess = len(missing) - (len(self.free) + self.chunks - self.allocated)
        if excess > 0:
            victims = self.policy.evict(excess, protected) if excess <= self.idle else None
            if victims is None:
                return None
            self.idle -= len(victims)
            self.free += [slot.number for _, slot in victims]
            evicted = [key for key, _ in victims]
        stored = []
        for key in missing:
            number = self.allocated
            if number < self.chunks:
                self.allocated += 1
            else:
                number = self.free.pop()
            self.policy.insert(key, Slot(number), access)
            stored.append((key, number))
        access.inserted.update(missing)
        return stored, evicted

    def _count(self, keys: Sequence[Key]) -> None:
        """Count an offer of each key. Follows `_record_accesses`."""
        known = {key for key in keys if key in self.offers}
        for key in keys:
            if key in known:
                self.offers.move_to_end(key)
                self.offers[key] += 1
        others = len(self.offers) - len(known)
        for key in keys:
            if key in self.offers:
                continue
            if len(self.offers) >= TRACKED:
                if not others:
                    continue
                self.offers.popitem(last=False)
                others -= 1
            self.offers[key] = 1

    def complete_store(self, keys: Iterable[Key]) -> None:
        """The chunks of a store can be read."""
        for key in keys:
            slot = self.policy.get(key)
            if slot is not None and not slot.ready:
                slot.readers = 0
                self.idle += 1
                self.policy.mark_evictable(key)
