"""The Gateway API's endpoint picker with its prefix plug-in, which llm-d uses as well.

    prompt     | block 0 | block 1 | block 2 | rest |     a hash for each whole block and all before
    replica 0      x         x                            the blocks that it was sent, the last
    replica 1      x                                      `lru_capacity` of them

The share of the prompt's blocks, the queue and the memory in use are weighted and added up.
Follows `approximateprefix` and the scorers of the Gateway API's inference extension at v1.5.0.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cachesim.traces.fleet.router import Arrival, Dispatcher, Replica, Router, in_range, one_of


class Indexer:
    """The blocks that each replica was sent (`indexer`)."""

    def __init__(self) -> None:
        self.replicas_of: dict[int, set[int]] = {}
        self._used: dict[int, dict[int, None]] = {}  # by replica; the longest unused first

    def add(self, keys: Sequence[int], replica: int, capacity: int) -> None:
        """Add blocks of a replica. Follows `Add`.

        Trap: a prompt with more blocks than the capacity evicts its own first blocks, and they are
        put back into the lookup, where nothing evicts them any more.
        """
        used = self._used.setdefault(replica, {})
        for key in keys:
            used.pop(key, None)
            used[key] = None
            if len(used) > capacity:
                self._forget(used, next(iter(used)), replica)
        for key in keys:
            self.replicas_of.setdefault(key, set()).add(replica)

    def _forget(self, used: dict[int, None], key: int, replica: int) -> None:
        del used[key]
        holders = self.replicas_of.get(key)
        if holders is not None:
            holders.discard(replica)
            if not holders:
                del self.replicas_of[key]

    def remove(self, replica: int) -> None:
        """Forget a replica. Follows `RemovePod`."""
        used = self._used.pop(replica, {})
        for key in [*used]:
            self._forget(used, key, replica)

    def match(self, keys: Sequence[int]) -> dict[int, int]:
        """The number of blocks of each replica. Follows `matchLongestPrefix`.

        Trap: the blocks of a replica need not be the first ones, only the blocks of all together.
        """
        matched: dict[int, int] = {}
        for key in keys:
            holders = self.replicas_of.get(key)
            if not holders:
                break
            for replica in holders:
                matched[replica] = matched.get(replica, 0) + 1
        return matched


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway(Router):
    """The replica with the highest weighted score."""

    name: ClassVar[str] = "gateway"
    apart: ClassVar[bool] = False
    follows: ClassVar[str] = (
        "gateway-api-inference-extension v1.5.0, `approximateprefix`, `loadDefaultConfig`, "
        "`MaxScorePicker`; our own draws"
    )
    prefix_weight: float = 3
    queue_weight: float = 2
    usage_weight: float = 2
    block_size: int = 0  # tokens; 0: the replica's own, and 16 where it has none
    max_blocks: int = 256
    lru_capacity: int = 0  # blocks of a replica; 0: as many as it has, and else 31,250
    seed: int = 0

    def check(self) -> None:
        for name in ("prefix_weight", "queue_weight", "usage_weight"):
            in_range(name, getattr(self, name), 0)
        in_range("block_size", self.block_size, 0)
        in_range("max_blocks", self.max_blocks, 1)
        in_range("lru_capacity", self.lru_capacity, 0)

    def start(self, replicas: Sequence[Replica]) -> Dispatcher:
        return _Scored(replicas, self)


class _Scored(Dispatcher):
    def __init__(self, replicas: Sequence[Replica], rules: Gateway) -> None:
        super().__init__(replicas)
        self.rules = rules
        self.indexer = Indexer()
        self.rng = random.Random(rules.seed)

    def choose(self, arrival: Arrival) -> int:
        """Follows `PrepareRequestData`, the scorers, `Pick` and `PreRequest`."""
        rules, alive = self.rules, self.alive()
        own = alive[0].unit
        unit = rules.block_size or (own if own > 1 else 16)
        keys = arrival.keys(unit)[: rules.max_blocks]
        matched = self.indexer.match(keys)
        queues = [replica.waiting for replica in alive]
        longest, spread = max(queues), max(queues) - min(queues)
        scores = {}
        for replica in alive:
            prefix = matched.get(replica.number, 0) / len(keys) if keys else 0.0
            queue = (longest - replica.waiting) / spread if spread else 1.0
            free = 1 - (replica.usage() or 0.0)
            scores[replica.number] = (
                rules.prefix_weight * prefix
                + rules.queue_weight * queue
                + rules.usage_weight * free
            )
        best = max(scores.values())
        chosen = one_of([number for number, score in scores.items() if score == best], self.rng)
        capacity = rules.lru_capacity or self.replicas[chosen].blocks or 31_250
        self.indexer.add(keys, chosen, capacity)
        return chosen

    def left(self, replica: int) -> None:
        self.indexer.remove(replica)
