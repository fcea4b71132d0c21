"""What is under way from the storage to the host, and what is heard of it.

    asked --query--> hit --slots on the host--> transfer --pieces--> done

Follows `PrefetchOperation`, `PoolTransfer`, `PrefetchAck` and the waits of `UnifiedRadixCache`.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from cachesim.engines.sglang.host_pool import HostHold
from cachesim.engines.sglang.node import NO_SLOTS, Node
from cachesim.units import Integers


@dataclass(slots=True)
class PartFetch:
    """The trailing pages of windows, or the state, that a fetch needs as well.

    Until the hit is known `keys` only says how many there are.
    """

    part: int
    page: int  # slots of a page: one for a state
    keys: list[bytes]
    slots: Integers | None = None


@dataclass(slots=True, eq=False)
class Fetch:
    """One request's span of tokens on its way to the host (`PrefetchOperation`)."""

    request: int
    anchor: Node  # last_host_node
    held: HostHold
    extra: Hashable
    key: Integers  # prefetch_key
    prior: bytes | None  # last_hash
    start: int  # storage_start
    assumed: bool  # assume_stored: it is not asked for, it is known to be there
    parts: list[PartFetch]
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
        """Without parts they are done."""
        self.parts_done = not self.parts

    @property
    def own(self) -> Integers:
        """The host's slots that are its own by now."""
        if self.slots is None:
            return NO_SLOTS
        return self.slots[self.completed :] if self.handled else self.slots

    @property
    def parts_here(self) -> list[PartFetch]:
        """The parts, once their transfer is over."""
        return self.parts if self.parts_done else []


@dataclass(slots=True)
class Ongoing:
    """What the tree knows of a request's fetch (`_OngoingPrefetch`)."""

    fetch: Fetch
    slots: Integers | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """A piece of news from a transfer; the last one says that it is over (`PrefetchAck`)."""

    fetch: Fetch
    completed: int | None = None
    hits: dict[int, int] | None = None
    done: bool = False


@dataclass(slots=True)
class Wait:
    """How long a request has waited, since a poll first found it blocked."""

    since: int | None = None
    limit: float = 0.0
    expired: bool = False

    def over(self, now: int) -> bool:
        """Whether it waits no longer."""
        return self.expired or (self.since is not None and now - self.since > self.limit)
