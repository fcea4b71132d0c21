"""Dynamo's KV router: overlap by events, load by its own bookings.

    cost = prefill_load_scale x max(0, prefill blocks - credit x overlap) + decode blocks

    prefill blocks   the replica's active prompts without what they reuse, and this prompt
    overlap          leading blocks that the replica has stored and not removed, by its events
    decode blocks    distinct blocks of its active requests, this one's included

The replica with the lowest cost is taken. Follows `DefaultWorkerScorer.worker_logit`,
`WorkerSelectionInput.row` and `ActiveSequences`, read at the commits 07a6c9c and 04df1c4.
"""

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from cachesim.traces.fleet import router


@dataclass(slots=True)
class Index:
    """The blocks of each replica according to its events, which may arrive late."""

    delay: float
    held: list[set[int]]
    _late: deque[tuple[float, int, bool, Sequence[int]]] = field(default_factory=deque)

    def add(self, time: float, replica: int, keys: Sequence[int], *, stored: bool) -> None:
        """An event of a replica."""
        if self.delay:
            self._late.append((time + self.delay, replica, stored, keys))
        else:
            self._apply(replica, keys, stored=stored)

    def advance(self, time: float) -> None:
        """Apply the events that have arrived."""
        while self._late and self._late[0][0] <= time:
            _, replica, stored, keys = self._late.popleft()
            self._apply(replica, keys, stored=stored)

    def _apply(self, replica: int, keys: Sequence[int], *, stored: bool) -> None:
        if stored:
            self.held[replica].update(keys)
        else:
            self.held[replica].difference_update(keys)

    def clear(self, replica: int) -> None:
        """Forget a replica, and what it sent that has not arrived."""
        self._late = deque(event for event in self._late if event[1] != replica)
        self.held[replica].clear()

    def overlap(self, replica: int, keys: Sequence[int]) -> int:
        """Leading blocks that a replica holds. Follows `find_matches`."""
        held = self.held[replica]
        return next((at for at, key in enumerate(keys) if key not in held), len(keys))


@dataclass(slots=True)
class Booked:
    """The active requests of a replica (`ActiveSequences`)."""

    prefill: dict[int, int] = field(default_factory=dict)  # request -> tokens that it computes
    blocks: Counter[int] = field(default_factory=Counter)
    sequences: dict[int, list[int]] = field(default_factory=dict)

    def add(self, request: int, keys: list[int], tokens: int) -> None:
        """Follows `add_request_with_prefill_tracking`."""
        self.blocks.update(keys)
        self.sequences[request] = keys
        if tokens > 0:
            self.prefill[request] = tokens

    def free(self, request: int) -> None:
        """Follows `free`."""
        self.prefill.pop(request, None)
        for key in self.sequences.pop(request, ()):
            self.blocks[key] -= 1
            if not self.blocks[key]:
                del self.blocks[key]

    def projected(self, keys: Sequence[int]) -> int:
        """Active blocks including a further request's. Follows `potential_decode_blocks`."""
        shared = next((at for at, key in enumerate(keys) if key not in self.blocks), len(keys))
        return len(self.blocks) + len(keys) - shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamo(router.Router):
    """The replica with the lowest cost; of several one at random."""

    name: ClassVar[str] = "dynamo"
    apart: ClassVar[bool] = False
    follows: ClassVar[str] = "ai-dynamo-runtime 1.6.1, `DefaultWorkerSelector`; our own draws"
    overlap_score_credit: float = 1.0
    overlap_score_credit_decay: float = 0.0
    prefill_load_scale: float = 1.0
    decode_active_request_weight: float = 0.0
    kv_event_lag_ms: float = 0.0  # how late events arrive
    kv_event_loss: float = 0.0  # the share of them that never does; no gap is noticed
    seed: int = 0

    def check(self) -> None:
        for name in (
            "overlap_score_credit",
            "overlap_score_credit_decay",
            "prefill_load_scale",
            "decode_active_request_weight",
            "kv_event_lag_ms",
        ):
            router.in_range(name, getattr(self, name), 0)
        router.in_range("kv_event_loss", self.kv_event_loss, 0, 1)

    def start(self, replicas: Sequence[router.Replica]) -> "KvRouter":
        units = {replica.unit for replica in replicas}
        if len(units) > 1:
            msg = f"router dynamo needs blocks of one size; these replicas have {sorted(units)}"
            raise router.RouterError(msg)
        return KvRouter(replicas, self)


