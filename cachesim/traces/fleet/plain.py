"""Routers without knowledge of the replicas' content, and one with all of it."""

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar, Literal

from cachesim.traces.fleet.router import (
    Arrival,
    Dispatcher,
    Replica,
    Router,
    RouterError,
    in_range,
    one_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin(Router):
    """Replicas in turn."""

    name: ClassVar[str] = "round-robin"
    follows: ClassVar[str] = "sglang-router 0.3.2, `RoundRobinPolicy.select_worker`"

    def start(self, replicas: Sequence[Replica]) -> Dispatcher:
        return _InTurn(replicas)


class _InTurn(Dispatcher):
    count = 0

    def choose(self, arrival: Arrival) -> int:
        alive = self.alive()
        chosen = alive[self.count % len(alive)].number
        self.count += 1
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Random(Router):
    """A replica at random."""

    name: ClassVar[str] = "random"
    follows: ClassVar[str] = "sglang-router 0.3.2, `RandomPolicy.select_worker`; our own draws"
    seed: int = 0

    def start(self, replicas: Sequence[Replica]) -> Dispatcher:
        return _Drawn(replicas, self.seed)


class _Drawn(Dispatcher):
    def __init__(self, replicas: Sequence[Replica], seed: int) -> None:
        super().__init__(replicas)
        self.rng = random.Random(seed)

    def choose(self, arrival: Arrival) -> int:
        return self.rng.choice(self.alive()).number


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoaded(Router):
    """The replica with the fewest requests; of several one at random."""

    name: ClassVar[str] = "least-loaded"
    follows: ClassVar[str] = (
        "sglang-router 0.3.2, `select_new_worker` with `MinLoad`; our own draws"
    )
    seed: int = 0

    def start(self, replicas: Sequence[Replica]) -> Dispatcher:
        return _Lightest(replicas, self.seed)


class _Lightest(_Drawn):
    def choose(self, arrival: Arrival) -> int:
        return lightest(self.alive(), self.rng)


def lightest(replicas: Sequence[Replica], rng: random.Random) -> int:
    """A replica with the fewest requests. Follows `select_min_by`."""
    least = min(replica.load for replica in replicas)
    return one_of([replica.number for replica in replicas if replica.load == least], rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sticky(Router):
    """The replica of the conversation's first request."""

    name: ClassVar[str] = "sticky"
    follows: ClassVar[str] = (
        "sglang-router 0.3.2, `ManualPolicy.select_worker`; conversations by their blocks, our own "
        "draws"
    )
    assignment: Literal["random", "min_load", "min_group"] = "random"  # of a new conversation
    max_idle_secs: int = 4 * 3600
    seed: int = 0

    def check(self) -> None:
        if self.assignment not in {"random", "min_load", "min_group"}:
            raise RouterError(
                f"router rule assignment is {self.assignment!r}; write random, min_load or "
                "min_group"
            )
        in_range("max_idle_secs", self.max_idle_secs, 1)

    def start(self, replicas: Sequence[Replica]) -> Dispatcher:
        return _Stuck(replicas, self)


class _Stuck(_Drawn):
    """Conversations with up to two replicas each (`MAX_CANDIDATE_WORKERS`), oldest first."""

    def __init__(self, replicas: Sequence[Replica], rules: Sticky) -> None:
        super().__init__(replicas, rules.seed)
        self.rules = rules
        self.homes: dict[int, tuple[list[int], float]] = {}  # the longest unused first
        self.active = [dict[int, int]() for _ in replicas]  # requests by conversation

    def choose(self, arrival: Arrival) -> int:
        """Follows `select_by_routing_id`."""
        idle = arrival.time - self.rules.max_idle_secs * 1000
        while self.homes and (first := next(iter(self.homes))) != arrival.session:
            if self.homes[first][1] >= idle:
                break
            del self.homes[first]
        homes, _ = self.homes.pop(arrival.session, ([], 0.0))
        chosen = next((home for home in homes if self.replicas[home].alive), None)
        if chosen is None:
            chosen = self._new()
            homes = [*homes, chosen][-2:]
        self.homes[arrival.session] = homes, arrival.time
        held = self.active[chosen]
        held[arrival.session] = held.get(arrival.session, 0) + 1
        return chosen

    def finished(self, arrival: Arrival, replica: int) -> None:
        held = self.active[replica]
        held[arrival.session] -= 1
        if not held[arrival.session]:
            del held[arrival.session]

    def _new(self) -> int:
        alive = self.alive()
        if self.rules.assignment == "min_load":
            return lightest(alive, self.rng)
        if self.rules.assignment == "min_group":
            least = min(len(self.active[replica.number]) for replica in alive)
            tied = [
                replica.number for replica in alive if len(self.active[replica.number]) == least
            ]
            return one_of(tied, self.rng)
        return self.rng.choice(alive).number


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedHash(Router):
    """Consistent hashing of conversations; a replica above the bound passes its request on.

    The places on the ring are our own: upstream's come from another hash function.
    """

    name: ClassVar[str] = "bounded-hash"
    follows: ClassVar[str] = (
        "sglang commit 1cfac30, `BoundedConsistentHashingPolicy`; our own ring, conversations by "
        "their blocks"
    )
    max_load_skew: float = 1.5  # a replica's load over the mean load
    virtual_nodes: int = 160  # places of a replica on the ring

    def check(self) -> None:
        in_range("max_load_skew", self.max_load_skew, 1)
        in_range("virtual_nodes", self.virtual_nodes, 1, 10_000)

    def start(self, replicas: Sequence[Replica]) -> Dispatcher:
        return _Ring(replicas, self)


class _Ring(Dispatcher):
    def __init__(self, replicas: Sequence[Replica], rules: BoundedHash) -> None:
        super().__init__(replicas)
        self.rules = rules
        self.ring = sorted(
            (place_of(f"replica {replica.number} {node}"), replica.number)
            for replica in replicas
            for node in range(rules.virtual_nodes)
        )
        self.places = [place for place, _ in self.ring]

    def choose(self, arrival: Arrival) -> int:
        """Follows `find_bounded_by_consistent_hash`: clockwise from the conversation's place."""
        at = bisect_left(self.places, place_of(f"conversation {arrival.session}"))
        order = (self.ring[(at + step) % len(self.ring)][1] for step in range(len(self.ring)))
        alive = {replica.number: replica for replica in self.alive()}
        clockwise = [number for number in dict.fromkeys(order) if number in alive]
        mean = sum(replica.load for replica in alive.values()) / len(alive)
        bound = mean * self.rules.max_load_skew
        fitting = (number for number in clockwise if not mean or alive[number].load <= bound)
        return next(fitting, clockwise[0])


def place_of(name: str) -> int:
    """A place on the ring."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle(Router):
    """The replica that would reuse most at this moment; of several the one with fewest requests."""

    name: ClassVar[str] = "oracle"
    apart: ClassVar[bool] = False
    follows: ClassVar[str] = "no release: no router knows what replicas hold without a delay"

    def start(self, replicas: Sequence[Replica]) -> Dispatcher:
        return _Knowing(replicas)


class _Knowing(Dispatcher):
    def choose(self, arrival: Arrival) -> int:
        return min(
            self.alive(),
            key=lambda replica: (-(replica.peek(arrival) or 0), replica.load, replica.number),
        ).number
