"""The host's memory beside the device's: its slots, what is copied there, and when a copy is done.

    device   [ attention's slots ] [ windows' slots ] [ states ]
                  |    ^                |    ^           |   ^
              copied  loaded back       v    |           v   |
    host     [ attention's slots ] [ windows' slots ] [ states ]

Follows `HostKVCache`, `MambaPoolHost` and the queues of `HiCacheController`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import numpy as np

from cachesim.engines.sglang.node import Node
from cachesim.engines.sglang.pools import Ring
from cachesim.engines.sglang.storage import StorageShape
from cachesim.units import Integers

LEAST_LOADED: Final = 10
"""`load_back_threshold`: fewer tokens of attention are computed again instead."""

WritePolicy: TypeAlias = Literal["write_through", "write_through_selective", "write_back"]

Deed: TypeAlias = Literal["copied", "left", "loaded", "dropped", "stored", "fetched"]
"""Transfer of a part of a node: copied to the host, left there by the device, loaded back from the
host, dropped by the host, stored in the storage, fetched from there to the host."""

Copy = Callable[[int, Integers, Integers], None]
"""Which part, the slots that it is copied from, and those that it goes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShape:
    """Sizes of the host, and when nodes are copied there (`--hicache-*`)."""

    tokens: int
    window_tokens: int = 0
    states: int = 0
    policy: WritePolicy = "write_through"
    lag: int = 0  # looks at the queue until a copy is done; a machine's business
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
    """Slots on the host for so many on the device: whole pages, and one more."""
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
        """Give slots back."""
        if len(slots):
            self._back.put(slots)


@dataclass(slots=True)
class Ack:
    """Copies that were submitted together; `looks` is how often they are not done yet."""

    nodes: list[int]
    looks: int = 0


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
        """Whose copies are done by now, in order: the first that is not holds up the rest."""
        ready = 0
        for ack in self.submitted:
            if ack.looks:
                ack.looks -= 1
                break
            ready += 1
        return self._take(ready)

    def wait(self) -> list[int]:
        """All of them, waited for."""
        self.submit()
        return self._take(len(self.submitted))

    def _take(self, count: int) -> list[int]:
        gone, self.submitted = self.submitted[:count], self.submitted[count:]
        return [number for ack in gone for number in ack.nodes]


@dataclass(slots=True)
class Underway:
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