class KvRouter(router.Dispatcher):
    """The dispatcher of `Dynamo`."""

    needs_events = True

    def __init__(self, replicas: Sequence[router.Replica], rules: Dynamo) -> None:
        super().__init__(replicas)
        self.rules = rules
        self.index = Index(rules.kv_event_lag_ms, [set() for _ in replicas])
        self.booked = [Booked() for _ in replicas]
        self.rng = random.Random(rules.seed)
        self.losses = random.Random(rules.seed)

    def choose(self, arrival: router.Arrival) -> int:
        """Follows `select_worker` and the booking after it; upstream draws among equal costs."""
        chosen = router.one_of(self.cheapest(arrival), self.rng)
        self.book(arrival, chosen)
        return chosen

    def cheapest(self, arrival: router.Arrival) -> list[int]:
        """The replicas with the lowest cost."""
        costs = self.costs(arrival)
        least = min(costs.values())
        return [number for number, cost in costs.items() if cost == least]

    def book(self, arrival: router.Arrival, chosen: int) -> None:
        """Count a request as active on its replica."""
        unit = self.replicas[chosen].unit
        keys = arrival.keys(unit)
        cached = self.index.overlap(chosen, keys) * unit
        self.booked[chosen].add(arrival.number, keys, len(arrival.prompt) - cached)

    def costs(self, arrival: router.Arrival) -> dict[int, float]:
        """The cost of each replica. Follows `worker_logit`."""
        self.index.advance(arrival.time)
        rules, alive = self.rules, self.alive()
        at_work = {
            replica.number: sum(self.booked[replica.number].prefill.values()) for replica in alive
        }
        floor, length = min(at_work.values()), len(arrival.prompt)
        costs = {}
        for replica in alive:
            unit = replica.unit
            keys, booked = arrival.keys(unit), self.booked[replica.number]
            overlap = self.index.overlap(replica.number, keys)
            tokens = at_work[replica.number]
            credit = rules.overlap_score_credit
            if rules.overlap_score_credit_decay:
                excess = (tokens - floor) / unit / -(-length // unit)
                credit *= 1 / (1 + rules.overlap_score_credit_decay * excess)
            prefill = max(0.0, (tokens + length) / unit - credit * overlap)
            costs[replica.number] = (
                rules.prefill_load_scale * prefill
                + booked.projected(keys)
                + rules.decode_active_request_weight * len(booked.sequences)
            )
        return costs

    def prefilled(self, arrival: router.Arrival, replica: int) -> None:
        self.booked[replica].prefill.pop(arrival.number, None)

    def finished(self, arrival: router.Arrival, replica: int) -> None:
        self.booked[replica].free(arrival.number)

    def stored(self, replica: int, keys: Sequence[int], time: float) -> None:
        self._receive(replica, keys, time, stored=True)

    def removed(self, replica: int, keys: Sequence[int], time: float) -> None:
        self._receive(replica, keys, time, stored=False)

    def _receive(self, replica: int, keys: Sequence[int], time: float, *, stored: bool) -> None:
        """Add an event to the index, unless it is lost.

        Blocks of a lost event are missing from the index, or remain there after their eviction.
        """
        if not keys or self.losses.random() >= self.rules.kv_event_loss:
            self.index.add(time, replica, keys, stored=stored)

    def left(self, replica: int) -> None:
        self.index.clear(replica)
