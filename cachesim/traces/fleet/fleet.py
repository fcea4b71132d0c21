"""A fleet as users write it: replicas, a router with its rules, changes.

2:num_gpu_blocks_override=150                replica 2 has a smaller pool
4-7:sglang@0.5.23,max_total_tokens=32000     four replicas are another server, with its own flags

die:2@600    at 600 s of the trace replica 2 is gone, with its cache and its requests
drain:2@600  it takes no further requests, and finishes those that it has
join:2@900   it is there from 900 s on, with an empty cache
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias, cast

from cachesim.traces.fleet import plain
from cachesim.traces.fleet.cache_aware import CacheAware
from cachesim.traces.fleet.dynamo import Dynamo
from cachesim.traces.fleet.gateway import Gateway
from cachesim.traces.fleet.router import Router, RouterError

OTHERS: Final = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?:(.+)")


@dataclass(frozen=True, slots=True)
class Other:
    """Replicas with a profile or flags of their own."""

    first: int
    last: int
    profile: str  # empty: that of the fleet, whose flags hold too
    options: tuple[tuple[str, Any], ...]
    text: str  # as a user writes it

    @property
    def numbers(self) -> range:
        """The replicas."""
        return range(self.first, self.last + 1)


def others_of(texts: Sequence[str], replicas: int) -> tuple[Other, ...]:
    """Replicas that differ; each is named once."""
    others: list[Other] = []
    for text in texts:
        read = OTHERS.fullmatch(text)
        if read is None:
            raise RouterError(
                f"replica {text!r} cannot be read; write 2:num_gpu_blocks_override=150 or "
                "4-7:sglang@0.5.23,max_total_tokens=32000"
            )
        first, last = int(read[1]), int(read[2] or read[1])
        if not first <= last < replicas:
            msg = f"replica {text!r}: replicas are 0 to {replicas - 1}, the lower number first"
            raise RouterError(msg)
        parts = [part.strip() for part in read[3].split(",")]
        profile = "" if "=" in parts[0] else parts.pop(0)
        other = Other(first, last, profile, tuple(_flag(text, part) for part in parts), text)
        for before in others:
            if twice := set(before.numbers) & set(other.numbers):
                msg = f"replica {min(twice)} is in {before.text!r} and in {text!r}; name it once"
                raise RouterError(msg)
        others.append(other)
    return tuple(others)


def _flag(text: str, flag: str) -> tuple[str, Any]:
    name, _, value = (part.strip() for part in flag.partition("="))
    if not name.isidentifier() or not value:
        raise RouterError(f"replica {text!r}: {flag!r} is no flag; write NAME=VALUE")
    try:
        return name, tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return name, value  # a shell takes the quotes of a string away


What: TypeAlias = Literal["die", "drain", "join"]

CHANGES: Final = re.compile(r"(die|drain|join):(\d{1,4})@(\d{1,9}(?:\.\d{1,6})?)")


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A change of a replica, at a time in seconds of the trace."""

    time: float
    replica: int
    what: What

    def as_text(self) -> str:
        """The change as a user writes it."""
        return f"{self.what}:{self.replica}@{self.time:g}"


def changes_of(texts: Sequence[str], replicas: int) -> tuple[Change, ...]:
    """Changes in the order of their times; a replica that joins first is not there before."""
    changes = []
    for text in texts:
        read = CHANGES.fullmatch(text)
        if read is None:
            msg = f"change {text!r} is none; write die:2@600, drain:2@600 or join:2@600 (seconds)"
            raise RouterError(msg)
        if int(read[2]) >= replicas:
            msg = f"change {text!r}: there is no replica {read[2]}; they are 0 to {replicas - 1}"
            raise RouterError(msg)
        changes.append(Change(float(read[3]), int(read[2]), cast("What", read[1])))
    return tuple(sorted(changes))


ROUTERS: Final[Mapping[str, type[Router]]] = {
    router.name: router
    for router in (
        plain.RoundRobin,
        plain.Random,
        plain.LeastLoaded,
        plain.Sticky,
        plain.BoundedHash,
        CacheAware,
        Dynamo,
        Gateway,
        plain.Oracle,
    )
}
"""All routers, by name."""

MOST_REPLICAS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas with a router."""

    replicas: int
    router: Router
    changes: tuple[Change, ...] = ()
    others: tuple[Other, ...] = ()  # replicas that differ
    parts: int = 1  # processes among which the replicas are divided
    part: int | None = None  # one of them; all if None

    @classmethod
    def of(
        cls,
        replicas: int,
        router: str,
        changes: Sequence[str] = (),
        others: Sequence[str] = (),
        parts: int = 1,
    ) -> "Fleet":
        """A fleet with checked parts."""
        if isinstance(replicas, bool) or not 1 <= replicas <= MOST_REPLICAS:
            msg = f"replicas is {replicas}; write a whole number from 1 to {MOST_REPLICAS:,}"
            raise RouterError(msg)
        if isinstance(parts, bool) or not 1 <= parts <= replicas:
            msg = f"parts is {parts}; write a whole number from 1 to that of the replicas"
            raise RouterError(msg)
        chosen = router_of(router)
        if parts > 1 and not chosen.apart:
            msg = f"router {router} looks into the replicas, which therefore stay together: parts 1"
            raise RouterError(msg)
        return cls(
            replicas=replicas,
            router=chosen,
            changes=changes_of(changes, replicas),
            others=others_of(others, replicas),
            parts=parts,
        )

    def mine(self, number: int) -> bool:
        """True if a replica is simulated in this part."""
        return self.part is None or number % self.parts == self.part

    def other(self, number: int) -> Other | None:
        """Differences of a replica from the others."""
        return next((group for group in self.others if number in group.numbers), None)

    def as_dict(self) -> dict[str, Any]:
        """The fleet as plain data."""
        return {
            "replicas": self.replicas,
            "router": self.router.as_text(),
            "follows": self.router.follows,
            "changes": [change.as_text() for change in self.changes],
            "others": [other.text for other in self.others],
            "parts": self.parts,
        }


def router_of(text: str) -> Router:
    """Read a router as users write it: `cache-aware,cache_threshold=0.5`."""
    name, *rules = (part.strip() for part in text.split(","))
    if name not in ROUTERS:
        raise RouterError(f"there is no router {name!r}; there are {', '.join(ROUTERS)}")
    kind = ROUTERS[name]
    defaults = {field.name: field.default for field in fields(kind)}
    given = {}
    for rule in rules:
        key, equals, value = rule.partition("=")
        if key not in defaults or not equals:
            has = f"it has {', '.join(defaults)}" if defaults else "it has none"
            raise RouterError(f"router {name} has no rule {rule!r}; {has}; write one as NAME=VALUE")
        given[key] = _value(name, key, value, type(defaults[key]))
    router = kind(**given)
    router.check()
    return router


def _value(name: str, key: str, text: str, kind: type) -> object:
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise RouterError(f"router {name}: {key} is {text!r}; write {what}") from None
