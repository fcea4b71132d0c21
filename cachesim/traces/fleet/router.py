"""A router: its rules as a value, and its inputs.

    request ──> router ──> replica 0 ──> events (blocks stored, removed) ──> router
                      └──> replica 1 ──> a finished prefill, a finished request ──> router

A router is written as `name` or `name,rule=value`; its class names the source that its rules
follow, and their defaults are that source's.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import ClassVar

from cachesim.engines.tokens import Rope
from cachesim.errors import InputError
from cachesim.units import Tokens

# -- what a router sees ----------------------------------------------------------------------------


class RouterError(InputError):
    """An invalid router or fleet; the message says what to write instead."""


def prefix_keys(tokens: Rope, unit: int) -> list[int]:
    """A key for each whole unit of a text and all before it: equal keys are equal prefixes.

    runs    | 7: 0..40              | 9: 0..24       |
    units   | 16     | 16     | 16             | 16  |      a key hashes its runs and the key before
    """
    keys: list[int] = []
    part: list[int] = []
    parent, room = 0, unit
    for text, first, last in tokens.runs:
        at = first
        while last - at >= room:
            parent = hash((parent, *part, text, at, at + room))
            keys.append(parent)
            at, room, part = at + room, unit, []
        if last > at:
            part += [text, at, last]
            room -= last - at
    return keys


@dataclass(eq=False)
class Arrival:
    """A request before it has a replica."""

    number: int
    time: float  # milliseconds since the trace began
    prompt: Rope
    reply: Rope
    session: int
    _keys: dict[int, list[int]] = field(default_factory=dict)

    @cached_property
    def tokens(self) -> Tokens:
        """The prompt, token by token."""
        return tuple(self.prompt)

    def keys(self, unit: int) -> list[int]:
        """Keys of the prompt's whole units."""
        if unit not in self._keys:
            self._keys[unit] = prefix_keys(self.prompt, unit)
        return self._keys[unit]


class Replica(ABC):
    """A replica, as far as a router can see it."""

    number: int
    alive: bool = True
    load: int = 0  # requests sent and not answered
    waiting: int = 0  # of these: no part of their prompt has run

    @cached_property
    @abstractmethod
    def unit(self) -> int:
        """Tokens of a block; 1 where the server has none."""

    @cached_property
    @abstractmethod
    def blocks(self) -> int:
        """The number of its blocks; 0 if not reported."""

    @abstractmethod
    def usage(self) -> float | None:
        """The share of its memory that running requests hold; None if not reported."""

    @abstractmethod
    def peek(self, arrival: Arrival) -> int | None:
        """Tokens that it would reuse now; only an oracle may ask."""


# -- the router ------------------------------------------------------------------------------------


class Dispatcher(ABC):
    """A running router."""

    needs_events: ClassVar[bool] = False

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas

    @abstractmethod
    def choose(self, arrival: Arrival) -> int:
        """The replica of a request; at least one is alive."""

    def alive(self) -> list[Replica]:
        """The replicas that take requests, by number."""
        return [replica for replica in self.replicas if replica.alive]

    def least_loaded(self) -> Replica:
        """The replica with the fewest requests; of several the first."""
        return min(self.alive(), key=lambda replica: replica.load)

    def prefilled(self, arrival: Arrival, replica: int) -> None:
        """The whole prompt has run."""
        del arrival, replica  # most routers do not count

    def finished(self, arrival: Arrival, replica: int) -> None:
        """The reply is complete, or the request has ended without one."""
        del arrival, replica

    def stored(self, replica: int, keys: Sequence[int], time: float) -> None:
        """Blocks can be reused from now on."""
        del replica, keys, time  # most routers hear no events

    def removed(self, replica: int, keys: Sequence[int], time: float) -> None:
        """Blocks are gone."""
        del replica, keys, time

    def left(self, replica: int) -> None:
        """A replica takes no further requests."""
        del replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Router(ABC):
    """The rules of a router."""

    name: ClassVar[str]
    follows: ClassVar[str]  # the source and its release
    apart: ClassVar[bool] = True  # on idle replicas it decides by the requests alone

    def check(self) -> None:
        """Raise RouterError for a rule out of range."""
        return

    @abstractmethod
    def start(self, replicas: Sequence[Replica]) -> Dispatcher:
        """The router in front of these replicas."""

    def as_text(self) -> str:
        """The router as a user writes it: the rules with another value than the default."""
        changed = [
            f"{field.name}={value}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        ]
        return ",".join([self.name, *changed])


def in_range(name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Raise RouterError for a rule out of range; a value that is no number is out of it."""
    if not low <= value <= high:
        limits = f"from {low:g}" if high == float("inf") else f"from {low:g} to {high:g}"
        raise RouterError(f"router rule {name} is {value}; write a number {limits}")


def one_of(tied: Sequence[int], rng: random.Random) -> int:
    """A replica among equals; upstream draws it."""
    return tied[0] if len(tied) == 1 else tied[rng.randrange(len(tied))]


# -- sessions --------------------------------------------------------------------------------------


class Sessions:
    """The conversation of each request; traces do not name them.

        turn 1   | a | b | c..          its last whole block is b
        turn 2   | a | b | d | e | f..  continues it, since it has b; e is the last block now

    A request continues the newest conversation whose whole blocks it repeats, and else begins one.
    """

    def __init__(self, most: int) -> None:
        self._last: dict[int, int] = {}  # last whole block -> conversation
        self._count = 0
        self._most = most

    def of(self, blocks: Sequence[int], last: int | None) -> int:
        """The conversation of a request; `last` is its own last whole block, with its reply."""
        session = next(self._found(blocks), None)
        if session is None:
            session, self._count = self._count, self._count + 1
        if last is not None:
            self._last.pop(last, None)
            self._last[last] = session
            while len(self._last) > self._most:
                del self._last[next(iter(self._last))]
        return session

    def _found(self, blocks: Sequence[int]) -> Iterator[int]:
        for block in reversed(blocks):
            if block in self._last:
                yield self._last.pop(block)
                return
